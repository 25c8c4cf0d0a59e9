"""Tests of the random exposures."""

from dataclasses import fields

import pytest
import torch

from kneematch.training.augmentation import HIDDEN, NEGATIVES, apply_exposures, draw_exposures

SIZE = (48, 64)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def views(*shape: int) -> torch.Tensor:
    rows = torch.linspace(0, 1, SIZE[0])[:, None]
    grain = torch.rand(*shape, *SIZE, generator=generator(9))
    return (rows + 0.2 * grain) / 1.2


def test_exposures_of_some_views_are_those_of_all() -> None:
    drawn, some = draw_exposures(6, SIZE, generator()), torch.tensor([4, 1, 4])
    for each in fields(drawn):
        assert torch.equal(getattr(drawn[some], each.name), getattr(drawn, each.name)[some])
    seen = views(6)
    assert torch.allclose(
        apply_exposures(seen[some], drawn[some]), apply_exposures(seen, drawn)[some], atol=1e-6
    )


def test_apply_exposures_keeps_the_shape_and_treats_views_one_by_one() -> None:
    drawn, seen = draw_exposures(6, SIZE, generator()), views(3, 2)
    both = apply_exposures(seen, drawn)
    assert both.shape == seen.shape
    assert torch.equal(both.flatten(0, 1), apply_exposures(seen.flatten(0, 1), drawn))
    same = apply_exposures(seen[:1, :1].expand(3, 2, *SIZE), drawn).flatten(0, 1)
    assert all(not torch.equal(same[0], other) for other in same[1:])


def test_draw_exposures_inverts_some_views_and_covers_parts_of_some() -> None:
    drawn = draw_exposures(4000, (8, 8), generator())
    assert float(drawn.negative.float().mean()) == pytest.approx(NEGATIVES, abs=0.02)
    hidden = drawn.hidden.flatten(1).any(1).float().mean()
    assert HIDDEN / 2 < float(hidden) <= HIDDEN + 0.03  # a small one may fall between pixels
    assert not bool(drawn.hidden.flatten(1).all(1).any())


def test_apply_exposures_swaps_bright_and_dark_of_negatives() -> None:
    drawn, seen = draw_exposures(200, SIZE, generator()), views(200)
    after = apply_exposures(seen, drawn)

    def alike(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        pair = [each - each.mean((-2, -1), keepdim=True) for each in (one, other)]
        return (pair[0] * pair[1]).sum((-2, -1))

    turned = alike(after, seen) < 0
    agree = turned == drawn.negative.flatten()
    assert float(agree.float().mean()) > 0.97  # a large cover may outweigh the rest


@pytest.mark.parametrize("grey", [0.0, 1.0, 0.37])
def test_apply_exposures_of_a_constant_view_is_finite(grey: float) -> None:
    drawn = draw_exposures(50, SIZE, generator())
    flat = torch.full((50, *SIZE), grey)
    assert bool(apply_exposures(flat, drawn).isfinite().all())


def test_apply_exposures_does_not_depend_on_the_units_of_the_view() -> None:
    drawn, seen = draw_exposures(6, SIZE, generator()), views(6)
    assert torch.allclose(
        apply_exposures(300 * seen - 7, drawn), apply_exposures(seen, drawn), atol=1e-4
    )
