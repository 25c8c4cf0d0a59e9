"""Exceptions for everything that a user can correct.

KneematchError
├── FilmError          a file cannot be used as a radiograph
│   ├── NotAnImage       unknown, truncated or otherwise undecodable content
│   ├── NotARadiograph   an image, but not one frame of grey film
│   ├── MissingDecoder   a transfer syntax that no installed plug-in reads
│   └── Unreadable       missing, locked, a disk's error, no memory, a killed process; may pass
├── TemplateError      an annotation that cannot serve as a template
└── SettingsError      options that contradict each other or the data

A message is one line of one or two sentences, and never quotes the header of a film. Its `message`
names options as the command line does (--crop-mm), and its text as Python does (`crop_mm`).
"""

import re
from importlib.util import find_spec
from typing import Final

LONGEST: Final = 300  # characters of a message; a path may have thousands
SHOWN_START: Final = 150
OPTION: Final = re.compile(
    r"(`[^`]*`)|(?<![\w/.-])--([a-z][a-z-]*[a-z])"
)  # commands are in backticks
OUT_OF_MEMORY: Final = (
    "not enough memory",
    "annot allocate memory",
    "failed to map segment",
    "can't start new thread",
    "Failed to launch worker thread",
    "could not create a primitive",  # oneDNN
)
GPU_OUT_OF_MEMORY: Final = ("CUDA out of memory", "CUDA error: out of memory", "_ALLOC_FAILED")


class KneematchError(Exception):
    """Base of all errors that a user can correct; a long message is shortened in its middle."""

    def __init__(self, message: str) -> None:
        if len(message) > LONGEST:
            message = f"{message[:SHOWN_START]} ... {message[SHOWN_START + 5 - LONGEST :]}"
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return OPTION.sub(lambda found: found[1] or f"`{found[2].replace('-', '_')}`", self.message)


class FilmError(KneematchError):
    """A file cannot be used as a radiograph."""


class NotAnImage(FilmError):
    """The content is unknown, truncated or cannot be decoded."""


class NotARadiograph(FilmError):
    """An image, but not a single frame of grey film with something on it."""


class MissingDecoder(FilmError):
    """No installed plug-in decodes this transfer syntax."""


class Unreadable(FilmError):
    """The file's surroundings do not let us read it, which may pass: it is tried again."""


class TemplateError(KneematchError):
    """An annotation that cannot serve as a template."""


class SettingsError(KneematchError):
    """Options that contradict each other or the data."""


def missing_extra(what: str, extra: str) -> SettingsError:
    """Return the error for a feature whose optional packages are not installed."""
    return SettingsError(
        f"{what}. Install the extra {extra}: pip install 'kneematch[{extra}]', or in a checkout: "
        f"pip install '.[{extra}]'"
    )


def check_extra(what: str, extra: str, *packages: str) -> None:
    """Raise SettingsError for a feature whose optional packages are not all installed."""
    if any(find_spec(package) is None for package in packages):
        raise missing_extra(what, extra)


def is_memory_full(error: Exception) -> bool:
    """Return whether an error, Python's or one of a library's own, says that memory ran out."""
    return isinstance(error, MemoryError) or any(text in str(error) for text in OUT_OF_MEMORY)


def is_gpu_full(error: Exception) -> bool:
    """Return whether an error, PyTorch's or one of CUDA's libraries', says that a GPU is full."""
    return any(text in str(error) for text in GPU_OUT_OF_MEMORY)
