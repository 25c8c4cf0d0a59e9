"""Settings that are declared once, and checked when Python code makes them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from cyclopts import Parameter
from cyclopts.validators import Number

from kneematch.errors import SettingsError
from kneematch.settings import check_settings


@dataclass(frozen=True)
class One:
    size: Annotated[int, Parameter(validator=Number(gte=2))] = 3
    table: Annotated[Path | None, Parameter()] = None
    side: Annotated[str, Parameter(choices=("auto", "left"))] = "auto"
    model: Annotated[str | None, Parameter()] = None
    spacing: Annotated[float | None, Parameter(validator=Number(gt=0))] = None
    names: Annotated[tuple[str, ...], Parameter(choices=("a", "b"))] = ()


def test_check_settings_refuses_values_out_of_range() -> None:
    check_settings(One(2))
    with pytest.raises(SettingsError, match="`size`: Must be >= 2"):
        check_settings(One(1))
    with pytest.raises(SettingsError, match="`spacing`: Must be > 0"):
        check_settings(One(spacing=0.0))
    for number in (float("nan"), float("inf")):
        with pytest.raises(SettingsError, match="`spacing` must be a finite number"):
            check_settings(One(spacing=number))


def test_check_settings_refuses_what_is_no_choice() -> None:
    with pytest.raises(SettingsError, match="`side` must be one of auto, left"):
        check_settings(One(side="right"))
    with pytest.raises(SettingsError, match="`names` must be one of a, b"):
        check_settings(One(names=("a", "c")))


def test_check_settings_makes_paths_and_tuples_of_texts() -> None:
    config = One(table="a/b.csv", model=Path("a/b"), names="b")  # type: ignore[arg-type]
    check_settings(config)
    assert (config.table, config.model, config.names) == (Path("a/b.csv"), "a/b", ("b",))
    config = One(names=["b"])  # type: ignore[arg-type]
    check_settings(config)
    assert config.names == ("b",)


def test_check_settings_refuses_values_of_another_type() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"size": "3"}, "`size` must be int, not str"),
        ({"size": 2.5}, "`size` must be int, not float"),
        ({"size": True}, "`size` must be int, not bool"),
        ({"table": 5}, "`table` must be Path or None, not int"),
        ({"model": 5}, "`model` must be str or None, not int"),
        ({"names": 5}, "`names` must be tuple, not int"),
    ]
    for values, said in wrong:
        with pytest.raises(SettingsError, match=said) as raised:
            check_settings(One(**values))
        assert raised.value.message.startswith("--")  # as the command line prints it
    config = One(np.int64(4))
    check_settings(config)
    assert config.size == 4
