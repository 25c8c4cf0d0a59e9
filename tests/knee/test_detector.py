"""From films to detections in their own pixels."""

import math
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pydicom
import pytest
import torch
from PIL import Image
from torch import Tensor

from kneematch.errors import FilmError, NoFrontalKnee, NotARadiograph, SettingsError, TemplateError
from kneematch.films.annotation import Annotation, annotate, save_annotation
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import read
from kneematch.knee import loading, preparation
from kneematch.knee.detection import Detection
from kneematch.knee.detector import Detector
from kneematch.knee.knee_images import film_tensor
from kneematch.knee.preparation import Preparation
from kneematch.knee.quality import WRONG_SPACING
from kneematch.knee.template import cut_template
from kneematch.paper.energy import Problem, Solver, paper_problem
from kneematch.paper.split import split
from kneephantoms import phantom
from kneephantoms.files import write_dicom
from phantom_films import radiograph

SIZE = (480, 600)
SEED = 22  # an ordinary film: upright, whole, not a negative


@pytest.fixture(scope="module")
def annotation(tmp_path_factory: pytest.TempPathFactory) -> Annotation:
    """The boxes of the right knee of a phantom."""
    made = phantom(SEED, size=SIZE)
    path = tmp_path_factory.mktemp("films") / "a.dcm"
    write_dicom(path, made.pixels, mm_per_px=0.3, laterality="B", bits=16)
    knee = made.knees[1]
    return annotate(path, knee.side, knee.plateau_left, knee.plateau_right)


@pytest.fixture(scope="module")
def film(annotation: Annotation) -> Radiograph:
    return read(annotation.film)


def always(theta: Tensor) -> Solver:
    """Claims to have found the same pose on every side of every film."""

    def find(problem: Problem) -> Tensor:
        n, sides = problem.images.shape[:2]
        return theta.to(problem.images).expand(n, sides, 4)

    return find


def detector_at(
    annotation: Annotation, pose: list[float] | None = None, **options: int
) -> Detector:
    """A detector that finds a pose of the paper's halves, or the annotated one, without search."""
    template, own = cut_template(read(annotation.film), annotation)
    theta = own if pose is None else torch.tensor(pose)
    how = Preparation(locate=False, side_margin=0.0)
    return Detector(template, always(theta), "always", paper=True, preparation=how, **options)


def box_corners(box: tuple[float, float, float, float]) -> list[list[float]]:
    x0, y0, x1, y1 = box
    return [[x0, y0], [x1, y0], [x1, y1], [x0, y1]]


def clockwise(found: Detection) -> bool:
    (ax, ay), (bx, by), (cx, cy) = found.corners[:3]
    return bool((bx - ax) * (cy - by) - (by - ay) * (cx - bx) > 0)


@pytest.mark.parametrize(
    ("method", "most", "most_px"),
    [("search", 1e-3, 0.5), ("neural+sharpen", 3e-3, 1.0), ("locator", 3e-3, 2.0)],
)
def test_detector_finds_a_template_where_it_was_drawn(
    annotation: Annotation, method: str, most: float, most_px: float
) -> None:
    left, right = Detector.load(template=annotation, method=method).detect(annotation.film)
    assert np.abs(right.corners - box_corners(annotation.fine)).max() < most_px
    for name, point in annotation.landmarks.items():
        assert math.dist(right.landmarks[name], point) < 1
    assert right.loss < most < left.loss < 0.3
    assert (right.method, right.polarity, right.status) == (method, "positive", "ok")
    assert abs(right.rotation_deg) < 0.5


def test_detector_finds_a_box_as_it_was_drawn_on_a_rotated_knee(tmp_path: Path) -> None:
    made = phantom(SEED, size=SIZE).pixels
    turned = np.asarray(Image.fromarray(made).rotate(5, Image.Resampling.BICUBIC))
    write_dicom(tmp_path / "film.dcm", turned.clip(0, 1), mm_per_px=None, laterality="B")
    _, knee = Detector.load().detect(tmp_path / "film.dcm")
    (x0, y0), (x1, y1) = sorted(knee.landmarks.values())
    drawn = annotate(tmp_path / "film.dcm", "right", (x0, y0), (x1, y1))
    detector = Detector.load(template=drawn)
    _, found = detector.detect(drawn.film)
    assert (detector.method, abs(knee.rotation_deg) > 4) == ("locator", True)
    width = drawn.fine[2] - drawn.fine[0]
    assert np.abs(found.corners - box_corners(drawn.fine)).max() < 0.02 * width


