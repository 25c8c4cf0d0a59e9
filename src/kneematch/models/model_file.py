"""The model file: both networks, both templates and the training settings, as safetensors."""

import json
import math
import operator
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save
from torch import Tensor

from kneematch import __version__
from kneematch.errors import SettingsError
from kneematch.films.annotation import PLATEAU_MARGINS, find_plateau_margins
from kneematch.films.files import write_file
from kneematch.films.radiograph import Point
from kneematch.models.cpu_inference import WEIGHT_MAX, Ranges, cpu_network, quantize_weights
from kneematch.models.locator import VIEW_WIDTH
from kneematch.models.two_stage import ENLARGE, Network, TwoStageNetworks
from kneematch.models.weights import read_safetensors
from kneematch.paper.network import (
    FIRST,
    WIDTH,
    Weights,
    network_from_weights,
    weight_shapes,
)
from kneematch.paper.pose import enlarge_pose, pose_from_points
from kneematch.paper.split import HALF_ASPECT
from kneematch.paper.template import Template, Window

FORMAT: Final = "kneematch-model/2"
READABLE: Final = ("kneematch-model/1", FORMAT)
STEPS: Final = ".steps"  # ends the name of the sizes of 8-bit steps, one per output channel
OLD_MARGINS: Final = {"plateau_left", "plateau_right"}  # landmarks' names in models of version 0.1
SHIPPED: Final = "synthetic.safetensors"  # beside this file
PHASES: Final = ("coarse", "fine")


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A trained model: the weights of both networks and the templates that they find."""

    coarse: Weights
    fine: Weights
    coarse_template: Template
    fine_template: Template
    settings: Mapping[str, Any] = field(default_factory=dict)  # JSON: how it was trained
    ranges: Mapping[str, Ranges] = field(default_factory=dict)  # of activations, by network

    def networks(self, device: str = "cpu", *, located: bool = False) -> TwoStageNetworks:
        """Return the networks for inference on a device.

        Args:
            device: where they run.
            located: they are given views of located knees instead of halves.
        """

        def network(phase: str) -> Network:
            weights = getattr(self, phase)
            if device == "cpu":
                return cpu_network(weights, self.ranges.get(phase))
            return network_from_weights(weights).to(device)

        aspects = self.coarse_template.aspect, self.fine_template.aspect
        frame = self._located_frame() if located else None
        if frame is not None:
            return TwoStageNetworks(frame.to(device), network("fine"), *aspects)
        return TwoStageNetworks(network("coarse"), network("fine"), *aspects)

    def _located_frame(self) -> Tensor | None:
        """Return the pose (4,) of the fine network's view in the view of a located knee.

        There the plateau's margins are in place, so that the coarse network is not needed if the
        template has both; None if not.
        """
        landmarks = find_plateau_margins(self.coarse_template.landmarks)
        if landmarks is None:
            return None
        margins = torch.tensor([[-1.0, 0.0], [1.0, 0.0]]) / VIEW_WIDTH
        points, aspect = torch.tensor(landmarks), self.coarse_template.aspect
        pose = pose_from_points(margins, points, aspect, HALF_ASPECT)
        return enlarge_pose(pose, ENLARGE)


def builtin_model() -> Path:
    """Return the path of the model that is installed with kneematch."""
    return Path(str(files("kneematch.models") / SHIPPED))


def save_model(path: str | os.PathLike[str], model: Model, *, compact: bool = False) -> None:
    """Write a model; a compact one has 8-bit convolutions and is a quarter as large."""
    tensors: dict[str, Tensor] = {}
    templates = {}
    for phase in PHASES:
        for name, tensor in getattr(model, phase).items():
            tensors |= _stored(f"{phase}.{name}", tensor.cpu(), compact=compact)
        template: Template = getattr(model, f"{phase}_template")
        for kind, image in (("image", template.image), ("detail", template.local_contrast)):
            tensors |= _stored(f"{phase}_template.{kind}", image.cpu(), compact=compact)
        templates[phase] = {
            "red": _corners(template.red),
            "green": _corners(template.green),
            "landmarks": dict(template.landmarks),
        }
    about = {
        "version": __version__,
        "templates": templates,
        "settings": dict(model.settings),
        "ranges": model.ranges,
    }
    write_file(path, save(tensors, {"format": FORMAT, "about": json.dumps(about)}))


def _stored(name: str, tensor: Tensor, *, compact: bool) -> dict[str, Tensor]:
    """Return a tensor as it is written: compact, convolutions in 8 bits, the rest in 16."""
    tensor = tensor.contiguous()
    if not compact or not tensor.is_floating_point():
        return {name: tensor}
    if tensor.ndim != 4:
        return {name: tensor.half()}
    levels, steps = quantize_weights(tensor)
    return {name: levels, f"{name}{STEPS}": steps}


def load_model(path: str | os.PathLike[str]) -> Model:
    """Read a model; its weights are on the CPU.

    Raises:
        SettingsError: the file is missing, is not a kneematch model, or holds unusable values.
    """
    tensors, metadata = read_safetensors(path)
    if metadata.get("format") not in READABLE:
        raise SettingsError(
            f"{path}: not a model of kneematch (format {metadata.get('format')!r}); expected "
            f"{FORMAT!r}; give a file that 'kneematch train' has written"
        )
    try:
        about = json.loads(metadata["about"])
        coarse, fine = (_weights(tensors, phase) for phase in PHASES)
        one, two = (_template(tensors, about["templates"][phase], phase) for phase in PHASES)
        settings, ranges = dict(about["settings"]), dict(about.get("ranges", {}))
        return Model(coarse, fine, one, two, settings, ranges)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        found = f"no {error}" if isinstance(error, KeyError) else error
        raise SettingsError(
            f"{path}: not a usable model ({found}); expected one that 'kneematch train' has "
            "written; train it again"
        ) from error


class StoredWeights(Mapping[str, Tensor]):
    """The weights of one network as a file holds them; each is made float32 when it is used.

    A model holds two networks, and most films need only one.
    """

    def __init__(self, tensors: Mapping[str, Tensor], phase: str, names: Iterable[str]) -> None:
        self._tensors, self._phase, self._names = tensors, phase, tuple(names)

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._tensors[f"{self._phase}.{name}"]
        if tensor.dtype == torch.int8:
            return tensor * self._tensors[f"{self._phase}.{name}{STEPS}"][:, None, None, None]
        return tensor.float() if tensor.is_floating_point() else tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _weights(tensors: Mapping[str, Tensor], phase: str) -> Weights:
    """Return the weights of one network, if they are complete and finite."""
    width = len(tensors[f"{phase}.{FIRST}"])
    if width not in range(1, WIDTH + 1):
        raise ValueError(f"{phase}.{FIRST} has {width} channels instead of 1 to {WIDTH}")
    shapes = weight_shapes(width)
    for name, shape in shapes.items():
        tensor, label = tensors[f"{phase}.{name}"], f"{phase}.{name}"
        if tensor.shape != shape:
            found = tuple(tensor.shape)
            raise ValueError(f"{label} has shape {found} instead of {tuple(shape)}")
        if tensor.dtype == torch.int8:
            steps = tensors[f"{label}{STEPS}"]
            if steps.shape != (len(tensor),) or not steps.is_floating_point() or tensor.ndim != 4:
                raise ValueError(f"{label} has steps that do not fit")
            tensor = WEIGHT_MAX * steps
        _finite(tensor, label)
    return StoredWeights(tensors, phase, shapes)


def _finite(tensor: Tensor, name: str) -> Tensor:
    """Return a tensor in float32, or as it is if it holds integers."""
    if not tensor.is_floating_point():
        return tensor
    tensor = tensor.float()
    if not tensor.sum().isfinite():  # several times faster than to look at each element
        raise ValueError(f"{name} holds NaN or infinity")
    return tensor


def _template(tensors: Mapping[str, Tensor], about: Mapping[str, Any], phase: str) -> Template:
    image, detail = (
        _finite(tensors[f"{phase}_template.{kind}"], f"{phase}_template.{kind}")
        for kind in ("image", "detail")
    )
    if image.ndim != 2 or image.shape != detail.shape:
        raise ValueError(f"the {phase} template is not an image")
    red, green = (_window(about[name], image) for name in ("red", "green"))
    if any(part.min() == part.max() for part in (image, image[red], image[green], detail)):
        raise ValueError(f"the {phase} template shows a single grey")
    landmarks = {name: (float(x), float(y)) for name, (x, y) in about["landmarks"].items()}
    if not all(math.isfinite(x) and math.isfinite(y) for x, y in landmarks.values()):
        raise ValueError(f"a landmark of the {phase} template is not a point")
    return Template(image, detail, red=red, green=green, landmarks=_renamed(landmarks))


def _renamed(landmarks: dict[str, Point]) -> dict[str, Point]:
    """Call a plateau's left and right margin medial and lateral.

    A template's lateral side points to its right, also where it was drawn in a left half.
    """
    if not set(landmarks) >= OLD_MARGINS:
        return landmarks
    others = {name: point for name, point in landmarks.items() if name not in OLD_MARGINS}
    points = sorted(landmarks[name] for name in OLD_MARGINS)
    return dict(zip(PLATEAU_MARGINS, points, strict=True)) | others


def _corners(window: Window) -> list[int]:
    _, rows, columns = window
    return [rows.start, rows.stop, columns.start, columns.stop]


def _window(corners: list[int], image: Tensor) -> Window:
    top, bottom, left, right = (operator.index(corner) for corner in corners)
    height, width = image.shape
    if not (0 <= top < bottom <= height and 0 <= left < right <= width):
        raise ValueError(f"window {corners} leaves its template of {height} x {width} pixels")
    return ..., slice(top, bottom), slice(left, right)
