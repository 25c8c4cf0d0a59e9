"""Train the networks that spot and read the markers R and L, on letters drawn on phantoms.

    python lab/networks/make_markers.py -o src/kneematch/models/markers.safetensors

It takes minutes on a CPU. No real film is used. The fonts are those that come with matplotlib and
Pillow. Letters are tilted and turned, stand on plates, in rings, beside initials and figures, and
begin words such as RIGHT and LT. Other signs and words, mirrored letters, a turned L, corners,
polygons, ticks and screws are drawn, too, to be told from them; in a second round, so are the parts
of phantoms that were taken for letters.
"""

import argparse
import string
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw, ImageFilter, ImageFont
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from kneematch.models.markers import (
    FILM_SIDES,
    PATCH,
    REDUCTION,
    STRIDE,
    TURNED,
    marker_networks,
    shrink,
)
from kneematch.sampling import resize
from kneephantoms import render
from kneephantoms.film_plan import plan_film

FIRST_SEED = 50_000_000  # disjoint from those of any test
FINER = 3  # letters are drawn this many times larger and then reduced
SIDE = 2 * FINER * PATCH  # pixels a side of the drawing that a patch is cut from
FONTS = "DejaVuSans DejaVuSans-Bold DejaVuSansMono-Bold DejaVuSerif-Bold cmss10 DejaVuSans-Oblique"
FONTS = (*f"{FONTS} DejaVuSansMono STIXGeneralBol STIXGeneral cmb10 cmtt10".split(), "")  # Pillow's
FONT_WEIGHTS = np.array([4, 5, 1, 1, 3, 1, 1, 1, 0.5, 0.5, 1, 7]) / 26
HEIGHTS = np.log([10, 29])  # capitals, in pixels of a patch
SUFFIXES = ("-UPR", "-WB", "-PA", "-AP", "  PA", " AP", " UPR", "  WB", " KNEE", " LAT", ".", ":")
SIDE_WORDS = {"R": ("RT", "RIGHT", "RT KNEE"), "L": ("LT", "LEFT", "LT KNEE")}
R_L_WORDS = "RED DOT,RED,RESUS,RAO,RPO,REC,RAD,RAW,ROSENBERG,RX,RM,RL,RIP,LAT,LATERAL,LAO,LPO,LP"
R_L_WORDS += ",LEG,LEGS,LENGTH,LL,LR,LM,LONG,LOW,LINE"
OTHER_WORDS = "PORTABLE,SUPINE,STANDING,KNEE,AP,UPRIGHT,UPR,AXIAL,PELVIS,ANKLE,FOOT,12:45,MERCHANT"
OTHER_WORDS += ",PATELLAR,POSTERIOR,HORIZONTAL BEAM,FILM"
LOOK_ALIKES = "PBKFITEJ71CDHUVAXN4"
MISTAKEN = 0.1  # least share of a letter in a part that shows none
OTHER_SIGN = -1  # no letter for the reader, and nothing that the spotter should know
SIGNS = [c for c in string.ascii_letters + string.digits + "+-#%&?/|()[]<" if c not in "RL"]
CAPITALS = list(string.ascii_uppercase + string.digits)

Patch = NDArray[np.float32]  # (PATCH, PATCH) in [0, 1]
Images = NDArray[np.uint8]
Classes = NDArray[np.int64]


class Pose(NamedTuple):
    """Where a drawing lies on a patch."""

    shift: NDArray[np.float64]  # (x, y) from the middle, in pixels
    angle: float
    mirrored: bool = False


