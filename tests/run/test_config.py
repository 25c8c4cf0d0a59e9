"""Settings that contradict each other."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from kneematch.errors import SettingsError
from kneematch.run.config import CROP_PRESETS, DetectConfig, config_from_json
from kneematch.search.settings import PaperSettings


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"limit": 0}, "--limit"),
        ({"num_parts": 0}, "--num-parts"),
        ({"num_parts": 2, "part_id": 2}, "--part-id"),
        ({"workers": -1}, "--workers"),
        ({"engine": "slurm"}, "--engine"),
        ({"export": ("coco", "pdf")}, "--export"),
        ({"resume": True, "force": True}, "--force"),
        ({"crop_mm": 100.0}, "--crops"),
        ({"mirror": True}, "--crops"),
        ({"crop_preset": "140mm-224px"}, "--crops"),
        ({"crops": True, "crop_preset": "huge"}, "--crop-preset"),
        ({"crops": True, "crop_preset": "140mm-224px", "crop_mm": 9.0}, "--crop-preset"),
        ({"ray_address": "auto"}, "--engine ray"),
    ],
)
def test_detect_config_refuses_contradictions(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        DetectConfig(**wrong)


def test_detect_config_loads_the_detector_of_its_settings() -> None:
    detector = DetectConfig(method="neural", device="cpu", left_is="L").load_detector()
    assert detector.preparation.left_is == "L"
    assert (detector.method, detector.device) == ("neural", "cpu")


def test_detect_config_hashes_every_file_that_rows_depend_on(template: str) -> None:
    """The consistency check of a search uses the model, so another model gives other rows."""

    def files(**settings: Any) -> set[str]:
        return set(DetectConfig(**settings).file_hashes())

    drawn = {"template", "template_film"}
    assert files() == files(method="locator", paper=True) == {"model", "locator"}
    assert files(template=template, method="neural") == {"model", *drawn}
    assert files(template=template, method="search") == {"model", *drawn}
    assert files(template=template, method="search", paper=True) == drawn


def test_config_from_json_restores_every_setting() -> None:
    paper = PaperSettings(adam_steps=7, adam_rate=0.1)
    config = DetectConfig(
        template="\udcff.json", sheet=Path("a.png"), export=("coco", "pts"), paper_settings=paper
    )
    text = json.dumps(asdict(config) | {"unknown": 1}, default=str)
    assert config_from_json(json.loads(text)) == config


def test_crop_size_of_a_preset_is_what_its_name_says() -> None:
    for preset in CROP_PRESETS:
        size = DetectConfig(crops=True, crop_preset=preset).crop_size()
        assert size.mm is not None
        assert size.spacing_mm is not None
        assert preset == f"{size.mm:g}mm-{size.mm / size.spacing_mm:.0f}px"
