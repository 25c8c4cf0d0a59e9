"""The command line: its commands, and how their errors are shown."""

import atexit
import os
import re
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Final, NoReturn, cast

import typer

from kneematch.cli.films import info, synth
from kneematch.cli.models import evaluate, export_onnx, train
from kneematch.cli.options import PlainCommand, PlainGroup, unwrapped
from kneematch.cli.pages import annotate, review
from kneematch.cli.runs import apply, compare, detect
from kneematch.cli.serve import serve
from kneematch.cli.terminal import (
    FAILED,
    INTERRUPTED,
    log_to_stderr,
    print_error,
    print_stopped,
    stop_on_signals,
)
from kneematch.errors import KneematchError, is_gpu_full

# typer brings a click of its own and exports this class of it; its base is every usage error.
UsageError = cast(type[typer.BadParameter], typer.BadParameter.__base__)

OUT_OF_MEMORY: Final = (
    "not enough memory",
    "annot allocate memory",
    "failed to map segment",
    "can't start new thread",
    "Failed to launch worker thread",
    "could not create a primitive",  # oneDNN
)

CONTEXT: Final = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name="kneematch",
    cls=PlainGroup,
    help="Find the knee joint areas in knee radiographs.",
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
)
COMMANDS: Final = (detect, review, apply, compare, annotate, train, evaluate)
for command in (*COMMANDS, serve, info, synth, export_onnx):  # in the order of use
    app.command(cls=PlainCommand, help=unwrapped(command.__doc__ or ""))(command)


def _version(wanted: bool) -> None:
    if wanted:
        from kneematch.run.outputs.run_file import versions

        for name, version in versions().items():
            typer.echo(f"{name} {version}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            metavar="",
            help="Print the versions of kneematch and of what it computes with.",
            callback=_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Declare the options before a command; Typer shows the help of the app instead of this."""


def run(program: typer.Typer = app) -> NoReturn:
    """Run a command as a program."""
    import kneematch.rare_collection  # noqa: F401 - not where the program is a library

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


def main(arguments: Sequence[str] | None = None, program: typer.Typer = app) -> int:
    """Run a command; an error that the user can correct is one line on stderr and exit code 2."""
    # Threads that wait for work by spinning would keep the processes that read films waiting.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    given = list(sys.argv[1:] if arguments is None else arguments)
    name = program.info.name
    with log_to_stderr():
        try:
            code = program(given or ["--help"], prog_name=name, standalone_mode=False) or 0
            if code == INTERRUPTED:
                print_stopped()
            return int(code)
        except UsageError as error:
            print_error(_usage_message(error, str(name)))
        except KneematchError as error:
            print_error(error.message)
        except OSError as error:
            print_error(f"{error.filename or 'the system'}: {error.strerror or error}")
        except typer.Abort:
            print_stopped()
            return INTERRUPTED
        except Exception as error:
            advice = _memory_advice(error)
            if advice is None:
                raise
            print_error(advice)
        return FAILED


def _usage_message(error: typer.BadParameter, program: str) -> str:
    """Return what is wrong with a command line, as one or two sentences."""
    # Newer versions of typer check values with Pydantic, which says first that it is about one.
    said = error.format_message().replace("Value error, ", "").rstrip(".")
    wrong = re.fullmatch(r"Invalid value for '(\S+)': Input should be (.*?)(, unable.*)?", said)
    said = f"{wrong[1]} must be {wrong[2]}" if wrong else said
    command = error.ctx.command_path if error.ctx else program
    return f"{said}{'' if said.endswith('?') else '.'} See '{command} --help'."


def _memory_advice(error: Exception) -> str | None:
    """Return what to do about an error if memory ran out; torch and others have theirs."""
    if is_gpu_full(error):
        return (
            "There is not enough memory on the GPU. Free some, choose a smaller --batch-size, or "
            "--device cpu."
        )
    if isinstance(error, MemoryError) or any(text in str(error) for text in OUT_OF_MEMORY):
        return (
            "There is not enough memory: about 2 GB are needed, and 0.5 GB for each worker. Free "
            "some, raise `ulimit -v`, or use fewer --workers."
        )
    return None
