"""torchvision's official ResNet18 of ImageNet: where it lies, and how it gets there when asked."""

import hashlib
import ssl
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import IO, Final

from kneematch.errors import SettingsError
from kneematch.io.atomic import write_aside
from kneematch.training.cache_folder import cache_folder

NAME: Final = "resnet18-f37072fd.pth"
URL: Final = f"https://download.pytorch.org/models/{NAME}"
BYTES: Final = 46_830_571
# Its name holds the first eight digits, which torch.hub checks.
SHA256: Final = "f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec"
PATIENCE_S: Final = 30.0  # without a byte
CHUNK: Final = 1 << 20


def imagenet_file() -> Path:
    """Where the file is expected: in the cache folder."""
    return cache_folder() / NAME


def fetch_imagenet(url: str = URL) -> Path:
    """Download the file unless it is there; nothing else in the package uses the network.

    Raises:
        SettingsError: it cannot be had, or is not the official file.
    """
    path = imagenet_file()
    if path.exists():
        return path
    if not url.startswith("https://"):
        raise SettingsError(f"{url}: not encrypted; expected https; give the address of {NAME}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_aside(path) as aside:
            with _opened(url) as source, aside.open("wb") as out:
                _copy(source, out)
            check_imagenet(aside)
    except (OSError, HTTPException, ValueError) as error:
        raise SettingsError(f"{url}: cannot be fetched ({error}); {_by_hand()}") from error
    return path


def check_imagenet(path: Path) -> None:
    """Refuse any file but the official one."""
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise SettingsError(f"{path}: no such file; {_by_hand()}") from error
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}; {_by_hand()}") from error
    if found != SHA256:
        raise SettingsError(f"{NAME} with the SHA-256 {found[:8]}...; {_by_hand()}")


def _by_hand() -> str:
    return (
        f"expected torchvision's {NAME} with the SHA-256 {SHA256[:8]}...; download {URL} on a "
        f"machine that can and put it at {imagenet_file()}"
    )


def _copy(source: IO[bytes], out: IO[bytes]) -> None:
    """All of it, and no more than the official file has: the hash tells of the rest."""
    left = BYTES + 1
    while left > 0 and (chunk := source.read(min(CHUNK, left))):
        out.write(chunk)
        left -= len(chunk)


def _opened(url: str) -> IO[bytes]:
    """A download by https alone, wherever it is redirected to."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPSHandler(context=ssl.create_default_context()),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    stream: IO[bytes] = opener.open(url, timeout=PATIENCE_S)
    return stream
