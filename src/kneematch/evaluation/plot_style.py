"""A figure as journals print it: its fonts and widths, and its two files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

from kneematch.io.atomic import write_aside

FULL_WIDTH: Final = 7.2  # inches, both columns of a journal
DPI: Final = 300
TEXT_PT: Final = 8.0
SMALL_PT: Final = 7.0

# Okabe and Ito's colours, which most eyes tell apart; their yellow and black are lost here, one
# on paper, the other on films.
COLOURS: Final = ("#D55E00", "#56B4E9", "#009E73", "#E69F00", "#CC79A7", "#0072B2")
DASHES: Final = ("-", (0, (5, 2)), (0, (2, 2)), (0, (7, 3, 2, 3)), (0, (9, 4)), (0, (1, 3)))

STYLE: Final[dict[Any, Any]] = {
    "font.family": "STIXGeneral",  # comes with matplotlib, so figures look the same everywhere
    "mathtext.fontset": "stix",
    "font.size": TEXT_PT,
    "axes.labelsize": TEXT_PT,
    "axes.titlesize": TEXT_PT,
    "xtick.labelsize": SMALL_PT,
    "ytick.labelsize": SMALL_PT,
    "legend.fontsize": SMALL_PT,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,  # whole fonts, so that text can be searched and copied
}


@contextmanager
def journal_style() -> Iterator[None]:
    """Draw and write in one style, whatever the user's own settings are."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        yield


def write_figure(figure: Figure, path: Path) -> list[Path]:
    """A PNG and a PDF; `path` has no suffix, and a dot in its name is none."""
    written = []
    for kind, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
        target = path.with_name(f"{path.name}.{kind}")
        with write_aside(target) as aside:
            figure.savefig(aside, format=kind, dpi=DPI, metadata=metadata)
        written.append(target)
    return written
