"""Files around the code: hooks that refuse films, workflows, and recipes of containers."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import yaml

from kneephantoms.files import write_dicom

ROOT = Path(__file__).parent.parent


def check_files(*paths: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "check_files.py"), *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_check_files_refuses_large_files_and_films_whatever_their_name(tmp_path: Path) -> None:
    write_dicom(tmp_path / "001", np.zeros((40, 40), np.float32), mm_per_px=0.2, laterality="B")
    (tmp_path / "empty.dcm").touch()
    (tmp_path / "large.bin").write_bytes(bytes(1_000_001))
    (tmp_path / "code.py").write_text("pass\n")
    done = check_files(*sorted(tmp_path.iterdir()))
    assert done.returncode == 1
    refused = [Path(line.split(":")[0]).name for line in done.stdout.splitlines()]
    assert refused == ["001", "empty.dcm", "large.bin"]
    assert "at most 1000" in done.stdout
    assert check_files(tmp_path / "code.py").returncode == 0


def test_requirements_of_the_image_have_hashes_and_the_tested_versions() -> None:
    pins = (ROOT / "constraints.txt").read_text("utf-8").lower().replace("_", "-")
    tested = set(re.findall(r"^([\w.-]+==[\w.]+)", pins, re.MULTILINE))
    common, cpu, cu130 = (
        (ROOT / "requirements" / f"{name}.txt").read_text("utf-8")
        for name in ("common", "cpu", "cu130")
    )
    pinned = re.findall(
        r"^([\w.-]+==[\w.]+)\S* \\\n    --hash=sha256:[0-9a-f]{64}",
        common + cpu + cu130,
        re.MULTILINE,
    )
    assert len(pinned) == len(re.findall("==", common + cpu + cu130)) > 70
    others = {pin.split("==")[0] for pin in set(pinned) - tested}
    untested = {"hatchling", "pathspec", "trove-classifiers", "setuptools", "triton", "pluggy"}
    untested |= {"tomlkit"}
    assert {name for name in others if not name.startswith(("nvidia-", "cuda-"))} <= untested
    for recipe in ("Dockerfile", "apptainer.def"):
        assert "--require-hashes --no-deps" in (ROOT / recipe).read_text("utf-8")


def test_licences_page_lists_every_dependency_and_no_copyleft() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "licences.py")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line for line in printed.splitlines() if line.startswith("| ")]
    assert len(rows) > 15
    page = (ROOT / "docs" / "licences.md").read_text("utf-8")
    for row in rows:
        assert f"\n{row}\n" in page
        assert not re.search("GPL|General Public|UNKNOWN", row), row


def test_images_have_a_pinned_base_an_own_user_and_no_secrets() -> None:
    docker = (ROOT / "Dockerfile").read_text("utf-8")
    recipes = docker + (ROOT / "apptainer.def").read_text("utf-8")
    bases = re.findall(r"^(?:FROM|From:) (\S+)", recipes, re.MULTILINE)
    assert bases == ["python:3.11-slim-bookworm"] * 3
    assert re.findall(r"^USER (\w+)", docker, re.MULTILINE) == ["1000"]
    assert not re.search(r"token|passw|secret|api_?key", recipes, re.IGNORECASE)


def test_compose_review_keeps_the_root_read_only_and_the_port_local() -> None:
    review = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))["services"]["review"]
    assert review["read_only"] is True
    assert review["cap_drop"] == ["ALL"]
    assert "ports" not in review  # the page listens on 127.0.0.1 of the host
    assert "--no-browser" in review["command"]
