"""Fields that carry their command-line option."""

from dataclasses import dataclass

import pytest

from kneematch.errors import SettingsError
from kneematch.options import METHOD, check_options, option


@dataclass(frozen=True)
class One:
    size: int = option(3, help="Size.", group=METHOD, metavar="N", minimum=2)


def test_check_options_refuses_values_below_the_minimum() -> None:
    check_options(One(2))
    with pytest.raises(SettingsError, match="size 1; expected 2 or more"):
        check_options(One(1))
