"""Choose the device to compute on, copy to it and back, keep batches within its memory."""

import logging
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from kneematch.errors import SettingsError

Item = TypeVar("Item")
Result = TypeVar("Result")

PROCESS_BYTES: Final = 800_000_000  # GPU memory per process, most of it CUDA's own
FILM_BYTES: Final = 120_000_000  # GPU memory per film of a batch; most of it are the networks' maps

logger = logging.getLogger("kneematch")


def resolve_device(device: str | torch.device) -> str:
    """Return the name of a device; "auto" is a GPU if there is one, else the CPU.

    Args:
        device: auto, cpu, cuda or cuda:N, or PyTorch's object for one.

    Raises:
        SettingsError: the name is unknown, or this machine has no such device.
    """
    name = str(device)
    if not re.fullmatch("auto|cpu|cuda(:[0-9]+)?", name):
        raise SettingsError(f"The device {name!r} is not auto, cpu, cuda or cuda:N.")
    if name == "cpu":  # CUDA is not asked, or processes that are forked later could not use it
        return name
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return "cuda" if gpus else "cpu"
    if int(name.partition(":")[2] or 0) >= gpus:
        raise SettingsError(f"There is no device {name!r}: {gpus} NVIDIA GPUs were found.")
    return name


def most_processes(device: str, batch_size: int) -> int:
    """Return how many processes can compute on a device at a time, with a batch of films each."""
    if device == "cpu":
        return sys.maxsize
    free, _ = torch.cuda.mem_get_info(device)
    return free // (PROCESS_BYTES + batch_size * FILM_BYTES)


def map_batches(
    work: Callable[[list[Item]], list[Result]],
    films: list[Item],
    device: str,
    too_large: list[int],
) -> list[Result]:
    """Return the results of films, in batches that fit into a GPU's memory.

    Args:
        work: from a batch of films to their results.
        films: all films.
        device: for messages.
        too_large: sizes of batches that did not fit; a size that does not fit now is added, and
            half of it is tried.
    """
    found: list[Result] = []
    while len(found) < len(films):
        most = min([len(films), *(size // 2 for size in too_large)])
        batch = films[len(found) : len(found) + most]
        try:
            found += work(batch)
            continue
        except torch.OutOfMemoryError as error:
            if len(batch) == 1:
                raise SettingsError(
                    f"One film does not fit into the memory of {device}. Free some, or choose "
                    "--device cpu."
                ) from error
        logger.warning(
            "%d films at once do not fit into the memory of %s, so that it gets %d from now on "
            "(--batch-size).",
            len(batch),
            device,
            len(batch) // 2,
        )
        too_large.append(len(batch))
        torch.cuda.empty_cache()
    return found


def copy_to(tensor: Tensor, device: str | torch.device) -> Tensor:
    """Copy a tensor from the CPU to a device; to a GPU without waiting for what it is doing."""
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def copy_back(*tensors: Tensor) -> list[NDArray[Any]]:
    """Return tensors as arrays; a GPU is waited for once."""
    if not tensors[0].is_cuda:
        return [tensor.cpu().numpy() for tensor in tensors]
    copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
    torch.cuda.current_stream(tensors[0].device).synchronize()
    return [copy.numpy() for copy in copies]


def call_in_full_batch(network: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Return what a network answers for images (N, ...); a GPU gets a power of two of them.

    cuDNN takes milliseconds to choose how to compute a batch of a size that it has not seen.
    """
    spare = (1 << (len(images) - 1).bit_length()) - len(images)
    if spare == 0 or not images.is_cuda:
        return network(images)
    return network(torch.cat([images, images[-1:].expand(spare, *images.shape[1:])]))[:-spare]


def map_by_shape(function: Callable[[Tensor], Tensor], images: Sequence[Tensor]) -> list[Tensor]:
    """Return a function's results for images of any size, on the CPU.

    Args:
        function: from images (N, H, W) to as many results.
        images: (H, W) each; those of one size are given to the function together.
    """
    results: dict[int, Tensor] = {}
    for size in {image.shape for image in images}:
        alike = [k for k, image in enumerate(images) if image.shape == size]
        found = call_in_full_batch(function, torch.stack([images[k] for k in alike])).cpu()
        results |= zip(alike, found, strict=True)
    return [results[k] for k in range(len(images))]


def cpu_has_bfloat16() -> bool:
    """Return whether the CPU multiplies numbers of type bfloat16, in half of float32's time."""
    return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)())


@contextmanager
def full_precision() -> Iterator[None]:
    """Convolve in float32 on a GPU, so that results do not depend on what shares a batch."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread, so that the last digits do not depend on the number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
