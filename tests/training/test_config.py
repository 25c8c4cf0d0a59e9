"""The recipes: the paper's to the letter, and what a user puts in their place."""

from dataclasses import replace

from kneematch.networks.two_stage import ENLARGE
from kneematch.training.config import DEFAULT, PAPER, RECIPES, chosen


def test_the_papers_values_are_the_papers() -> None:
    assert (PAPER.rounds, PAPER.epochs, PAPER.batch_size) == (3, 15, 8)
    assert (PAPER.backbone_rate, PAPER.head_rate) == (1e-5, 1e-4)
    assert ENLARGE == 1.2
    assert PAPER.energy
    assert PAPER.printed
    assert not PAPER.cosine
    assert not PAPER.frozen_statistics
    assert PAPER.mean_template == 0


def test_recipes_are_found_by_their_names() -> None:
    assert {name: recipe.name for name, recipe in RECIPES.items()} == {
        "default": "default",
        "paper": "paper",
    }
    assert chosen("default") == DEFAULT
    assert chosen("paper") == PAPER


def test_what_is_given_replaces_a_recipes_own_value_and_nothing_else() -> None:
    assert chosen("paper", rounds=1, epochs=2) == replace(PAPER, rounds=1, epochs=2)
    assert chosen("paper", batch_size=5) == replace(PAPER, batch_size=5)
    assert chosen("default", mean_template=2) == replace(DEFAULT, mean_template=2)
    assert chosen("default", mean_template=0).mean_template == 0
