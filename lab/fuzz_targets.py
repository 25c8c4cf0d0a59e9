"""The readers that fuzz.py tests: their good files, how these are spoilt, and how they are read."""

import io
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import imagecodecs
import numpy as np
import pydicom.data
from PIL import Image
from pydicom.encaps import encapsulate
from pydicom.uid import (
    ExplicitVRBigEndian,
    HTJ2KLossless,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGLosslessSV1,
    JPEGLSLossless,
    RLELossless,
)

from fuzz_mutations import (
    Mutation,
    mutate_bytes,
    mutate_csv,
    mutate_dicom,
    mutate_jpeg,
    mutate_json,
    mutate_png,
    mutate_safetensors,
    mutate_tiff,
)
from kneematch import read
from kneematch.cli.main import main as kneematch
from kneematch.errors import FilmError, SettingsError
from kneematch.evaluation.labels import load_labels
from kneematch.films.annotation import load_annotation
from kneematch.films.discovery import find_films
from kneematch.films.read import read_header
from kneematch.knee.decision import Area, Decision
from kneematch.knee.template import annotated_half, cut_from_view
from kneematch.models.model_file import builtin_model, load_model
from kneematch.run.decisions import write_decisions
from kneephantoms import SynthConfig, synthesize, write_dicom

SECRET = "Zyx^Quux"  # stands for the patient in headers; no message may hold it
LARGEST_SEED = 40_000  # bytes of pydicom's files
FILMS = 3


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
    return cut_from_view(annotated_half(read(annotation.film), annotation), annotation)


def apply_to_run(path: Path) -> object:
    """Put a spoilt file into a copy of a finished run, or import it, and apply decisions."""
    out, name = path.parent / "out", path.name.removeprefix("input-")
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(path.parent / "run", out)
    options = ["--decisions", str(path)] if name == "review.csv" else []
    if not options:
        path.rename(out / name)
    code = kneematch(["apply", str(out), *options, "--workers", "0", "--quiet"])
    if code not in (0, 1, 2):
        raise AssertionError(f"exit code {code}")
    if code == 2:
        raise SettingsError("refused")
    return code


def read_list(path: Path) -> object:
    with patch("os.walk", lambda top, **options: [(top, [], [])]):
        return find_films(f"@{path}")  # a spoilt list may name the whole disk


TARGETS = {
    target.name: target
    for target in (
        Target("film.dcm", 40, mutate_dicom, read_film),
        Target("film.png", 8, mutate_png, read_film),
        Target("film.jpg", 6, mutate_jpeg, read_film),
        Target("film.tif", 8, mutate_tiff, read_film),
        Target("film.j2k", 6, mutate_jpeg, read_film),
        Target("film.webp", 2, mutate_bytes, read_film),
        Target("template.json", 6, mutate_json, read_template),
        Target("model.safetensors", 1, mutate_safetensors, load_model),
        Target("truth.csv", 3, mutate_csv, load_labels),
        Target("films.txt", 2, mutate_bytes, read_list),
        Target("review.csv", 2, mutate_csv, apply_to_run),
        Target("thumbnails.sqlite", 1, mutate_bytes, apply_to_run),
        Target("run.sqlite", 2, mutate_bytes, apply_to_run),
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
    (folder / "model.safetensors" / "0").symlink_to(builtin_model())
    (folder / "films.txt" / "0").write_bytes(b"a.dcm\nb.dcm\r\nc d.dcm\n")
    (folder / "films.txt" / "1").write_bytes(b"a.dcm\0b.dcm\0")


def _write_run(folder: Path) -> None:
    """Detect on phantoms; what the run reads and writes are seeds."""
    run = folder / "run"
    synthesize(run, SynthConfig(FILMS, size=(320, 400)))
    command = ["detect", str(run), "-o", str(run / "out"), "--device", "cpu", "--workers", "0"]
    if kneematch([*command, "--quiet"]) != 0:
        raise RuntimeError("the run that is to be spoilt failed")
    film, area = str(run / "phantom-00000.dcm"), Area(100, 100, 50, 0)
    moved = Decision("corrected", area, 0.1, "L", {"plateau_medial": (90.0, 101.0)}, reader="A")
    entries = (("left", Decision("rejected", area, 0.1)), ("right", moved))
    rows = [("2026-01-01T00:00:00+00:00", film, side, each, False) for side, each in entries]
    write_decisions(rows, folder / "review.csv" / "0")
    for file in [run / "template.json", run / "truth.csv", *(run / "out").iterdir()]:
        if file.name in TARGETS:
            shutil.copy(file, folder / file.name / "0")


def prepare_folder(seeds: Path, folder: Path) -> None:
    """Put beside the inputs what their readers need: films, and a finished run."""
    for file in (seeds / "run").glob("*.dcm"):
        (folder / file.name).symlink_to(file)
    shutil.copytree(seeds / "run" / "out", folder / "run")


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
    native = (ImplicitVRLittleEndian, ExplicitVRBigEndian)
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
    """Return pictures of every kind and mode."""
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
        "film.j2k": [_codestream(each) for each in (eight, wide)],
        "film.webp": [_saved(eight, kind) for kind in ("WEBP", "GIF", "BMP")],
    }


def _codestream(image: Image.Image) -> bytes:
    return bytes(imagecodecs.jpeg2k_encode(np.array(image), codecformat="J2K"))


def _saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()
