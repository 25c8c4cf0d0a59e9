"""From films to detections in their own pixels."""

import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pydicom
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter
from torch import Tensor

import kneematch.knee.knee_images as module
from kneematch.errors import FilmError, NotARadiograph, SettingsError, TemplateError
from kneematch.films.annotation import Annotation, annotate
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import read
from kneematch.knee.detection import Detection
from kneematch.knee.detector import Detector
from kneematch.knee.template import read_template
from kneematch.models.locator import Locator, builtin_locator
from kneematch.paper.energy import Problem
from kneephantoms import phantom
from kneephantoms.files import write_dicom
from phantom_films import radiograph

SIZE = (480, 600)
SEED = 22  # an ordinary film: upright, whole, not a negative
KNEES = phantom(SEED, size=SIZE).knees

Result = tuple[Detection, ...] | FilmError


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> list[Annotation]:
    """The boxes of the left and of the right knee of a phantom."""
    path = tmp_path_factory.mktemp("films") / "a.dcm"
    write_dicom(path, phantom(SEED, size=SIZE).pixels, mm_per_px=0.3, laterality="B", bits=16)
    return [annotate(path, knee.side, knee.plateau_left, knee.plateau_right) for knee in KNEES]


@pytest.fixture(scope="module")
def annotation(drawn: list[Annotation]) -> Annotation:
    return drawn[1]


@pytest.fixture(scope="module")
def film(annotation: Annotation) -> Radiograph:
    return read(annotation.film)


@pytest.fixture(scope="module")
def built_in() -> Detector:
    return Detector.load(device="cpu")


def detector_at(annotation: Annotation) -> Detector:
    """A detector that finds the annotated pose in the views of all knees, without search."""
    drawn = read_template(annotation)

    def find(problem: Problem) -> Tensor:
        return drawn.theta.to(problem.images).expand(*problem.images.shape[:2], 4)

    return Detector(drawn.template, find, "always")


def as_gpu(detector: Detector, **options: Any) -> Detector:
    """By this name the CPU is used as a GPU is: films of a batch are prepared together."""
    how = replace(detector.preparation, device="cpu:0", precise=True)
    return replace(detector, preparation=how, **options)


def box_corners(box: tuple[float, float, float, float]) -> list[list[float]]:
    x0, y0, x1, y1 = box
    return [[x0, y0], [x1, y0], [x1, y1], [x0, y1]]


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    ("method", "name", "most_px"), [("search", "search", 0.5), ("auto", "locator", 2.0)]
)
def test_detector_finds_a_template_where_it_was_drawn(
    drawn: list[Annotation], side: int, method: str, name: str, most_px: float
) -> None:
    template = drawn[side]
    knees = Detector.load(template=template, method=method).detect(template.film)
    found, other = knees[side], knees[1 - side]
    corners = found.corners[[1, 0, 3, 2]] if found.mirrored else found.corners
    assert np.abs(corners - box_corners(template.fine)).max() < most_px
    for landmark, point in template.landmarks.items():
        assert math.dist(found.landmarks[landmark], point) < 1
    assert found.loss < 3e-3 < other.loss < 0.3
    assert (found.method, found.polarity) == (name, "positive")
    truth = KNEES[1 - side].plateau_left, KNEES[1 - side].plateau_right
    for margin, point in zip(sorted(other.landmarks.values()), truth, strict=True):
        assert math.dist(margin, point) < 0.07 * other.width_px


def test_detector_finds_a_box_as_it_was_drawn_on_a_rotated_knee(
    built_in: Detector, tmp_path: Path
) -> None:
    made = phantom(SEED, size=SIZE).pixels
    turned = np.asarray(Image.fromarray(made).rotate(5, Image.Resampling.BICUBIC))
    write_dicom(tmp_path / "film.dcm", turned.clip(0, 1), mm_per_px=None, laterality="B")
    _, knee = built_in.detect(tmp_path / "film.dcm")
    drawn = annotate(tmp_path / "film.dcm", "right", *sorted(knee.landmarks.values()))
    detector = Detector.load(template=drawn)
    _, found = detector.detect(drawn.film)
    assert (detector.method, abs(knee.rotation_deg) > 4) == ("locator", True)
    width = drawn.fine[2] - drawn.fine[0]
    assert np.abs(found.corners - box_corners(drawn.fine)).max() < 0.02 * width


