"""Send many films to `kneematch serve`, count what it delivers, and watch its memory.

    python lab/soak.py [--films N] [--distinct D] [--workers W] [--senders S] [--most-waiting M]
    python lab/soak.py --films 1000 --kills 20

Phantoms are sent by several senders at once, and their objects to dcmtk's storescp, or to Orthanc
with --kills: then the node and Orthanc are killed in turn (SIGKILL) while films are sent, and
started again. Prints, for every tenth of 1,000 films or more, films per second and memory of all
processes of the node together (shared pages counted once); then the time from a film's receipt to
its objects in the queue, and how long the objects took to arrive. Exits with 1 if a film or an
object is lost or arrives twice, or if memory is not steady (the medians of early and late tenths
differ by 10 % or more). The load of the machine is printed, too.
"""

import argparse
import copy
import hashlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from itertools import cycle
from pathlib import Path
from typing import Any

from pydicom import Dataset, dcmread
from pydicom.uid import generate_uid
from pynetdicom import AE

from films import table
from job import family, megabytes
from kneephantoms import SynthConfig, synthesize

PARTS = 10
SENT: set[str] = set()  # instance UIDs of films
OBJECTS = 2  # that are sent for each film
STEADY_FILMS = 1000  # fewer take too little time to judge the memory
EARLY, LATE = slice(1, 4), slice(6, 9)  # tenths to compare: neither the start nor the end
STEADY = 0.1  # largest relative difference of their medians
SAMPLE_S, PAUSE_S, KILL_S = 0.5, 0.2, 4.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


NODE, RECEIVER, HTTP = free_port(), free_port(), free_port()


class Receiver:
    """dcmtk's storescp, which writes a file for each arrival, or Orthanc, which keeps each once."""

    def __init__(self, folder: Path, orthanc: bool) -> None:
        self.arrived: Counter[str] = Counter()
        self.folder, self.orthanc, self.ended = folder / "receiver", orthanc, threading.Event()
        self.folder.mkdir()
        settings = {"HttpPort": HTTP, "DicomPort": RECEIVER, "StorageDirectory": "db"}
        settings |= {"AuthenticationEnabled": False, "DicomAet": "SOAK"}
        (self.folder / "orthanc.json").write_text(json.dumps(settings))
        # dcmtk's: pynetdicom installs a program of the same name.
        storescp = shutil.which("storescp", path=f"/usr/bin:{os.environ['PATH']}")
        self.command = [storescp or "storescp", "--fork", "-uf", str(RECEIVER)]
        if orthanc:
            path = shutil.which("Orthanc", path=f"/usr/sbin:{os.environ['PATH']}")
            self.command = [path or "Orthanc", "orthanc.json"]
        self.start()
        self.counting = threading.Thread(target=self._count)
        self.counting.start()

    def start(self) -> None:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(self.command, cwd=self.folder, **quiet)  # type: ignore[call-overload]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        time.sleep(KILL_S)
        self.start()

    def _count(self) -> None:
        """Read and remove what storescp has written, once it is some seconds old."""
        while not self.ended.wait(1.0) or any(self.folder.glob("[A-Z]*")):
            for path in self.folder.glob("[A-Z]*"):
                if path.is_file() and path.stat().st_mtime < time.time() - 2:
                    self.arrived[dcmread(path, stop_before_pixels=True).SOPInstanceUID] += 1
                    path.unlink()

    def count(self) -> tuple[int, int]:
        """End it; return how many objects arrived, and how many of them twice."""
        if self.orthanc:
            with urllib.request.urlopen(f"http://127.0.0.1:{HTTP}/statistics") as answer:
                found = int(json.load(answer)["CountInstances"])
        self.process.kill()
        self.ended.set()
        self.counting.join()
        twice = sum(count > 1 for count in self.arrived.values())
        return (found, 0) if self.orthanc else (len(self.arrived), twice)


class Node:
    """`kneematch serve`, which may be killed, and its memory."""

    def __init__(self, folder: Path, workers: int, most_waiting: int) -> None:
        self.folder, self.memory = folder, list[tuple[float, float]]()  # time, and MB then
        code = f"from kneematch.serve import queue; queue.MOST_WAITING = {most_waiting}; "
        code += "from kneematch.cli.main import run; run()"
        self.command = [sys.executable, "-c", code, "serve", "queue", "--port", str(NODE)]
        self.command += ["--http-port", "0", "--workers", str(workers)]
        self.command += ["--send-to", f"SOAK@127.0.0.1:{RECEIVER}"]
        self.start()
        threading.Thread(target=self._watch, daemon=True).start()

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, cwd=self.folder, stdout=subprocess.PIPE)
        self.process.stdout.readline()  # type: ignore[union-attr]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.start()

    def finish(self) -> int:
        """End it as systemd does, again if objects wait for a receiver that was away."""
        code, waiting = self.end(), "SELECT count(*) FROM objects WHERE state = 'waiting'"
        while self.query(waiting) != [(0,)]:
            self.start()
            time.sleep(KILL_S)
            code |= self.end()
        return code

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait()

    def query(self, text: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / "queue" / "queue.sqlite")) as sql:
            return sql.execute(text).fetchall()

    def _watch(self) -> None:
        while True:
            self.memory.append((time.time(), megabytes(family(self.process.pid))))
            time.sleep(SAMPLE_S)