@dataclass
class Painter:
    """Draws random patches and what the network should answer."""

    films: list[Patch]  # phantoms without markers
    rng: np.random.Generator

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def patch(self) -> tuple[Images, int]:
        """Return a patch and its class: 0, that of its letter, or OTHER_SIGN."""
        kind, patch, target = self.rng.random(), self.background(), 0
        if kind < 0.12:
            patch = self.with_shape(patch)
        elif kind < 0.15:
            patch = self.beside_letter(patch)
        elif kind < 0.5:
            patch, target = self.with_something_else(patch), OTHER_SIGN
        elif kind < 0.88:
            patch, target = self.with_letter(patch)
        return to_8_bits(self.degrade(patch)), target

    def background(self) -> Patch:
        if self.chance(0.1):
            return np.full((PATCH, PATCH), self.rng.random(), np.float32)
        part = self.part()
        if self.chance(0.15):
            part = np.maximum(part, np.rot90(self.part()))
        if self.chance(0.3):
            part = part.mean() + self.rng.uniform(1, 3) * (part - part.mean())
        return np.asarray(part.clip(0, 1), np.float32)

    def part(self) -> Patch:
        """Cut a part of a phantom, turned by right angles and mirrored."""
        film = self.films[self.rng.integers(len(self.films))]
        coarse = min(int(self.rng.choice([1, 1, 1, 2, 3, 4])), min(film.shape) // PATCH)
        y, x = (self.rng.integers(length - coarse * PATCH + 1) for length in film.shape)
        part = film[y : y + coarse * PATCH : coarse, x : x + coarse * PATCH : coarse]
        part = np.rot90(part, self.rng.choice([0, 0, 1, 2, 3]))
        return part[:, ::-1] if self.chance(0.5) else part

    def with_letter(self, patch: Patch) -> tuple[Patch, int]:
        """Draw an R or L at an angle at which it can be told from mirrored letters."""
        letter, kind = str(self.rng.choice(["R", "L"])), self.rng.random()
        angle = self.rng.normal(0, 4) if kind < 0.5 else self.rng.uniform(-48, 48)
        target = 1 if letter == "R" else 2
        if letter == "R" and kind > 0.85:
            angle, target = self.rng.uniform(72, 288), TURNED
        text, before = letter, ""
        if self.chance(0.15):
            text = str(self.rng.choice(SIDE_WORDS[letter]))
        elif self.chance(0.2):
            suffix = str(self.rng.choice(SUFFIXES))
            text += suffix if self.chance(0.6) else f" {self.rng.integers(100)}"
        if self.chance(0.04):
            before = str(self.rng.choice(["AP  ", "KNEE  ", "PA  ", "1  ", "WB  "]))
        pose, height = (
            Pose(self.rng.uniform(-4.5, 4.5, 2), angle),
            np.exp(self.rng.uniform(*HEIGHTS)),
        )
        return self.draw(patch, before + text, len(before), height, pose), target

    def with_something_else(self, patch: Patch) -> Patch:
        kind, height = self.rng.random(), np.exp(self.rng.uniform(*HEIGHTS))
        angle = self.rng.normal(0, 5) if self.chance(0.5) else self.rng.uniform(-180, 180)
        shift, letter = self.rng.uniform(-6, 6, 2), str(self.rng.choice(["R", "L"]))
        if kind < 0.28:
            signs = list(LOOK_ALIKES) if self.chance(0.6) else SIGNS
            return self.draw(patch, str(self.rng.choice(signs)), 0, height, Pose(shift, angle))
        if kind < 0.42:  # mirrored
            return self.draw(patch, letter, 0, height, Pose(shift, angle, mirrored=True))
        if kind < 0.5:  # turned
            angle = self.rng.choice([90, 180, 270]) + self.rng.uniform(-22, 22)
            return self.draw(patch, "L", 0, height, Pose(shift, angle))
        if kind < 0.92:
            return self.with_word(patch, letter, shift)
        sign = str(self.rng.choice([*"RLEBDFPHKT"]))  # parts of a large one
        return self.draw(patch, sign, 0, self.rng.uniform(40, 90), Pose(5 * shift, angle))

    def beside_letter(self, patch: Patch) -> Patch:
        """Draw an R or L that is not in the middle."""
        letter, way = str(self.rng.choice(["R", "L"])), self.rng.uniform(0, 2 * np.pi)
        shift = self.rng.uniform(12, 24) * np.array([np.cos(way), np.sin(way)])
        height = np.exp(self.rng.uniform(*HEIGHTS))
        return self.draw(patch, letter, 0, height, Pose(shift, self.rng.normal(0, 15)))

    def with_word(self, patch: Patch, letter: str, shift: NDArray[np.float64]) -> Patch:
        """Draw a word whose R and L mark no side, mostly with one of them in the middle."""
        kind, first = self.rng.random(), 0
        words = R_L_WORDS if self.chance(0.65) else OTHER_WORDS
        text = str(self.rng.choice(words.split(",")))
        if kind < 0.25:
            text, at = "".join(self.rng.choice(CAPITALS, 4)), int(self.rng.integers(4))
            text = text[:at] + letter + text[at:]
        elif kind < 0.4:
            text, first = letter + str(self.rng.choice(SUFFIXES[:-2])), 1
        places = [k for k in range(first, len(text)) if text[k] in "RL"]
        if not places or self.chance(0.25):
            places = [k for k in range(first, len(text)) if text[k].isalnum()]
        height = self.rng.uniform(11, 26) if self.chance(0.7) else self.rng.uniform(5, 14)
        angle = self.rng.normal(0, 5) if self.chance(0.7) else self.rng.uniform(-60, 60)
        at = int(self.rng.choice(places))
        return self.draw(patch, text, at, height, Pose(shift, angle, mirrored=self.chance(0.05)))

    def with_shape(self, patch: Patch) -> Patch:
        """Draw a corner, a false L, polygons, a screw or ticks."""
        ink, plate = Image.new("L", (SIDE, SIDE)), Image.new("L", (SIDE, SIDE))
        pen, size = ImageDraw.Draw(ink), FINER * np.exp(self.rng.uniform(*HEIGHTS))
        middle, kind = SIDE / 2, self.rng.random()
        width = int(self.rng.uniform(0.05, 0.3) * size) + 1
        if kind < 0.2:  # its arms leave the patch
            pen.line([middle, middle, middle, 0], 255, width)
            pen.line([middle, middle, SIDE, middle], 255, int(self.rng.uniform(0.5, 2) * width) + 1)
        elif kind < 0.6:
            self.add_false_letter(pen, size, width)
        elif kind < 0.85:
            for _ in range(int(self.rng.choice([1, 1, 2, 3, 4]))):
                angles = np.sort(self.rng.uniform(0, 2 * np.pi, self.rng.integers(3, 8)))
                reach = self.rng.uniform(0.1, 0.8, len(angles)) * size
                ends = middle + np.stack([reach * np.cos(angles), reach * np.sin(angles)], 1)
                ends = ends + self.rng.normal(0, 0.3, 2) * size
                pen.polygon(ends.flatten().tolist(), int(self.rng.choice([0, 255, 255])))
        else:  # a shaft with a thread, or a ruler with ticks
            wide, long = self.rng.uniform(0.5, 2) * width, self.rng.uniform(0.7, 3) * size
            pen.line([middle, middle - long, middle, middle + long], 255, width)
            for y in np.linspace(middle - long, middle + long, int(self.rng.integers(2, 14))):
                left = middle - (wide if kind < 0.92 else 0)
                pen.line([left, y, middle + wide, y], 255, max(1, width // 3))
        if self.chance(0.35):
            self.add_frame(ink, plate, size)
        pose = Pose(self.rng.uniform(-6, 6, 2), self.rng.uniform(-180, 180))
        return self.lay(patch, ink, plate, pose)

    def add_false_letter(self, pen: ImageDraw.ImageDraw, size: float, width: int) -> None:
        """Draw arms that are no L: at another angle, of other widths, curved or with a third."""
        corner, kind = SIDE / 2 + np.array([-0.3, 0.5]) * size, self.rng.random()
        off = self.rng.choice([-1, 1]) * self.rng.uniform(32, 65) if kind < 0.35 else 0
        opening = np.radians(off)
        way = np.array([np.cos(opening), np.sin(opening)])
        foot = corner + self.rng.uniform(0.3, 1.1) * size * way
        wider = self.rng.choice([0.35, 2.5]) if 0.35 < kind < 0.55 else 1.0
        pen.line([*corner, corner[0], corner[1] - size], 255, width)
        if kind > 0.85:
            pen.arc([*(corner - (0, size)), *(corner + np.array([size, 0]))], 60, 180, 255, width)
            return
        pen.line([*corner, *foot], 255, max(1, int(wider * width)))
        if kind > 0.55:
            share, side = self.rng.uniform(0.4, 1), self.rng.choice([-1, 1])
            start = corner - (0, share * size if side > 0 else self.rng.uniform(0, 1) * size)
            reach = np.array([side, self.rng.uniform(-0.6, 0.6)]) * self.rng.uniform(0.4, 1) * size
            pen.line([*start, *(start + reach)], 255, width)

    def draw(self, patch: Patch, text: str, at: int, height: float, pose: Pose) -> Patch:
        """Draw a text, its character `at` in the middle, with or without a plate and neighbours."""
        ink, plate = Image.new("L", (SIDE, SIDE)), Image.new("L", (SIDE, SIDE))
        pen, size = ImageDraw.Draw(ink), FINER * height
        chosen = font(str(self.rng.choice(FONTS, p=FONT_WEIGHTS)), round(size / 0.72))
        left, top, right, bottom = chosen.getbbox(text[at])
        start = SIDE / 2 - (left + right) / 2 - chosen.getlength(text[:at])
        stroke = int(self.rng.uniform(0, 0.07) * size)
        outline = self.chance(0.04) and stroke > 1
        place = start, SIDE / 2 - (top + bottom) / 2
        pen.text(place, text, 0 if outline else 255, chosen, stroke_width=stroke, stroke_fill=255)
        if self.chance(0.04):  # a stencil
            y = SIDE / 2 + self.rng.uniform(-0.5, 0.5) * size
            pen.line([0, y, SIDE, y + self.rng.uniform(-0.5, 0.5) * size], 0, int(0.05 * size) + 1)
        for add, often in self.rng.permutation([(self.add_neighbour, 0.3), (self.add_frame, 0.5)]):
            if self.chance(often):
                add(ink, plate, size)
        return self.lay(patch, ink, plate, pose)

    def lay(self, patch: Patch, ink: Image.Image, plate: Image.Image, pose: Pose) -> Patch:
        """Put a drawing on a patch, turned and a little distorted."""
        turn, aspect = np.radians(pose.angle), self.rng.uniform(0.75, 1.15)
        shear = self.rng.uniform(-0.2, 0.2) if self.chance(0.3) else 0.0
        c, s = np.cos(turn), np.sin(turn)
        forth = np.array([[c, s], [-s, c]]) @ [
            [-aspect if pose.mirrored else aspect, shear],
            [0, 1],
        ]
        back = np.linalg.inv(forth)
        offset = SIDE / 2 - back @ (FINER * (PATCH / 2 + pose.shift))
        data = (*back[0], offset[0], *back[1], offset[1])
        return self.blend(patch, *(warped(layer, data) for layer in (ink, plate)))

    def add_neighbour(self, ink: Image.Image, plate: Image.Image, size: float) -> None:
        """Draw initials, a label, a ball, a ring or an arrow beside what is drawn."""
        pen, (middle, half) = ImageDraw.Draw(ink), extent(ink, plate)
        way = np.array([[0, 1], [0, 1], [1, 0], [-1, 0], [0, -1]])[self.rng.integers(5)]
        small, kind = self.rng.uniform(0.3, 0.7) * size, self.rng.random()
        text = "".join(self.rng.choice(CAPITALS, int(self.rng.integers(1, 5))))
        face = font(str(self.rng.choice(FONTS, p=FONT_WEIGHTS)), round(small / 0.72))
        left, top, right, bottom = face.getbbox(text, anchor="mm")
        reach = np.array([right - left, bottom - top]) / 2 if kind < 0.7 else np.full(2, small / 2)
        centre = middle + way * (half + reach + self.rng.uniform(0.12, 0.5) * size)
        centre = centre + way[::-1] * self.rng.normal(0, 0.2) * size
        corners = [*(centre - reach), *(centre + reach)]
        if kind < 0.2:
            wider = reach + 0.15 * small
            ImageDraw.Draw(plate).rectangle([*(centre - wider), *(centre + wider)], 255)
        if kind < 0.7:
            pen.text(tuple(centre), text, 255, face, anchor="mm")
        elif kind < 0.9:
            width = int(self.rng.uniform(0.05, 0.5) * small)
            pen.ellipse(corners, outline=255, width=width + 1)
        else:
            pen.line([centre[0], corners[1], centre[0], corners[3]], 255, int(0.1 * small) + 1)
            pen.polygon([centre[0], corners[1], corners[0], centre[1], corners[2], centre[1]], 255)

    def add_frame(self, ink: Image.Image, plate: Image.Image, size: float) -> None:
        """Draw a plate or only its edge, a box or a disc, around what is drawn."""
        middle, half = extent(ink, plate)
        reach = half + self.rng.uniform(0.06, 0.5, 2) * size
        disc = bool(half[0] < 1.2 * half[1]) and self.chance(0.45)
        if disc:
            reach = np.full(2, np.linalg.norm(half) + self.rng.uniform(0, 0.3) * size)
        corners = [*(middle - reach), *(middle + reach)]
        kind, width = self.rng.random(), int(self.rng.uniform(0.03, 0.12) * size) + 1
        if kind < 0.6:
            pen = ImageDraw.Draw(ink)
            (pen.ellipse if disc else pen.rectangle)(corners, outline=255, width=width)
        if kind > 0.35:
            pen = ImageDraw.Draw(plate)
            (pen.ellipse if disc else pen.rectangle)(corners, fill=255)

    def blend(self, patch: Patch, ink: Patch, plate: Patch) -> Patch:
        """Put ink on a plate on a patch, brighter or darker than what lies below it."""
        light_plate = self.chance(0.4)
        grey = self.rng.uniform(0.55, 1) if light_plate else self.rng.uniform(0, 0.45)
        plate = plate * (self.rng.uniform(0.4, 1) if self.chance(0.3) else 1.0)
        patch = patch * (1 - plate) + grey * plate
        below = float((patch * ink).sum() / max(ink.sum(), 1e-3))
        least = self.rng.uniform(0.2, 0.45)
        darker = below + least > 1 or (below > least and (plate.max() > 0 or self.chance(0.1)))
        if darker and below > least:
            grey = self.rng.uniform(0, below - least)
        else:
            grey = self.rng.uniform(min(below + least, 0.95), 1)
        return np.asarray(patch * (1 - ink) + grey * ink, np.float32)

    def degrade(self, patch: Patch) -> Patch:
        """Blur, reduce the contrast, invert and add noise, each now and then."""
        if self.chance(0.4):
            picture = Image.fromarray((255 * patch.clip(0, 1)).astype(np.uint8))
            blurred = picture.filter(ImageFilter.GaussianBlur(self.rng.uniform(0.3, 1.1)))
            patch = np.asarray(blurred, np.float32) / 255
        if self.chance(0.5):
            low, high = self.rng.uniform(0, 0.15), self.rng.uniform(0.75, 1)
            patch = low + (high - low) * patch
        if self.chance(0.05):
            patch = 1 - patch
        noise = self.rng.normal(0, self.rng.uniform(0, 0.03), patch.shape)
        return (patch + noise).astype(np.float32)


def to_8_bits(image: Patch) -> Images:
    return np.asarray((255 * image.clip(0, 1)).round(), np.uint8)


def extent(ink: Image.Image, plate: Image.Image) -> tuple[NDArray[np.float64], ...]:
    """Return the centre and half the size (x, y) of what is drawn."""
    box = np.array(ImageChops.lighter(ink, plate).getbbox() or (0, 0, SIDE, SIDE), np.float64)
    return (box[2:] + box[:2]) / 2, (box[2:] - box[:2]) / 2


def warped(layer: Image.Image, data: tuple[float, ...]) -> Patch:
    """Return a drawing as a patch, by an affine map from fine pixels of the patch to it."""
    fine = (FINER * PATCH,) * 2
    turned = layer.transform(fine, Image.Transform.AFFINE, data, Image.Resampling.BILINEAR)
    return np.asarray(turned.reduce(FINER), np.float32) / 255


@lru_cache(2000)
def font(name: str, size: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return (
        ImageFont.truetype(folder / f"{name}.ttf", size) if name else ImageFont.load_default(size)
    )


def phantoms(count: int) -> list[Patch]:
    """Render phantoms of all framings without markers, as large as the reader sees films."""
    films = []
    for seed in range(FIRST_SEED, FIRST_SEED + count):
        plan = plan_film(seed, "any")
        plain = replace(plan, overlays=replace(plan.overlays, markers=()))
        pixels = torch.from_numpy(render(plain))
        for side in (*FILM_SIDES, FILM_SIDES[-1] // 2):
            film = shrink(pixels, side)
            if min(film.shape) >= PATCH:
                films.append(film.numpy())
    return films


def reduced(images: Tensor, reduction: int) -> Tensor:
    """Reduce images (..., H, W) to what the spotter (2) or the reader (1) sees of them."""
    height, width = (length // reduction for length in images.shape[-2:])
    return resize(images, (height, width))


def draw_patches(seed: int, films: int, count: int) -> tuple[Images, Classes]:
    """Draw patches (N, PATCH, PATCH) of 8 bits and their classes (N,)."""
    painter = Painter(phantoms(films), np.random.default_rng(seed))
    drawn = [painter.patch() for _ in range(count)]
    return np.stack([image for image, _ in drawn]), np.array([target for _, target in drawn])


@torch.no_grad()
def mistakes(network: nn.Module, films: list[Images], reduction: int) -> Tensor:
    """Return the parts (N, PATCH, PATCH) of films without letters that are taken for one."""
    found = []
    for film in films:
        pixels = torch.from_numpy(film)
        seen = reduced(pixels / 255, reduction)
        likely = network(seen[None, None].to(next(network.parameters()))).softmax(1)[0, 1:].amax(0)
        for place in (STRIDE * (likely > MISTAKEN).nonzero()).tolist():
            y, x = (min(at, side - PATCH) for at, side in zip(place, film.shape, strict=True))
            found.append(pixels[y : y + PATCH, x : x + PATCH])
    return torch.stack(found)


def train(
    network: nn.Module, images: Tensor, targets: Tensor, reduction: int, args: argparse.Namespace
) -> None:
    """Train on patches (N, PATCH, PATCH) of 8 bits with AdamW and a one-cycle schedule."""
    optimiser = torch.optim.AdamW(network.parameters(), weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, 4e-3, total_steps=args.steps, pct_start=0.1
    )
    network.train()
    for step in range(args.steps):
        rows = torch.randint(len(images), (args.batch,), device=images.device)
        logits = network(reduced(images[rows, None] / 255, reduction))[..., 0, 0]
        loss = nn.functional.cross_entropy(
            logits, targets[rows], ignore_index=OTHER_SIGN, label_smoothing=0.005
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 1000 == 0 or step == args.steps - 1:
            print(f"step {step} loss {loss:.3f}", flush=True)
    network.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True, help="file to write")
    parser.add_argument("--films", type=int, default=100, help="number of phantoms")
    parser.add_argument("--patches", type=int, default=100_000, help="drawn by each process")
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--steps", type=int, default=8_000, help="of each network, in each round")
    parser.add_argument("--batch", type=int, default=768)
    parser.add_argument("--reader", type=Path, help="earlier file: train the spotter only")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.manual_seed(0)
    started = time.perf_counter()
    with ProcessPoolExecutor(args.processes, get_context("spawn")) as pool:
        counts = [[each] * args.processes for each in (args.films, args.patches)]
        drawn = list(pool.map(draw_patches, range(args.processes), *counts))
    images, targets = (
        torch.from_numpy(np.concatenate(each)).to(args.device) for each in zip(*drawn, strict=True)
    )
    films = [to_8_bits(film) for film in phantoms(2 * args.films)]
    print(f"{len(images)} patches in {time.perf_counter() - started:.0f} s", flush=True)
    networks = marker_networks().to(args.device)
    if args.reader:
        networks.load_state_dict(load_file(args.reader))
    for name, reduction in (("reader", 1), ("spotter", REDUCTION)):
        known = targets.clamp(min=0) if name == "reader" else targets
        seen, classes = images, known
        for _ in range(0 if name == "reader" and args.reader else 2):
            train(networks[name], seen, classes, reduction, args)
            mistaken = mistakes(networks[name], films, reduction).to(args.device)
            seconds = time.perf_counter() - started
            print(f"{name}: {len(mistaken)} mistakes, {seconds:.0f} s", flush=True)
            again = mistaken[torch.randint(len(mistaken), (len(images) // 5,))]
            again = torch.cat([part.rot90(k, (1, 2)) for k, part in enumerate(again.chunk(4))])
            seen, classes = torch.cat([images, again]), nn.functional.pad(known, (0, len(again)))
            weights = {key: each.half().cpu() for key, each in networks.state_dict().items()}
            save_file(weights, args.out, {"format": "kneematch-markers/3"})


if __name__ == "__main__":
    main()
