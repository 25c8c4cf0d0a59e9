"""A torch dataset that finds knees, as a training program would have it; workers import it."""

from pathlib import Path

import torch
from torch.utils.data import Dataset

from kneematch import Detector


class Knees(Dataset[torch.Tensor]):
    """The centres (S, 2) of the knees of films."""

    def __init__(self, films: list[Path], detector: Detector) -> None:
        self.films, self.detector = films, detector

    def __len__(self) -> int:
        return len(self.films)

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.tensor([knee.centre for knee in self.detector.detect(self.films[number])])
