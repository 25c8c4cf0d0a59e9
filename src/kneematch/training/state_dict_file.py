"""A state_dict that torch.save wrote, read without unpickling: nothing in the file is called.

Such a file is a zip of raw numbers and of a pickle, a program that would rebuild the tensors. Here
its few harmless steps are followed to learn where each tensor lies; any other step is refused.
"""

import os
import pickletools
import struct
import zipfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

import torch
from torch import Tensor

from kneematch.errors import SettingsError

DTYPES: Final = {
    "torch FloatStorage": torch.float32,
    "torch HalfStorage": torch.float16,
    "torch LongStorage": torch.int64,
}
DICT: Final = "collections OrderedDict"
TENSOR: Final = "torch._utils _rebuild_tensor_v2"
PARAMETER: Final = "torch._utils _rebuild_parameter"  # torchvision's older files have them
NAMES: Final = {DICT, TENSOR, PARAMETER, *DTYPES}

CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
NUMBERS_AND_TEXT: Final = {"BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE"}
SHORT_TUPLES: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
MOST_BYTES: Final = 1 << 24  # of the pickle; ResNet18's takes 15,000
# What the zip, the pickle and the numbers of a file that is something else may raise.
BROKEN: Final = (
    *(OSError, EOFError, struct.error, zipfile.BadZipFile),
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError),
)


@dataclass(frozen=True, slots=True)
class _Name:
    """What a pickle would import; here it is no more than its name."""

    name: str


@dataclass(frozen=True, slots=True)
class _Stored:
    """Where a tensor lies."""

    storage: tuple[Any, ...]  # "storage", its type, its key, the device, its length
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(slots=True)
class _Machine:
    """The stack that a pickle's steps work on."""

    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def step(self, name: str, argument: Any) -> None:
        """Follow one step; a step that no state_dict needs is a ValueError."""
        stack = self.stack
        if name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in NUMBERS_AND_TEXT:
            stack.append(argument)
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "GLOBAL" and argument in NAMES:
            stack.append(_Name(argument))
        elif name == "MARK":
            self.marks.append(len(stack))
        elif name == "TUPLE":
            stack.append(tuple(self.take(self.marks.pop())))
        elif name in SHORT_TUPLES:
            stack.append(tuple(self.take(len(stack) - SHORT_TUPLES[name])))
        elif name == "SETITEM":
            key, value = self.take(len(stack) - 2)
            stack[-1][key] = value
        elif name == "SETITEMS":
            items = self.take(self.marks.pop())
            stack[-1].update(zip(items[::2], items[1::2], strict=True))
        elif name == "BUILD":
            stack.pop()  # the versions of the modules, which load_state_dict can do without
        elif name in {"BINPUT", "LONG_BINPUT"}:
            self.memo[argument] = stack[-1]
        elif name in {"BINGET", "LONG_BINGET"}:
            stack.append(self.memo[argument])
        elif name == "REDUCE":
            stack.append(_described(*self.take(len(stack) - 2)))
        elif name not in {"PROTO", "STOP", "BINPERSID"}:  # a BINPERSID's tuple stays as it is
            raise ValueError(f"{name} {argument or ''}".rstrip())

    def take(self, start: int) -> list[Any]:
        """The top of the stack, from a height on."""
        if start < 0:
            raise ValueError("an empty stack")
        taken = self.stack[start:]
        del self.stack[start:]
        return taken


def read_state_dict(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a state_dict, by name, on the CPU.

    Raises:
        SettingsError: it is anything else than tensors by name, or not whole.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _tensors(archive)
    except FileNotFoundError as error:
        raise SettingsError(f"{path}: no such file; expected weights; check the path") from error
    except BROKEN as error:
        raise SettingsError(
            f"{path}: not a plain state_dict ({' '.join(str(error).split())[:200]}); expected "
            "tensors by name, as torch.save writes them; nothing in it was run; get it anew"
        ) from error


def _tensors(archive: zipfile.ZipFile) -> dict[str, Tensor]:
    (pickled,) = [name for name in archive.namelist() if PurePosixPath(name).name == "data.pkl"]
    folder = PurePosixPath(pickled).parent
    if f"{folder}/byteorder" in archive.namelist():
        _check_order(_record(archive, f"{folder}/byteorder", MOST_BYTES))
    machine = _Machine()
    for opcode, argument, _ in pickletools.genops(_record(archive, pickled, MOST_BYTES)):
        machine.step(opcode.name, argument)
    (described,) = machine.stack
    storages: dict[str, Tensor] = {}
    return {
        _text(name): _tensor(archive, folder, storages, stored)
        for name, stored in described.items()
    }


def _described(function: object, arguments: tuple[Any, ...]) -> Any:
    """What a call would have made."""
    if function == _Name(DICT) and not arguments:
        return {}
    if function == _Name(TENSOR):
        return _Stored(*arguments[:4])
    if function == _Name(PARAMETER):
        return arguments[0]
    raise ValueError(f"a call of {function}")


def _tensor(
    archive: zipfile.ZipFile, folder: PurePosixPath, storages: dict[str, Tensor], stored: _Stored
) -> Tensor:
    _, kind, key, _, length = stored.storage
    dtype = DTYPES[kind.name]
    if key not in storages:
        raw = _record(archive, f"{folder}/data/{_text(key)}", length * dtype.itemsize)
        storages[key] = torch.frombuffer(bytearray(raw), dtype=dtype, count=length)
    return storages[key].as_strided(stored.size, stored.stride, stored.offset)


def _record(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """A part of the zip; torch compresses none, so none is larger than the file."""
    about = archive.getinfo(name)
    if about.compress_type != zipfile.ZIP_STORED or about.file_size > most:
        raise ValueError(f"{Path(name).name} of {about.file_size} bytes or compressed")
    return archive.read(about)


def _check_order(order: bytes) -> None:
    if order != b"little":
        raise ValueError(f"byte order {order!r}")


def _text(name: object) -> str:
    if not isinstance(name, str):
        raise ValueError(f"a tensor called {name!r}")
    return name
