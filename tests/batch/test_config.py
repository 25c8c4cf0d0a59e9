"""Tests of the selection and sharding of films."""

import pytest

from kneematch.batch.config import Selection, shard
from kneematch.errors import SettingsError


def test_shard_gives_every_film_to_one_part() -> None:
    films = [f"{k}.dcm" for k in range(10)]
    parts = [shard(films, Selection(num_parts=3, part_id=part)) for part in range(3)]
    assert sorted(film for part in parts for film in part) == films
    assert [len(part) for part in parts] == [4, 3, 3]
    assert shard(films, Selection(limit=5, num_parts=2, part_id=1)) == ["1.dcm", "3.dcm"]
    with pytest.raises(SettingsError, match="fewer parts"):
        shard(films, Selection(limit=2, num_parts=3, part_id=2))


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"num_parts": 0}, {"num_parts": 2, "part_id": 2}])
def test_selection_refuses_impossible_values(wrong: dict[str, int]) -> None:
    with pytest.raises(SettingsError):
        Selection(**wrong)  # type: ignore[arg-type]
