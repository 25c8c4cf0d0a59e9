"""A function applied to many tasks by processes of which any may die, the results in order."""

import itertools
import multiprocessing
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Final, TypeVar

from kneematch.errors import SettingsError
from kneematch.parallel.forkserver import context, signals_blocked
from kneematch.parallel.malloc import keep_memory
from kneematch.parallel.shared_memory import SharedRoom

Task = TypeVar("Task")
Result = TypeVar("Result")

IN_HAND: Final = 2  # tasks that a process has at once, so that it need not wait for the next
TRIES: Final = 2  # of a task whose process died: the system may have killed it for its memory
STILLBORN: Final = 3  # processes in a row that end before they are ready: none ever will be


@dataclass(frozen=True, slots=True)
class Died:
    """Instead of a result: the process that worked on it ended."""

    exit_code: int | None

    @property
    def how(self) -> str:
        """In words."""
        if self.exit_code is not None and self.exit_code < 0:
            return f"killed by {signal.Signals(-self.exit_code).name}"
        return f"exit code {self.exit_code}"

    def told_of(self, film: str) -> str:
        """As the reason why a film failed."""
        return (
            f"{film}: the process that read it ended ({self.how}); expected a film that a decoder "
            "and the memory can bear; check the file"
        )


def apply_in_order(
    function: Callable[[Task], Result], tasks: Iterable[Task], *, workers: int, ahead: int
) -> Generator[Result | Died]:
    """The result of each task, in order, worked out by that many processes; by this one if 0.

    Close the generator to end the processes. At most `ahead` results are waiting or worked on.
    """
    if workers == 0:
        yield from map(function, tasks)
        return
    hub = _Hub(function, iter(tasks), workers, ahead)
    thread = threading.Thread(target=hub.serve, name="pool", daemon=True)
    thread.start()
    try:
        yield from hub.results()
    finally:
        hub.stop()
        thread.join()


@dataclass(slots=True, eq=False)
class _Worker:
    """A process, and the tasks it has in hand, the one it works on first."""

    process: Any
    pipe: Connection
    room: SharedRoom
    in_hand: deque[int] = field(default_factory=deque)
    results: int = 0
    ready: bool = False

    def give(self, index: int, task: object) -> None:
        self.in_hand.append(index)
        with suppress(OSError):  # it has died, which shows when its end of the pipe is read
            self.pipe.send(task)

    def take(self) -> Any:
        """The next result; EOFError or OSError where the process is no more."""
        value = self.room.unpack(self.pipe.recv(), self.results % IN_HAND)
        self.results += 1
        return value

    def end(self) -> int | None:
        """Kill the process; return how it ended."""
        self.process.kill()
        self.process.join()
        self.pipe.close()
        self.room.close()
        code: int | None = self.process.exitcode
        return code


class _Hub:
    """Hands out tasks and takes results in, in a thread of its own."""

    def __init__(
        self, function: Callable[[Any], Any], tasks: Iterator[Any], workers: int, ahead: int
    ) -> None:
        self.function, self.source, self.size, self.ahead = function, tasks, workers, ahead
        self.workers: list[_Worker] = []
        self.open: dict[int, Any] = {}  # tasks without a result
        self.again: deque[int] = deque()  # those whose process died
        self.deaths: Counter[int] = Counter()
        self.stillborn = 0
        self.taken, self.ended = 0, False  # tasks from the source
        self.finished: dict[int, Any] = {}
        self.wanted, self.stopped = 0, False
        self.error: BaseException | None = None
        self.changed = threading.Condition()
        self.woken, self.wake = multiprocessing.Pipe(duplex=False)

    def results(self) -> Generator[Any]:
        """In order, as they come."""
        while True:
            self.wake.send(None)
            with self.changed:
                self.changed.wait_for(self._next_is_known)
                if self.error is not None:
                    raise self.error
                if self.wanted not in self.finished:
                    return
                result = self.finished.pop(self.wanted)
                self.wanted += 1
            yield result

    def _next_is_known(self) -> bool:
        over = self.ended and self.wanted >= self.taken
        return self.wanted in self.finished or over or self.error is not None

    def stop(self) -> None:
        self.stopped = True
        self.wake.send(None)

    def serve(self) -> None:
        """Until all is done, or nobody wants it."""
        with signals_blocked():
            self._serve()

    def _serve(self) -> None:
        try:
            while not self.stopped:
                self._hand_out()
                pipes: dict[Any, _Worker] = {worker.pipe: worker for worker in self.workers}
                for pipe in wait([*pipes, self.woken]):
                    if pipe is self.woken:
                        while self.woken.poll():  # or they would fill the pipe some day
                            self.woken.recv()
                    else:
                        self._take_in(pipes[pipe])
        except BaseException as error:  # noqa: BLE001 - raised where results are waited for
            self.error = error
        finally:
            for worker in self.workers:
                worker.end()
            with self.changed:
                self.changed.notify()

    def _hand_out(self) -> None:
        """One task each, then a second one each; processes are started as they are needed."""
        for most in range(1, IN_HAND + 1):
            for number in range(self.size):
                if number < len(self.workers) and len(self.workers[number].in_hand) >= most:
                    continue
                index = self._next_task()
                if index is None:
                    return
                if number == len(self.workers):
                    self.workers.append(_start(self.function))
                self.workers[number].give(index, self.open[index])

    def _next_task(self) -> int | None:
        if self.again:
            return self.again.popleft()
        if self.ended or self.taken >= self.wanted + self.ahead:
            return None
        for task in self.source:
            self.open[self.taken] = task
            self.taken += 1
            return self.taken - 1
        with self.changed:
            self.ended = True
            self.changed.notify()
        return None

    def _take_in(self, worker: _Worker) -> None:
        try:
            value = worker.take()
        except (EOFError, OSError):
            self._bury(worker)
            return
        self.stillborn = 0
        if not worker.ready:
            worker.ready = True  # the first thing that it says
        else:
            self._finish(worker.in_hand.popleft(), value)

    def _bury(self, worker: _Worker) -> None:
        """A process is gone: the task it worked on is tried again or given up."""
        self.workers.remove(worker)
        died = Died(worker.end())
        if worker.ready:
            guilty = worker.in_hand[0] if worker.in_hand else None
            if guilty is not None:
                self.deaths[guilty] += 1
                if self.deaths[guilty] >= TRIES:
                    self._finish(worker.in_hand.popleft(), died)
        else:
            self.stillborn += 1
            if self.stillborn >= STILLBORN:
                raise SettingsError(
                    f"processes that read films end as they start ({died.how}); expected them to "
                    "run; free some memory, or read without them: --workers 0"
                )
        self.again.extendleft(reversed(worker.in_hand))

    def _finish(self, index: int, value: object) -> None:
        del self.open[index]
        with self.changed:
            self.finished[index] = value
            self.changed.notify()


def _start(function: Callable[[Any], Any]) -> _Worker:
    forks = context(getattr(function, "func", function).__module__)
    ours, theirs = forks.Pipe()
    room = SharedRoom(IN_HAND)
    process = forks.Process(target=_work, args=(function, theirs, room), daemon=True)  # type: ignore[attr-defined]
    process.start()
    theirs.close()
    return _Worker(process, ours, room)


def _work(function: Callable[[Any], Any], pipe: Connection, room: SharedRoom) -> None:
    """The life of a process."""
    import torch

    keep_memory()
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where it could not be blocked
    value: object = None  # the first message says no more than that we are here
    for count in itertools.count():
        try:
            pipe.send(room.pack(value, count % IN_HAND))
            task = pipe.recv()
        except (OSError, EOFError):  # the program is gone
            return
        value = function(task)
