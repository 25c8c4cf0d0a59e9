"""The readers that fuzz.py tests: their good files, how these are spoilt, and how they are read."""

import io
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import imagecodecs
import numpy as np
import pydicom.data
import torch
from PIL import Image
from pydicom.encaps import encapsulate
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    HTJ2KLossless,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGLosslessSV1,
    JPEGLSLossless,
    RLELossless,
)
from safetensors.torch import save

from fuzz_mutations import (
    Mutation,
    mutate_bytes,
    mutate_csv,
    mutate_dicom,
    mutate_jpeg,
    mutate_json,
    mutate_lines,
    mutate_png,
    mutate_safetensors,
    mutate_tiff,
)
from kneematch.errors import FilmError
from kneematch.evaluation.ground_truth import load_ground_truth
from kneematch.films.annotation import load_annotation
from kneematch.films.discovery import find_films
from kneematch.films.read import read, read_header
from kneematch.films.write import write_dicom
from kneematch.models.model_file import load_model, shipped_model
from kneematch.paper.template import cut_template
from kneematch.run.apply import check_ended, run_config
from kneematch.run.config import DetectConfig
from kneematch.run.correction import area_of
from kneematch.run.decisions import Decision, ReviewLog, read_decisions
from kneematch.run.pipeline import detect_folder
from kneematch.run.journal import Journal
from kneematch.run.outputs.run_file import read_run
from kneematch.training.checkpoint import FORMAT as CHECKPOINT_FORMAT
from kneematch.training.checkpoint import load_checkpoint
from kneematch.training.config import DEFAULT
from kneematch.training.dataset import read_index
from kneematch.web.detections_table import RowQuery, read_detections_table
from kneematch.web.loss_meter import load_run_template
from kneephantoms.config import SynthConfig
from kneephantoms.dataset import synthesize

SECRET = "Zyx^Quux"  # stands for the patient in headers; no message may hold it
LARGEST_SEED = 40_000  # bytes of pydicom's files
FILMS = 3
SETTINGS = {"recipe": asdict(DEFAULT), "start": "none", "seed": 0, "films": "hash"}


@dataclass(frozen=True)
class Target:
    """A reader: the name of its files, how often it is tested, and a function that reads one."""

    name: str
    share: int
    mutate: Mutation
    read: Callable[[Path], object]


def read_film(path: Path) -> object:
    """Read a film and its header; the pixels must be numbers in [0, 1]."""
    with suppress(FilmError):
        read_header(path)
    film = read(path)
    if not (film.pixels.dtype == np.float32 and film.pixels.min() == 0 and film.pixels.max() == 1):
        raise AssertionError(f"pixels from {film.pixels.min()} to {film.pixels.max()}")
    return film


def read_template(path: Path) -> object:
    annotation = load_annotation(path)
    return cut_template(read(annotation.film), annotation)


def read_journal(path: Path) -> object:
    """Read what `apply` and a resumed run read; every film is done once or to be done."""
    with path.with_name("journal.jsonl").open("rb") as good:
        settings = json.loads(good.readline())["settings"]
    with Journal(path) as journal:
        journal.check(settings)
        rows = list(journal.rows())
        left = [k for k in range(journal.count) if not journal.is_done(k)]
        if len(rows) + len(left) != journal.count:
            raise AssertionError("films are neither done nor to be done")
        check_ended(journal)
        return rows


def read_table(path: Path) -> object:
    table = read_detections_table(_alone(path, "detections.csv"))
    table.select(RowQuery(), np.zeros(len(table), np.int8))
    return [table.detection(row) for row in range(len(table))]


def read_review(path: Path) -> object:
    """Open a damaged review; a copy of it must be left if any line was dropped."""
    table = read_detections_table(path.parent)
    before, folder = path.read_bytes(), _alone(path, "review.csv")
    decisions = read_decisions(folder / "review.csv")
    log = ReviewLog(folder / "review.csv")
    if log.decisions != decisions:
        raise AssertionError("two readers read two different reviews")
    log.add(Decision(table.text["film"][0], "left", "accepted", area_of(table.detection(0))))
    log.close()
    kept = [_lines(file.read_bytes()) for file in folder.iterdir()]
    if not any(lines[: len(_lines(before))] == _lines(before) for lines in kept):
        raise AssertionError("decisions are lost")
    return log.decisions


