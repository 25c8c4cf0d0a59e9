"""review.csv: what is written is read back, and nothing else is taken for decisions."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from detections import make_detection
from kneematch.errors import SettingsError
from kneematch.knee.decision import Area, Decision
from kneematch.knee.measure import Outlines
from kneematch.run.database import Run
from kneematch.run.decisions import COLUMNS, Entry, holding, read_decisions, write_decisions

AREA = Area(400.25, 500.5, 200.0, 7.5)
LINE = np.array([[350.0, 500.0], [450.0, 501.0]])
TIME = "2026-01-02T03:04:05+00:00"
ENTRIES: list[Entry] = [
    (TIME, "=odd\n,name.dcm", "left", Decision("accepted", AREA, 0.25), False),
    (TIME, "b.dcm", "right", Decision("rejected", AREA), False),
    (TIME, "b.dcm", "right", Decision("corrected", AREA), True),
    (TIME, "b.dcm", "left", Decision("corrected", AREA, None, "", {"m": (1.5, 2.0)}, 150.0), False),
]


def test_write_decisions_writes_what_read_decisions_reads(tmp_path: Path) -> None:
    path = tmp_path / "review.csv"
    write_decisions(ENTRIES, path)
    assert list(read_decisions(path)) == ENTRIES
    drawn = Outlines(LINE, LINE + 5.0, "left", corrected=True)
    write_decisions([(TIME, "a", "left", Decision("corrected", AREA, outlines=drawn), False)], path)
    ((_, _, _, found, _),) = read_decisions(path)
    assert found.outlines is not None
    assert found.outlines.to_dict() == drawn.to_dict()
    write_decisions([], path)
    assert not path.exists()


def test_holding_keeps_the_last_decision_of_each_reader_unless_it_was_revoked() -> None:
    def entry(reader: str, state: str, *, revoked: bool = False) -> Entry:
        return TIME, "a.dcm", "left", Decision(state, AREA, reader=reader), revoked

    first, second, third = entry("A", "accepted"), entry("B", "rejected"), entry("A", "rejected")
    undone = entry("A", "rejected", revoked=True)
    assert list(holding([first, second, third]).values()) == [second, third]  # in the order made
    assert list(holding([first, second, third, undone]).values()) == [first, second]
    assert list(holding([first, undone, second]).values()) == [second]


def test_holding_revokes_a_correction_before_the_last_decision(tmp_path: Path) -> None:
    """As where a film has changed after two readers decided, of whom the last corrected."""
    moved = Area(410.0, 500.0, 200.0, 0.0)
    made = [
        Decision("corrected", moved, landmarks={"margin": (1 / 3, 2.0)}, reader="A"),
        Decision("accepted", AREA, reader="A"),
        Decision("corrected", moved, reader="B"),
    ]
    (tmp_path / "out").mkdir()
    with Run(tmp_path / "out", create=True) as run:
        knee = make_detection("left", (400.25, 500.5), (200.0, 200.0), 7.5)
        (film,) = run.to_visit(run.add(["a.dcm"]))
        run.save([replace(film, status="ok", found=(knee,), knees=(knee,))])
        for decision in made:
            run.decide(film.id, "left", decision)
        (film,) = run.to_visit([film.id])
        run.save([film.without_corrections().flagged()])
        assert run.record(film.id).decisions["left"] == made[1]
        write_decisions(run.decisions(), tmp_path / "review.csv")
    held = holding(read_decisions(tmp_path / "review.csv"))
    assert [decision for _, _, _, decision, _ in held.values()] == made[1:2]


@pytest.mark.parametrize(
    "row",
    [
        "",
        "2026,a.dcm,middle,accepted,1,2,30,0,,,,,",
        "2026,a.dcm,left,maybe,1,2,30,0,,,,,",
        "2026,a.dcm,left,accepted,nan,2,30,0,,,,,",
        "2026,a.dcm,left,accepted,1,2,30,0,inf,,,,",
        "2026,a.dcm,left,corrected,1,2,30,0,,X,,,",
        "2026,a.dcm,left,corrected,1,2,30,0,,,[1],,",
        "2026,a.dcm,left,corrected,1,2,30,0,,,,,{}",
        "2026,a.dcm,left,accepted,1,2,30,0",
    ],
)
def test_read_decisions_names_a_row_that_is_no_decision(tmp_path: Path, row: str) -> None:
    path = tmp_path / "review.csv"
    write_decisions(ENTRIES[:1], path)
    path.write_text(path.read_text() + row + "\n")
    with pytest.raises(SettingsError, match="row 3 is not a decision"):
        list(read_decisions(path))


@pytest.mark.parametrize("text", ["", "film,side\na,b\n", ",".join(COLUMNS[:-1]) + "\n"])
def test_read_decisions_refuses_another_table(tmp_path: Path, text: str) -> None:
    (tmp_path / "review.csv").write_text(text)
    with pytest.raises(SettingsError, match=r"review\.csv"):
        list(read_decisions(tmp_path / "review.csv"))
    with pytest.raises(SettingsError, match="cannot be read"):
        list(read_decisions(tmp_path / "missing.csv"))
