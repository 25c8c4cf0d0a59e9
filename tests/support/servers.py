"""Real DICOM servers and clients, and the node under test, as processes on free ports."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

PLUGIN = Path("/usr/share/orthanc/plugins/libOrthancDicomWeb.so")
PATIENCE_S = 60.0  # before something that does not happen fails a test


def tool(name: str) -> str:
    """Return the path of a program, or skip the test; pynetdicom has a storescu of its own."""
    path = shutil.which(name, path=f"/usr/bin:/usr/sbin:{os.environ['PATH']}")
    if path is None or (name == "Orthanc" and not PLUGIN.exists()):
        pytest.skip(f"{name} is not installed (Debian: apt install orthanc-dicomweb dcmtk)")
    return path


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


def eventually(holds: Callable[[], Any], what: str) -> Any:
    """Return the first true value of a condition, or fail."""
    end = time.monotonic() + PATIENCE_S
    while not (value := holds()):
        assert time.monotonic() < end, what
        time.sleep(0.05)
    return value


class Server:
    """A process that may be killed and started again."""

    def __init__(self, command: list[str], folder: Path, ready: Callable[[], bool]) -> None:
        self.command, self.folder, self.ready = command, folder, ready
        self.start()

    def start(self) -> None:
        self.said = (self.folder / "said").open("ab")
        self.process = subprocess.Popen(
            self.command, cwd=self.folder, stdout=self.said, stderr=subprocess.STDOUT
        )
        eventually(lambda: self.ready() or self.process.poll() is not None, "a server starts")
        assert self.process.poll() is None, self.text()

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        self.said.close()
        return code

    def text(self) -> str:
        return (self.folder / "said").read_text(errors="replace")


def answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=5).ok
    except requests.RequestException:
        return False


class Orthanc(Server):
    """An Orthanc with its DICOMweb plug-in."""

    def __init__(self, folder: Path) -> None:
        self.dicom, port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{port}"
        given = {"HttpPort": port, "DicomPort": self.dicom, "DicomAet": "ORTHANC"}
        given |= {"StorageDirectory": "db", "Plugins": [str(PLUGIN)]}
        given |= {"AuthenticationEnabled": False, "DicomAlwaysAllowFind": True}
        (folder / "orthanc.json").write_text(json.dumps(given))
        command = [tool("Orthanc"), "orthanc.json"]
        super().__init__(command, folder, lambda: answers(f"{self.url}/system"))

    @property
    def receiver(self) -> str:
        return f"ORTHANC@127.0.0.1:{self.dicom}"

    def get(self, path: str) -> Any:
        return requests.get(f"{self.url}{path}", timeout=30).json()

    def instances(self) -> list[dict[str, Any]]:
        """Return study, class and more of every instance, by QIDO-RS."""
        found = self.get("/dicom-web/instances?limit=9999&includefield=0020000D")
        keys = {"study": "0020000D", "class": "00080016", "modality": "00080060"}
        return [{name: each[tag]["Value"][0] for name, tag in keys.items()} for each in found]


class Node(Server):
    """`kneematch serve` on free ports."""

    def __init__(
        self, folder: Path, *options: str, address: str = "127.0.0.1", first: str = "pass"
    ) -> None:
        """`first`: code to run before the program."""
        self.port, http = free_port(), free_port()
        self.url = f"http{'s' if '--tls-cert' in options else ''}://{address}:{http}"
        program = f"{first}; from kneematch.cli.main import run; run()"
        command = [sys.executable, "-c", program, "serve", "queue", "--port", str(self.port)]
        command += ["--http-port", str(http), "--workers", "1", *options]
        super().__init__(command, folder, lambda: answers(f"{self.url}/health"))

    def films(self) -> dict[str, int]:
        counts: dict[str, int] = requests.get(f"{self.url}/health", timeout=30).json()["films"]
        return counts

    def done(self, count: int) -> bool:
        """Return whether so many films were examined, and no object waits to be delivered."""
        films, objects = self.films(), self.folder / "queue" / "dicom-objects"
        busy = films.pop("waiting", 0) + films.pop("taken", 0)
        return not busy and sum(films.values()) >= count and not any(objects.iterdir())

    def send(self, *films: Path, options: tuple[str, ...] = (), aet: str = "TESTER") -> int:
        """Send films with dcmtk's storescu; return its exit code."""
        command = [tool("storescu"), *options, "-aet", aet, "-aec", "KNEEMATCH", "127.0.0.1"]
        command += [str(self.port), *map(str, films)]
        return subprocess.run(command, capture_output=True, check=False).returncode