def read_run_file(path: Path) -> object:
    out = _alone(path, "run.json")
    load_run_template(out)
    return run_config(read_run(out / "run.json"))


def read_checkpoint(path: Path) -> object:
    return load_checkpoint(path, SETTINGS, "cpu").tensor("c_u", (FILMS, 2, 4))


def read_list(path: Path) -> object:
    with patch("kneematch.films.discovery._inside", lambda folder, leave_out: [folder]):
        return find_films(f"@{path}")  # a spoilt list may name the whole disk


def read_csv_list(path: Path) -> object:
    with patch("kneematch.films.discovery._inside", lambda folder, leave_out: [folder]):
        return find_films(path)


def _lines(content: bytes) -> list[bytes]:
    return [line for line in content.split(b"\n") if line.strip()]


def _alone(path: Path, name: str) -> Path:
    """Move a file into a folder of its own, under the name that its reader expects."""
    folder = path.parent / "alone"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path.rename(folder / name)
    return folder


TARGETS = {
    target.name: target
    for target in (
        Target("film.dcm", 40, mutate_dicom, read_film),
        Target("film.png", 8, mutate_png, read_film),
        Target("film.jpg", 6, mutate_jpeg, read_film),
        Target("film.tif", 8, mutate_tiff, read_film),
        Target("template.json", 6, mutate_json, read_template),
        Target("model.safetensors", 1, mutate_safetensors, load_model),
        Target("checkpoint.safetensors", 5, mutate_safetensors, read_checkpoint),
        Target("journal.jsonl", 8, mutate_lines, read_journal),
        Target("review.csv", 5, mutate_csv, read_review),
        Target("detections.csv", 5, mutate_csv, read_table),
        Target("run.json", 2, mutate_json, read_run_file),
        Target("truth.csv", 3, mutate_csv, load_ground_truth),
        Target("films.csv", 3, mutate_csv, read_csv_list),
        Target("films.txt", 2, mutate_bytes, read_list),
        Target("index.jsonl", 2, mutate_lines, read_index),
    )
}


def write_seeds(folder: Path) -> None:
    """Write the good files of every target into a folder of its name, and a finished run."""
    for name in TARGETS:
        (folder / name).mkdir(parents=True)
    for name, contents in {**_pictures(), "film.dcm": _dicom(folder)}.items():
        for number, content in enumerate(contents):
            (folder / name / str(number)).write_bytes(content)
    _write_run(folder)
    (folder / "model.safetensors" / "0").symlink_to(shipped_model())
    about = {"phase": "coarse", "settings": SETTINGS, "position": {"round": 0, "epoch": 1}}
    tensors = {"c_u": torch.zeros(FILMS, 2, 4), "generator": torch.zeros(8, dtype=torch.uint8)}
    metadata = {"format": CHECKPOINT_FORMAT, "about": json.dumps(about)}
    (folder / "checkpoint.safetensors" / "0").write_bytes(save(tensors, metadata))
    (folder / "films.csv" / "0").write_text('film,note\na.dcm,one\n\'=b.dcm,two\n"c,d.dcm",\n')
    (folder / "films.txt" / "0").write_bytes(b"a.dcm\nb.dcm\r\nc d.dcm\n")
    (folder / "films.txt" / "1").write_bytes(b"a.dcm\0b.dcm\0")
    (folder / "index.jsonl" / "0").write_text('["/a.dcm", 1, 2, 3, "key"]\n' * 3)


def _write_run(folder: Path) -> None:
    """Detect on phantoms; what the run reads and writes are seeds."""
    run = folder / "run"
    synthesize(run, SynthConfig(FILMS, size=(320, 400), workers=0))
    config = DetectConfig(
        template=str(run / "template.json"), method="search", device="cpu", workers=0
    )
    detect_folder(run, run / "out", config)
    table = read_detections_table(run / "out")
    log = ReviewLog(run / "out" / "review.csv")
    for row, state in enumerate(("accepted", "rejected", "corrected")):
        knee = table.detection(row)
        log.add(Decision(table.text["film"][row], knee.side, state, area_of(knee), 0.5))
    log.undo()
    log.close()
    for file in [run / "template.json", run / "truth.csv", *(run / "out").iterdir()]:
        if file.name in TARGETS:
            shutil.copy(file, folder / file.name / "0")


