"""Files of torch.save, read without running what is in them."""

import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from kneematch.errors import SettingsError
from kneematch.networks.resnet import ResNet18
from kneematch.training.state_dict_file import read_state_dict


class Command:
    """An object whose pickle calls os.system."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.victim}",)


@pytest.fixture(scope="module")
def resnet18() -> nn.Module:
    """Under torchvision's names."""
    network = ResNet18()
    network.fc = nn.Linear(512, 1000)
    return network


def assert_same(found: dict[str, Tensor], saved: dict[str, Tensor]) -> None:
    assert list(found) == list(saved)
    for name, tensor in saved.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def zipped(path: Path, pickled: bytes, **parts: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        for name, part in parts.items():
            archive.writestr(f"archive/data/{name}", part)
    return path


def test_a_resnet18_comes_back_as_it_was_saved(resnet18: nn.Module, tmp_path: Path) -> None:
    saved = resnet18.state_dict()
    torch.save(saved, tmp_path / "weights.pth")
    found = read_state_dict(tmp_path / "weights.pth")
    assert len(found) == 122
    assert_same(found, saved)


def test_parameters_are_read_as_tensors(resnet18: nn.Module, tmp_path: Path) -> None:
    saved = OrderedDict(resnet18.named_parameters())  # as torchvision's file has them
    torch.save(saved, tmp_path / "weights.pth")
    found = read_state_dict(tmp_path / "weights.pth")
    assert_same(found, {name: tensor.detach() for name, tensor in saved.items()})
    assert not any(tensor.requires_grad for tensor in found.values())


def test_tensors_that_share_a_storage_or_are_transposed_are_read(tmp_path: Path) -> None:
    numbers = torch.arange(24.0)
    saved = {
        "rows": numbers[4:16].reshape(3, 4),
        "columns": numbers.reshape(4, 6).T,
        "half": torch.rand(3, 2).half(),
        "scalar": torch.tensor(7),
    }
    torch.save(saved, tmp_path / "weights.pth")
    assert_same(read_state_dict(tmp_path / "weights.pth"), saved)


def test_a_file_that_would_call_a_command_is_refused_and_does_nothing(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    torch.save({"weight": torch.zeros(2), "more": Command(victim)}, tmp_path / "bad.pth")
    with pytest.raises(SettingsError, match=r"GLOBAL .* system.*nothing in it was run"):
        read_state_dict(tmp_path / "bad.pth")
    assert not victim.exists()
    torch.load(tmp_path / "bad.pth", weights_only=False)  # it would have
    assert victim.exists()


@pytest.mark.parametrize("protocol", range(6))
def test_a_command_is_refused_in_every_protocol(tmp_path: Path, protocol: int) -> None:
    victim = tmp_path / "victim"
    path = zipped(tmp_path / "bad.pth", pickle.dumps(Command(victim), protocol))
    with pytest.raises(SettingsError):
        read_state_dict(path)
    assert not victim.exists()


@pytest.mark.parametrize(
    "pickled",
    [
        b"",
        b".",
        b"\x80\x02}",  # no end
        b"\x80\x02}q\x00X\x01\x00\x00\x00aK\x01s.",  # a number for a tensor
        b"\x80\x02K\x01.",
        b"\x80\x02K\x01K\x02R.",  # a call of a number
        b"\x80\x02h\x05.",  # what was never put by
        b"\x80\x02u.",
        b"\x80\x02\x87.",
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.",
        b"\x80\x02ctorch._utils\n_rebuild_parameter\n)R.",
        b"\x80\x02ctorch\nFloatStorage\n)R.",
        b"cos\nsystem\nX\x04\x00\x00\x00true\x85R.",
        b"(S'true'\nios\nsystem\n.",  # INST
        b"\x80\x02" + b"(" * 100_000 + b"t" * 100_000 + b".",
    ],
)
def test_pickles_that_are_no_state_dict_are_refused(tmp_path: Path, pickled: bytes) -> None:
    with pytest.raises(SettingsError, match="not a plain state_dict"):
        read_state_dict(zipped(tmp_path / "bad.pth", pickled))


def tensor_of(length: int, offset: int, size: int, stride: int) -> bytes:
    """The pickle of {"a": a tensor of one axis}."""
    storage, start, long, step = (
        b"J" + number.to_bytes(4, "little", signed=True)
        for number in (length, offset, size, stride)
    )
    return (
        b"\x80\x02}X\x01\x00\x00\x00actorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storage"
        b"ctorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu%btQ%b%b\x85%b\x85\x89}tRs."
    ) % (storage, start, long, step)


def test_a_tensor_written_by_hand_is_read(tmp_path: Path) -> None:
    numbers = torch.arange(4.0)
    path = zipped(tmp_path / "a.pth", tensor_of(4, 1, 2, 2), **{"0": numbers.numpy().tobytes()})
    assert_same(read_state_dict(path), {"a": torch.tensor([1.0, 3.0])})


@pytest.mark.parametrize(
    ("length", "offset", "size", "stride"),
    [(4, 1, 4, 1), (4, 0, 2, 4), (4, -1, 2, 1), (4, 0, 2, -1), (5, 0, 2, 1), (3, 0, 2, 1)],
)
def test_a_tensor_that_leaves_its_storage_is_refused(
    tmp_path: Path, length: int, offset: int, size: int, stride: int
) -> None:
    pickled = tensor_of(length, offset, size, stride)
    with pytest.raises(SettingsError, match="not a plain state_dict"):
        read_state_dict(zipped(tmp_path / "bad.pth", pickled, **{"0": bytes(16)}))


def test_compressed_parts_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bad.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", tensor_of(4, 0, 4, 1))
        archive.writestr("archive/data/0", bytes(16))
    with pytest.raises(SettingsError, match="compressed"):
        read_state_dict(tmp_path / "bad.pth")


def test_other_and_broken_files_are_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(300)}, tmp_path / "whole.pth")
    whole = (tmp_path / "whole.pth").read_bytes()
    for content in (b"", b"no zip", whole[:-40], whole[: len(whole) // 2]):
        (tmp_path / "bad.pth").write_bytes(content)
        with pytest.raises(SettingsError, match="not a plain state_dict"):
            read_state_dict(tmp_path / "bad.pth")
    torch.save({"a": torch.zeros(3)}, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    with pytest.raises(SettingsError, match="not a plain state_dict"):
        read_state_dict(tmp_path / "old.pth")
    with pytest.raises(SettingsError, match="no such file"):
        read_state_dict(tmp_path / "none.pth")
