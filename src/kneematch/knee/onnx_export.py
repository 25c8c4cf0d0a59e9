"""Export the networks of the default method to ONNX, with what comes before and after them."""

import json
import os
import warnings
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kneematch import __version__
from kneematch.errors import check_extra
from kneematch.films.files import atomic_write, make_out_folder, refuse_existing, write_file
from kneematch.knee.detector import template_for_views
from kneematch.models import locator, outlines
from kneematch.models.model_file import Model, builtin_model, load_model
from kneematch.models.two_stage import check_consistency, network_solver
from kneematch.paper.energy import paper_problem
from kneematch.paper.pose import pose_matrix
from kneematch.sampling import pixel_grid, resize
from kneematch.search.robust_energy import robust_problem

FILES: Final = ("locator.onnx", "pose.onnx", "outlines.onnx", "run_onnx.py")
OPSET: Final = 18  # version of ONNX's operators
SIZES: Final = {0: "height", 1: "width"}  # axes of a picture of any size

See = Callable[[Tensor], Any]  # from an image (1, 1, height, width)


class LocatorGraph(nn.Module):
    """From a small copy (H, W) of a film to the likeliest knees in it, as `best_cells`."""

    def __init__(self) -> None:
        super().__init__()
        self.network = locator.builtin_locator(precise=True)

    def forward(self, image: Tensor) -> Tensor:
        """Return cells (32, 6)."""
        height, width = image.shape
        padded = F.pad(image[None], (0, -width % 32, 0, -height % 32))
        return locator.best_cells(self.network(locator.prepare_input(padded))[0])


class ViewGraph(nn.Module):
    """From a part (H, W) of a film, and the map (2, 3) of a view into it, to what is seen there."""

    def __init__(self, size: tuple[int, int], see: See, *networks: object) -> None:
        super().__init__()
        self.size, self.see = size, see
        # Weights that are called twice are stored once if they are this module's own.
        self.networks = nn.ModuleList(each for each in networks if isinstance(each, nn.Module))

    def forward(self, part: Tensor, matrix: Tensor) -> Any:
        """Return what `see` returns."""
        grid = pixel_grid(matrix[None], self.size)
        part = part[None, None]
        return self.see(F.grid_sample(part, grid, padding_mode="border", align_corners=False))


def pose_graph(model: Model) -> ViewGraph:
    """Return the graph that finds a model's template in the view (400, 250) of a knee.

    It returns the template's map (2, 3) into the view, and of `Quality` the mismatch, the distance
    from what the network sees in another crop, and whether bright and dark are swapped.
    """
    networks = model.networks(located=True, float32=True)
    template, solve = template_for_views(model.fine_template), network_solver(networks)

    def see(view: Tensor) -> tuple[Tensor, ...]:
        problem = robust_problem(view, template)
        theta = solve(problem)
        area = pose_matrix(theta, template.aspect, problem.image_aspect)
        distance = check_consistency(networks, model.width_ratio, view, theta)
        negative = paper_problem(view, template).match(theta).negative
        return tuple(each[0, 0] for each in (area, problem.losses(theta), distance, negative))

    return ViewGraph(locator.VIEW_SIZE, see, networks.coarse, networks.fine)


def export_onnx(
    folder: str | os.PathLike[str],
    model: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
) -> list[Path]:
    """Write the networks in float32, and a program that runs them without PyTorch; return all.

    Args:
        folder: where to write; made if it is missing.
        model: file written by `kneematch train`. Default: the built-in model.
        force: replace files of an earlier export.

    Raises:
        SettingsError: the package onnx is missing, a file exists, or the model cannot be used.
    """
    check_extra("The export needs onnx", "onnx", "onnx")
    loaded, network = load_model(model or builtin_model()), outlines.load_network()
    make_out_folder(Path(folder))
    paths = [Path(folder) / name for name in FILES]
    for path in paths:
        if path.exists() and not force:
            refuse_existing(path)

    def see(crop: Tensor) -> outlines.BorderEstimate:
        return outlines.locate(network(outlines.standardize(crop[0])))

    joint = ViewGraph(outlines.JOINT_FRAME.size, see, network)
    graphs = (
        (LocatorGraph(), ["knees"]),
        (pose_graph(loaded), ["area", "mismatch", "distance", "negative"]),
        (joint, list(outlines.BorderEstimate._fields)),
    )
    about = {"version": __version__, "landmarks": json.dumps(dict(loaded.fine_template.landmarks))}
    for path, (graph, outputs) in zip(paths, graphs, strict=False):
        write_graph(path, graph, outputs, about)
    write_file(paths[-1], (files("kneematch.knee") / FILES[-1]).read_bytes())
    return paths


@torch.no_grad()
def write_graph(path: Path, graph: nn.Module, outputs: list[str], about: dict[str, str]) -> None:
    """Write a graph whose first input is a picture of any size; `about` becomes its metadata."""
    import onnx

    teach_exporter()
    inputs: tuple[Tensor, ...] = (torch.rand(locator.LONG_SIDES[0], 200),)
    how: dict[str, Any] = {"opset_version": OPSET, "dynamo": False, "output_names": outputs}
    how["training"] = torch.onnx.TrainingMode.PRESERVE  # an exported program has no other
    with atomic_write(path) as temp, warnings.catch_warnings(action="ignore"):
        if isinstance(graph.eval(), LocatorGraph):
            how |= {"input_names": ["image"], "dynamic_axes": {"image": SIZES}}
        else:  # all sizes but that of the part become constants
            inputs, how["input_names"] = (*inputs, torch.eye(3)[:2]), ["part", "matrix"]
            graph = torch.export.export(graph, inputs).module()
        torch.onnx.export(graph, inputs, str(temp), **how)
        written = onnx.load(temp)
        for axis, size in SIZES.items():
            written.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = size
        onnx.helper.set_model_props(written, about)
        onnx.save(written, temp)


def teach_exporter() -> None:
    """Name the operators that PyTorch's exporter does not know."""

    def antialiased(g: Any, images: Any, *_: Any) -> Any:
        both = (each.type().sizes()[-2:] for each in (images, g.original_node.output()))
        (height, width), (rows, columns) = both
        down = resize(torch.eye(height), (rows, height))
        across = resize(torch.eye(width), (width, columns))
        down, across = (g.op("Constant", value_t=each) for each in (down, across))
        return g.op("MatMul", g.op("MatMul", down, images), across)

    def transposed(g: Any, matrices: Any) -> Any:
        last = matrices.type().dim() - 1
        return g.op("Transpose", matrices, perm_i=[*range(last - 1), last, last - 1])

    exporter: Any = torch.onnx
    register = exporter.register_custom_op_symbolic
    register("aten::_upsample_bilinear2d_aa", antialiased, OPSET)
    register("aten::mT", transposed, OPSET)
    register("aten::atanh", lambda g, values: g.op("Atanh", values), OPSET)