def test_detector_finds_the_knee_on_the_mirrored_side(annotation: Annotation) -> None:
    left, _ = Detector.load(template=annotation).detect(annotation.film)
    knee = phantom(SEED, size=SIZE).knees[0]
    margins = sorted(left.landmarks.values())
    plateau = math.dist(knee.plateau_left, knee.plateau_right)
    assert math.dist(margins[0], knee.plateau_left) < 0.1 * plateau
    assert math.dist(margins[1], knee.plateau_right) < 0.1 * plateau


def test_detection_corners_are_those_of_the_drawn_box(
    annotation: Annotation, film: Radiograph
) -> None:
    _, right = detector_at(annotation).detect(film)
    # A template has whole pixels, and the box not.
    assert np.abs(right.corners - box_corners(annotation.fine)).max() < 0.5
    assert right.centre == pytest.approx(right.corners.mean(0))
    x0, y0, x1, y1 = annotation.fine
    assert (right.width_px, right.height_px) == pytest.approx((x1 - x0, y1 - y0), abs=0.5)
    for name, point in annotation.landmarks.items():
        assert right.landmarks[name] == pytest.approx(point, abs=0.5)


def test_detection_corners_run_the_other_way_round_on_the_mirrored_side(
    annotation: Annotation, film: Radiograph
) -> None:
    left, right = detector_at(annotation, [0.5, 0.1, 0.0, 0.05]).detect(film)
    assert clockwise(right)
    assert not clockwise(left)
    # The template's top left is towards the middle of the picture on both sides.
    assert right.corners[0, 0] < right.corners[1, 0]
    assert left.corners[0, 0] > left.corners[1, 0]
    assert (left.side, left.laterality) == ("left", "R")
    assert (right.side, right.laterality) == ("right", "L")


@pytest.mark.parametrize("angle", [0.0, 0.1, -0.05])
def test_detection_rotation_is_clockwise_in_the_picture(
    annotation: Annotation, film: Radiograph, angle: float
) -> None:
    left, right = detector_at(annotation, [0.5, 0.0, 0.0, angle]).detect(film)
    assert right.rotation_deg == pytest.approx(math.degrees(angle), abs=0.05)
    assert left.rotation_deg == pytest.approx(-math.degrees(angle), abs=0.05)
    # Turned clockwise, the picture's right end of the top edge is the lower one.
    rise = right.corners[1, 1] - right.corners[0, 1]
    assert rise == pytest.approx(right.width_px * math.sin(angle), abs=0.1)
    assert right.width_px == pytest.approx(left.width_px)


def test_detection_energy_is_the_papers_in_both_rows(
    annotation: Annotation, film: Radiograph
) -> None:
    detector = detector_at(annotation)
    left, right = detector.detect(film)
    halves = split(film_tensor(film)).pixels[None]
    problem = paper_problem(halves, detector.template)
    expected = problem.energy(detector.solver(problem))
    assert left.energy == right.energy == pytest.approx(expected.item(), abs=1e-5)
    assert left.energy == pytest.approx(left.loss + right.loss, abs=1e-5)  # poses are alike


def test_detector_finds_areas_that_reach_past_the_edge(
    annotation: Annotation, film: Radiograph
) -> None:
    knee = max(x for x, _ in annotation.landmarks.values())
    cut = replace(film, pixels=np.ascontiguousarray(film.pixels[:, : math.ceil(knee) + 4]))
    assert annotation.fine[2] > cut.size[1]
    _, right = Detector.load(template=annotation, device="cpu").detect(cut)
    assert np.abs(right.corners - box_corners(annotation.fine)).max() < 6
    assert right.corners[:, 0].max() > cut.size[1]


def test_detection_polarity_tells_a_negative_from_a_positive(
    annotation: Annotation, film: Radiograph
) -> None:
    detector = detector_at(annotation)
    _, positive = detector.detect(film)
    _, negative = detector.detect(replace(film, pixels=1 - film.pixels))
    assert (positive.polarity, negative.polarity) == ("positive", "negative")
    assert negative.loss == pytest.approx(positive.loss, abs=1e-4)


