"""Train the built-in model on phantoms only: locator, coarse and fine network, mean templates.

    python lab/networks/make_model.py --device cuda -o OUT [--networks fine]

Where the knees of a phantom lie is known, so the networks are trained with supervision. No real
film is used. Each network is written to OUT as soon as it is trained, so that they can be trained
one at a time: locator.safetensors, coarse.safetensors, fine.safetensors; and synthetic.safetensors,
the model, in which a pose network that is not in OUT is the built-in one.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kneematch.films.annotation import COARSE, FINE, GREEN, PLATEAU_MARGINS, RED, Box
from kneematch.models.cpu_inference import measured_ranges
from kneematch.models.locator import VIEW_SIZE, VIEW_WIDTH
from kneematch.models.model_file import STEPS, Model, builtin_model, load_model, save_model
from kneematch.models.two_stage import (
    WIDE_JITTER,
    PoseJitter,
    corner_distance,
    crop_pose_from,
    jitter_pose,
)
from kneematch.models.weights import quantize_weights, read_safetensors
from kneematch.paper.algorithm2 import ENLARGE
from kneematch.paper.network import INPUT, WIDTH, PoseNetwork, network_input
from kneematch.paper.pose import (
    enlarge_pose,
    pose_from_points,
    pose_from_vector,
    pose_matrix,
    relative_pose,
)
from kneematch.paper.split import HALF_ASPECT
from kneematch.paper.template import Template, Window
from kneematch.sampling import resize, sample
from kneematch.search.robust_energy import normalize_local_contrast
from kneematch.training.recipes import vary_exposures
from locator_training import train_locator, train_one_cycle
from phantom_data import (
    CROP,
    CROP_PLATEAU,
    HEALTHY,
    PhantomData,
    knees_of,
    render_phantoms,
    to_bytes,
)

AVERAGED = 2000  # healthy knees in a mean template
LOCATED_JITTER = PoseJitter(0.22, 0.2, 0.10)  # for knees that the locator found
POSE_NETWORKS = {"coarse": WIDTH, "fine": WIDTH // 2}  # and the widths of their ResNet18
# Reduction of crops to what the detector sees.
VIEW_REDUCTION = round(CROP_PLATEAU * VIEW_WIDTH / VIEW_SIZE[1])
RANGED = 200  # views on which the ranges of activations are measured
SOFT = (0.3, 4.0)  # share of the views of low resolution, and how much lower at most


def main() -> None:
    args = parse_arguments()
    started = time.perf_counter()
    data = render_phantoms(args.films, args.workers, args.seed)
    print(f"{len(data.films)} phantoms in {time.perf_counter() - started:.0f} s", flush=True)
    data = data.to(args.device)
    args.out.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(args.networks):
        torch.manual_seed(args.seed + number)
        if name == "locator":
            locator = train_locator(data, args.locator_steps, args.batch, args.rate, args.seed)
            weights = {key: value.half() for key, value in locator.state_dict().items()}
        else:
            steps = args.steps // 2 if name == "coarse" else args.steps
            weights = train_pose_network(name, views_of(name, data), steps, args).state_dict()
        kept = {key: value.cpu().contiguous() for key, value in weights.items()}
        save_file(kept, args.out / f"{name}.safetensors")
        if name in POSE_NETWORKS:
            save_pose_networks(data, args)


def save_pose_networks(data: PhantomData, args: argparse.Namespace) -> None:
    """Write both pose networks, their templates and the ranges of their activations as a model."""
    built_in = load_model(builtin_model())
    weights = {"coarse": built_in.coarse, "fine": built_in.fine}
    ranges = dict(built_in.ranges)
    generator = torch.Generator(args.device).manual_seed(args.seed)
    for name in POSE_NETWORKS:
        if not (args.out / f"{name}.safetensors").exists():
            continue
        weights[name] = load_file(args.out / f"{name}.safetensors")
        views = views_of(name, data)
        rows = torch.arange(min(RANGED, len(views.images)), device=args.device)
        images, _ = draw_views(views, rows, generator)
        ranges[name] = measured_ranges(weights[name], images[:, 0].cpu())
    row, knee = knees_of(data, data.flags[..., HEALTHY])[:AVERAGED].unbind(1)
    healthy = data.crops[row, knee], data.crop_margins[row, knee]
    model = Model(
        **weights,
        coarse_template=mean_template(*healthy, COARSE),
        fine_template=mean_template(*healthy, FINE),
        settings={"start": "none", "films": f"{len(data.films)} phantoms", "steps": args.steps},
        ranges=ranges,
    )
    save_model(args.out / "synthetic.safetensors", model)
    compact(args.out / "synthetic.safetensors")


def compact(path: Path) -> None:
    """Store convolutions in 8 bits and all else in 16, in a quarter of the space."""
    tensors, metadata = read_safetensors(path)
    stored = {}
    for name, tensor in tensors.items():
        if tensor.ndim == 4:
            stored[name], stored[f"{name}{STEPS}"] = quantize_weights(tensor)
        else:
            stored[name] = tensor.half() if tensor.is_floating_point() else tensor
    save_file(stored, path, metadata)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder for the files")
    parser.add_argument("--films", type=int, default=16_000, help="number of phantoms")
    parser.add_argument(
        "--steps",
        type=int,
        default=4_000,
        help="training steps of the fine network, twice those of the coarse one",
    )
    parser.add_argument("--locator-steps", type=int, default=8_000, help="those of the locator")
    parser.add_argument("--batch", type=int, default=256, help="views per batch")
    parser.add_argument("--rate", type=float, default=1.5e-3, help="peak learning rate")
    parser.add_argument("--networks", nargs="+", default=["locator", *POSE_NETWORKS])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2, help="processes that render phantoms")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def mean_template(crops: Tensor, margins: Tensor, box: Box) -> Template:
    """Return the mean of knees, aligned by their margins and standardised.

    Args:
        crops: (K, 640, 640) bytes.
        margins: (K, 2, 2), medial and lateral end of the plateaus, in the crops' [-1, 1]^2.
        box: what the template shows, in widths of the plateau from its middle.
    """
    x0, y0, x1, y1 = box
    size = round((y1 - y0) * CROP_PLATEAU), round((x1 - x0) * CROP_PLATEAU)
    image, detail = (torch.zeros(size, device=crops.device) for _ in range(2))
    matrices = pose_matrix(pose(margins, box, 1.0), size[0] / size[1], 1.0)
    for part, placed in zip(crops.split(50), matrices.split(50), strict=True):
        pictures = part.float() / 255
        for total, shown in ((image, pictures), (detail, normalize_local_contrast(pictures))):
            patches = sample(shown, placed, size)
            deviation, mean = torch.std_mean(patches, dim=(-2, -1), keepdim=True)
            total += ((patches - mean) / deviation).sum(0) / len(crops)
    landmarks = dict(zip(PLATEAU_MARGINS, map(tuple, margins_in(box).tolist()), strict=True))
    return Template(image, _window(RED, box, size), _window(GREEN, box, size), landmarks, detail)


def pose(margins: Tensor, box: Box, image_aspect: float) -> Tensor:
    """Return the pose (..., 4) of a box around a plateau with margins (..., 2, 2)."""
    return pose_from_points(margins, margins_in(box).to(margins), aspect(box), image_aspect)


def aspect(box: Box) -> float:
    """Return height over width of the template that is cut from a box."""
    x0, y0, x1, y1 = box
    return round((y1 - y0) * CROP_PLATEAU) / round((x1 - x0) * CROP_PLATEAU)


def margins_in(box: Box) -> Tensor:
    """Return the margins (2, 2), half a plateau to either side, in a box's [-1, 1]^2."""
    corner, far = torch.tensor(box[:2]), torch.tensor(box[2:])
    return 2 * (torch.tensor([[-0.5, 0.0], [0.5, 0.0]]) - corner) / (far - corner) - 1


