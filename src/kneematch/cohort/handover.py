"""From one process to another through memory that both see: arrays are not sent, only their place.

An anonymous file holds it, and not /dev/shm, of which a container has 64 MB: nothing has to be
cleared away after a process is killed.
"""

import copyreg
import io
import mmap
import os
import pickle
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

ROOM_BYTES: Final = 8 << 20  # for one result; two halves of 800 x 500 take 3.2 MB


@dataclass(frozen=True, slots=True)
class Parcel:
    """A value as it travels: without its arrays where these are in the shared memory."""

    pickled: bytes
    sizes: tuple[int, ...]  # of the arrays, in bytes, one behind the other
    arrays: tuple[bytes, ...] = ()  # those that did not fit there


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

    def pack(self, value: object, place: int) -> Parcel:
        """Write a value's arrays to a place; what was there is gone."""
        text = io.BytesIO()
        buffers: list[pickle.PickleBuffer] = []
        pickler = pickle.Pickler(text, protocol=5, buffer_callback=buffers.append)
        pickler.dispatch_table = {**copyreg.dispatch_table, Tensor: _as_array}
        pickler.dump(value)
        arrays = [buffer.raw() for buffer in buffers]
        sizes = tuple(array.nbytes for array in arrays)
        if sum(sizes) > ROOM_BYTES:
            return Parcel(text.getvalue(), sizes, tuple(map(bytes, arrays)))
        offset = place * ROOM_BYTES
        for array, size in zip(arrays, sizes, strict=True):
            self._memory[offset : offset + size] = np.frombuffer(array, np.uint8)
            offset += size
        return Parcel(text.getvalue(), sizes)

    def unpack(self, parcel: Parcel, place: int) -> Any:
        """The value, its arrays copied, so that the place is free again."""
        arrays: Sequence[Any] = [bytearray(array) for array in parcel.arrays]
        if not arrays:
            ends = place * ROOM_BYTES + np.cumsum((0, *parcel.sizes))
            arrays = [self._memory[a:b].copy() for a, b in pairwise(ends)]
        return pickle.loads(parcel.pickled, buffers=arrays)  # noqa: S301 - from our own process


def _as_array(tensor: Tensor) -> tuple[Any, tuple[Any]]:
    return torch.from_numpy, (tensor.detach().contiguous().numpy(),)


def _anonymous_file(size: int) -> int:
    """The descriptor of a file without a name."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("kneematch")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, size)
    return descriptor
