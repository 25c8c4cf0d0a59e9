"""Settings that contradict each other."""

from typing import Any

import pytest

from kneematch.errors import SettingsError
from kneematch.run.config import DetectConfig


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"workers": -1}, "`workers`"),
        ({"export": ("coco", "pdf")}, "`export`"),
        ({"crop_mm": 100.0}, "`crops`"),
        ({"mirror": True}, "`crops`"),
        ({"mm_per_px": 0.0}, "`mm_per_px`"),
        ({"side_from_name": "_([RL]"}, "`side_from_name`"),
        ({"side_from_name": "_[RL]_"}, "group"),
        ({"magnification": 1.1}, "`magnification` needs `measure`"),
    ],
)
def test_detect_config_refuses_contradictions(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        DetectConfig(**wrong)


def test_detect_config_loads_the_detector_of_its_settings() -> None:
    detector = DetectConfig(device="cpu", left_is="L").load_detector(None)
    assert detector.preparation.left_is == "L"
    assert (detector.method, detector.device) == ("locator", "cpu")


def test_detect_config_hashes_every_file_that_rows_depend_on(template: str) -> None:
    """The consistency check of a search uses the model, so another model gives other rows."""

    def files(**settings: Any) -> set[str]:
        return set(DetectConfig(**settings).file_hashes())

    drawn = {"template", "template_film"}
    assert files() == {"model", "locator"}
    assert files(template=template, method="search") == {"model", "locator", *drawn}
