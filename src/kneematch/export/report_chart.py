"""The histogram of a report, as SVG."""

from collections.abc import Sequence
from typing import Final

from kneematch.export.summary import BINS

BARS: Final = 40
ENDS: Final = (0.2, 0.4, 1.0)  # of the axis: the first one that holds all knees
WIDTH, HEIGHT = 640, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 10, 38  # margins
LEAST_PX: Final = 2.0  # of a bar, so that one knee in a million is seen


def histogram(good: Sequence[int], flagged: Sequence[int]) -> str:
    """Knees by loss, those to review on top of the others; each BINS counts."""
    end = _end([a + b for a, b in zip(good, flagged, strict=True)])
    merged = [_merged(counts, end) for counts in (good, flagged)]
    top, step = _scale(max(map(sum, zip(*merged, strict=True))))
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="Histogram of the loss of {sum(good) + sum(flagged)} knees">'
    ]
    parts += [_line(count, top) for count in range(0, top + 1, step)]
    parts += [_tick(end * k / 4, end) for k in range(5)]
    for k, pair in enumerate(zip(*merged, strict=True)):
        parts.append(_bar(k, pair, top, end))
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:g}" y="{HEIGHT - 4}" text-anchor="middle">'
        "loss (0: a perfect match)</text></svg>"
    )
    return "\n".join(parts)


def _end(counts: Sequence[int]) -> float:
    """Where the axis ends."""
    last = max((k for k, count in enumerate(counts) if count), default=0)
    return next(end for end in ENDS if last < round(end * BINS))


def _merged(counts: Sequence[int], end: float) -> list[int]:
    """As many counts as there are bars."""
    share = round(end * BINS) // BARS
    return [sum(counts[k * share : (k + 1) * share]) for k in range(BARS)]


def _scale(most: int) -> tuple[int, int]:
    """The top of the axis and the step of its lines: 1, 2 or 5 times a power of ten."""
    step = 1
    while most > 4 * step:
        step = step * 5 // 2 if str(step).startswith("2") else step * 2
    return max(step, -(-most // step) * step), step


def _y(count: float, top: int) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * count / top


def _x(loss: float, end: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * loss / end


def _line(count: int, top: int) -> str:
    y = _y(count, top)
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{count:,}</text>'
    )


def _tick(loss: float, end: float) -> str:
    x, y = _x(loss, end), HEIGHT - BOTTOM + 15
    anchor = "end" if loss == end else "middle"
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}">{loss:g}</text>'


def _bar(k: int, pair: Sequence[int], top: int, end: float) -> str:
    """The knees of one range of losses, and what they are on hovering."""
    good, flagged = pair
    if not good + flagged:
        return ""
    x0, x1 = (_x(end * edge / BARS, end) for edge in (k, k + 1))
    base, shapes = float(HEIGHT - BOTTOM), []
    for count, kind in ((good, "good"), (flagged, "flagged")):
        tall = max(LEAST_PX, _y(0, top) - _y(count, top)) if count else 0.0
        base -= tall
        shapes.append(
            f'<rect class="{kind}" x="{x0 + 0.75:.1f}" y="{base:.1f}" '
            f'width="{x1 - x0 - 1.5:.1f}" height="{tall:.1f}"/>'
        )
    told = f"loss {end * k / BARS:.3f} to {end * (k + 1) / BARS:.3f}: {good + flagged:,} knees"
    told += f", {flagged:,} to review" if flagged else ""
    return f"<g><title>{told}</title>{''.join(shapes)}</g>"
