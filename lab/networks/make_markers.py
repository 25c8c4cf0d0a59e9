"""Train the networks that spot and read the markers R and L, on letters drawn on phantoms.

    python lab/networks/make_markers.py -o src/kneematch/models/markers.safetensors

It takes minutes on a CPU. No real film is used. The fonts are those that come with matplotlib and
Pillow. Other signs, words, mirrored and turned letters, corners and polygons are drawn, too, to be
told from letters; in a second round, so are the parts of phantoms that were taken for letters.
"""

import argparse
import string
import time
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import matplotlib
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from safetensors.torch import save_file
from torch import Tensor, nn

from kneematch.models.markers import (
    FILM_PX,
    LETTERS,
    PATCH,
    REDUCTION,
    STRIDE,
    marker_networks,
    shrink,
)
from kneematch.sampling import resize
from kneephantoms import render
from kneephantoms.film_plan import plan_film

FIRST_SEED = 50_000_000  # disjoint from those of any test
FINER = 3  # letters are drawn this many times larger and then reduced
FONTS = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono-Bold", "DejaVuSerif-Bold")
FONTS += ("STIXGeneralBol", "cmss10", "cmb10", "")  # the last one is Pillow's own
FONT_WEIGHTS = np.array([4, 4, 1, 1, 1, 2, 1, 6]) / 20
SIGNS = [c for c in string.ascii_letters + string.digits + "+-#%&?/|()[]" if c not in LETTERS]
WORDS = ("KNEE", "Knee", "AP", "PA", "RE", "LI", "LT", "RT", "STANDING", "12:45", "kV", "LL", "EL")
STYLES = ("plain", "light box", "dark box")

Patch = NDArray[np.float32]  # (PATCH, PATCH) in [0, 1]


