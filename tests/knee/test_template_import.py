"""import_template: templates drawn with other programs detect as those of `annotate` do."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kneematch.cli.main import main
from kneematch.errors import TemplateError
from kneematch.films.annotation import BOXES, Annotation, load_annotation
from kneematch.films.shapes import write_points
from kneematch.knee.detector import Detector
from kneematch.knee.import_config import ImportConfig
from kneematch.knee.template_import import import_template
from kneematch.run.config import DetectConfig
from kneematch.run.pipeline import detect_folder
from kneephantoms import phantom
from kneephantoms.config import SynthConfig
from kneephantoms.dataset import synthesize
from kneephantoms.files import write_dicom


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("films")
    synthesize(folder, SynthConfig(count=2, size=(600, 500), framing="knee", workers=0))
    return folder


@pytest.fixture(scope="module")
def drawn(films: Path) -> Annotation:
    return load_annotation(films / "template.json")


def via(drawn: Annotation) -> dict[str, Any]:
    """The boxes and landmarks of an annotation, as the VGG Image Annotator stores them."""
    shapes: dict[str, dict[str, Any]] = {}
    for name in BOXES:
        x0, y0, x1, y1 = getattr(drawn, name)
        shapes[name] = {"name": "rect", "x": x0, "y": y0, "width": x1 - x0, "height": y1 - y0}
    for name, (x, y) in drawn.landmarks.items():
        shapes[name] = {"name": "point", "cx": x, "cy": y}
    regions = [
        {"shape_attributes": shape, "region_attributes": {"label": name}}
        for name, shape in shapes.items()
    ]
    return {"key": {"filename": drawn.film.name, "regions": regions}}


def test_import_template_gives_the_boxes_that_were_drawn(tmp_path: Path, drawn: Annotation) -> None:
    (tmp_path / "via.json").write_text(json.dumps(via(drawn)))
    out = tmp_path / "template.json"
    arguments = ["import-template", str(tmp_path / "via.json"), "--film", str(drawn.film)]
    assert main([*arguments, "-o", str(out)]) == 0
    imported = load_annotation(out)
    assert imported.side == drawn.side
    for name in BOXES:
        assert getattr(imported, name) == pytest.approx(getattr(drawn, name), abs=1e-6)
    assert imported.landmarks == drawn.landmarks
    before = out.read_bytes()
    assert main([*arguments, "-o", str(out)]) == 2  # which does not replace it
    assert out.read_bytes() == before
    assert main([*arguments, "-o", str(out), "--force"]) == 0
    drawing = (tmp_path / "via.json").read_bytes()
    assert main([*arguments, "-o", str(tmp_path / "via.json"), "--force"]) == 2
    assert (tmp_path / "via.json").read_bytes() == drawing


def test_import_template_places_boxes_by_the_plateau(tmp_path: Path, drawn: Annotation) -> None:
    write_points(tmp_path / "knee.pts", drawn.landmarks)
    config = ImportConfig(names=tuple(drawn.landmarks))
    import_template(tmp_path / "knee.pts", drawn.film, tmp_path / "template.json", config)
    imported = load_annotation(tmp_path / "template.json")
    assert imported.fine == pytest.approx(drawn.fine, abs=0.2)
    for name, point in drawn.landmarks.items():
        assert imported.landmarks[name] == pytest.approx(point, abs=1e-3)
    (left, right) = Detector.load(template=tmp_path / "template.json").detect(drawn.film)
    assert {*left.landmarks} == {*right.landmarks} == {*drawn.landmarks}


def test_import_template_takes_a_knee_across_both_halves(tmp_path: Path) -> None:
    made = phantom(1, framing="single")
    film, points = tmp_path / "single.dcm", tmp_path / "drawn.pts"
    write_dicom(film, made.pixels, mm_per_px=None, laterality=None)
    (knee,) = made.knees
    margins = {"plateau_medial": knee.plateau_medial, "plateau_lateral": knee.plateau_lateral}
    write_points(points, margins)
    config = ImportConfig(names=tuple(margins))
    template = import_template(points, film, tmp_path / "template.json", config)
    assert template.side == knee.side
    (found,) = Detector.load(template=tmp_path / "template.json").detect(film)
    for name, point in margins.items():
        assert found.landmarks[name] == pytest.approx(point, abs=0.02 * found.width_px)


@pytest.mark.parametrize("kind", ["coco", "markups", "pts"])
def test_import_template_reads_what_detect_exports(
    tmp_path: Path, films: Path, drawn: Annotation, kind: str
) -> None:
    config = DetectConfig(export=(kind,), workers=0)
    detect_folder(drawn.film, tmp_path / "found", config)
    suffix = {"markups": ".mrk.json", "pts": ".pts"}.get(kind)
    name = f"landmarks/{drawn.film.stem}-{drawn.side}{suffix}" if suffix else "coco.json"
    (knee,) = (
        knee
        for knee in json.loads((tmp_path / "found" / "detections.json").read_text())
        if knee["side"] == drawn.side
    )
    config_in = ImportConfig(side=drawn.side, names=tuple(drawn.landmarks) if kind == "pts" else ())
    out = tmp_path / "template.json"
    imported = import_template(tmp_path / "found" / name, drawn.film, out, config_in)
    assert set(imported.landmarks) == set(drawn.landmarks)
    for landmark, (x, y) in imported.landmarks.items():
        expected = knee[f"{landmark}_x_px"], knee[f"{landmark}_y_px"]
        assert (x, y) == pytest.approx(expected, abs=2e-3)


def keep(regions: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [region for region in regions if region["region_attributes"]["label"] in names]


def shift_red(regions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    regions[2]["shape_attributes"]["x"] += 200
    return regions


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda regions: 2 * regions, "more than once. Choose one knee"),
        (lambda regions: keep(regions, "fine", "red"), "no green box"),
        (lambda regions: keep(regions, "red", "green"), "no fine box"),
        (lambda regions: [], "there is nothing"),
        (shift_red, "red box .* leaves the fine box"),
    ],
)
def test_import_template_says_what_is_wrong(
    tmp_path: Path, drawn: Annotation, change: Callable[[Any], Any], said: str
) -> None:
    content = via(drawn)
    content["key"]["regions"] = change(content["key"]["regions"])
    (tmp_path / "via.json").write_text(json.dumps(content))
    with pytest.raises(TemplateError, match=rf"via\.json: .*{said}"):
        import_template(tmp_path / "via.json", drawn.film, tmp_path / "template.json")
    assert not (tmp_path / "template.json").exists()


def test_import_template_refuses_a_drawing_without_end(tmp_path: Path, drawn: Annotation) -> None:
    with pytest.raises(TemplateError, match="256 MB"):
        import_template(Path("/dev/zero"), drawn.film, tmp_path / "template.json")
