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


def test_check_settings_makes_paths_and_tuples_of_texts() -> None:
    config = One(table="a/b.csv", model=Path("a/b"), names="b")  # type: ignore[arg-type]
    check_settings(config)
    assert (config.table, config.model, config.names) == (Path("a/b.csv"), "a/b", ("b",))
    config = One(names=["b"])  # type: ignore[arg-type]
    check_settings(config)
    assert config.names == ("b",)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"size": 1}, "`size`: Must be >= 2"),
        ({"spacing": 0.0}, "`spacing`: Must be > 0"),
        ({"spacing": float("nan")}, "`spacing` must be a finite number"),
        ({"spacing": float("inf")}, "`spacing` must be a finite number"),
        ({"side": "right"}, "`side` must be one of auto, left"),
        ({"names": ("a", "c")}, "`names` must be one of a, b"),
        ({"size": "3"}, "`size` must be int, not str"),
        ({"size": 2.5}, "`size` must be int, not float"),
        ({"size": True}, "`size` must be int, not bool"),
        ({"table": 5}, "`table` must be Path or None, not int"),
        ({"model": 5}, "`model` must be str or None, not int"),
        ({"names": 5}, "`names` must be tuple, not int"),
    ],
)
def test_check_settings_refuses_wrong_values(values: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said) as raised:
        check_settings(One(**values))
    assert raised.value.message.startswith("--")  # as the command line prints it


def test_check_settings_takes_numbers_of_numpy_and_the_least() -> None:
    check_settings(One(2))
    config = One(np.int64(4))
    check_settings(config)
    assert config.size == 4