def prepare_folder(seeds: Path, folder: Path) -> None:
    """Put beside the inputs what their readers need: films, a table, and a journal's settings."""
    for file in (seeds / "run").glob("*.dcm"):
        (folder / file.name).symlink_to(file)
    for name in ("detections.csv", "journal.jsonl"):
        (folder / name).symlink_to(seeds / "run" / "out" / name)


def _dicom(folder: Path) -> list[bytes]:
    """Return pydicom's small test files, and a film of ours in each transfer syntax."""
    found = Path(pydicom.data.__file__).parent / "test_files"
    contents = [path.read_bytes() for path in sorted(found.glob("*.dcm"))]
    contents = [content for content in contents if len(content) < LARGEST_SEED]
    ours = []
    path = folder / "plain.dcm"
    levels = np.linspace(0, 1, 48 * 64, dtype=np.float32).reshape(48, 64)
    write_dicom(path, levels, mm_per_px=0.2, laterality="B", entropy="fuzz")
    stored = (levels * 4095).astype(np.uint16)
    frames: dict[Any, bytes] = {
        JPEGLosslessSV1: imagecodecs.jpeg8_encode(stored, lossless=True, bitspersample=12),
        JPEGLSLossless: imagecodecs.jpegls_encode(stored),
        JPEG2000Lossless: imagecodecs.jpeg2k_encode(stored, bitspersample=12, codecformat="J2K"),
        HTJ2KLossless: imagecodecs.htj2k_encode(stored),
        JPEGBaseline8Bit: imagecodecs.jpeg8_encode((levels * 255).astype(np.uint8)),
    }
    native = (ImplicitVRLittleEndian, ExplicitVRBigEndian, DeflatedExplicitVRLittleEndian)
    for syntax in (*native, RLELossless, *frames):
        dataset = pydicom.dcmread(path)
        dataset.PatientName = dataset.PatientID = dataset.StudyDescription = SECRET
        dataset.InstitutionName = dataset.ReferringPhysicianName = SECRET
        dataset.add_new("PixelPaddingValue", "US", 0)
        dataset.RescaleSlope = -1
        if syntax in frames:
            dataset.PixelData = encapsulate([bytes(frames[syntax])])
            bits = 8 if syntax == JPEGBaseline8Bit else 12
            dataset.BitsAllocated = 8 if bits == 8 else 16
            dataset.BitsStored, dataset.HighBit = bits, bits - 1
        elif syntax == RLELossless:
            dataset.compress(syntax, encoding_plugin="pydicom")
        elif syntax == ExplicitVRBigEndian:
            dataset.PixelData = np.frombuffer(dataset.PixelData, "<u2").astype(">u2").tobytes()
        dataset.file_meta.TransferSyntaxUID = syntax
        file = io.BytesIO()
        pydicom.dcmwrite(
            file,
            dataset,
            little_endian=syntax != ExplicitVRBigEndian,
            implicit_vr=syntax == ImplicitVRLittleEndian,
            force_encoding=True,
        )
        ours.append(file.getvalue())
    return contents + 5 * ours  # most of pydicom's are no films, and refused before the decoder


def _pictures() -> dict[str, list[bytes]]:
    """Return PNG, JPEG and TIFF files of every mode that Pillow writes."""
    grey = np.linspace(0, 255, 40 * 60).reshape(40, 60).astype(np.uint8)
    eight = Image.fromarray(grey)
    wide = Image.fromarray(grey.astype(np.uint16) * 257)
    floats = Image.fromarray(grey.astype(np.float32) / 7)
    exif = Image.Exif()
    exif[0x0112] = 6
    modes = {mode: eight.convert(mode) for mode in ("L", "RGB", "RGBA", "P", "CMYK", "1", "I")}
    packed = [("raw", wide), ("tiff_lzw", eight), ("tiff_deflate", wide), ("packbits", eight)]
    packed += [("jpeg", eight), ("raw", floats), ("tiff_lzw", modes["RGB"]), ("raw", modes["CMYK"])]
    return {
        "film.png": [
            *(_saved(modes[mode], "PNG") for mode in ("L", "RGB", "RGBA", "P", "1")),
            _saved(wide, "PNG"),
            _saved(eight, "PNG", exif=exif),
        ],
        "film.jpg": [
            *(_saved(modes[mode], "JPEG") for mode in ("L", "RGB", "CMYK")),
            _saved(eight, "JPEG", progressive=True, exif=exif),
        ],
        "film.tif": [_saved(image, "TIFF", compression=how) for how, image in packed],
    }


def _saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()
