"""A real Ray cluster of two nodes, one of which is killed in the middle of a run."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from kneematch.cli.main import main
from kneematch.errors import SettingsError
from kneematch.run.database import Run
from kneematch.run.ray import Cluster, connect
from saved_films import EMPTY_BYTES, saved_bytes

PATIENCE_S = 300
COUNT = 6  # films


def run(films: Path, out: Path, *options: str) -> "subprocess.Popen[str]":
    few = f"phantom-0000[0-{COUNT - 1}].dcm"
    command = [sys.executable, "-m", "kneematch", "detect", few, "-o", str(out)]
    command += ["--method", "search"]
    return subprocess.Popen(
        [*command, "--template", "template.json", *options],
        cwd=films,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head node of one CPU."""
    pytest.importorskip("ray.data")
    from ray.cluster_utils import Cluster as Nodes

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("OMP_NUM_THREADS", "1")
        memory = {"object_store_memory": 200 << 20, "include_dashboard": False}
        nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 1, **memory})
        yield nodes
        nodes.shutdown()


@pytest.fixture(scope="module")
def local(films: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("local") / "out"
    alone = run(films, out, "--workers", "0")
    alone.communicate(timeout=PATIENCE_S)
    assert alone.returncode == 0
    return out


def actors() -> list[int]:
    """The processes of Ray on this machine that search films."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if entry.read_bytes().startswith(b"ray::MapWorker"):
                found.append(int(entry.parent.name))
    return found


def wait_for_films(process: "subprocess.Popen[str]", out: Path, after: int = EMPTY_BYTES) -> None:
    started = time.monotonic()
    while saved_bytes(out) <= after:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() - started < PATIENCE_S
        time.sleep(0.02)


@pytest.mark.filterwarnings("default")
def test_cluster_survives_a_killed_worker_and_a_killed_driver(
    films: Path, tmp_path: Path, cluster: Any, local: Path
) -> None:
    out = tmp_path / "ray"
    options = ("--ray", cluster.address)
    process = run(films, out, *options)
    wait_for_films(process, out)
    killed = actors()
    assert killed
    for worker in killed:
        os.kill(worker, signal.SIGKILL)
    wait_for_films(process, out, saved_bytes(out))  # by a new worker
    process.kill()
    process.communicate()
    with Run(out) as before:
        done = before.count("status != ''")
    assert 0 < done < COUNT, "all was done before the driver was killed"
    resumed = run(films, out, *options)
    _, complaints = resumed.communicate(timeout=PATIENCE_S)
    assert resumed.returncode == 0, complaints
    assert f"{done} done before" in complaints
    assert (out / "detections.csv").read_bytes() == (local / "detections.csv").read_bytes()


@pytest.mark.filterwarnings("default")
def test_cluster_that_loses_a_node_writes_what_one_machine_writes(
    films: Path, tmp_path: Path, cluster: Any, local: Path
) -> None:
    second = cluster.add_node(num_cpus=1, object_store_memory=200 << 20)
    cluster.wait_for_nodes()
    ray = tmp_path / "ray"
    process = run(films, ray, "--ray", cluster.address)
    wait_for_films(process, ray)
    cluster.remove_node(second, allow_graceful=False)
    assert not (ray / "detections.csv").exists(), "all was done before the node was lost"
    said, complaints = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, complaints
    # Ray has told of the loss before.
    assert f"{ray / 'detections.csv'}: {2 * COUNT} knees in {COUNT} films" in said
    assert (ray / "detections.csv").read_bytes() == (local / "detections.csv").read_bytes()


@pytest.mark.parametrize(
    ("cpus", "gpus", "actors", "share"),
    [(16, 1, 4, 1 / 4), (3, 1, 3, 1 / 3), (64, 4, 16, 1 / 4), (6, 8, 6, 1.0), (8, 0, 1, 1.0)],
)
def test_cluster_divides_its_gpus_among_actors(
    cpus: int, gpus: int, actors: int, share: float
) -> None:
    cluster = Cluster(cpus, gpus)
    assert cluster.actors("cuda") == (actors, share)
    assert cluster.actors("cpu") == (cpus, 0.0)
    assert cluster.device("auto") == ("cuda" if gpus else "cpu")
    assert cluster.device("cpu") == "cpu"


def test_connect_names_the_extra_without_ray(
    films: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.data", None)
    template = ["--template", str(films / "template.json")]
    out = tmp_path / "out"
    assert main(["detect", str(films), *template, "-o", str(out), "--ray", "local"]) == 2
    assert "kneematch[ray]" in capsys.readouterr().err
    assert not out.exists()


def test_connect_says_that_ray_did_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def time_out(**settings: object) -> None:
        raise Exception("The current node timed out during startup.\nMore lines.")

    monkeypatch.setattr(import_module("ray"), "init", time_out)
    refused = pytest.raises(SettingsError, match=r"Ray did not start: .*timed out during startup")
    with refused, connect("local"):
        pass
