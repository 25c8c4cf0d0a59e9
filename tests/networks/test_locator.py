"""The locator: the same knees in the precision of this CPU as in float32."""

from copy import deepcopy

import pytest
import torch

from kneematch.detection.locate import shipped_locator
from kneematch.geometry.sampling import resize
from kneematch.networks.locator import find_knees
from kneematch.synthetic.phantom import phantom


def test_find_knees_sees_the_same_as_in_float32() -> None:
    pixels = torch.from_numpy(phantom(1, framing="bilateral").radiograph.pixels)
    image = resize(pixels, (224, 256))
    network = shipped_locator()
    found, wanted = (find_knees(each, image)[:2] for each in (network, deepcopy(network).float()))
    assert len(found) == len(wanted) == 2
    for one, other in zip(found, wanted, strict=True):
        assert one.score == pytest.approx(other.score, abs=0.01)
        assert one.x == pytest.approx(other.x, abs=0.005 * other.width)
        assert one.y == pytest.approx(other.y, abs=0.005 * other.width)
        assert one.width == pytest.approx(other.width, rel=0.005)
        assert one.rotation == pytest.approx(other.rotation, abs=0.005)
