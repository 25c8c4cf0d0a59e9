"""Films that crash their decoder, with a real crash; the template's loss at other areas."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from kneematch.errors import FilmError
from kneematch.films.annotation import annotate, save_annotation
from kneematch.films.files import content_hash
from kneematch.films.read import read
from kneematch.knee.decision import Area, move
from kneematch.models.model_file import builtin_model
from kneematch.run.config import DetectConfig
from kneematch.run.database import Run
from kneematch.run.pipeline import detect_folder
from kneematch.web.knee_view import load_run_template, loss_at, read_film
from kneephantoms import phantom
from kneephantoms.files import write_dicom, write_png16
from phantom_films import radiograph

# Run at the start of every Python process: a worker process aborts on opening a certain file.
DEADLY = """
import os, sys
def hook(event, args):
    if event == "open" and str(args[0]).endswith("deadly.png"):
        from multiprocessing import parent_process
        if parent_process() is not None:
            os.abort()
sys.addaudithook(hook)
"""


@contextmanager
def page_of(folder: Path, *command: str) -> Iterator[str]:
    """Run a command in a folder with the deadly file in it; yield the address of its page."""
    (folder / "sitecustomize.py").write_text(DEADLY)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, "-m", "kneematch", *command, "--no-browser"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGINT)
            _, printed = process.communicate(timeout=120)
    assert process.returncode == 0
    assert printed == "kneematch: open this address in a browser; Ctrl-C ends it\n"


def get(address: str, path: str) -> tuple[int, bytes]:
    """Request a path of a page, as the page does."""
    parts = urlsplit(address)
    (token,) = parse_qs(parts.query)["token"]
    request = urllib.request.Request(f"{parts.scheme}://{parts.netloc}/{path}")
    request.add_header("Cookie", f"kneematch-{parts.port}={token}")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_read_film_keeps_the_last_films(films: list[Path]) -> None:
    first = read_film(films[0])
    assert read_film(films[0]) is first
    assert (first.pixels == read(films[0]).pixels).all()
    with pytest.raises(FilmError, match="No such file"):
        read_film(films[0].with_name("gone.dcm"))


def test_review_survives_the_crash_of_a_decoder(run_folder: Path, films: list[Path]) -> None:
    folder = run_folder.parent
    for name in ("deadly.png", "healthy.png"):
        write_png16(folder / name, read(films[0]).pixels)
    with Run(run_folder) as run:
        for film, path in ((2, "deadly.png"), (3, "healthy.png")):
            run.sql.execute("UPDATE films SET path = ? WHERE id = ?", (path, film))
    with page_of(folder, "review", "out") as address:
        for route in ("film/3", "api/areas/3", "film/4"):
            status, content = get(address, route)
            assert status == 404
            problem = json.loads(content)["problem"]
            assert problem.startswith(
                "deadly.png: the process that read it ended (killed by SIGABRT)"
            )
        for route in ("film/5", "film/1"):
            status, content = get(address, route)
            assert status == 200
            assert content.startswith(b"\xff\xd8")  # a JPEG file
        status, content = get(address, "thumbnail/2")
        assert (status, content[8:12]) == (200, b"WEBP")


def test_loss_at_agrees_with_detect(run_folder: Path) -> None:
    with Run(run_folder) as run:
        template, reason = load_run_template(run)
        records = list(run.records())
    assert template is not None, reason
    for record in records:
        film = read(record.path)
        for found in record.found:
            # The view is cut around the area, not where the locator saw the knee.
            assert loss_at(found, film, template) == pytest.approx(found.loss, abs=0.015)
            area = Area.from_detection(found)
            elsewhere = replace(area, centre_x_px=area.centre_x_px + 9)
            assert loss_at(move(found, elsewhere), film, template) > found.loss + 0.05


def test_load_run_template_refuses_another_template_than_the_runs(run_folder: Path) -> None:
    with Run(run_folder) as run:
        config, info = run.setting("config"), run.setting("run")
        run.store(run={**info, "sha256": dict.fromkeys(info["sha256"], "0" * 64)})
        assert load_run_template(run) == (None, "The run's template has changed since.")
        run.store(run=info, config={**config, "template": "gone.json"})
        template, reason = load_run_template(run)
        assert (template, "gone.json" in reason) == (None, True)


def test_load_run_template_finds_the_template_of_a_model(run_folder: Path) -> None:
    with Run(run_folder) as run:
        model = {"model": None, "template": None, "method": "auto"}
        hashes = {"model": content_hash(builtin_model())}
        run.store(config={**run.setting("config"), **model})
        run.store(run={**run.setting("run"), "sha256": hashes})
        template, reason = load_run_template(run)
    assert template is not None, reason
    assert {"plateau_medial", "plateau_lateral"} <= set(template.landmarks)


def test_load_run_template_takes_one_from_a_film_of_one_knee(tmp_path: Path) -> None:
    made = phantom(1, framing="single")  # its knee lies across the line between the halves
    film, (knee,) = tmp_path / "films" / "one.dcm", made.knees
    film.parent.mkdir()
    write_dicom(film, radiograph(made).pixels, mm_per_px=None, laterality=None)
    drawn = annotate(film, knee.side, knee.plateau_left, knee.plateau_right)
    save_annotation(drawn, tmp_path / "template.json")
    config = DetectConfig(template=str(tmp_path / "template.json"), workers=0)
    detect_folder(film.parent, tmp_path / "out", config)
    with Run(tmp_path / "out") as run:
        template, reason = load_run_template(run)
        (found,) = run.record(1).found
    assert template is not None, reason
    assert loss_at(found, read(film), template) == pytest.approx(found.loss, abs=0.015)