def _window(inner: Box, box: Box, size: tuple[int, int]) -> Window:
    x0, y0, x1, y1 = box
    rows = [round((y - y0) / (y1 - y0) * size[0]) for y in (inner[1], inner[3])]
    columns = [round((x - x0) / (x1 - x0) * size[1]) for x in (inner[0], inner[2])]
    return ..., slice(*rows), slice(*columns)


@dataclass(frozen=True)
class Views:
    """What a pose network is trained on: views of images in which a template's pose is known."""

    images: Tensor  # (K, H, W) bytes
    targets: Tensor  # (K, 4), poses of the template in the images
    frames: Tensor  # (K, 4), poses of the views
    view_aspect: float
    template_aspect: float
    jitter: PoseJitter


def views_of(name: str, data: PhantomData) -> Views:
    """Return what a pose network is trained on."""
    if name == "coarse":
        return coarse_views(data)
    row, knee = knees_of(data).unbind(1)
    return fine_views(data.crops[row, knee], data.crop_margins[row, knee])


def fine_views(crops: Tensor, margins: Tensor) -> Views:
    """Return what the fine network sees: the enlarged coarse box around knees in crops."""
    size = CROP // VIEW_REDUCTION, CROP // VIEW_REDUCTION
    crops = torch.cat([to_bytes(resize(part / 255, size)) for part in crops.split(500)])
    frames = enlarge_pose(pose(margins, COARSE, 1.0), ENLARGE)
    targets = pose(margins, FINE, 1.0)
    return Views(crops, targets, frames, aspect(COARSE), aspect(FINE), LOCATED_JITTER)


