"""Settings of folders of phantoms."""

from typing import Any

import pytest

from kneematch.cli import films
from kneephantoms.config import FORMATS, FRAMINGS, SynthConfig
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
        {"size": (31, 500)},
        {"size": (100_000, 100_000)},
    ],
)
def test_synth_config_refuses_impossible_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must|cannot"):
        SynthConfig(**wrong)


def test_synth_config_and_the_command_offer_the_framings_of_phantoms() -> None:
    assert set(FRAMINGS) == {*FREQUENCIES, *KINDS, "any"}
    assert (films.FRAMINGS, films.FORMATS) == (FRAMINGS, FORMATS)
