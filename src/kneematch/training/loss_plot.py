"""The losses of a training, as a table (metrics.csv) and as a plot (curves.png)."""

import csv
import os
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import Final

from matplotlib.figure import Figure

from kneematch.errors import SettingsError
from kneematch.io.atomic import write_aside

COLOURS: Final = {"coarse": "tab:orange", "fine": "tab:blue"}
SIZE_INCHES: Final = (12, 6.4)
DPI: Final = 100


@dataclass(frozen=True, slots=True)
class Epoch:
    """One row of metrics.csv."""

    phase: str
    round: int
    epoch: int
    loss: float  # mean over the films, weighted by c_u after the paper's first round
    seconds: float  # since the training began


def write_metrics(epochs: Sequence[Epoch], path: str | os.PathLike[str]) -> None:
    """Write one row per epoch."""
    with write_aside(path) as aside, aside.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow([each.name for each in fields(Epoch)])
        for epoch in epochs:
            phase, number, count, loss, seconds = astuple(epoch)
            rows.writerow([phase, number, count, f"{loss:.6f}", f"{seconds:.2f}"])


def read_metrics(path: str | os.PathLike[str]) -> list[Epoch]:
    """Return the rows that write_metrics wrote; none if there is no such file."""
    try:
        with open(path, newline="", encoding="utf-8") as file:  # noqa: PTH123
            return [
                Epoch(
                    row["phase"],
                    int(row["round"]),
                    int(row["epoch"]),
                    float(row["loss"]),
                    float(row["seconds"]),
                )
                for row in csv.DictReader(file)
            ]
    except FileNotFoundError:
        return []
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        raise SettingsError(
            f"{path}: malformed ({error}); expected the losses of a training; delete the file"
        ) from error


def plot_losses(epochs: Sequence[Epoch], path: str | os.PathLike[str]) -> None:
    """Plot the loss of each phase; lines break between rounds, because c_u changes there."""
    figure = Figure(figsize=SIZE_INCHES, dpi=DPI, layout="constrained")
    axes = figure.subplots()
    lines: dict[tuple[str, int], tuple[list[int], list[float]]] = {}
    for number, epoch in enumerate(epochs, start=1):
        numbers, losses = lines.setdefault((epoch.phase, epoch.round), ([], []))
        numbers.append(number)
        losses.append(epoch.loss)
    for (phase, round_number), (numbers, losses) in lines.items():
        label = phase if round_number == 0 else None
        axes.plot(numbers, losses, "o-", color=COLOURS.get(phase, "tab:gray"), label=label)
    axes.set(xlabel="epoch", ylabel="loss")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if lines:
        axes.legend()
    with write_aside(path) as aside:
        figure.savefig(aside, format="png")
