"""torchvision's file: fetched when asked for, checked, and put where one expects it."""

import hashlib
import io
from pathlib import Path

import pytest

from kneematch.errors import SettingsError
from kneematch.training import imagenet
from kneematch.training.imagenet import NAME, SHA256, check_imagenet, fetch_imagenet, imagenet_file

CONTENT = b"weights" * 1000
NOWHERE = "https://kneematch.invalid/resnet18-f37072fd.pth"  # a name that no one can have


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("KNEEMATCH_CACHE", str(folder))
    return folder


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A server that has the content instead; the addresses that it was asked for."""
    asked: list[str] = []

    def opened(url: str) -> io.BytesIO:
        asked.append(url)
        return io.BytesIO(CONTENT)

    monkeypatch.setattr(imagenet, "_opened", opened)
    monkeypatch.setattr(imagenet, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(imagenet, "BYTES", len(CONTENT))
    return asked


def test_the_hash_begins_as_the_files_name_says() -> None:
    assert f"-{SHA256[:8]}." in NAME
    assert len(SHA256) == 64


def test_the_file_is_fetched_once(cache: Path, served: list[str]) -> None:
    assert fetch_imagenet() == cache / NAME == imagenet_file()
    assert imagenet_file().read_bytes() == CONTENT
    fetch_imagenet()
    assert served == [f"https://download.pytorch.org/models/{NAME}"]
    assert [path.name for path in cache.iterdir()] == [NAME]


@pytest.mark.parametrize("content", [b"", CONTENT[:-1], CONTENT + b"s", CONTENT[::-1]])
def test_any_other_content_is_refused_and_not_kept(
    cache: Path, served: list[str], monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr(imagenet, "_opened", lambda url: io.BytesIO(content))
    with pytest.raises(SettingsError, match=r"SHA-256 .* download https://.* and put it at"):
        fetch_imagenet()
    assert list(cache.iterdir()) == []


def test_no_more_is_taken_than_the_file_has(served: list[str]) -> None:
    endless, taken = io.BytesIO(bytes(10 * len(CONTENT))), io.BytesIO()
    imagenet._copy(endless, taken)
    assert len(taken.getvalue()) == len(CONTENT) + 1  # enough to have another hash


def test_offline_one_is_told_which_file_to_put_where(cache: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        fetch_imagenet(NOWHERE)
    told = str(caught.value)
    assert told.startswith(f"{NOWHERE}: cannot be fetched (")
    assert f"download https://download.pytorch.org/models/{NAME} " in told
    assert told.endswith(f"put it at {cache / NAME}")
    assert "\n" not in told
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("url", ["http://127.0.0.1/file", "file:///etc/passwd", "ftp://host/file"])
def test_only_https_is_spoken(url: str) -> None:
    with pytest.raises(SettingsError, match="expected https"):
        fetch_imagenet(url)
    with pytest.raises(OSError, match="unknown url type"):  # nor where it is redirected to
        imagenet._opened(url)


def test_a_file_that_is_not_there_or_another_is_told() -> None:
    with pytest.raises(SettingsError, match=r"no such file; expected torchvision's .* put it at"):
        check_imagenet(imagenet_file())
    imagenet_file().parent.mkdir()
    imagenet_file().write_bytes(CONTENT)
    with pytest.raises(SettingsError, match=r"SHA-256 .* put it at"):
        check_imagenet(imagenet_file())