def soak(args: argparse.Namespace, folder: Path) -> int:
    """Send films, print what became of them, and return the exit code."""
    synthesize(folder / "films", SynthConfig(args.distinct, framing="bilateral", workers=2))
    pictures = [dcmread(path) for path in sorted((folder / "films").glob("*.dcm"))]
    receiver = Receiver(folder, orthanc=args.kills > 0)
    node = Node(folder, args.workers, args.most_waiting or args.films)
    parts = [range(first, args.films, args.senders) for first in range(args.senders)]
    threads = [threading.Thread(target=send, args=(pictures, part)) for part in parts]
    for thread in threads:
        thread.start()
    for _, victim in zip(range(args.kills), cycle([node, receiver]), strict=False):
        time.sleep(KILL_S)
        victim.kill()  # type: ignore[attr-defined]
    for thread in threads:
        thread.join()
    sent, loads = time.time(), os.getloadavg()
    code = node.finish()
    delivered = time.time()
    arrived, twice = receiver.count()
    states = node.query("SELECT state, count(*) FROM films GROUP BY state")
    times = node.query("SELECT received, finished FROM films ORDER BY finished")
    steady = args.kills or args.films < STEADY_FILMS or print_parts(times, node.memory)
    waits = sorted(finished - received for received, finished in times)
    print(f"Films: {dict(states)}, all sent after {sent - times[0][0]:.0f} s; {args.kills} kills.")
    print(f"From receipt to the queue of objects: median {waits[len(waits) // 2]:.2f} s, ", end="")
    print(f"95 % {waits[int(0.95 * len(waits))]:.2f} s.")
    print(
        f"Objects: {arrived} arrived, {twice} of them twice; {delivered - times[-1][1]:.1f} s ",
        end="",
    )
    print(f"after the last film. Load of the machine: {loads[0]:.1f} {loads[2]:.1f}.")
    sent_films = {hashlib.sha256(each.encode()).hexdigest() for each in SENT}
    others = {name for (name,) in node.query("SELECT instance FROM films")} - sent_films
    print(f"Films in the queue that were not sent here: {len(others)}.")
    lost = sum(count for _, count in states) != args.films or arrived != OBJECTS * args.films
    return 1 if code or lost or twice or not steady else 0


def print_parts(times: list[tuple[Any, ...]], memory: list[tuple[float, float]]) -> bool:
    """Print speed and memory by tenths of the films; return whether memory is steady."""
    rows, medians, begin = [], [], times[0][0]
    for part in range(PARTS):
        last = (part + 1) * len(times) // PARTS
        end, count = times[last - 1][1], last - part * len(times) // PARTS
        medians.append(statistics.median([mb for at, mb in memory if begin <= at <= end] or [0]))
        rows.append([str(last), f"{count / (end - begin):.1f}", f"{medians[-1]:.0f}"])
        begin = end
    table(("films", "films/s", "memory, MB"), rows)
    early, late = (statistics.median(medians[at]) for at in (EARLY, LATE))
    print(f"Memory: {late / early - 1:+.1%} from early to late films.")
    return abs(late / early - 1) < STEADY


def send(pictures: list[Dataset], numbers: Iterable[int]) -> None:
    """Send films, each as an instance of its own, until each is acknowledged.

    Each has an association of its own: pynetdicom's send_c_store loses an answer to one in some
    thousand requests, and waits for it until the time is out.
    """
    entity = AE("SENDER")
    entity.dimse_timeout = entity.acse_timeout = 5
    entity.add_requested_context(pictures[0].SOPClassUID)
    for number in numbers:
        film = copy.deepcopy(pictures[number % len(pictures)])
        film.SOPInstanceUID = film.file_meta.MediaStorageSOPInstanceUID = generate_uid()
        SENT.add(str(film.SOPInstanceUID))
        while True:
            association = entity.associate("127.0.0.1", NODE, ae_title="KNEEMATCH")
            if association.is_established:
                status = association.send_c_store(film).get("Status")
                association.release()
                if status == 0:
                    break
            time.sleep(PAUSE_S)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--films", type=int, default=5000)
    parser.add_argument("--distinct", type=int, default=200, help="different films among them")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--senders", type=int, default=4)
    parser.add_argument("--most-waiting", type=int, help="films in the queue; else all")
    parser.add_argument("--kills", type=int, default=0, help="kills of the node and of Orthanc")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return soak(args, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
