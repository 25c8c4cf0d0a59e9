"""The losses of a training: metrics.csv, and the same as a picture."""

import csv
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Final

from PIL import Image, ImageDraw, ImageFont

from kneematch.io.atomic import write_aside

SIZE: Final = (1200, 640)
MARGIN: Final = (110, 50, 40, 70)  # left, top, right, bottom
LARGER: Final = 2  # lines are drawn on a larger picture, then reduced
PAPER: Final = (250, 250, 248)
INK: Final = (60, 60, 60)
FAINT: Final = (222, 222, 218)
COLOURS: Final = {"coarse": (222, 120, 20), "fine": (30, 120, 200)}
TICKS: Final = 5


@dataclass(frozen=True, slots=True)
class Epoch:
    """A row of metrics.csv."""

    phase: str
    round: int
    epoch: int
    loss: float  # the mean of what was lowered; after the first round of the paper, times c_u
    seconds: float  # since the training began


def write_metrics(epochs: Sequence[Epoch], path: str | os.PathLike[str]) -> None:
    """One row an epoch."""
    with write_aside(path) as aside, aside.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow([each.name for each in fields(Epoch)])
        for epoch in epochs:
            phase, number, count, loss, seconds = astuple(epoch)
            rows.writerow([phase, number, count, f"{loss:.6f}", f"{seconds:.2f}"])


def read_metrics(path: str | os.PathLike[str]) -> list[Epoch]:
    """What write_metrics wrote; nothing of a file that is not there."""
    if not os.path.exists(path):  # noqa: PTH110
        return []
    with open(path, newline="", encoding="utf-8") as file:  # noqa: PTH123
        return [_epoch(row) for row in csv.DictReader(file)]


def _epoch(row: Mapping[str, str]) -> Epoch:
    return Epoch(
        row["phase"],
        int(row["round"]),
        int(row["epoch"]),
        float(row["loss"]),
        float(row["seconds"]),
    )


def draw_curves(epochs: Sequence[Epoch]) -> Image.Image:
    """The loss of each phase over its epochs; a gap where a round ends and c_u changes."""
    picture = Image.new("RGB", (LARGER * SIZE[0], LARGER * SIZE[1]), PAPER)
    draw = ImageDraw.Draw(picture)
    left, top, right, bottom = (LARGER * side for side in MARGIN)
    box = left, top, picture.width - right, picture.height - bottom
    losses = [epoch.loss for epoch in epochs if math.isfinite(epoch.loss)] or [1.0]
    highest = _round_up(max(losses))
    _axes(draw, box, highest, len(epochs))
    step = (box[2] - box[0]) / max(len(epochs) - 1, 1)

    def place(number: int) -> tuple[float, float]:
        share = min(epochs[number].loss / highest, 1.0)
        return box[0] + number * step, box[3] - share * (box[3] - box[1])

    for number, epoch in enumerate(epochs):
        colour = COLOURS.get(epoch.phase, INK)
        x, y = place(number)
        reach = 3 * LARGER
        draw.ellipse((x - reach, y - reach, x + reach, y + reach), fill=colour)
        before = epochs[number - 1] if number else None
        if before is not None and (before.phase, before.round) == (epoch.phase, epoch.round):
            draw.line((*place(number - 1), x, y), fill=colour, width=2 * LARGER)
    _legend(draw, box, epochs)
    return picture.reduce(LARGER)


def _axes(
    draw: ImageDraw.ImageDraw, box: tuple[int, int, int, int], highest: float, count: int
) -> None:
    font = ImageFont.load_default(18 * LARGER)
    for tick in range(TICKS + 1):
        y = box[3] - tick / TICKS * (box[3] - box[1])
        draw.line((box[0], y, box[2], y), fill=FAINT, width=LARGER)
        value = f"{tick / TICKS * highest:.3g}"
        draw.text((box[0] - 12 * LARGER, y), value, fill=INK, font=font, anchor="rm")
    below = box[3] + 30 * LARGER
    draw.text(((box[0] + box[2]) / 2, below), f"{count} epochs", fill=INK, font=font, anchor="mm")
    draw.text((box[0], box[1] - 24 * LARGER), "loss", fill=INK, font=font, anchor="lm")


def _legend(
    draw: ImageDraw.ImageDraw, box: tuple[int, int, int, int], epochs: Sequence[Epoch]
) -> None:
    font = ImageFont.load_default(18 * LARGER)
    x = box[2]
    for phase in reversed(list(dict.fromkeys(epoch.phase for epoch in epochs))):
        colour = COLOURS.get(phase, INK)
        draw.text((x, box[1] - 24 * LARGER), phase, fill=colour, font=font, anchor="rm")
        x -= round(font.getlength(phase)) + 24 * LARGER


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10 ... from a value on."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 5, 10) if value <= factor * power * 1.0001)
