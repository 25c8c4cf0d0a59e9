"""A training that was interrupted anywhere ends with the same weights."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from kneematch import TrainConfig
from kneematch.errors import SettingsError
from kneematch.progress import Advance
from kneematch.training import trainer
from kneematch.training.trainer import TrainResult, checkpoint_path, load_checkpoint, train
from kneephantoms import SynthConfig, synthesize

EPOCHS = 2 * 2 * 2  # phases, rounds, epochs
SETTINGS = {"batch_size": 2, "seed": 0, "films": "hash"}


class Recorder:
    """A progress display that records its calls, and interrupts after some epochs."""

    def __init__(self, stop: int) -> None:
        self.opened: list[tuple[str, int, int]] = []
        self.notes: list[str] = []
        self.stop = stop

    @contextmanager
    def __call__(self, label: str, total: int, done: int = 0) -> Iterator[Advance]:
        self.opened.append((label, total, done))

        def advance(note: str) -> None:
            self.notes += [note] if label == "training" else []
            if len(self.notes) == self.stop:
                raise KeyboardInterrupt

        yield advance


@pytest.fixture
def start(
    tmp_path: Path, small_network: Callable, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[TrainResult | None, Recorder]]:
    """Train small networks on three phantoms, towards poses in the middle of their halves."""
    networks, middle = cycle([0, 1]), torch.tensor([0.5, 0.0, 0.0, 0.0])
    monkeypatch.setattr(trainer, "network_from_weights", lambda _: small_network(next(networks)))
    monkeypatch.setattr(trainer, "activation_ranges", lambda *_: {})
    monkeypatch.setattr(
        trainer, "make_pseudo_labels", lambda films, *_: middle.expand(len(films), 2, 4).clone()
    )
    films = synthesize(tmp_path / "films", SynthConfig(3, size=(320, 400), workers=0))
    config = TrainConfig(rounds=2, epochs=2, batch_size=2, device="cpu", workers=0)

    def train_to(name: str, stop: int = EPOCHS + 1) -> tuple[TrainResult | None, Recorder]:
        """Train until an epoch."""
        shown, pattern = Recorder(stop), str(tmp_path / "films" / "*.dcm")
        with suppress(KeyboardInterrupt):
            return train(pattern, films.template, tmp_path / name, config, progress=shown), shown
        assert not (tmp_path / name).exists()
        return None, shown

    return train_to


def test_checkpoint_of_any_epoch_leads_to_the_same_weights(start: Callable) -> None:
    whole, _ = start("whole.safetensors")
    wanted = load_file(whole.model)
    assert len(whole.epochs) == EPOCHS
    for stop in range(1, EPOCHS + 1):
        _, before = start(f"{stop}.safetensors", stop)
        result, after = start(f"{stop}.safetensors")
        assert after.opened == [("preparing films", 3, 0), ("training", EPOCHS, stop)]
        assert [note.split()[0] for note in before.notes + after.notes] == ["coarse"] * 4 + [
            "fine"
        ] * 4
        assert [row.loss for row in result.epochs] == [row.loss for row in whole.epochs]
        found = load_file(result.model)
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted), stop
        assert not checkpoint_path(result.model).exists()


def test_train_refuses_a_checkpoint_of_other_networks(start: Callable, tmp_path: Path) -> None:
    start("b.safetensors", 1)
    path = checkpoint_path(tmp_path / "b.safetensors")
    content = torch.load(path, weights_only=True)
    content["states"]["coarse"]["network"].popitem()
    torch.save(content, path)
    with pytest.raises(SettingsError, match=r"b\.checkpoint\.pt is damaged\. Start over"):
        start("b.safetensors")


def test_load_checkpoint_refuses_another_training_and_other_files(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    trainer.save_checkpoint(path, SETTINGS, {"states": {"coarse": torch.ones(9)}})
    assert load_checkpoint(path, SETTINGS)["states"]["coarse"].sum() == 9
    for name, other in (("films", "another hash"), ("batch_size", 3)):
        with pytest.raises(SettingsError, match=rf"was made with another {name}\. Repeat"):
            load_checkpoint(path, {**SETTINGS, name: other})
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(SettingsError, match=r"^[^\n]*checkpoint is damaged[^\n]*$"):
        load_checkpoint(path, SETTINGS)
    torch.save({"format": "kneematch-checkpoint/2", "settings": {}}, path)
    with pytest.raises(SettingsError, match="not a checkpoint of this version"):
        load_checkpoint(path, SETTINGS)
