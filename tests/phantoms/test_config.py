"""Settings of `kneematch synth`."""

from typing import Any

import pytest

from kneematch.errors import SettingsError
from kneephantoms.config import FRAMINGS, SynthConfig, parse_size
from kneephantoms.framing import FREQUENCIES, KINDS


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": 0},
        {"format": "gif"},
        {"seed": -1},
        {"family": -1},
        {"framing": "hand"},
        {"workers": -1},
        {"turn_deg": float("nan")},
        {"turn_deg": float("inf")},
    ],
)
def test_synth_config_refuses_impossible_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="expected"):
        SynthConfig(**wrong)


def test_synth_config_offers_the_framings_of_phantoms() -> None:
    assert set(FRAMINGS) == {*FREQUENCIES, *KINDS, "any"}


def test_parse_size_reads_height_and_width() -> None:
    assert parse_size("1024x820") == parse_size("1024X820") == (1024, 820)


@pytest.mark.parametrize("text", ["big", "100", "100x", "-1x5", "1x2x3", "1e3x5"])
def test_parse_size_refuses_other_texts(text: str) -> None:
    with pytest.raises(SettingsError, match="expected height x width"):
        parse_size(text)
