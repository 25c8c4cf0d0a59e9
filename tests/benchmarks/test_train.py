"""The benchmark of training keeps up with the library that it calls."""

from argparse import Namespace

from kneematch.training.config import TrainConfig
from train import trained


def test_trained_learns_pseudo_labels_of_phantoms() -> None:
    config = TrainConfig(epochs=1, device="cpu")
    model, _ = trained(config, Namespace(films=2, kind="knee", workers=1))
    assert model.settings["recipe"]["name"] == "default"
