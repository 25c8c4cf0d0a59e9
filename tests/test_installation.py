"""The package as a user installs it: into empty environments, with and without extras.

`make test-matrix` runs these tests: each builds a virtual environment, which takes minutes.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LARGEST_MB = 60  # of a wheel or an sdist
PYTHONS = ["python3.11", "python3.12", "python3.13"]
# What needs an extra, and how to see that it is there.
EXTRAS = {
    "": "import kneematch",
    "web": "import kneematch.web.server",
    "serve": "import kneematch.serve.http",
    "ray": "import ray.data",
    "onnx": "from kneematch.knee.onnx_export import export_onnx; export_onnx('exported')",
}

pytestmark = pytest.mark.matrix


def run(*command: str | Path, cwd: Path) -> str:
    """Run a program without this checkout on its path; return what it prints on stdout."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def code_blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Path]:
    """An empty folder that is removed at once, since an environment has gigabytes."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def installed(folder: Path, python: str, *wanted: str | Path, on: Path | None = None) -> Path:
    """Return the programs of a new environment with a package, on top of another one or of none."""
    run(python, "-m", "venv", folder / "venv", cwd=folder)
    bin_folder = folder / "venv" / "bin"
    if on is not None:  # whose packages pip then does not install again
        own, below = (next(b.parent.glob("lib/*/site-packages")) for b in (bin_folder, on))
        (own / "below.pth").write_text(f"{below}\n", encoding="utf-8")
        run(bin_folder / "pip", "install", "-q", "--no-deps", "-I", wanted[-1], cwd=folder)
    run(bin_folder / "pip", "install", "--quiet", *wanted, cwd=folder)
    run(bin_folder / "pip", "check", cwd=folder)
    print(run(bin_folder / "kneematch", "--version", cwd=folder))  # shown by pytest -rP
    return bin_folder


def detect_on_a_phantom(bin_folder: Path, folder: Path) -> None:
    """Make a phantom and detect its two knees with the built-in model."""
    kneematch = bin_folder / "kneematch"
    run(kneematch, "synth", "-n", "1", "--framing", "knee", "-o", "films", cwd=folder)
    wanted = "--crops", "--overlays", "--export", "coco", "--export", "dicom"
    told = run(kneematch, "detect", "films", "-o", "found", *wanted, cwd=folder)
    assert "2 knees in 1 film" in told
    assert len(list((folder / "found" / "crops").glob("*.png"))) == 2


def test_packages_are_small_and_hold_the_model(packages: Path) -> None:
    (wheel,), (sdist,) = packages.glob("*.whl"), packages.glob("*.tar.gz")
    for package in (wheel, sdist):
        assert package.stat().st_size < LARGEST_MB * 1e6, package
    in_wheel = set(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/src/")[2] for name in archive.getnames()}
    in_source = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert any(name.endswith(".safetensors") for name in in_source)
    assert in_source <= in_wheel
    assert in_source <= in_sdist
    assert not [name for name in in_wheel if name.endswith((".dcm", ".pyc"))]


@pytest.fixture(scope="module")
def plain(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of programs of an environment with the wheel and the pinned versions."""
    folder = tmp_path_factory.mktemp("plain")
    (wheel,) = packages.glob("*.whl")
    yield installed(folder, sys.executable, "-c", ROOT / "constraints.txt", wheel)
    shutil.rmtree(folder)


@pytest.mark.xdist_group("extras")
@pytest.mark.parametrize("extra", EXTRAS, ids=lambda extra: extra or "no extra")
def test_wheel_works_in_an_empty_environment(
    packages: Path, plain: Path, empty: Path, extra: str
) -> None:
    bin_folder, (wheel,) = plain, packages.glob("*.whl")
    if extra:
        wanted = "-c", ROOT / "constraints.txt", f"{wheel}[{extra}]"
        bin_folder = installed(empty, sys.executable, *wanted, on=plain)
    run(bin_folder / "python", "-c", EXTRAS[extra], cwd=empty)
    detect_on_a_phantom(bin_folder, empty)
    if extra == "ray":
        cluster = "--ray", "local", "-o", "found-ray"
        run(bin_folder / "kneematch", "detect", "films", *cluster, cwd=empty)
        tables = [empty / name / "detections.csv" for name in ("found", "found-ray")]
        assert tables[0].read_bytes() == tables[1].read_bytes()
    extras = json.loads(run(bin_folder / "kneematch", "info", "--json", cwd=empty))["extras"]
    assert extras == {
        "web": extra in ("web", "serve"),  # both bring FastAPI
        "serve": extra == "serve",
        "ray": extra == "ray",
        "onnx": extra == "onnx",
    }


def test_wheel_works_with_the_oldest_allowed_versions(packages: Path, empty: Path) -> None:
    (wheel,) = packages.glob("*.whl")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["web"]]
    oldest = [re.sub(r"\[.*?\]", "", text).replace(">=", "==") for text in wanted]
    (empty / "oldest.txt").write_text("\n".join(oldest), encoding="utf-8")
    bin_folder = installed(empty, "python3.11", "-c", empty / "oldest.txt", f"{wheel}[web]")
    detect_on_a_phantom(bin_folder, empty)
    run(bin_folder / "python", "-c", EXTRAS["web"], cwd=empty)


@pytest.mark.parametrize("python", PYTHONS)
def test_wheel_works_with_the_newest_versions_on_every_python(
    packages: Path, empty: Path, python: str
) -> None:
    found = shutil.which(python)
    if found is None or subprocess.run([found, "--version"], capture_output=True).returncode != 0:
        pytest.skip(f"no {python} on the path")
    (wheel,) = packages.glob("*.whl")
    detect_on_a_phantom(installed(empty, python, wheel), empty)


# There is no browser here.
NO_REVIEW = 'kneematch() { [ "$1" = review ] || command kneematch "$@"; }'


def test_new_user_can_follow_install_and_tutorial_word_for_word(
    packages: Path, empty: Path
) -> None:
    (empty / "grade.py").write_text(code_blocks("tutorial.md", "python")[0], encoding="utf-8")
    install, *_ = code_blocks("install.md", "sh")
    walk([NO_REVIEW, install, *code_blocks("tutorial.md", "sh")], packages, empty)
    crops, graded = ((empty / name).rglob("*.png") for name in ("found/crops", "graded"))
    assert len(list(crops)) == len(list(graded)) > 15
    assert not (empty / "graded" / "grade-unknown").exists()
    assert (empty / "compared" / "evaluation.md").exists()


def test_install_page_works_without_the_internet_and_completes_commands(
    packages: Path, empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(empty))  # where completion is installed
    install, *others = code_blocks("install.md", "sh")
    environment = "\n".join(install.splitlines()[:2])  # made and activated
    told = walk([environment, *others], packages, empty)
    assert json.loads(told[told.index("{") :])["extras"]["web"]


def walk(blocks: list[str], packages: Path, folder: Path) -> str:
    """Run blocks of commands in a copy of the sources that has the wheel, with pinned versions."""
    (wheel,), (sdist,) = packages.glob("*.whl"), packages.glob("*.tar.gz")
    shutil.copy(wheel, folder)
    run("tar", "-xzf", sdist, "--strip-components=1", cwd=folder)
    (folder / "walk.sh").write_text("\n".join(blocks), encoding="utf-8")
    pinned = f"PIP_CONSTRAINT={ROOT / 'constraints.txt'}"
    return run("env", pinned, "bash", "-eu", "walk.sh", cwd=folder)
