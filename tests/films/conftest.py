"""DICOM films in a folder of their own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dicom_films


@pytest.fixture
def save_film(tmp_path: Path) -> Callable[..., Path]:
    def save(*stored: Any, name: str = "film.dcm", **header: Any) -> Path:
        return dicom_films.save_film(tmp_path / name, *stored, **header)

    return save
