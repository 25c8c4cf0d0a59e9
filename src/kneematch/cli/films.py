"""The films that a user means, as several commands take them."""

import sys
from collections.abc import Sequence
from pathlib import Path

from kneematch.batch.config import Selection, shard
from kneematch.cli.terminal import complain
from kneematch.errors import SettingsError


def named_films(
    paths: Sequence[str], selection: Selection, leave_out: Sequence[Path], *, quiet: bool
) -> list[str]:
    """Those of the paths, less other series and what the command itself wrote."""
    from kneematch.io.discovery import find_films

    found = find_films(paths, stdin=sys.stdin.buffer, leave_out=leave_out)
    if selection.series is not None:
        from kneematch.io.series import in_series

        inside = list(in_series(found, selection.series))
        if not inside:
            raise SettingsError(
                f"--series {selection.series}: none of {len(found)} films; expected DICOM with "
                "this in its series description; see what `kneematch info` tells of them"
            )
        if not quiet:
            complain(f"{len(found) - len(inside)} of {len(found)} films are of other series")
        found = inside
    return shard(found, selection)