def coarse_views(data: PhantomData) -> Views:
    """Return what the coarse network sees: halves of bilateral films."""
    halves, margins = data.halves.flatten(0, 1), data.half_margins.flatten(0, 1)
    targets = pose(margins, COARSE, HALF_ASPECT)
    frames = torch.zeros_like(targets)
    frames[:, 0] = 1
    return Views(halves, targets, frames, HALF_ASPECT, aspect(COARSE), WIDE_JITTER)


def train_pose_network(
    name: str, views: Views, steps: int, args: argparse.Namespace
) -> PoseNetwork:
    """Return a pose network that was trained on random views."""
    device = views.images.device
    network = PoseNetwork(POSE_NETWORKS[name]).to(device, memory_format=torch.channels_last)
    generator = torch.Generator(device).manual_seed(args.seed)

    def losses() -> dict[str, Tensor]:
        rows = torch.randint(len(views.images), (args.batch,), generator=generator, device=device)
        images, wanted = draw_views(views, rows, generator)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            v = network(images)
        found = pose_from_vector(v, views.template_aspect / views.view_aspect)
        distance = corner_distance(found, wanted, views.template_aspect, views.view_aspect)
        return {"distance": distance.mean()}

    train_one_cycle(name, network, steps, args.rate, losses)
    return network


def draw_views(views: Views, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return random views (B, 1, 224, 224) and the template's poses (B, 1, 4) in them."""
    images = views.images[rows][:, None].float() / 255
    image_aspect = images.shape[-2] / images.shape[-1]
    target, frames = views.targets[rows][:, None], views.frames[rows][:, None]
    nominal = relative_pose(frames, target, views.view_aspect, image_aspect)
    ratio = views.template_aspect / views.view_aspect
    wanted = jitter_pose(nominal, ratio, views.jitter, generator)
    frames = crop_pose_from(target, wanted, views.view_aspect, image_aspect)
    drawn = network_input(images, frames, views.view_aspect)
    drawn = lower_resolution(drawn, generator)
    return vary_exposures(drawn, generator), wanted


def lower_resolution(views: Tensor, generator: torch.Generator) -> Tensor:
    """Return views (B, 1, H, W), some of them as if taken from a film of low resolution."""
    share, most = SOFT
    count = round(share * len(views))
    factor = 1 + (most - 1) * float(torch.rand((), generator=generator, device=views.device))
    size = tuple(round(side / factor) for side in INPUT)
    soft = resize(resize(views[:count], size), INPUT)
    return torch.cat([soft, views[count:]])


if __name__ == "__main__":
    main()
