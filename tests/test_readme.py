"""The README's own example."""

import re
import subprocess
import sys
from pathlib import Path

from kneematch.io.write import write_dicom
from kneematch.synthetic.phantom import phantom

README = Path(__file__).parent.parent / "README.md"


def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    film = tmp_path / "films" / "phantom-00001.dcm"
    film.parent.mkdir()
    made = phantom(1, size=(600, 600)).radiograph
    write_dicom(film, made.pixels, mm_per_px=made.mm_per_px, laterality="B", bits=16)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "left R" in done.stdout
    assert "right L" in done.stdout
    assert {path.name for path in tmp_path.glob("*.png")} == {"left.png", "right.png"}
