"""The command line: its commands, and how their errors are shown."""

import atexit
import gc
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn

from cyclopts import App, CycloptsError, Group, Parameter

from kneematch.cli.films import info, synth
from kneematch.cli.models import evaluate, export_onnx, train
from kneematch.cli.runs import apply, compare, detect, use_settings_file
from kneematch.cli.servers import annotate, review, serve
from kneematch.cli.terminal import (
    FAILED,
    INTERRUPTED,
    log_to_stderr,
    print_error,
    print_stopped,
    stop_on_signals,
)
from kneematch.errors import KneematchError, is_gpu_full, is_memory_full


def _versions() -> str:
    from kneematch.run.outputs.run_file import versions

    return "\n".join(f"{name} {version}" for name, version in versions().items())


def _show_default(value: Any) -> str | None:
    """Return a default for the help; flags and what is empty have none."""
    names = value if isinstance(value, tuple) else (value,)
    return None if value in (None, False, "") else ",".join(map(str, names)) or None


app = App(
    name="kneematch",
    help="Find the knee joint areas in knee radiographs.",
    help_format="markdown",
    version=_versions,
    version_format="plaintext",
    config=use_settings_file,
    group_commands=Group("Commands", sort_key=0),
    group_parameters=Group("Options", sort_key=0),
    default_parameter=Parameter(negative=(), show_default=_show_default),
    print_error=False,
    exit_on_error=False,
    suppress_keyboard_interrupt=False,
    result_action="return_value",
)
COMMANDS: Final[tuple[Callable[..., int | None], ...]] = (  # in the order of use
    *(detect, review, apply, compare, annotate, train, evaluate),
    *(serve, info, synth, export_onnx),
)
for order, command in enumerate(COMMANDS):
    app.command(sort_key=order)(command)
app.register_install_completion_command()


def run(program: App = app) -> NoReturn:
    """Run a command as a program."""
    gc.set_threshold(100_000, 50, 50)  # imports make a million objects that stay
    code = INTERRUPTED
    with suppress(KeyboardInterrupt), stop_on_signals():
        code = main(program=program)
    # As the interpreter ends, but to take down PyTorch's modules one by one would take 0.3 s.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # a closed pipe; None if closed before
            stream.flush()
    os._exit(code)


def main(arguments: Sequence[str] | None = None, program: App = app) -> int:
    """Run a command; an error that the user can correct is one line on stderr and exit code 2."""
    # Threads that wait for work by spinning would keep the processes that read films waiting.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    given = list(sys.argv[1:] if arguments is None else arguments)
    with log_to_stderr():
        try:
            return int(program(given) or 0)
        except KeyboardInterrupt:
            print_stopped()
            return INTERRUPTED
        except CycloptsError as error:
            command = " ".join([program.name[0], *(error.command_chain or ())])
            print_error(f"{' '.join(str(error).split())} See '{command} --help'.")
        except KneematchError as error:
            print_error(error.message)
        except OSError as error:
            print_error(f"{error.filename or 'the system'}: {error.strerror or error}")
        except Exception as error:
            advice = _memory_advice(error)
            if advice is None:
                raise
            print_error(advice)
        return FAILED


def _memory_advice(error: Exception) -> str | None:
    """Return what to do about an error if memory ran out; torch and others have theirs."""
    if is_gpu_full(error):
        return (
            "There is not enough memory on the GPU. Free some, choose a smaller --batch-size, or "
            "--device cpu."
        )
    if is_memory_full(error):
        return (
            "There is not enough memory: about 2 GB are needed, and 0.5 GB for each worker. Free "
            "some, raise `ulimit -v`, or use fewer --workers."
        )
    return None
