"""Settings that contradict each other."""

from typing import Any

import pytest

from kneematch.errors import SettingsError
from kneematch.evaluation.config import EvaluateConfig
from kneematch.search.settings import PaperSettings


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"methods": ()}, "Name some of locator"),
        ({"methods": ("neural", "grid")}, "--grid N"),
        ({"methods": ("nonsense",)}, "nonsense"),
        ({"methods": ("neural", "neural")}, "each once"),
        ({"grid": -1}, "grid"),
        ({"resume": True, "force": True}, "--force"),
        ({"templates": "folder", "model": "m", "resume": True}, "--model and --resume"),
        ({"grid_stride": 1.0}, "between 0 and 1"),
        ({"adam_rate": 0.0}, "positive"),
    ],
)
def test_evaluate_config_refuses_contradictions(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as refused:
        EvaluateConfig(**wrong)
    assert "\n" not in str(refused.value)


def test_evaluate_config_gives_the_papers_settings_to_its_solvers() -> None:
    assert EvaluateConfig().paper_settings() == PaperSettings(300, 0.01, 10, 0.25)
    changed = EvaluateConfig(adam_steps=7, adam_rate=0.1, grid_scales=3, grid_stride=0.5)
    assert changed.paper_settings() == PaperSettings(7, 0.1, 3, 0.5)
