"""Settings that contradict each other."""

from typing import Any

import pytest

from kneematch.errors import SettingsError
from kneematch.evaluation import EvaluateConfig


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"methods": ()}, "must be some of locator"),
        ({"methods": ("neural", "grid")}, "`grid` N"),
        ({"methods": ("nonsense",)}, "must be some of"),
        ({"methods": ("neural", "neural")}, "each once"),
        ({"grid": -1}, "grid"),
    ],
)
def test_evaluate_config_refuses_contradictions(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as refused:
        EvaluateConfig(**wrong)
    assert "\n" not in str(refused.value)
