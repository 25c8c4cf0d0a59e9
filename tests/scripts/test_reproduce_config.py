"""Settings of the reproduction that contradict each other."""

from dataclasses import fields
from typing import Any

import pytest

from kneematch.errors import SettingsError
from kneematch.options import KEY
from kneematch.training.config import TrainConfig
from reproduce_config import ReproduceConfig


def test_reproduce_config_takes_defaults_of_training_and_evaluation() -> None:
    config = ReproduceConfig()
    assert (config.recipe, config.start, config.adam_steps) == ("paper", "synthetic", 300)
    assert config.methods == ("sliding", "neural", "neural+sharpen", "search")
    options = {item.name: item.metadata[KEY] for item in fields(TrainConfig)}
    assert all(
        item.metadata[KEY] == options[item.name]
        for item in fields(config)
        if item.name in ("start", "epochs", "cache")
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"participant": "("}, "expected a regular expression"),
        ({"methods": ("grid",)}, "--grid N"),
        ({"methods": ("locator",)}, "expected some of sliding"),
        ({"resume": True, "force": True}, "one of them"),
    ],
)
def test_reproduce_config_refuses_contradictions(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        ReproduceConfig(**wrong)