@pytest.mark.parametrize(("laterality", "side"), [("R", "left"), ("L", "right")])
def test_detector_finds_one_knee_where_the_header_says_so(
    annotation: Annotation, film: Radiograph, laterality: str, side: str
) -> None:
    half = film.pixels[:, : SIZE[1] // 2] if side == "left" else film.pixels[:, SIZE[1] // 2 :]
    one = Radiograph(np.ascontiguousarray(half), laterality=laterality)
    (found,) = Detector.load(template=annotation).detect(one)
    assert (found.side, found.laterality) == (side, laterality)
    assert clockwise(found) == (side == "right")
    assert found.energy == found.loss
    assert found.mm_per_px is None
    (two,) = (d for d in Detector.load(template=annotation).detect(film) if d.side == side)
    offset = 0 if side == "left" else SIZE[1] // 2
    assert math.dist((found.centre[0] + offset, found.centre[1]), two.centre) < 5


@pytest.fixture
def no_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Films without the letters R and L."""
    monkeypatch.setattr(preparation, "read_markers", lambda films: [()] * len(films))


@pytest.mark.usefixtures("no_markers")
def test_detector_states_no_laterality_that_is_not_known(
    annotation: Annotation, film: Radiograph
) -> None:
    def sides(film: Radiograph, left_is: str | None = None) -> list[tuple[str, str, str]]:
        detector = detector_at(annotation)
        how = replace(detector.preparation, left_is=left_is)
        found = replace(detector, preparation=how).detect(film)
        return [(knee.laterality, knee.laterality_source, knee.review) for knee in found]

    unknown = replace(film, seen_from_front=None)
    review = [knee.review for knee in detector_at(annotation).detect(unknown)]
    assert sides(unknown) == [("", "", flag) for flag in review]
    assert sides(unknown, "L") == list(zip("LR", ["user"] * 2, review, strict=True))
    assert sides(film) == list(zip("RL", ["header"] * 2, review, strict=True))
    assert sides(film, "L") == list(zip("LR", ["user"] * 2, ["yes"] * 2, strict=True))
    flipped = replace(film, pixels=film.pixels[:, ::-1].copy(), seen_from_front=False)
    assert [side for side, _, _ in sides(flipped)] == ["L", "R"]


def test_built_in_landmarks_are_medial_and_lateral_in_both_halves(
    annotation: Annotation,
) -> None:
    for found, knee in zip(
        Detector.load(device="cpu").detect(annotation.film),
        phantom(SEED, size=SIZE).knees,
        strict=True,
    ):
        width = math.dist(knee.plateau_medial, knee.plateau_lateral)
        assert math.dist(found.landmarks["plateau_medial"], knee.plateau_medial) < 0.1 * width
        assert math.dist(found.landmarks["plateau_lateral"], knee.plateau_lateral) < 0.1 * width


def test_detector_doubts_a_spacing_by_which_no_knee_has_its_size(film: Radiograph) -> None:
    detector = Detector.load(device="cpu")
    made = radiograph(phantom(SEED, size=SIZE))
    assert made.mm_per_px is not None
    for factor, doubted in ((1.0, False), (1.4, False), (10.0, True), (0.1, True)):
        knees = detector.detect(replace(film, mm_per_px=factor * made.mm_per_px))
        assert [WRONG_SPACING in knee.review_reasons for knee in knees] == [doubted] * 2
        assert {knee.review for knee in knees} == {"yes" if doubted else ""}
    assert not any(knee.review for knee in detector.detect(replace(film, mm_per_px=None)))


def test_detector_batch_size_changes_nothing(annotation: Annotation, film: Radiograph) -> None:
    one = replace(film, laterality="R")
    films = [film, one, replace(film, pixels=film.pixels[:, ::-1].copy()), one, film]
    by_one, by_three = (
        replace(detector_at(annotation), batch_size=size).detect(films) for size in (1, 3)
    )
    assert [len(found) for found in by_one] == [2, 1, 2, 1, 2]
    for a, b in zip(by_one, by_three, strict=True):
        assert [d.side for d in a] == [d.side for d in b]
        assert [d.loss for d in a] == pytest.approx([d.loss for d in b], abs=1e-5)
        assert np.allclose([d.corners for d in a], [d.corners for d in b])


def test_detect_takes_paths_and_films(annotation: Annotation, film: Radiograph) -> None:
    detector = detector_at(annotation)
    by_path, by_text, by_film = (
        detector.detect(given) for given in (annotation.film, str(annotation.film), film)
    )
    for found in (by_text, by_film):
        assert np.array_equal(found[0].corners, by_path[0].corners)
    assert by_film[0].mm_per_px == pytest.approx(0.3)


def test_detect_refuses_what_is_no_film(annotation: Annotation) -> None:
    detector = Detector.load(template=annotation, method="search", device="cpu")
    for given in (3, None, [3]):
        kind = "NoneType" if given is None else "int"
        with pytest.raises(SettingsError, match=f"^films of type {kind}; expected a path, a NumPy"):
            detector.detect(given)  # type: ignore[call-overload]


def test_repr_of_films_detectors_and_detections_has_no_arrays(
    annotation: Annotation, film: Radiograph
) -> None:
    detector = Detector.load(template=annotation, method="search", device="cpu")
    left, _ = detector.detect(film)
    for each in (film, detector, left):
        assert not any(word in repr(each) for word in ("array", "tensor", "\n"))
    assert "side='left'" in repr(left)
    assert "method='search'" in repr(detector)


@pytest.mark.usefixtures("no_markers")
def test_detect_takes_arrays_and_datasets(annotation: Annotation) -> None:
    detector = detector_at(annotation)
    dataset = pydicom.dcmread(annotation.film)
    by_path, by_dataset = detector.detect(annotation.film), detector.detect(dataset)
    by_array = detector.detect(dataset.pixel_array, mm_per_px=0.25)
    for found in (by_dataset, by_array):
        assert np.allclose(found[0].corners, by_path[0].corners)
        assert [knee.loss for knee in found] == pytest.approx([k.loss for k in by_path], abs=1e-6)
    assert (by_dataset[0].laterality, by_array[0].laterality) == ("R", "")
    assert (by_dataset[0].mm_per_px, by_array[0].mm_per_px) == pytest.approx((0.3, 0.25))
    (one,) = detector.detect(dataset.pixel_array[:, : SIZE[1] // 2], laterality="R")
    assert (one.side, one.laterality, one.mm_per_px) == ("left", "R", None)
    assert len(detector.detect([dataset.pixel_array, dataset, annotation.film])) == 3
    with pytest.raises(SettingsError, match="not an array"):
        detector.detect(annotation.film, mm_per_px=0.2)


def test_detect_each_goes_on_after_a_bad_film(
    annotation: Annotation, film: Radiograph, tmp_path: Path
) -> None:
    missing, tiny = tmp_path / "missing.dcm", Radiograph(np.eye(8, dtype=np.float32))
    detector = replace(detector_at(annotation), batch_size=2)
    outcomes = list(detector.detect_each([film, missing, tiny, film]))
    assert [outcome.failure is None for outcome in outcomes] == [True, False, False, True]
    assert [len(outcome.detections) for outcome in outcomes] == [2, 0, 0, 2]
    assert str(missing) in str(outcomes[1].failure)
    with pytest.raises(FilmError, match=r"missing\.dcm"):
        detector.detect([film, missing])


def test_detect_names_a_film_without_a_knee(
    annotation: Annotation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Detector, "find", lambda self, films: [()] * len(films))  # on inspection
    with pytest.raises(NoFrontalKnee, match=r"a\.dcm: no frontal knee found"):
        Detector.load(device="cpu").detect(annotation.film)


def test_detect_names_a_film_that_is_too_small(annotation: Annotation, tmp_path: Path) -> None:
    tiny = tmp_path / "tiny.dcm"
    write_dicom(tiny, np.eye(8, dtype=np.float32), mm_per_px=None, laterality="B")
    with pytest.raises(NotARadiograph, match=r"tiny\.dcm: film of 8 x 8"):
        detector_at(annotation).detect(tiny)


def test_load_takes_the_template_of_a_file_or_an_annotation(
    annotation: Annotation, tmp_path: Path
) -> None:
    save_annotation(annotation, tmp_path / "template.json")
    from_file = Detector.load(template=tmp_path / "template.json")
    assert torch.equal(from_file.template.image, Detector.load(template=annotation).template.image)


def test_load_refuses_impossible_settings(annotation: Annotation) -> None:
    with pytest.raises(SettingsError, match="locator, neural\\+sharpen, neural, search"):
        Detector.load(template=annotation, method="magic")
    with pytest.raises(SettingsError, match="auto, cpu, cuda"):
        Detector.load(template=annotation, device="tpu")
    with pytest.raises(SettingsError, match="expected 1"):
        Detector.load(template=annotation, batch_size=0)
    if not torch.cuda.is_available():
        with pytest.raises(SettingsError, match="0 NVIDIA GPUs"):
            Detector.load(template=annotation, device="cuda")
    with pytest.raises(TemplateError, match="called centre"):
        Detector.load(template=replace(annotation, landmarks={"centre": (1.0, 2.0)}))


def test_detector_finds_the_same_without_the_consistency_check(
    annotation: Annotation, film: Radiograph
) -> None:
    checked, unchecked = (
        Detector.load(template=annotation, method="search", check=check) for check in (True, False)
    )
    assert checked.check is not None
    assert unchecked.check is None
    pairs = zip(checked.detect(film), unchecked.detect(film), strict=True)
    assert all((one.corners == other.corners).all() for one, other in pairs)


def test_detector_halves_a_batch_that_does_not_fit_into_memory(
    annotation: Annotation, caplog: pytest.LogCaptureFixture
) -> None:
    roomy, tried = detector_at(annotation), list[int]()

    def short_of_memory(problem: Problem) -> Tensor:
        tried.append(len(problem.images))
        if len(problem.images) > 2:
            raise torch.OutOfMemoryError
        return roomy.solver(problem)

    # By this name the CPU is used as a GPU is, with the films of a batch together.
    short = replace(roomy, solver=short_of_memory, device="cpu:0", batch_size=5)
    found = short.detect([annotation.film] * 5)
    assert tried == [5, 2, 2, 1]
    assert "5 films do not fit into the memory of cpu:0 together" in caplog.text
    expected = roomy.detect(annotation.film)
    for knees in found:
        assert [knee.centre for knee in knees] == [knee.centre for knee in expected]


def test_detector_says_when_not_even_one_film_fits_into_memory(annotation: Annotation) -> None:
    def without_memory(problem: Problem) -> Tensor:
        raise torch.OutOfMemoryError

    detector = replace(detector_at(annotation), solver=without_memory, device="cpu:0", batch_size=2)
    with pytest.raises(SettingsError, match="one film does not fit into the memory"):
        detector.detect([annotation.film] * 2)


def on_gpu(detector: Detector, **options: int) -> Detector:
    """By this name the CPU is used as a GPU is: films of a batch are prepared together."""
    how = replace(detector.preparation, device="cpu:0", precise=True)
    return replace(detector, preparation=how, **options)


def test_detector_finds_the_same_in_batches_of_any_size(tmp_path: Path) -> None:
    films: list[Radiograph | Path] = [
        radiograph(phantom(seed, size=SIZE, framing=framing))
        for seed, framing in enumerate(["bilateral", "single", "bilateral", "single"])
    ]
    films.insert(1, tmp_path / "missing.dcm")
    films.insert(3, Radiograph(np.random.default_rng(0).random((300, 400), dtype=np.float32)))
    detector = Detector.load(device="cpu")
    alone, few, all_ = (
        list(on_gpu(detector, batch_size=size).detect_each(films)) for size in (1, 2, len(films))
    )
    assert [len(result.detections) for result in alone] == [2, 0, 1, 0, 2, 1]
    for results in (few, all_):
        for result, expected in zip(results, alone, strict=True):
            assert str(result.failure) == str(expected.failure)
            for knee, other in zip(result.detections, expected.detections, strict=True):
                assert np.abs(knee.corners - other.corners).max() < 0.05
                assert (knee.laterality, knee.review) == (other.laterality, other.review)


def test_detector_raises_what_a_gpu_raises(
    film: Radiograph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And does not blame the film for it."""

    def broken(*arguments: object) -> NoReturn:
        raise RuntimeError("CUDA error: unspecified launch failure")

    detector = on_gpu(Detector.load(device="cpu"), batch_size=4)
    for module, name in ((loading, "copy_to"), (preparation, "locate_knees")):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, broken)
            with pytest.raises(RuntimeError, match="launch failure"):
                list(detector.detect_each([film] * 4))


def test_detect_each_keeps_no_pixels_of_films_that_fail() -> None:
    (result,) = Detector.load(device="cpu").detect_each([np.zeros((100, 100))])
    assert result.failure is not None
    assert result.failure.__traceback__ is None
