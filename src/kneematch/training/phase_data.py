"""What a phase teaches: to find a template in views of the films."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kneematch.geometry.frames import within
from kneematch.geometry.pose import pose_from_vector
from kneematch.geometry.split import HALF_ASPECT
from kneematch.matching.template import Template
from kneematch.networks.pose_network import look
from kneematch.networks.two_stage import Network


class Films(Protocol):
    """The training films {u_i}."""

    def __len__(self) -> int: ...

    def halves(self, rows: Tensor) -> Tensor:
        """Halves (K, 2, 800, 500) of rows (K,)."""


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """A template and where to look for it."""

    films: Films
    template: Template
    aspect: float  # height over width of the views
    frames: Tensor  # (N, 2, 4), where the views lie in the halves
    printed: bool  # the energy is the paper's

    @property
    def ratio(self) -> float:
        """Template aspect over view aspect, as D wants it."""
        return self.template.aspect / self.aspect

    def of(self, values: Tensor, rows: Tensor) -> Tensor:
        """Values (N, ...) of some films."""
        return values[rows.to(values.device)]

    def answer(self, network: Network, halves: Tensor, frames: Tensor) -> Tensor:
        """Where G sees the template in halves (K, 2, H, W) through frames: theta (K, 2, 4)."""
        seen = pose_from_vector(network(look(halves, frames, self.aspect)), self.ratio)
        return within(frames, seen, self.aspect, HALF_ASPECT)


@dataclass(frozen=True, slots=True, eq=False)
class InMemory:
    """Films that fit in the memory of a device."""

    pixels: Tensor  # (N, 2, 800, 500)

    def __len__(self) -> int:
        return len(self.pixels)

    def halves(self, rows: Tensor) -> Tensor:
        """Halves (K, 2, 800, 500) of rows (K,)."""
        return self.pixels[rows.to(self.pixels.device)].float()


@dataclass(frozen=True, slots=True, eq=False)
class On:
    """Films that are sent to a device batch by batch."""

    films: Films
    device: torch.device

    def __len__(self) -> int:
        return len(self.films)

    def halves(self, rows: Tensor) -> Tensor:
        """Halves (K, 2, 800, 500) of rows (K,)."""
        return self.films.halves(rows.cpu()).to(self.device)


@dataclass(frozen=True, slots=True, eq=False)
class First:
    """The first of some films."""

    films: Films
    count: int

    def __len__(self) -> int:
        return self.count

    def halves(self, rows: Tensor) -> Tensor:
        """Halves (K, 2, 800, 500) of rows (K,)."""
        return self.films.halves(rows)