@dataclass
class Painter:
    """Draws random patches and what the network should answer."""

    films: list[Patch]  # phantoms without markers
    rng: np.random.Generator
    mistaken: list[Patch] = field(default_factory=list)  # parts of them that were taken for letters

    def patch(self) -> tuple[Patch, int]:
        """Return a patch and its class: 0, or 1 + the index of its letter."""
        kind, patch = self.rng.random(), self.background()
        if kind < 0.3:
            target = 0
            if self.mistaken and self.rng.random() < 0.8:
                patch = self.mistaken[self.rng.integers(len(self.mistaken))]
        elif kind < 0.65:
            patch, target = self.with_something_else(patch), 0
        else:
            target = 1 + int(self.rng.integers(len(LETTERS)))
            letter = self.text(LETTERS[target - 1], self.rng.uniform(11, 34))
            patch = self.paste(patch, letter, self.rng.uniform(-4.5, 4.5, 2))
        return self.degrade(patch), target

    def background(self) -> Patch:
        if self.rng.random() < 0.1:
            return np.full((PATCH, PATCH), self.rng.random(), np.float32)
        film = self.films[self.rng.integers(len(self.films))]
        y, x = (self.rng.integers(length - PATCH + 1) for length in film.shape)
        part = film[y : y + PATCH, x : x + PATCH]
        return part[:, ::-1] if self.rng.random() < 0.5 else part

    def with_something_else(self, patch: Patch) -> Patch:
        kind, height = self.rng.random(), self.rng.uniform(11, 34)
        if kind < 0.4:
            sign = self.text(str(self.rng.choice(SIGNS)), height)
            return self.paste(patch, sign, self.rng.uniform(-8, 8, 2))
        if kind < 0.55:
            letter = self.text(str(self.rng.choice(LETTERS)), height)
            turns = list(Image.Transpose)  # mirrored and turned
            turned = letter.transpose(turns[self.rng.integers(len(turns))])
            return self.paste(patch, turned, self.rng.uniform(-6, 6, 2))
        if kind < 0.66:
            word = self.text(str(self.rng.choice(WORDS)), self.rng.uniform(6, 24))
            return self.paste(patch, word, self.rng.uniform(-14, 14, 2))
        if kind < 0.76:  # a letter that is not in the middle
            letter = self.text(str(self.rng.choice(LETTERS)), height)
            angle = self.rng.uniform(0, 2 * np.pi)
            shift = self.rng.uniform(12, 24) * np.array([np.cos(angle), np.sin(angle)])
            return self.paste(patch, letter, shift)
        return self.with_shape(patch)

    def with_shape(self, patch: Patch) -> Patch:
        """Draw a corner whose arms leave the patch, or a polygon as of an implant."""
        picture = Image.fromarray((255 * patch).astype(np.uint8))
        draw, grey = ImageDraw.Draw(picture), int(self.rng.integers(120, 256))
        x, y = self.rng.uniform(8, 33, 2)
        if self.rng.random() < 0.45:
            width, far = int(self.rng.integers(1, 9)), self.rng.integers(0, 2, 2) * PATCH
            draw.line([x, y, x, far[1]], fill=grey, width=width)
            draw.line([x, y, far[0], y], fill=grey, width=width)
        else:
            angles = np.sort(self.rng.uniform(0, 2 * np.pi, self.rng.integers(3, 8)))
            reach = self.rng.uniform(4, 22, len(angles))
            ends = np.stack([x + reach * np.cos(angles), y + reach * np.sin(angles)], 1)
            draw.polygon([tuple(end) for end in ends.tolist()], fill=grey)
        return np.asarray(picture, np.float32) / 255

    def text(self, text: str, height: float) -> Image.Image:
        """Draw a text, capitals of a height in pixels of a patch, white on black, FINER times."""
        chosen = font(self.rng.choice(FONTS, p=FONT_WEIGHTS), round(FINER * height / 0.72))
        picture = Image.new("L", (1200, 300))
        thicker = int(self.rng.integers(0, max(1, int(0.05 * FINER * height))))
        ImageDraw.Draw(picture).text(
            (600, 150), text, font=chosen, fill=255, stroke_width=thicker, anchor="mm"
        )
        picture = picture.crop(picture.getbbox())
        width = max(2, round(self.rng.uniform(0.8, 1.2) * picture.width))
        picture = picture.resize((width, picture.height))
        return picture.rotate(self.rng.normal(0, 3), Image.Resampling.BILINEAR, expand=True)

    def paste(self, patch: Patch, text: Image.Image, shift: NDArray[np.float64]) -> Patch:
        """Put a text on a patch, its centre shifted from the patch's, with or without a box."""
        large = Image.new("L", (FINER * PATCH,) * 2)
        centre = FINER * (PATCH / 2 + shift)
        large.paste(text, (round(centre[0] - text.width / 2), round(centre[1] - text.height / 2)))
        ink = np.asarray(large.resize((PATCH, PATCH), Image.Resampling.BOX), np.float32) / 255
        style = self.rng.choice(STYLES)
        if style == "plain":
            grey = self.rng.uniform(0.75, 1) if self.rng.random() < 0.9 else 0.0
        else:
            light = style == "light box"
            box_grey = self.rng.uniform(0.6, 1) if light else self.rng.uniform(0, 0.5)
            grey = self.rng.uniform(0, 0.45) if light else box_grey + self.rng.uniform(0.25, 0.5)
            half = np.array(text.size) / (2 * FINER)
            reach = half + self.rng.uniform(0.08, 0.5, 2) * half[1] * 2
            across, down = (np.abs(np.arange(PATCH) + 0.5 - PATCH / 2 - s) for s in shift)
            depth = np.minimum(reach[0] - across[None, :], reach[1] - down[:, None])
            box = np.clip(depth + 0.5, 0, 1)
            edge = box - np.clip(depth - 0.5, 0, 1)
            patch = patch * (1 - box) + box_grey * box
            if self.rng.random() < 0.5:
                patch = patch * (1 - edge) + self.rng.random() * edge
        return np.asarray(patch * (1 - ink) + grey * ink, np.float32)

    def degrade(self, patch: Patch) -> Patch:
        """Blur, reduce the contrast, invert and add noise, each now and then."""
        if self.rng.random() < 0.3:
            picture = Image.fromarray((255 * patch.clip(0, 1)).astype(np.uint8))
            blurred = picture.filter(ImageFilter.GaussianBlur(self.rng.uniform(0.3, 0.9)))
            patch = np.asarray(blurred, np.float32) / 255
        if self.rng.random() < 0.5:
            low, high = self.rng.uniform(0, 0.15), self.rng.uniform(0.75, 1)
            patch = low + (high - low) * patch
        if self.rng.random() < 0.05:
            patch = 1 - patch
        noise = self.rng.normal(0, self.rng.uniform(0, 0.03), patch.shape)
        return (patch + noise).astype(np.float32)


