"""Fields that carry their command-line option."""

from dataclasses import dataclass, fields

import pytest

from kneematch.errors import SettingsError
from kneematch.options import KEY, METHOD, check_options, option, option_like


@dataclass(frozen=True)
class One:
    size: int = option(3, help="Size.", group=METHOD, metavar="N", minimum=2)


@dataclass(frozen=True)
class Two:
    size: int = option_like(One, "size")
    width: int = option_like(One, "size", default=5)


def test_option_like_copies_the_option_and_the_default_unless_another_is_given() -> None:
    own, (size, width) = fields(One)[0], fields(Two)
    assert (Two().size, Two().width) == (3, 5)
    assert size.metadata[KEY] == width.metadata[KEY] == own.metadata[KEY]


def test_check_options_refuses_values_below_the_minimum() -> None:
    check_options(Two(2, 2))
    with pytest.raises(SettingsError, match="width 1; expected 2 or more"):
        check_options(Two(2, 1))
