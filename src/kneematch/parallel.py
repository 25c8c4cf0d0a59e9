"""Worker processes that may die: a crash of a decoder, or too little memory, costs one item only.

The standard library's ProcessPoolExecutor gives up as a whole when one of its processes dies, and
does not say which item killed it. Here every worker has a pipe of its own, so the item is known,
the other workers go on, and the dead one is replaced.
"""

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Any, Final, TypeVar

from kneematch.errors import SettingsError

Item = TypeVar("Item")
Result = TypeVar("Result")

QUEUED: Final = 2  # items that a worker holds, so that it need not wait for the next one
TRIES: Final = 2  # for an item whose worker died: the system may have killed it for its memory
ITEMS_PER_WORKER: Final = 16  # films; with fewer, a worker takes longer to start than it saves
COLLECTION: Final = (700, 10, 10)  # Python's thresholds: DICOM objects leave large arrays in cycles
END: Final = object()  # after the last item of a worker
CPU_LIMIT: Final = Path("/sys/fs/cgroup/cpu.max")  # CPU time that may be used, and per what time
FAILED_STARTS: Final = 3  # workers in a row that die before they are ready: none ever will be
# Options of glibc's mallopt, and their values: keep freed memory instead of returning it.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
MALLOC_OPTIONS: Final = {M_MMAP_THRESHOLD: 1 << 30, M_TRIM_THRESHOLD: (1 << 31) - 1, M_ARENA_MAX: 1}


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """Takes the place of a result when the worker process ended while it had the item."""

    exit_code: int | None

    @property
    def was_slow(self) -> bool:
        """Whether it took more CPU time than it may."""
        return hasattr(signal, "SIGPROF") and self.exit_code == -signal.SIGPROF

    def __str__(self) -> str:
        if self.was_slow:
            return "reading it took more CPU time than is allowed"
        if self.exit_code is not None and self.exit_code < 0:
            names = {number.value: number.name for number in signal.Signals}  # not of all signals
            how = f"killed by {names.get(-self.exit_code, f'signal {-self.exit_code}')}"
        else:
            how = f"exit code {self.exit_code}"
        return f"the process that read it ended ({how}); the file is damaged, or memory ran out"


