"""Send many films to `kneematch serve`, and watch its memory.

    python lab/soak.py [--films N] [--distinct D] [--workers W]

Phantoms are sent by four senders at once, and their objects to a receiver that counts them. Prints
the memory of all processes together (shared pages counted once) over twenty equal parts of the
node's time. Exits with 1 if a film or an object is lost or arrives twice, or if memory is not
steady (the medians of five early and of five late parts differ by 10 % or more).
"""

import argparse
import copy
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from pydicom import Dataset, dcmread
from pydicom.uid import generate_uid
from pynetdicom import AE, StoragePresentationContexts, evt

from films import table
from job import family, megabytes
from kneephantoms import SynthConfig, synthesize

PARTS = 20
PORT, SENDERS = 11999, 4  # port of the node, and number of senders
OBJECTS = 3  # that are sent for each film
STEADY_FILMS = 1000  # fewer take too little time to judge the memory
SAMPLE_S = 0.5
EARLY, LATE = slice(2, 7), slice(14, 19)  # parts to compare: neither the start nor the end
STEADY = 0.1  # largest relative difference of their medians


def watch(process: "subprocess.Popen[bytes]") -> list[float]:
    """Return the memory of a run in MB, the median in each part of its time."""
    samples = []
    while process.poll() is None:
        samples.append(megabytes(family(process.pid)))
        time.sleep(SAMPLE_S)
    parts = np.array_split(np.array(samples), PARTS)
    return [float(np.median(part)) for part in parts if len(part)]


def unsteady(memory: list[float]) -> list[str]:
    """Return whether memory changed during the run."""
    if len(memory) < LATE.stop:
        return ["parts of the run (too few to judge)"]
    early, late = (statistics.median(memory[at]) for at in (EARLY, LATE))
    print(f"Memory: {late / early - 1:+.1%} from early to late parts.")
    return ["memory"] if abs(late / early - 1) > STEADY else []


def node(films: int, distinct: int, workers: int) -> int:
    """Send films to `kneematch serve` from four senders at once; print what became of them."""
    arrived: Counter[str] = Counter()

    def store(event: Any) -> int:
        arrived[event.request.AffectedSOPInstanceUID] += 1
        return 0

    receiver = AE("SOAK")
    receiver.supported_contexts = StoragePresentationContexts
    handlers: list[Any] = [(evt.EVT_C_STORE, store)]
    server: Any = receiver.start_server(("127.0.0.1", 0), block=False, evt_handlers=handlers)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        synthesize(folder / "films", SynthConfig(distinct, framing="bilateral", workers=2))
        pictures = [dcmread(path) for path in sorted((folder / "films").glob("*.dcm"))]
        command = [sys.executable, "-m", "kneematch", "serve", "queue", "--port", str(PORT)]
        command += ["--http-port", "0", "--workers", str(workers), "--most-waiting", str(films)]
        command += ["--send-to", f"SOAK@127.0.0.1:{server.server_address[1]}"]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE) as process:
            process.stdout.readline()  # type: ignore[union-attr]
            parts = [range(first, films, SENDERS) for first in range(SENDERS)]
            started = time.monotonic()
            threads = [threading.Thread(target=send, args=(pictures, part)) for part in parts]
            for thread in threads:
                thread.start()
            stop = threading.Thread(target=end, args=(threads, process))
            stop.start()
            memory = watch(process)
            seconds = time.monotonic() - started
        with sqlite3.connect(folder / "queue" / "queue.sqlite") as sql:
            states = sql.execute("SELECT state, count(*) FROM films GROUP BY state").fetchall()
    server.shutdown()
    print(f"{films} films, {SENDERS} senders, {workers} workers: {films / seconds:.1f} films/s.\n")
    table(("part", "memory, MB"), ([str(k + 1), f"{mb:.0f}"] for k, mb in enumerate(memory)))
    twice = sum(count > 1 for count in arrived.values())
    print(f"Films: {dict(states)}; objects that arrived: {len(arrived)}, {twice} of them twice.")
    wrong = unsteady(memory) if films >= STEADY_FILMS else []
    lost = sum(count for _, count in states) != films or len(arrived) != OBJECTS * films
    return 1 if wrong or lost or twice or process.returncode else 0


def send(pictures: list[Dataset], numbers: Iterable[int]) -> None:
    """Send films, each as an instance of its own, until each is acknowledged.

    Each has an association of its own: pynetdicom loses an answer to one in some thousand requests
    ("Received unexpected C-STORE service message"), and waits for it until the time is out.
    """
    entity = AE("SENDER")
    entity.dimse_timeout = 5
    entity.add_requested_context(pictures[0].SOPClassUID)
    for number in numbers:
        film = copy.deepcopy(pictures[number % len(pictures)])
        film.SOPInstanceUID = film.file_meta.MediaStorageSOPInstanceUID = generate_uid()
        status = None
        while status != 0:
            association = entity.associate("127.0.0.1", PORT, ae_title="KNEEMATCH")
            if association.is_established:
                status = association.send_c_store(film).get("Status")
                association.release()


def end(threads: list[threading.Thread], process: "subprocess.Popen[bytes]") -> None:
    """Tell the node to finish when all films were sent."""
    for thread in threads:
        thread.join()
    process.terminate()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--films", type=int, default=20_000)
    parser.add_argument("--distinct", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    return node(args.films, args.distinct, args.workers)


if __name__ == "__main__":
    sys.exit(main())
