"""Fields that carry their command-line option."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kneematch.errors import SettingsError
from kneematch.options import METHOD, check_options, option


@dataclass(frozen=True)
class One:
    size: int = option(3, help="Size.", group=METHOD, metavar="N", minimum=2)
    table: Path | None = option(None, help="Table.", group=METHOD)
    knees: str = option("auto", help="Knees.", group=METHOD, choices=("auto", "1"))
    model: str | None = option(None, help="Model.", group=METHOD)
    names: tuple[str, ...] = option((), help="Names.", group=METHOD, choices=("a", "b"))


def test_check_options_refuses_values_below_the_minimum() -> None:
    check_options(One(2))
    with pytest.raises(SettingsError, match="`size` must be 2 or more"):
        check_options(One(1))


def test_check_options_takes_numbers_and_paths_for_texts() -> None:
    config = One(knees=1, model=Path("a/b"))  # type: ignore[arg-type]
    check_options(config)
    assert (config.knees, config.model) == ("1", "a/b")
    with pytest.raises(SettingsError, match="`knees` must be one of auto, 1"):
        check_options(One(knees=2))  # type: ignore[arg-type]


def test_check_options_makes_paths_and_names_of_texts() -> None:
    config = One(table="a/b.csv", names="a,b")  # type: ignore[arg-type]
    check_options(config)
    assert (config.table, config.names) == (Path("a/b.csv"), ("a", "b"))
    config = One(names=["b"])  # type: ignore[arg-type]
    check_options(config)
    assert config.names == ("b",)


def test_check_options_refuses_values_of_another_type() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"size": "3"}, "`size` must be int, not str"),
        ({"size": 2.5}, "`size` must be int, not float"),
        ({"size": True}, "`size` must be int, not bool"),
        ({"table": 5}, "`table` must be Path or None, not int"),
        ({"model": 5}, "`model` must be str or None, not int"),
    ]
    for values, said in wrong:
        with pytest.raises(SettingsError, match=said) as raised:
            check_options(One(**values))
        assert raised.value.message.startswith("--")  # as the command line prints it
    config = One(np.int64(4))
    check_options(config)
    assert config.size == 4
