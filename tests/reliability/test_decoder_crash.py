"""A native crash of a decoder costs one film in every command."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import imagecodecs
import numpy as np
import pydicom
import pytest
from pydicom.encaps import encapsulate
from pydicom.uid import JPEGLSLossless

from hooks import with_hook
from program import SEARCH, Run
from tables import read_table

# Run at the start of every Python process: the JPEG-LS codec crashes when it is loaded.
CRASH = """
import os, signal, sys
def hook(event, args):
    if event == "import" and args[0].endswith("_jpegls"):
        os.kill(os.getpid(), signal.SIGSEGV)
sys.addaudithook(hook)
"""
DIED = "the process that read it ended (killed by SIGSEGV)"


@pytest.fixture
def crash(folder: Path) -> dict[str, str]:
    """The environment in which crash.dcm, in JPEG-LS, crashes its native decoder."""
    film = folder / "phantom-00002.dcm"
    dataset = pydicom.dcmread(film)
    stored = np.ascontiguousarray(dataset.pixel_array)
    dataset.PixelData = encapsulate([imagecodecs.jpegls_encode(stored)])
    dataset.file_meta.TransferSyntaxUID = JPEGLSLossless
    dataset.save_as(folder / "crash.dcm")
    film.unlink()
    return {"PYTHONPATH": with_hook(folder / "hooks", CRASH)}


@pytest.mark.parametrize("workers", ["0", "2"])
def test_detect_survives_a_crash_of_a_decoder(
    folder: Path, run: Run, crash: dict[str, str], workers: str
) -> None:
    done = run("detect", ".", "-o", "out", *SEARCH, "--crops", "--workers", workers, **crash)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("out/detections.csv: 4 knees in 2 films")
    (failure,) = read_table(folder / "out" / "failures.csv")
    assert failure["film"] == "crash.dcm"
    assert DIED in failure["reason"]


TRAIN = ("train", ".", "--template", "template.json", "-o", "m.safetensors", "--epochs", "1")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("info", "crash.dcm", "phantom-00000.dcm"), 1),  # the other film can be read
        ((*TRAIN, "--device", "cpu", "--workers", "2"), 1),
        (("annotate", "crash.dcm", "--no-browser"), 2),
    ],
)
def test_commands_survive_a_crash_of_a_decoder(
    run: Run, crash: dict[str, str], command: tuple[str, ...], code: int
) -> None:
    done = run(*command, **crash)
    assert done.returncode == code, done.stderr
    assert f"crash.dcm: {DIED}" in done.stderr
    assert "Traceback" not in done.stderr


def test_review_survives_a_crash_of_a_decoder(
    folder: Path, run: Run, crash: dict[str, str]
) -> None:
    assert run("detect", ".", "-o", "out", *SEARCH).returncode == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "kneematch", "review", "out", "--no-browser"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **crash},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        page = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        root = page.open(address, timeout=60).url
        for route in ("film/1", "api/areas/1", "film/2"):  # crash.dcm comes first
            with pytest.raises(urllib.error.HTTPError) as refused:
                page.open(f"{root}{route}", timeout=60)
            assert refused.value.code == 404
            assert json.load(refused.value)["problem"].startswith(f"crash.dcm: {DIED}")
        for route in ("film/3", "thumbnail/1"):
            assert page.open(f"{root}{route}", timeout=60).read().startswith(b"\xff\xd8")
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
