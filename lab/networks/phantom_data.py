"""Render phantoms for training: small films, crops around each knee, and halves of some films."""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from multiprocessing import get_context

import torch
from torch import Tensor

from kneematch.films.radiograph import Radiograph
from kneematch.knee.knee_images import SIDE_MARGIN, film_tensor
from kneematch.paper.split import HALF_SIZE, split
from kneematch.sampling import resize, resize_part, transform
from kneephantoms import Knee, render, true_knees
from kneephantoms.film_plan import plan_film

FIRST_SEED = 10_000_000  # disjoint from those of any test
FRAMINGS = {  # share of the films
    "bilateral": 0.46,
    "single": 0.16,
    "full_leg": 0.08,
    "offcentre": 0.08,
    "lateral": 0.08,
    "other": 0.14,
}
FILM = 768  # long side of the small films
CROP = 640  # side of a crop around a knee
CROP_PLATEAU = 200  # plateau width in a crop, in pixels: as in the views that the detector cuts
KNEES = 2  # most knees of a film
HIGHEST_GRADE = 1  # highest grade of the knees in the mean templates
METAL = 0  # column of `flags`
HEALTHY = 1


@dataclass(frozen=True, eq=False)
class PhantomData:
    """N films; a film with fewer than two knees, or one that is not bilateral, leaves zeros."""

    films: Tensor  # (N, 768, 768) bytes, in the upper left corner, its long side 768
    sizes: Tensor  # (N, 2), height and width of the film in there
    margins: Tensor  # (N, 2, 2, 2), lateral and medial end (x, y) of each plateau there
    count: Tensor  # (N,), number of knees
    flags: Tensor  # (N, 2, 2) bool: metal, healthy
    crops: Tensor  # (N, 2, 640, 640) bytes, lateral side to the right
    crop_margins: Tensor  # (N, 2, 2, 2), medial and lateral end (x, y), in a crop's [-1, 1]^2
    halves: Tensor  # (B, 2, 800, 500) bytes, of the bilateral films that come first
    half_margins: Tensor  # (B, 2, 2, 2), medial and lateral end in a half's [-1, 1]^2

    def to(self, device: str) -> "PhantomData":
        """Return the data on a device."""
        return PhantomData(*(getattr(self, each.name).to(device) for each in fields(self)))


def empty(count: int, bilateral: int) -> PhantomData:
    """Return memory that worker processes share."""
    byte, real = torch.uint8, torch.float32
    shapes = (
        ((count, FILM, FILM), byte),
        ((count, 2), real),
        ((count, KNEES, 2, 2), real),
        ((count,), torch.int64),
        ((count, KNEES, 2), torch.bool),
        ((count, KNEES, CROP, CROP), byte),
        ((count, KNEES, 2, 2), real),
        ((bilateral, 2, *HALF_SIZE), byte),
        ((bilateral, 2, 2, 2), real),
    )
    return PhantomData(*(torch.zeros(shape, dtype=kind).share_memory_() for shape, kind in shapes))


def framings(count: int) -> list[str]:
    """Return the framing of every film, the bilateral ones first."""
    return [name for name, share in FRAMINGS.items() for _ in range(round(share * count))]


shared: PhantomData  # in worker processes


def render_phantoms(count: int, workers: int, seed: int) -> PhantomData:
    """Render films in worker processes."""
    global shared
    kinds = framings(count)
    shared = empty(len(kinds), kinds.count("bilateral"))
    jobs = [(row, FIRST_SEED + 1_000_000 * seed + row, kind) for row, kind in enumerate(kinds)]
    order = torch.randperm(len(jobs), generator=torch.Generator().manual_seed(0)).tolist()
    with ProcessPoolExecutor(
        workers, get_context("fork"), torch.set_num_threads, initargs=(1,)
    ) as pool:
        for _ in pool.map(render_phantom, [jobs[k] for k in order], chunksize=16):
            pass
    return shared


def render_phantom(job: tuple[int, int, str]) -> None:
    """Render one film into its row of the shared memory."""
    row, seed, framing = job
    plan = plan_film(seed, framing=framing)
    film, knees = torch.from_numpy(render(plan)), true_knees(plan)
    height, width = film.shape
    factor = FILM / max(height, width)
    size = round(height * factor), round(width * factor)
    shared.films[row, : size[0], : size[1]] = to_bytes(resize(film, size))
    shared.sizes[row] = torch.tensor(size)
    shared.count[row] = len(knees)
    for place, knee in enumerate(knees):
        ends = torch.tensor([knee.plateau_lateral, knee.plateau_medial])
        shared.margins[row, place] = ends * factor
        plain = not plan.negative and not knee.implant
        shared.flags[row, place, METAL] = bool(knee.implant)
        shared.flags[row, place, HEALTHY] = plain and knee.grade <= HIGHEST_GRADE
        crop, margins = crop_around(film, knee)
        shared.crops[row, place] = to_bytes(crop)
        shared.crop_margins[row, place] = margins
    if framing == "bilateral":
        halves = split(film_tensor(Radiograph(pixels=film.numpy())), side_margin=SIDE_MARGIN)
        shared.halves[row] = to_bytes(halves.pixels)
        for side, knee in enumerate(knees):
            ends = torch.tensor([knee.plateau_medial, knee.plateau_lateral]).double()
            to_half = torch.linalg.inv(halves.to_film[side])
            shared.half_margins[row, side] = transform(to_half, ends).float()


def crop_around(film: Tensor, knee: Knee) -> tuple[Tensor, Tensor]:
    """Return the crop (640, 640) around a knee, and its medial and lateral margin in [-1, 1]^2."""
    ends = torch.tensor([knee.plateau_medial, knee.plateau_lateral])  # (2, 2)
    (x, y), plateau = ends.mean(0).tolist(), float((ends[1] - ends[0]).norm())
    reach = CROP / CROP_PLATEAU / 2 * plateau
    x0, x1, y0, y1 = round(x - reach), round(x + reach), round(y - reach), round(y + reach)
    crop = resize_part(film, (y0, y1), (x0, x1), (CROP, CROP))
    origin, extent = torch.tensor([x0, y0]), torch.tensor([x1 - x0, y1 - y0])
    margins = 2 * (ends - origin) / extent - 1
    if ends[1, 0] < ends[0, 0]:  # the lateral side points to the left
        crop, margins = crop.flip(1), margins * torch.tensor([-1.0, 1.0])
    return crop, margins


def to_bytes(images: Tensor) -> Tensor:
    """Return images in [0, 1] as bytes."""
    return (images.clamp(0, 1) * 255).round().byte()


def knees_of(data: PhantomData, wanted: Tensor | None = None) -> Tensor:
    """Return (row, knee), (K, 2), of all knees, or of those where `wanted` (N, 2) holds."""
    exists = torch.arange(KNEES, device=data.count.device) < data.count[:, None]
    return (exists if wanted is None else exists & wanted).nonzero()
