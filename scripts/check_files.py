"""Refuse files that do not belong in the repository: films, and large files.

python scripts/check_files.py FILE...
"""

import sys
from pathlib import Path

LARGEST_KB = 1000
ALLOWED = ("src/kneematch/models/",)  # the built-in networks
FILM_SUFFIXES = (".dcm", ".dicom", ".ima", ".nii", ".nii.gz", ".mha")
DICOM_MARK, MARK_AT = b"DICM", 128


def problem(path: Path) -> str | None:
    """Return why a file is refused."""
    with path.open("rb") as file:
        start = file.read(MARK_AT + len(DICOM_MARK))
    if start[MARK_AT:] == DICOM_MARK or path.name.lower().endswith(FILM_SUFFIXES):
        return "Films do not belong in the repository."
    size_kb = path.stat().st_size / 1000
    if size_kb > LARGEST_KB and not path.as_posix().startswith(ALLOWED):
        return f"The file has {size_kb:.0f} kB, and at most {LARGEST_KB} are allowed."
    return None


def main() -> int:
    """Print the files that are refused; return 1 if there are any."""
    refused = [(name, problem(Path(name))) for name in sys.argv[1:] if Path(name).is_file()]
    for name, reason in refused:
        if reason:
            print(f"{name}: {reason}")
    return int(any(reason for _, reason in refused))


if __name__ == "__main__":
    sys.exit(main())
