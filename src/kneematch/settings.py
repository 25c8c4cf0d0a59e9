"""Settings are declared once, as annotated fields of a dataclass, and checked here.

cyclopts derives the command line, its help and the names in settings files from the fields: their
types, defaults and `Parameter`s. `check_settings` holds Python code to the same rules. Fields that
several configurations have are the annotated types at the end.
"""

import math
import os
from collections.abc import Iterable, Sequence
from itertools import product
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from cyclopts import Group, Parameter, Token
from cyclopts.validators import Number

from kneematch.errors import SettingsError

NUMBERS: Final = {int: Integral, float: Real}  # the types of NumPy's numbers, too
INPUT: Final = Group.create_ordered("Input")
METHOD: Final = Group.create_ordered("Method")
OUTPUT: Final = Group.create_ordered("Output")
PERFORMANCE: Final = Group.create_ordered("Performance")

# Methods of detection. Rows call the networks around located knees `locator`.
AUTO: Final = "auto"
SEARCH: Final = "search"
METHODS: Final = (AUTO, SEARCH)
LOCATOR: Final = "locator"


def check_settings(config: Any) -> None:
    """Convert the values of a configuration to the types of its fields, and check them.

    Texts become paths where paths are expected, and paths texts; a list, and a single value, become
    a tuple where several are expected.

    Raises:
        SettingsError: a value is of another type, none of the choices, or out of range.
    """
    for name, hint in get_type_hints(type(config), include_extras=True).items():
        kind, parameter = get_args(hint)
        value = _convert(getattr(config, name), kind)
        object.__setattr__(config, name, value)
        check_type(option_name(name), value, kind)
        values = value if isinstance(value, tuple) else () if value is None else (value,)
        if parameter.choices and not {*values} <= {*parameter.choices}:
            choices = ", ".join(parameter.choices)
            raise SettingsError(f"{option_name(name)} must be one of {choices}.")
        for validator, item in product(parameter.validator, values):
            try:
                validator(kind, item)
            except ValueError as error:
                raise SettingsError(f"{option_name(name)}: {error}") from error


def option_name(field: str) -> str:
    """Return the name of a field on the command line."""
    return f"--{field.replace('_', '-')}"


def check_type(name: str, value: object, kind: Any) -> None:
    """Raise SettingsError unless an argument is of a type, or of one of a union.

    Numbers of NumPy are numbers, truth values and NaN are not.
    """
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    classes = tuple(NUMBERS.get(each, get_origin(each) or each) for each in kinds)
    is_right = isinstance(value, classes) and (bool in kinds or not isinstance(value, bool))
    if isinstance(value, float) and not math.isfinite(value):
        raise SettingsError(f"{name} must be a finite number.")
    if not is_right:
        names = " or ".join("None" if each is NoneType else each.__name__ for each in kinds)
        raise SettingsError(f"{name} must be {names}, not {type(value).__name__}.")


def as_path(name: str, value: str | os.PathLike[str]) -> Path:
    """Return an argument as a path; raise SettingsError if it is none."""
    check_type(name, value, str | os.PathLike[str])
    return Path(value)


def split_names(kind: object, tokens: Sequence[Token]) -> tuple[str, ...]:
    """Return the names of an option whose names are separated by commas."""
    names = (name.strip() for token in tokens for name in token.value.split(","))
    return tuple(name for name in names if name)


def _convert(value: Any, kind: Any) -> Any:
    """Return a value of another type as one of a field's type, where there is a way."""
    if get_origin(kind) is tuple:
        if value is None or isinstance(value, str | os.PathLike):
            value = () if value is None else (value,)
        item_kind = get_args(kind)[0]
        if isinstance(value, Iterable):
            return tuple(_convert(item, item_kind) for item in value)
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    if Path in kinds and isinstance(value, str):
        return Path(value)
    if str in kinds and isinstance(value, os.PathLike):
        return os.fspath(value)
    return value


# Settings that several commands have.
Films = Annotated[
    list[str],
    Parameter(
        help="Films (DICOM, PNG, JPEG, TIFF, BMP, ...), folders, patterns such as 'films/*.dcm', "
        "or @list.txt."
    ),
]
Out = Annotated[Path, Parameter(alias="-o", metavar="FOLDER", help="Folder for the results.")]
Force = Annotated[bool, Parameter(group=OUTPUT, help="Replace what is there already.")]
Series = Annotated[
    str | None,
    Parameter(
        group=INPUT,
        metavar="TEXT",
        help="Only DICOM files whose SeriesDescription contains TEXT.",
    ),
]
ModelFile = Annotated[
    str | None,
    Parameter(
        group=METHOD,
        metavar="FILE",
        help="Model file written by `kneematch train`.",
        show_default="the built-in model",
    ),
]
Seed = Annotated[
    int, Parameter(group=METHOD, metavar="N", validator=Number(gte=0), help="Random seed.")
]
Device = Annotated[
    str,
    Parameter(
        group=PERFORMANCE,
        metavar="DEVICE",
        help="Device to compute on: auto, cpu, cuda or cuda:N.",
    ),
]
BatchSize = Annotated[
    int | None,
    Parameter(
        group=PERFORMANCE,
        metavar="N",
        validator=Number(gte=1),
        help="Films that are searched together on a GPU.",
        show_default="16; a CPU searches one by one",
    ),
]
Workers = Annotated[
    int | None,
    Parameter(
        group=PERFORMANCE,
        metavar="N",
        validator=Number(gte=0),
        help="Number of worker processes; 0 works in the main process.",
        show_default="one per core; fewer for few films",
    ),
]