def test_detector_states_the_papers_energy_for_both_knees(
    annotation: Annotation, film: Radiograph
) -> None:
    left, right = detector_at(annotation).detect(film)
    assert left.energy == right.energy
    assert left.energy == pytest.approx(left.loss + right.loss, abs=1e-5)  # poses are alike


def test_detector_finds_areas_that_reach_past_the_edge(
    annotation: Annotation, film: Radiograph
) -> None:
    knee = max(x for x, _ in annotation.landmarks.values())
    cut = replace(film, pixels=np.ascontiguousarray(film.pixels[:, : math.ceil(knee) + 4]))
    _, right = Detector.load(template=annotation, device="cpu").detect(cut)
    assert np.abs(right.corners - box_corners(annotation.fine)).max() < 6
    assert right.corners[:, 0].max() > cut.size[1]


@pytest.mark.parametrize(("laterality", "side"), [("R", "left"), ("L", "right")])
def test_detector_finds_one_knee_where_the_header_says_so(
    annotation: Annotation, film: Radiograph, laterality: str, side: str
) -> None:
    half = film.pixels[:, : SIZE[1] // 2] if side == "left" else film.pixels[:, SIZE[1] // 2 :]
    one = Radiograph(np.ascontiguousarray(half), laterality=laterality)
    detector = Detector.load(template=annotation)
    (found,) = detector.detect(one)
    assert (found.side, found.laterality, found.mm_per_px) == (side, laterality, None)
    assert found.energy == found.loss
    (two,) = (knee for knee in detector.detect(film) if knee.side == side)
    offset = 0 if side == "left" else SIZE[1] // 2
    assert math.dist((found.centre[0] + offset, found.centre[1]), two.centre) < 5


def test_detect_takes_whatever_holds_a_film(
    annotation: Annotation, film: Radiograph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "read_markers", lambda films: [()] * len(films))
    detector, dataset = detector_at(annotation), pydicom.dcmread(annotation.film)
    wanted = detector.detect(annotation.film)
    grey = np.rint(65535 * film.pixels).astype(np.uint16)
    colours, picture, png = np.stack([grey] * 3, axis=2), Image.fromarray(grey), io.BytesIO()
    picture.save(png, "PNG")
    png.seek(0)
    with annotation.film.open("rb") as file:
        with_header = detector.detect([str(annotation.film), file, dataset, film])
    without = detector.detect([png, dataset.pixel_array, film.pixels, picture, colours])
    for found, side, mm_per_px in (
        *((found, "R", wanted[0].mm_per_px) for found in with_header),
        *((found, "", None) for found in without),
    ):
        assert [knee.loss for knee in found] == pytest.approx([k.loss for k in wanted], abs=1e-4)
        assert (found[0].laterality, found[0].mm_per_px) == (side, mm_per_px)
        for knee, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(knee.corners, other.corners, atol=1e-3)
    for given in (annotation.film, dataset, film.pixels, picture):
        np.testing.assert_allclose(wanted[0].crop(given), wanted[0].crop(film), atol=1e-4)
        drawn = np.asarray(wanted[0].draw(given))
        np.testing.assert_allclose(drawn, np.asarray(wanted[0].draw(film)), atol=2)
    (one,) = detector.detect(film.pixels[:, : SIZE[1] // 2], mm_per_px=0.25, laterality="R")
    assert (one.side, one.laterality, one.mm_per_px) == ("left", "R", 0.25)
    with pytest.raises(SettingsError, match="only for an array"):
        detector.detect(annotation.film, mm_per_px=0.2)


def test_detect_and_crop_refuse_what_is_no_film(built_in: Detector, film: Radiograph) -> None:
    for given, kind in ((3, "int"), (None, "NoneType"), ([3], "int")):
        with pytest.raises(SettingsError, match=f"A film is a path.*, not {kind}"):
            built_in.detect(given)  # type: ignore[call-overload]
    with pytest.raises(SettingsError, match="not int"):
        built_in.detect(film)[0].crop(7)  # type: ignore[arg-type]


def test_detect_each_goes_on_after_a_bad_film(
    annotation: Annotation, film: Radiograph, tmp_path: Path
) -> None:
    missing, tiny = tmp_path / "missing.dcm", Radiograph(np.eye(8, dtype=np.float32))
    detector = replace(detector_at(annotation), batch_size=2)
    first, second, third, last = detector.detect_each([film, missing, tiny, film])
    assert isinstance(first, tuple)
    assert isinstance(last, tuple)
    assert [knee.loss for knee in first] == [knee.loss for knee in last]
    assert isinstance(second, FilmError)
    assert "missing.dcm" in str(second)
    assert isinstance(third, NotARadiograph)
    assert third.__traceback__ is None  # which would hold the pixels
    with pytest.raises(FilmError, match=r"missing\.dcm"):
        detector.detect([film, missing])


def test_detect_each_goes_on_after_a_film_that_meets_a_bug(
    built_in: Detector, film: Radiograph, tmp_path: Path
) -> None:
    path, solved = tmp_path / "film.png", []
    Image.fromarray((255 * film.pixels).astype(np.uint8)).save(path)

    def fails_once(problem: Problem) -> torch.Tensor:
        solved.append(built_in.solver(problem))
        if len(solved) == 2:
            raise ZeroDivisionError("text of a header")
        return solved[-1]

    first, second, third = replace(built_in, solver=fails_once).detect_each([path] * 3)
    assert isinstance(first, tuple)
    assert isinstance(third, tuple)
    unexpected = "An unexpected ZeroDivisionError occurred. Please report this bug."
    assert str(second) == f"{path}: {unexpected}"


def test_detect_looks_for_the_knees_of_a_large_film_in_a_copy_first(
    built_in: Detector, monkeypatch: pytest.MonkeyPatch
) -> None:
    film, searched = radiograph(phantom(SEED, size=(1000, 1250))), list[tuple[int, int]]()
    search = Detector.search

    def recorded(self: Detector, films: Any) -> Any:
        searched.extend(film.size for film in films)
        return search(self, films)

    monkeypatch.setattr(Detector, "search", recorded)
    found = built_in.detect(film)
    assert searched == [(500, 625)]
    monkeypatch.setattr("kneematch.knee.detector.LEAST_PX", 500)  # smaller ones are seen closely
    closely = built_in.detect(film)
    assert searched[1:] == [(500, 625), (1000, 1250)]
    assert built_in.detect(np.random.default_rng(0).random((1000, 960), dtype=np.float32)) == ()
    assert searched[3:] == [(500, 480), (1000, 960)]
    assert_near(found, closely, 3)


def test_load_refuses_impossible_settings(annotation: Annotation) -> None:
    for method in ("magic", "locator", "neural+sharpen", "sliding"):
        with pytest.raises(SettingsError, match="Choose auto or search"):
            Detector.load(template=annotation, method=method)
    with pytest.raises(SettingsError, match="auto, cpu, cuda"):
        Detector.load(template=annotation, device="tpu")
    with pytest.raises(SettingsError, match="at least 1 film"):
        Detector.load(template=annotation, batch_size=0)
    with pytest.raises(TemplateError, match="called centre"):
        Detector.load(template=replace(annotation, landmarks={"centre": (1.0, 2.0)}))


def test_detector_halves_a_batch_that_does_not_fit_into_memory(
    annotation: Annotation, caplog: pytest.LogCaptureFixture
) -> None:
    roomy, tried, room = detector_at(annotation), list[int](), [2]

    def short_of_memory(problem: Problem) -> Tensor:
        tried.append(len(problem.images))
        if len(problem.images) > room[0]:
            raise torch.OutOfMemoryError
        return roomy.solver(problem)

    # By this name the CPU is used as a GPU is, with the films of a batch together.
    short = replace(roomy, solver=short_of_memory, device="cpu:0", batch_size=5)
    found = short.detect([annotation.film] * 5)
    assert tried == [5, 2, 2, 1]
    assert "5 films at once do not fit into the memory of cpu:0" in caplog.text
    expected = roomy.detect(annotation.film)
    for knees in found:
        assert [knee.centre for knee in knees] == [knee.centre for knee in expected]
    room[0] = 0
    with pytest.raises(SettingsError, match="ne film does not fit into the memory"):
        short.detect([annotation.film] * 2)


def assert_near(found: Result, expected: Result, most_px: float) -> None:
    """Compare the results of a film."""
    if isinstance(found, FilmError) or isinstance(expected, FilmError):
        assert str(found) == str(expected)
        return
    for knee, other in zip(found, expected, strict=True):
        assert np.abs(knee.corners - other.corners).max() < most_px
        assert (knee.laterality, knee.reasons) == (other.laterality, other.reasons)
        assert knee.mm_per_px == other.mm_per_px


def test_detector_finds_the_same_in_batches_of_any_size_and_in_any_precision(
    built_in: Detector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    films: list[Radiograph | Path] = [
        radiograph(phantom(seed, size=SIZE, framing=framing))
        for seed, framing in enumerate(["bilateral", "single", "bilateral", "single"])
    ]
    films.insert(1, tmp_path / "missing.dcm")
    films.insert(3, Radiograph(np.random.default_rng(0).random((300, 400), dtype=np.float32)))

    def full(device: str, *, precise: bool) -> Locator:
        if device != "cpu":
            raise torch.OutOfMemoryError
        return builtin_locator(device, precise=precise)

    alone = [*as_gpu(built_in, batch_size=1).detect_each(films)]
    assert [len(knees) if isinstance(knees, tuple) else 0 for knees in alone] == [2, 0, 1, 0, 2, 1]
    few, all_, half = (
        [*detector.detect_each(films)]
        for detector in (as_gpu(built_in, batch_size=2), as_gpu(built_in, batch_size=6), built_in)
    )
    monkeypatch.setattr(module, "builtin_locator", full)
    without_room = [*as_gpu(built_in, batch_size=6).detect_each(films)]
    for results, most_px in ((few, 0.05), (all_, 0.05), (without_room, 0.05), (half, 1.5)):
        for found, expected in zip(results, alone, strict=True):
            assert_near(found, expected, most_px)


def test_detector_does_not_blame_a_film_for_a_gpu(
    built_in: Detector, film: Radiograph, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object, **options: object) -> NoReturn:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(module, "locate_knees", broken)
    with pytest.raises(RuntimeError, match="launch failure"):
        list(as_gpu(built_in, batch_size=4).detect_each([film] * 4))


def test_load_refuses_a_template_of_knees_where_no_knee_is_seen(
    annotation: Annotation, tmp_path: Path
) -> None:
    clouds = gaussian_filter(np.random.default_rng(0).normal(size=SIZE), 8)
    clouds = ((clouds - clouds.min()) / np.ptp(clouds)).astype(np.float32)
    write_dicom(tmp_path / "clouds.dcm", clouds, mm_per_px=None, laterality="B")
    x0, y0, x1, y1 = annotation.red  # at an end of the plateau
    for elsewhere in (
        replace(annotation, film=tmp_path / "clouds.dcm"),
        replace(annotation, fine=annotation.red, green=(x0, y0, (x0 + x1) / 2, y1)),
        replace(annotation, side="left"),
    ):
        for method in ("auto", "search"):
            with pytest.raises(TemplateError, match="no tibial plateau whose middle lies in the"):
                Detector.load(template=elsewhere, method=method)


def test_load_searches_unchecked_where_the_networks_see_another_knee(
    annotation: Annotation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kneematch.models.two_stage.LARGEST_SPREAD", 0.0)
    with pytest.raises(TemplateError, match="use detect `method` search"):
        Detector.load(template=annotation)
    assert Detector.load(template=annotation, method="search").check is None