def choose_workers(requested: int | None, items: int) -> int:
    """Return the number of worker processes that is requested.

    None stands for one per core, and for no worker where the items are few or on Windows.
    """
    if requested is not None:
        return requested
    workers = min(usable_cores(), -(-items // ITEMS_PER_WORKER))
    return workers if workers > 1 and os.name != "nt" else 0


def usable_cores() -> int:
    """Return how many cores this process may use; a container may have a limit on CPU time."""
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # there is no such file, or it says "max"
        quota, period = map(int, CPU_LIMIT.read_text(encoding="ascii").split())
        cores = min(cores, max(quota // period, 1))
    return cores


def map_in_workers(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    workers: int,
    initializer: Callable[..., None] | None = None,
    initargs: tuple[Any, ...] = (),
    wait: bool = True,
) -> Generator[tuple[Item, Result | WorkerDied]]:
    """Yield every item with its result, in the order in which the results arrive.

    Items, which are taken from the iterable as workers become free, results and functions are
    pickled. Closing the generator ends the processes.

    Args:
        function: is called in a worker process with one item.
        workers: number of processes; 0 calls the function in this process.
        initializer: is called once in each worker, with `initargs`, before the first item.
        wait: return when the workers have ended; otherwise they are killed, and may end later.
    """
    if workers == 0:
        if initializer is not None:
            initializer(*initargs)
        yield from ((item, function(item)) for item in items)
        return
    pool = _Pool(workers, function, initializer and partial(initializer, *initargs))
    try:
        yield from pool.results(items)
    finally:
        pool.close(wait=wait)


class ChildProcess:
    """A process that is kept for the next call unless it dies; one call at a time."""

    def __init__(
        self, function: Callable[[Any], Any], initialize: Callable[[], None] | None = None
    ) -> None:
        """Prepare calls of a function; the process is started by the first one."""
        self._work = function, initialize
        self._pool: _Pool | None = None
        self._calling = threading.Lock()  # answers carry no name

    def __call__(self, item: Any) -> Any:
        """Return the function's result for an item, or WorkerDied."""
        with self._calling:
            if self._pool is None:
                self._pool = _Pool(1, *self._work)
            try:
                ((_, result),) = self._pool.results([item])
            except BaseException:  # after Ctrl-C, too, or the next call would get this answer
                self._pool.close()
                self._pool = None
                raise
            return result


def call_in_child(function: Callable[[Item], Result], item: Item) -> Result | WorkerDied:
    """Call a function in another process, which is kept for the next call unless it dies.

    It works in this process's working directory, so that relative paths mean the same. Calls from
    several threads are made one after the other.
    """
    answer: Result | WorkerDied = _child((function, item, Path.cwd()))
    return answer


def _apply(call: tuple[Callable[[Any], Any], Any, Path]) -> Any:
    function, item, folder = call
    os.chdir(folder)
    return function(item)


def _forget_child() -> None:
    """After a fork, have a child process of its own: the other one belongs to the parent."""
    global _child, _start_lock
    _child, _start_lock = ChildProcess(_apply), threading.Lock()
    _ending.clear()


_child = ChildProcess(_apply)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_child)


@dataclass(slots=True, eq=False)
class _Task:
    """An item, and how many workers died while they worked on it."""

    item: Any
    deaths: int = 0


@dataclass(slots=True, eq=False)
class _Worker:
    """A process, and the tasks it holds; it works on the first."""

    process: Any
    pipe: Connection
    tasks: deque[_Task] = field(default_factory=deque)
    ready: bool = False

    def end(self) -> int | None:
        """Kill the process and return its exit code."""
        self.process.kill()
        self.process.join()
        self.pipe.close()
        code: int | None = self.process.exitcode
        return code


class _Pool:
    """Hand out items and collect results, in the caller's own thread."""

    def __init__(
        self,
        size: int,
        function: Callable[[Any], Any],
        initialize: Callable[[], None] | None = None,
    ) -> None:
        self._size, self._work = size, (function, initialize)
        self._again: deque[_Task] = deque()  # those whose worker died
        self._workers: list[_Worker] = []
        self._failed_starts = 0

    def results(self, items: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        tasks = map(_Task, items)
        self._hand_out(tasks)
        while any(worker.tasks for worker in self._workers):
            pipes: dict[Any, _Worker] = {worker.pipe: worker for worker in self._workers}
            arrived = []
            for pipe in wait(list(pipes)):
                arrived += self._collect(pipes[pipe])
            self._hand_out(tasks)
            yield from arrived

    def close(self, *, wait: bool = True) -> None:
        """Kill the workers, and wait for their end unless nobody needs what they hold."""
        end_processes([worker.process for worker in self._workers])
        for worker in self._workers:
            worker.pipe.close()
        if wait:
            wait_for_processes()

    def _hand_out(self, tasks: Iterator[_Task]) -> None:
        """Give every worker one task, then a second, and so on; start workers as needed."""
        for most in range(1, QUEUED + 1):
            for number in range(self._size):
                if number < len(self._workers) and len(self._workers[number].tasks) >= most:
                    continue
                task = self._again.popleft() if self._again else next(tasks, None)
                if task is None:
                    return
                if number == len(self._workers):
                    self._workers.append(self._start())
                self._workers[number].tasks.append(task)
                with suppress(OSError):  # it died, which shows when its end of the pipe is read
                    self._workers[number].pipe.send(task.item)

    def _start(self) -> _Worker:
        ours, theirs = multiprocessing.Pipe()
        function = self._work[0]
        module = getattr(function, "func", function).__module__
        process = start_process(_work, *self._work, theirs, preload=module)
        theirs.close()
        return _Worker(process, ours)

    def _collect(self, worker: _Worker) -> list[tuple[Any, Any]]:
        """Return a worker's next item and result, if there is one."""
        try:
            result = worker.pipe.recv()
        except (EOFError, OSError):
            return self._replace(worker)
        self._failed_starts = 0
        if not worker.ready:
            worker.ready = True  # its first message says that it has started
            return []
        return [(worker.tasks.popleft().item, result)]

    def _replace(self, worker: _Worker) -> list[tuple[Any, Any]]:
        """Remove a dead worker; its first task is tried again or given up, the others wait."""
        self._workers.remove(worker)
        died = WorkerDied(worker.end())
        given_up = []
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= FAILED_STARTS:
                raise SettingsError(
                    f"Worker processes end as they start (exit code {died.exit_code}). Free some "
                    "memory, or work without them: --workers 0"
                )
        elif worker.tasks:
            worker.tasks[0].deaths += 1
            if worker.tasks[0].deaths >= TRIES or died.was_slow:
                given_up.append((worker.tasks.popleft().item, died))
        self._again.extendleft(reversed(worker.tasks))
        return given_up


_ending: list[Any] = []  # processes that were killed


def end_processes(processes: Sequence[Any]) -> None:
    """Kill processes all at once, since one that uses a GPU takes 0.1 s to end."""
    living = [process for process in processes if process.is_alive()]
    for process in living:
        process.kill()
    _ending[:] = [process for process in (*_ending, *living) if process.is_alive()]


def wait_for_processes() -> None:
    """Wait until killed processes have ended, and so have left the memory of a GPU."""
    while _ending:
        _ending.pop().join()


_start_lock = threading.Lock()  # a start changes sys.modules for a moment
_is_worker = False


def is_worker() -> bool:
    """Return whether this process was started here, and is replaced if it dies."""
    return _is_worker


def _work(
    function: Callable[[Any], Any], initialize: Callable[[], None] | None, pipe: Connection
) -> None:
    """Run a worker process until the other end of its pipe is closed."""
    global _is_worker
    _is_worker = True
    if initialize is not None:
        initialize()
    # Items are received by a thread: while this end sends a large result, the other end may be
    # sending a large item, and neither would receive what the other sends.
    items: SimpleQueue[Any] = SimpleQueue()

    def receive() -> None:
        try:
            with suppress(OSError, EOFError):
                while True:
                    items.put(pipe.recv())
        finally:
            items.put(END)

    threading.Thread(target=receive, daemon=True).start()
    result: object = None  # the first message only says that the worker has started
    while True:
        try:
            pipe.send(result)
        except OSError:  # the program is gone
            return
        item = items.get()
        if item is END:
            return
        result = function(item)


def start_process(function: Callable[..., None], *args: Any, preload: str) -> Any:
    """Start a process that calls a function, and is killed when this one ends.

    `preload` is a module that it shares with the others.
    """
    processes = _context(preload)
    process = processes.Process(target=_settle_and_call, args=(function, *args), daemon=True)  # type: ignore[attr-defined]
    with _starting():
        process.start()
    return process


def _settle_and_call(function: Callable[..., None], *args: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where it could not be blocked
    keep_memory()
    gc.freeze()  # what is shared with other processes would be copied, were it looked at
    gc.set_threshold(*COLLECTION)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    function(*args)


def start_early(*preload: str) -> None:
    """Start the process that workers are forked from; what it imports, they share copy-on-write."""
    if sys.platform == "linux":
        from multiprocessing.forkserver import ensure_running

        _context(*preload)
        with _starting():
            ensure_running()


def _context(*preload: str) -> BaseContext:
    """Return the start method: never a fork of this process, which would copy locks held by it."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload([*preload])
    return forks


@contextmanager
def _starting() -> Iterator[None]:
    """Start a process that does not import the user's script, and does not receive Ctrl-C.

    A script need not expect to be imported; and the process ends when its pipe is closed.
    """
    can_block = hasattr(signal, "pthread_sigmask")
    with _start_lock:
        main = sys.modules["__main__"]
        if can_block:
            from multiprocessing.resource_tracker import ensure_running

            ensure_running()  # its start, which others need, would unblock the signal
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main
            if can_block:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)


def keep_memory() -> None:
    """Keep freed memory, since getting it again page by page takes time.

    A film's arrays have many megabytes and are freed as soon as they are made.
    """
    with suppress(OSError, TypeError, AttributeError):  # malloc is not glibc's
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in MALLOC_OPTIONS.items():
            mallopt(option, value)


def release_memory() -> None:
    """Return freed memory to the system."""
    with suppress(OSError, TypeError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class _MallocInfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = tuple((f"number_{k}", ctypes.c_size_t) for k in range(10))


def freed_bytes() -> int:
    """Return how much freed memory this process keeps; 0 where this cannot be told."""
    with suppress(OSError, TypeError, AttributeError):
        function = ctypes.CDLL(None).mallinfo2
        function.restype = _MallocInfo
        return int(function().number_8)
    return 0
