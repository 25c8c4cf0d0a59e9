"""Settings that contradict each other, and options of the command line."""

from typing import Any

import pytest

from kneematch.errors import SettingsError
from kneematch.evaluation.config import EvaluateConfig, ReproduceConfig


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"methods": ()}, "no methods"),
        ({"methods": ("neural", "grid")}, "--grid N"),
        ({"methods": ("nonsense",)}, "nonsense"),
        ({"methods": ("neural", "neural")}, "each once"),
        ({"grid": -1}, "grid -1; expected 0 or more"),
        ({"workers": -1}, "workers -1"),
        ({"limit": 0}, "limit 0"),
        ({"resume": True, "force": True}, "one of them"),
        ({"templates": "folder", "model": "m", "resume": True}, "with --model and --resume"),
    ],
)
def test_evaluate_config_refuses_contradictions(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as refused:
        EvaluateConfig(**wrong)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"participant": "("}, "expected a regular expression"),
        ({"methods": ("grid",)}, "--grid N"),
        ({"resume": True, "force": True}, "one of them"),
    ],
)
def test_reproduce_config_refuses_contradictions(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        ReproduceConfig(**wrong)
