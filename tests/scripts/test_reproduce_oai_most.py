"""scripts/reproduce_oai_most.py, end to end, on phantoms laid out as OAI and MOST are."""

import contextlib
import csv
import io
import json
import math
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from kneematch.cli import main as cli
from kneematch.films.annotation import annotate, save_annotation
from kneematch.models.model_file import load_model
from kneephantoms.files import write_dicom
from kneephantoms.rendering import Phantom, phantom
from reproduce_oai_most import app

FRONTAL = "Bilateral PA Fixed Flexion Knee"
SIZE, FAMILY = (480, 480), 3
TRAIN, TEST = 3, 2
QUICK = ["--rounds", "1", "--epochs", "1", "--device", "cpu", "--workers", "0"]
PRINTED = ["--methods", "sliding,neural,neural+sharpen"]
FEW = ["--train", str(TRAIN), "--test", str(TEST)]


def main(arguments: list[str]) -> int:
    return cli.main(arguments, app)


@dataclass(frozen=True)
class Place:
    """Both studies, a template, and where everything else goes."""

    path: Path

    def command(self, study: str, out: str, *more: str) -> list[str]:
        root = str(self.path / study)
        cache = ["--cache", str(self.path / "cache")]
        return [study, "--root", root, "-o", str(self.path / out), *cache, *more]

    def training(self, out: str, *more: str) -> list[str]:
        template = ["--template", str(self.path / "template.json")]
        return self.command("oai", out, *template, *QUICK, *FEW, *PRINTED, *more)

    def lines(self, name: str) -> list[str]:
        return (self.path / name).read_text(encoding="utf-8").splitlines()

    def table(self, out: str) -> list[dict[str, str]]:
        with (self.path / out / "reproduction.csv").open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))


def put(path: Path, film: Phantom, series: str | None = FRONTAL) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels, mm = film.pixels, film.mm_per_px
    write_dicom(path, pixels, mm_per_px=mm, laterality="B", series=series)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    path = tmp_path_factory.mktemp("studies")
    films = [
        phantom(seed, size=SIZE, family=FAMILY, framing="knee") for seed in range(TRAIN + TEST)
    ]
    for k, film in enumerate(films):
        visit = path / "oai" / "00m" / ("0.C.2" if k % 2 else "0.E.1") / str(9_000_100 + k)
        put(visit / "20040909" / "00429603" / "001", film)
        put(visit / "20040909" / "00429604" / "001", film, "Lateral Right Knee")
        put(path / f"oai/12m/1.C.2/{9_000_100 + k}/20050909/00529603/001", film)
        if k < 2:
            put(path / f"most/M{1000 + k}_ABCD/V0/1{k}608/PA10/1{k}6081", film, None)
    (path / "oai/00m/0.E.1/9000100/20040909/00429602").mkdir()
    (path / "oai/00m/0.E.1/9000100/20040909/00429602/001").write_bytes(b"not a film")
    knee = films[0].knees[1]
    drawn = path / "oai/00m/0.E.1/9000100/20040909/00429603/001"
    boxes = annotate(drawn, knee.side, knee.plateau_left, knee.plateau_right)
    save_annotation(boxes, path / "template.json")
    return Place(path)


