"""Fields of configuration dataclasses that carry their own command-line option.

Every setting is defined once: its name, type and default are those of the dataclass field, and its
help, metavar and group are stored in the field's metadata. `kneematch.cli` builds options from it.
Settings that several configurations share are functions at the end, since a field object cannot be
used in two dataclasses.
"""

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Any, Final, get_args, get_origin

from kneematch.errors import SettingsError

INPUT: Final = "Input"
METHOD: Final = "Method"
OUTPUT: Final = "Output"
PERFORMANCE: Final = "Performance"

# Methods of detection; `locator` runs the networks around the knees that the locator finds.
AUTO: Final = "auto"
LOCATOR: Final = "locator"
NEURAL: Final = (LOCATOR, "neural+sharpen", "neural")
METHODS: Final = (AUTO, *NEURAL, "search", "grid", "sliding")

KEY: Final = "kneematch.option"  # in a field's metadata


@dataclass(frozen=True, slots=True)
class Option:
    """How a setting appears on the command line."""

    help: str
    group: str
    metavar: str | None = None
    minimum: int | None = None
    choices: tuple[str, ...] = ()
    default_text: str | None = None  # shown as the default where the field's is None
    parser: Callable[[str], Any] | None = None  # used in place of the field's type


def option(default: Any, **about: Any) -> Any:
    """Return a dataclass field with a command-line option attached, whose fields are `about`."""
    return field(default=default, metadata={KEY: Option(**about)})


def parse_names(text: str) -> tuple[str, ...]:
    """Return names that are separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def check_options(config: Any) -> None:
    """Raise SettingsError unless a configuration's values agree with its options and each other.

    Values are converted to the types of their fields where that is unambiguous: texts to paths and,
    split at commas, to tuples; lists to tuples; paths, and numbers that are choices, to texts.
    """
    for item in fields(config):
        about, value = item.metadata.get(KEY), getattr(config, item.name)
        if about is None or value is None:
            continue
        if about.choices and type(value) is int:
            value = str(value)
        value = _converted(value, item.type)
        object.__setattr__(config, item.name, value)
        flag = f"--{item.name.replace('_', '-')}"
        check_type(flag, value, item.type)
        if isinstance(value, float) and not math.isfinite(value):
            raise SettingsError(f"{flag} must be a finite number.")
        if about.minimum is not None and value < about.minimum:
            raise SettingsError(f"{flag} must be {about.minimum} or more.")
        chosen = value if isinstance(value, tuple) else (value,)
        if about.choices and not set(chosen) <= set(about.choices):
            raise SettingsError(f"{flag} must be one of {', '.join(about.choices)}.")
    if getattr(config, "resume", False) and getattr(config, "force", False):
        raise SettingsError("--resume continues a run and --force replaces it; leave one out.")


def _converted(value: Any, kind: Any) -> Any:
    """Return a value of another type as one of a field's type, where there is a way."""
    if get_origin(kind) is tuple and isinstance(value, Iterable):
        return parse_names(value) if isinstance(value, str) else tuple(value)
    if Path in get_args(kind) and isinstance(value, str):
        return Path(value)
    if (kind is str or str in get_args(kind)) and isinstance(value, os.PathLike):
        return os.fspath(value)
    return value


def check_type(name: str, value: object, kind: Any) -> None:
    """Raise SettingsError unless an argument is of a type, or of one of a union."""
    given = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    wider = {int: Integral, float: Real}  # which the numbers of NumPy are, too
    kinds = tuple(wider.get(each, get_origin(each) or each) for each in given)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join("None" if each is type(None) else each.__name__ for each in given)
        raise SettingsError(f"{name} must be {names}, not {type(value).__name__}.")


def as_path(name: str, value: str | os.PathLike[str]) -> Path:
    """Return an argument as a path; raise SettingsError if it is none."""
    check_type(name, value, str | os.PathLike[str])
    return Path(value)


model_option = partial(
    option,
    None,
    help="Model file written by `kneematch train`.",
    group=METHOD,
    metavar="FILE",
    default_text="the built-in model",
)
template_option = partial(
    option,
    None,
    help="Annotation written by `kneematch annotate`, to find its boxes instead of the "
    "model's own.",
    group=METHOD,
    metavar="FILE",
)
paper_option = partial(
    option,
    False,
    help="Use the paper's energy and refinement instead of the robust ones.",
    group=METHOD,
)
device_option = partial(
    option,
    "auto",
    help="Device to compute on: auto, cpu, cuda or cuda:N.",
    group=PERFORMANCE,
    metavar="DEVICE",
)
batch_size_option = partial(
    option,
    None,
    help="Films that are searched together on a GPU.",
    group=PERFORMANCE,
    metavar="N",
    default_text="16; a CPU searches one by one",
    minimum=1,
)
workers_option = partial(
    option,
    None,
    help="Number of worker processes; 0 works in the main process.",
    group=PERFORMANCE,
    metavar="N",
    default_text="one per core; fewer for few films",
    minimum=0,
)
series_option = partial(
    option,
    None,
    help="Only DICOM files whose SeriesDescription contains TEXT.",
    group=INPUT,
    metavar="TEXT",
)
resume_option = partial(option, False, help="Continue an interrupted run.", group=OUTPUT)
force_option = partial(option, False, help="Replace what is there already.", group=OUTPUT)
seed_option = partial(option, 0, help="Random seed.", group=METHOD, metavar="N", minimum=0)
