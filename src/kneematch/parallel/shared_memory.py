"""From one process to another through memory that both see: tensors are not sent, only their place.

An anonymous file holds it, and not /dev/shm, of which a container has 64 MB: nothing has to be
cleared away after a process is killed.
"""

import mmap
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

ROOM_BYTES: Final = 8 << 20  # for one result; two halves of 800 x 500 take 3.2 MB


@dataclass(frozen=True, slots=True)
class Slot:
    """In place of a tensor, as a value travels."""

    shape: tuple[int, ...]
    kind: str  # numpy's name of its type
    offset: int  # in the shared memory
    size: int  # in bytes
    data: bytes | None = None  # the tensor itself, if it did not fit there


class SharedRoom:
    """Memory for a few results, made by one process and passed to another when it starts."""

    def __init__(self, places: int) -> None:
        """Make room; memory is taken up only where something is written."""
        self._file, self.bytes = _anonymous_file(places * ROOM_BYTES), places * ROOM_BYTES
        self._memory = np.frombuffer(mmap.mmap(self._file, self.bytes), np.uint8)

    def __getstate__(self) -> tuple[Any, int]:
        """What a starting process is given."""
        from multiprocessing.reduction import DupFd  # which Windows has not

        return DupFd(self._file), self.bytes

    def __setstate__(self, state: tuple[Any, int]) -> None:
        duplicate, self.bytes = state
        self._file = duplicate.detach()
        self._memory = np.frombuffer(mmap.mmap(self._file, self.bytes), np.uint8)

    def close(self) -> None:
        """Let go of the file; the memory follows when nothing refers to it."""
        os.close(self._file)

    def pack(self, value: Any, place: int) -> Any:
        """Write a value's tensors to a place; what was there is gone."""
        offset, end = place * ROOM_BYTES, (place + 1) * ROOM_BYTES

        def put(tensor: Tensor) -> Slot:
            nonlocal offset
            array = tensor.detach().contiguous().numpy()
            shape, kind, size = array.shape, array.dtype.name, array.nbytes
            if offset + size > end:
                return Slot(shape, kind, 0, size, array.tobytes())
            start, offset = offset, offset + size
            self._memory[start:offset] = np.frombuffer(array.reshape(-1), np.uint8)
            return Slot(shape, kind, start, size)

        return _swapped(value, Tensor, put)

    def unpack(self, value: Any, place: int) -> Any:
        """The value, its tensors copied, so that the place is free again."""

        def get(slot: Slot) -> Tensor:
            held: Any = self._memory[slot.offset : slot.offset + slot.size]
            array = np.array(held if slot.data is None else bytearray(slot.data), np.uint8)
            return torch.from_numpy(array.view(slot.kind).reshape(slot.shape))

        return _swapped(value, Slot, get)


def _swapped(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """A value with all of a kind changed, in dataclasses and dicts too."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, dict):
        return {name: _swapped(each, kind, change) for name, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        held = {each.name: getattr(value, each.name) for each in fields(value)}
        return replace(value, **_swapped(held, kind, change))
    return value


def _anonymous_file(size: int) -> int:
    """The descriptor of a file without a name."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("kneematch")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, size)
    return descriptor