@pytest.fixture(scope="module")
def done(place: Place) -> str:
    """What Table 1 said."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main(place.training("oai-out")) == 0
    return said.getvalue()


def test_reproduce_prints_table_1_beside_the_papers(place: Place, done: str) -> None:
    rows = place.table("oai-out")
    assert [row["printed"] for row in rows] == ["0.221", "0.159", "0.141"]
    for row in rows:
        here = float(row["here"])
        assert 0 < here < 2
        assert 0 < float(row["standard error"]) < 1
        assert f"{here:.3f}" in done
        assert math.isclose(float(row["difference"]), here - float(row["printed"]))
        assert row["printed"] in done
    assert f"over {TEST} films of OAI, beside the paper's Table 1" in " ".join(done.split())


def test_reproduce_writes_the_split_to_be_cited(place: Place, done: str) -> None:
    train, test = place.lines("oai-out/train.txt"), place.lines("oai-out/test.txt")
    assert (len(train), len(test)) == (TRAIN, TEST)
    assert len({line.split("/")[2] for line in train + test}) == TRAIN + TEST
    assert all(line.startswith("00m/0.") and line.endswith("/00429603/001") for line in train)
    assert load_model(place.path / "oai-out/model.safetensors").settings["count"] == TRAIN


def test_reproduce_tests_on_most_what_was_trained_on_oai(
    place: Place, done: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(place.path / "oai-out" / "model.safetensors")
    quick = ["--device", "cpu", "--workers", "0", "--test", "2", "--methods", "neural"]
    assert main(place.command("most", "most-out", "--model", model, *quick)) == 0
    said = capsys.readouterr().out
    assert "beside the paper's Table 2" in " ".join(said.split())
    (row,) = place.table("most-out")
    assert row["printed"] == "0.224"
    assert 0 < float(row["here"]) < 2
    assert not (place.path / "most-out/train.txt").exists()
    assert len(place.lines("most-out/test.txt")) == 2


def kneel_rows(films: list[Phantom]) -> str:
    """Return the phantoms' margins in the layout of KNEEL's file."""
    rows = ["subject_id,side,kl,tibia,femur,bbox,center"]
    for k, film in enumerate(films):
        for knee in film.knees:
            scale = (film.mm_per_px or 1) / 0.3
            ends = [
                (x * scale + 100, y * scale + 100)
                for x, y in (knee.plateau_left, knee.plateau_right)
            ]
            x0, y0 = round(ends[0][0]) - 80, round(ends[0][1]) - 233
            inside = [(x - x0, y - y0) for x, y in ends]
            if knee.side == "right":
                inside = [(466 - x, y) for x, y in inside]
            points = ",".join(f"{round(x)},{round(y)}" for x, y in inside)
            side, box = "RL"[knee.side == "right"], f"{x0},{y0},{x0 + 466},{y0 + 466}"
            rows.append(f'{9_000_100 + k},{side},1,"{points}","0,0","{box}","0,0"')
    return "\n".join(rows) + "\n"


def test_reproduce_compares_with_published_labels_and_with_the_grid(
    place: Place, done: str, capsys: pytest.CaptureFixture[str]
) -> None:
    films = [
        phantom(seed, size=SIZE, family=FAMILY, framing="knee") for seed in range(TRAIN + TEST)
    ]
    truth = place.path / "bf_landmarks_1_0.3.csv"
    truth.write_text(kneel_rows(films))
    given = ["--template", str(place.path / "template.json"), "--truth", str(truth)]
    grid = ["--grid", "1", "--grid-scales", "2", "--grid-stride", "0.9", "--adam-steps", "2"]
    out = place.path / "labelled"
    shutil.copytree(place.path / "oai-out", out, ignore=shutil.ignore_patterns("runs"))
    more = [*given, *QUICK, *FEW, "--resume", "--methods", "neural", *grid]
    assert main(place.command("oai", "labelled", *more)) == 0
    said = " ".join(capsys.readouterr().out.split())
    *_, search = place.table("labelled")
    assert search["method"] == "grid initialized search"
    assert "The grid search was run on 1 of these films." in said
    assert "within 2.5 mm" in said
    with (out / "accuracy.csv").open(newline="", encoding="utf-8") as file:
        accuracy = {row["method"]: row for row in csv.DictReader(file)}
    assert float(accuracy["neural"]["mean IoU"]) > 0.8
    assert int(accuracy["neural"]["knees"]) == 2 * TEST
    with (out / "distances.csv").open(newline="", encoding="utf-8") as file:
        distances = {row["method"]: row for row in csv.DictReader(file)}
    assert int(distances["neural"]["margins"]) == 4 * TEST
    assert int(distances["grid"]["margins"]) == 4
    # The figure has the films of the grid search, and its column.
    (caption,) = (line for line in place.lines("labelled/evaluation.md") if "Films: (a)" in line)
    assert "(b)" not in caption
    steps = json.loads((out / "runs/grid/journal.jsonl").read_text().splitlines()[0])
    assert "2 0.01 2 0.9" in json.dumps(steps)


def test_reproduce_does_not_repeat_what_is_done(
    place: Place, done: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = place.path / "oai-out" / "model.safetensors"
    before, rows = model.stat().st_mtime_ns, place.table("oai-out")
    assert main(place.training("oai-out")) == 2
    assert "there is a reproduction already" in capsys.readouterr().err
    assert main(place.training("oai-out", "--resume", "--seed", "1")) == 2
    assert "train.txt: other films than are chosen now" in capsys.readouterr().err
    assert main(place.training("oai-out", "--resume", "--start", "none")) == 2
    assert "trained with another start" in capsys.readouterr().err
    assert main(place.training("oai-out", "--force", "--template", "gone.json")) == 2
    assert main(place.training("oai-out", "--resume", "--methods", "neural")) == 0
    assert model.stat().st_mtime_ns == before
    assert place.table("oai-out") == [rows[1]]


@pytest.mark.parametrize(
    ("study", "more", "message"),
    [
        ("most", [], "MOST without a model; expected one that was trained on OAI"),
        ("most", ["--model", "m", "--train", "3"], "films of MOST to train on"),
        ("oai", [], "neither --template nor --model; expected a template"),
        ("oai", ["--model", "m", "--template", "t"], "both --template and --model"),
        ("oai", ["--template", "t"], "5 participants with a film of OAI to draw from"),
        ("oai", ["--template", "t", "--root", "gone"], "gone: no such folder"),
        ("oai", ["--template", "t", "--visit", "96m"], "no film of OAI; expected, in a folder 96m"),
        ("oai", ["--template", "gone.json", *FEW], "gone.json: cannot be read"),
        ("oai", ["--template", "t", "--resume", "--force"], "--resume and --force"),
    ],
)
def test_reproduce_refuses_contradictions_in_one_line(
    place: Place, capsys: pytest.CaptureFixture[str], study: str, more: list[str], message: str
) -> None:
    more = [str(place.path / "template.json") if word == "t" else word for word in more]
    assert main(place.command(study, "none", "--device", "cpu", "--workers", "0", *more)) == 2
    said = capsys.readouterr()
    assert message in said.err.splitlines()[-1]
    assert "Traceback" not in said.err
    assert said.out == ""
    assert not (place.path / "none" / "model.safetensors").exists()


def test_commands_of_the_page_parse() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("python scripts/reproduce")]
    assert len(lines) == 3
    for line in lines:
        typer.main.get_command(app).make_context("reproduce", shlex.split(line)[2:])
