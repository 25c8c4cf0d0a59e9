"""Tests of the recipes and of the configuration that selects one."""

from dataclasses import replace
from pathlib import Path

import pytest

from kneematch.paper.algorithm2 import ENLARGE
from kneematch.training.config import DEFAULT, PAPER, TrainConfig, cache_folder


def test_paper_recipe_has_the_papers_values() -> None:
    assert (PAPER.rounds, PAPER.epochs, PAPER.batch_size) == (3, 15, 8)
    assert (PAPER.backbone_rate, PAPER.head_rate) == (1e-5, 1e-4)
    assert ENLARGE == 1.2
    assert PAPER.paper_energy
    assert not PAPER.cosine
    assert not PAPER.frozen_statistics
    assert not PAPER.bfloat16


def test_hyperparameters_are_the_recipes_but_for_the_values_that_are_given() -> None:
    assert TrainConfig().hyperparameters() == DEFAULT
    given = {"rounds": 1, "epochs": 2, "batch_size": 5}
    assert TrainConfig(recipe="paper", **given).hyperparameters() == replace(PAPER, **given)


def test_cache_folder_is_the_users_unless_the_variable_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KNEEMATCH_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("KNEEMATCH_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path.home() / ".cache" / "kneematch"
