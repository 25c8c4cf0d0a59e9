"""Files around the code: hooks that refuse films, workflows, and recipes of containers."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from kneephantoms.files import write_dicom

ROOT = Path(__file__).parent.parent


def check_files(*paths: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "check_files.py"), *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_check_files_refuses_films_whatever_their_name(tmp_path: Path) -> None:
    write_dicom(tmp_path / "001", np.zeros((40, 40), np.float32), mm_per_px=0.2, laterality="B")
    (tmp_path / "empty.dcm").touch()
    (tmp_path / "code.py").write_text("pass\n")
    done = check_files(*sorted(tmp_path.iterdir()))
    assert done.returncode == 1
    assert [Path(line.split(":")[0]).name for line in done.stdout.splitlines()] == [
        "001",
        "empty.dcm",
    ]
    assert check_files(tmp_path / "code.py").returncode == 0


def test_check_files_refuses_large_files(tmp_path: Path) -> None:
    (tmp_path / "large.bin").write_bytes(bytes(1_000_001))
    assert "at most 1000" in check_files(tmp_path / "large.bin").stdout


def test_make_lint_and_pre_commit_run_the_same() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"][0][
        "hooks"
    ]
    entries = " ".join(hook["entry"] for hook in hooks)
    for program in ("ruff check", "ruff format", "mypy --strict", "lab scripts", "check_files.py"):
        assert program in entries
    assert "pre-commit run --all-files" in (ROOT / "Makefile").read_text("utf-8")


def test_ci_tests_every_python_that_the_package_names() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))["jobs"]
    classifiers = (ROOT / "pyproject.toml").read_text("utf-8")
    named = re.findall(r"Python :: (3\.\d+)", classifiers)
    assert jobs["test"]["strategy"]["matrix"]["python"] == named
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = re.findall(r"^make (\w+) PYTHON=python$", "\n".join(runs), re.MULTILINE)
    assert sorted(targets) == ["docs", "lint", "test"]


def test_container_recipes_install_alike_and_run_as_nobody_in_particular() -> None:
    docker = (ROOT / "Dockerfile").read_text("utf-8")
    apptainer = (ROOT / "apptainer.def").read_text("utf-8")
    for pattern in (r"uv==[\d.]+", r"python:3\.\d+-[\w-]+", r"--torch-backend"):
        assert re.search(pattern, docker)
        assert set(re.findall(pattern, docker)) == set(re.findall(pattern, apptainer))
    assert 'ENTRYPOINT ["kneematch"]' in docker
    assert re.search(r"^USER 1000$", docker, re.MULTILINE)
    copied = re.findall(r"^COPY ([^-].*) \S+$", docker, re.MULTILINE)
    allowed = re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text("utf-8"), re.MULTILINE)
    assert sorted(" ".join(copied).split()) == sorted(allowed)
    assert all((ROOT / name).exists() for name in allowed)


def test_compose_review_keeps_the_root_read_only_and_the_port_local() -> None:
    review = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))["services"]["review"]
    assert review["read_only"] is True
    assert review["cap_drop"] == ["ALL"]
    assert "ports" not in review  # the page listens on 127.0.0.1 of the host
    assert "--no-browser" in review["command"]


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="no hadolint on the path")
def test_dockerfile_passes_hadolint() -> None:
    assert subprocess.run(["hadolint", ROOT / "Dockerfile"], check=False).returncode == 0