@lru_cache(1000)
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
        film = shrink(render(plain), FILM_PX)
        if min(film.shape) >= PATCH:
            films.append(film.numpy())
    return films


def reduced(images: Tensor, reduction: int) -> Tensor:
    """Reduce images (..., H, W) to what the spotter (2) or the reader (1) sees of them."""
    height, width = (length // reduction for length in images.shape[-2:])
    return resize(images, (height, width))


@torch.no_grad()
def mistakes(
    network: nn.Module, films: list[Patch], reduction: int, least: float = 0.1
) -> list[Patch]:
    """Return the patches of films without letters that a network takes for one."""
    found = []
    for film in films:
        seen = reduced(torch.from_numpy(film), reduction)
        likely = network(seen[None, None]).softmax(1)[0, 1:].amax(0)
        for place in (STRIDE * (likely > least).nonzero()).tolist():
            y, x = (min(at, side - PATCH) for at, side in zip(place, film.shape, strict=True))
            found.append(film[y : y + PATCH, x : x + PATCH])
    return found


def train(
    network: nn.Module, painter: Painter, reduction: int, steps: int, args: argparse.Namespace
) -> None:
    """Train on newly drawn patches with AdamW and a one-cycle schedule."""
    drawn = [painter.patch() for _ in range(args.patches)]
    images = reduced(torch.from_numpy(np.stack([image for image, _ in drawn]))[:, None], reduction)
    targets = torch.tensor([target for _, target in drawn])
    optimiser = torch.optim.AdamW(network.parameters(), weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, 4e-3, total_steps=steps, pct_start=0.1
    )
    network.train()
    for step in range(steps):
        rows = torch.randint(len(images), (args.batch,))
        logits = network(images[rows])[..., 0, 0]
        loss = nn.functional.cross_entropy(logits, targets[rows], label_smoothing=0.005)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 400 == 0 or step == steps - 1:
            print(f"step {step} loss {loss:.3f}", flush=True)
    network.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True, help="file to write")
    parser.add_argument("--films", type=int, default=100, help="number of phantoms")
    parser.add_argument("--patches", type=int, default=60_000, help="patches of each round")
    parser.add_argument("--steps", type=int, default=1_700, help="of the reader, in each round")
    parser.add_argument(
        "--spotter-steps", type=int, default=6_000, help="of the spotter, in each round"
    )
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    started = time.perf_counter()
    painter = Painter(phantoms(args.films), np.random.default_rng(args.seed))
    print(f"{len(painter.films)} phantoms in {time.perf_counter() - started:.0f} s", flush=True)
    networks = marker_networks()
    for name, reduction, steps in (
        ("reader", 1, args.steps),
        ("spotter", REDUCTION, args.spotter_steps),
    ):
        painter.mistaken = []
        for _ in range(2):
            train(networks[name], painter, reduction, steps, args)
            painter.mistaken = mistakes(networks[name], painter.films, reduction)
            seconds = time.perf_counter() - started
            print(f"{name}: {len(painter.mistaken)} mistakes, {seconds:.0f} s", flush=True)
    weights = {name: tensor.contiguous() for name, tensor in networks.state_dict().items()}
    save_file(weights, args.out, {"format": "kneematch-markers/2"})


if __name__ == "__main__":
    main()
