"""Metal in phantoms: as opaque, and as sharply outlined, as on real films."""

import numpy as np
import pytest
import torch

from kneephantoms.anatomy import draw_knees
from kneephantoms.film_plan import IMPLANTS
from kneephantoms.leg import SATURATED, add_implant
from kneephantoms.solids import make_grid


@pytest.mark.parametrize("kind", IMPLANTS)
def test_add_implant_draws_opaque_metal(kind: str) -> None:
    rng = np.random.default_rng(0)
    shape = draw_knees(rng, None)[0][0]
    metal = torch.zeros(600, 400)
    add_implant(make_grid((600, 400), (-1.0, -1.5), 200), metal, shape, kind, rng)
    seen = metal[metal > 0]
    assert seen.max() == SATURATED
    assert (seen == SATURATED).float().mean() > 0.5  # soft at the rims of round parts only
