"""Agreement of readers who reviewed the same knees without seeing each other's decisions."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from operator import itemgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kneematch.films.annotation import find_plateau_margins
from kneematch.knee.decision import METHOD, Decision, decided_knee
from kneematch.knee.detection import Detection
from kneematch.knee.measure import COMPARTMENTS, PERCENT
from kneematch.run.database import HOLDS, READER, Run

GRADES: Final = frozenset("01234")  # Kellgren-Lawrence grades, in order
READINGS: Final = f"""
SELECT k.id, MAX(d.id), {READER}, k.side, f.mm_per_px, k.found, d.content
FROM decisions d JOIN knees k ON k.id = d.knee JOIN films f ON f.id = k.film
WHERE {HOLDS} AND {READER} != '' GROUP BY k.id, {READER} ORDER BY k.id
"""  # noqa: S608 - built of constants

Array = NDArray[np.float64]
Reading = tuple[Decision, Detection]  # a decision, and the knee as it leaves it


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far two readers agree on one thing: by kappa, or by how their corrections differ."""

    readers: tuple[str, str]
    subject: str
    knees: int  # about which both said something
    same: float | None = None  # share of knees about which both said the same
    kappa: float | None = None  # Cohen's; None where it is not defined
    weighted: float | None = None  # with quadratic weights, of grades
    sd: float | None = None  # standard deviation of the differences, in `unit`
    unit: str = ""  # mm, or % of the plateau's width on films without spacing


def reader_agreement(run: Run) -> list[Agreement]:
    """Return how far every two readers with names agree; nothing where only one read a knee."""
    shared: defaultdict[tuple[str, str], list[tuple[Reading, Reading]]] = defaultdict(list)
    for _, rows in groupby(run.query(READINGS), key=itemgetter(0)):
        readings = dict(_readings(list(rows)))
        for one, other in combinations(sorted(readings), 2):
            shared[one, other].append((readings[one], readings[other]))
    return [each for readers, pairs in sorted(shared.items()) for each in _agree(readers, pairs)]


def _readings(
    rows: Sequence[tuple[int, int, str, str, float, str, str]],
) -> Iterator[tuple[str, Reading]]:
    """Yield what each reader decided last about a knee, if it applies to the knee as found."""
    for _, _, reader, side, mm_per_px, found, content in rows if len(rows) > 1 else ():
        decision = Decision.from_json(content)
        before = Detection.from_json(found) if found else None
        knee = decided_knee(before, decision, side, mm_per_px)
        if knee is not None:
            yield reader, (decision, knee)


def _agree(
    readers: tuple[str, str], pairs: Sequence[tuple[Reading, Reading]]
) -> Iterator[Agreement]:
    states = [(one.state, other.state) for (one, _), (other, _) in pairs]
    grades = [
        (one.grade, other.grade) for (one, _), (other, _) in pairs if one.grade and other.grade
    ]
    for subject, said in (("accepted, corrected or rejected", states), ("grade", grades)):
        if said:
            same = sum(one == other for one, other in said) / len(said)
            ordered = GRADES.issuperset(name for both in said for name in both)
            weighted = cohens_kappa(said, quadratic=True) if ordered else None
            yield Agreement(readers, subject, len(said), same, cohens_kappa(said), weighted)
    differences: defaultdict[tuple[str, str], list[Array]] = defaultdict(list)
    for one, other in pairs:
        placed, also, (unit, factor) = _placed(one), _placed(other), _unit(one[1])
        for name in placed.keys() & also.keys():
            differences[name, unit].append(factor * (placed[name] - also[name]))
    for (subject, unit), values in sorted(differences.items()):
        if len(values) > 1:
            sd = float(np.std(np.concatenate(values), ddof=1))
            yield Agreement(readers, subject, len(values), sd=sd, unit=unit)


def _placed(reading: Reading) -> dict[str, Array]:
    """Return what a reader placed or drew, in film pixels."""
    decision, knee = reading
    placed = {}
    if knee.method == METHOD and (margins := find_plateau_margins(knee.landmarks)):
        placed["margins of the tibial plateau"] = np.ravel(margins)
    if decision.outlines is not None and knee.measures is not None:
        for name in COMPARTMENTS:
            width = knee.measures.values[f"jsw_{name}_minimum"].value
            if width is not None:
                width_px = width / PERCENT * decision.outlines.width_px
                placed[f"smallest joint-space width, {name}"] = np.array([width_px])
    return placed


def _unit(knee: Detection) -> tuple[str, float]:
    """Return the unit of differences, mm or percent, and how many of it a film pixel is."""
    if knee.mm_per_px is not None:
        return "mm", knee.mm_per_px
    margins = find_plateau_margins(knee.landmarks)
    return "%", PERCENT / (math.dist(*margins) if margins else knee.width_px)


def cohens_kappa(pairs: Sequence[tuple[str, str]], *, quadratic: bool = False) -> float | None:
    """Return the chance-corrected agreement of two readers (Cohen, 1960 and 1968).

    With `quadratic` weights, the categories are numbers, whose squared differences count. None
    where both readers named one category only.
    """
    names = sorted({name for pair in pairs for name in pair})
    counts = np.zeros((len(names), len(names)))
    for one, other in pairs:
        counts[names.index(one), names.index(other)] += 1
    by_chance = np.outer(counts.sum(1), counts.sum(0)) / len(pairs)
    values = np.array(names, float) if quadratic else np.arange(len(names))
    apart = np.subtract.outer(values, values) ** 2
    cost = apart if quadratic else apart > 0
    expected = float((cost * by_chance).sum())
    return 1 - float((cost * counts).sum()) / expected if expected else None
