"""Options of commands: those that several share, and those made of a configuration's fields."""

import inspect
from collections.abc import Callable, Collection
from dataclasses import fields, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from kneematch.options import KEY, Option, force_option, workers_option

COMMON: Final = "Options"  # the group in which --help is, too
BRACES: Final = str.maketrans("", "", "{}")

OutFolder = Annotated[
    Path, typer.Option("-o", "--out", metavar="FOLDER", help="Folder for the results.")
]
FinishedRun = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Output folder of `kneematch detect`.")
]
Root = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder of films with relative paths.",
        show_default="the working folder, or that of the run",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", metavar="", help="Print only what failed.")]


class PlainCommand(TyperCommand):
    """A command whose help shows no Python types and no braces."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line."""
        return [piece.translate(BRACES) for piece in super().collect_usage_pieces(ctx)]

    def get_params(self, ctx: Any) -> list[Any]:
        """Return arguments and options without types."""
        return _without_types(super().get_params(ctx))


class PlainGroup(TyperGroup):
    """A program whose help shows no Python types."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options before a command."""
        return _without_types(super().get_params(ctx))


def unwrapped(text: str) -> str:
    """Return a docstring with a line for each paragraph, since a terminal wraps these itself."""
    parts = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(part if "\b" in part else " ".join(part.split()) for part in parts)


def _without_types(parameters: list[Any]) -> list[Any]:
    """Return parameters whose help shows no type where the name says enough."""
    for each in parameters:
        if each.param_type_name == "argument":
            each.display_type_rich = lambda ctx: None
        elif each.is_flag:
            each.metavar = ""
    return parameters


def config_options(
    config: type[Any], common: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option per field of a configuration.

    The command's parameter `config` receives the configuration; its other parameters stay. Where
    `common` names fields, the help shows these first, and all others as advanced ones.
    """
    settings = {item.name: item for item in fields(config) if KEY in item.metadata}
    hints = get_type_hints(config)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)

        @wraps(command)
        def run(**values: Any) -> None:
            given = {name: values.pop(name) for name in settings}
            command(**values, config=config(**given))

        options = [
            _parameter(name, _grouped(name, item.metadata[KEY], common), hints[name], item.default)
            for name, item in settings.items()
        ]
        kept = [each for name, each in own.parameters.items() if name != "config"]
        parameters = sorted([*kept, *options], key=lambda each: each.default is not each.empty)
        keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
        run.__signature__ = own.replace(parameters=keywords)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in keywords}
        return run

    return decorate


def _grouped(name: str, about: Option, common: Collection[str]) -> Option:
    """Return an option in the group in which a command's help shows it."""
    if not common:
        return about
    return replace(about, group=COMMON if name in common else f"Advanced: {about.group.lower()}")


def _parameter(name: str, about: Option, hint: Any, default: Any) -> inspect.Parameter:
    """Return the parameter of one setting, as Typer reads it.

    Choices are given as texts, which the configuration checks itself.
    """
    if about.parser is not None:
        hint = str | None if default is None else str
        default = ",".join(default) if isinstance(default, tuple) else default
    elif isinstance(default, tuple):
        hint, default = list[str], list(default)
    annotation = Annotated[hint, _declared(name, about, is_flag=hint is bool, default=default)]
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _declared(name: str, about: Option, *, is_flag: bool = False, default: Any = None) -> Any:
    """Return an option as Typer describes it."""
    metavar = f"[{'|'.join(about.choices)}]" if about.choices else about.metavar
    return typer.Option(
        # The name is given, since Typer 0.27 takes it from a metavar that is the same word.
        f"--{name.replace('_', '-')}",
        help=about.help,
        metavar="" if is_flag else metavar,
        min=about.minimum,
        parser=about.parser,
        autocompletion=(lambda: list(about.choices)) if about.choices else None,
        rich_help_panel=about.group,
        show_default=about.default_text or not (default in (None, []) or is_flag),
    )


# Settings that commands without a configuration share with the others.
Workers = Annotated[int | None, _declared("workers", workers_option().metadata[KEY])]
Force = Annotated[bool, _declared("force", force_option().metadata[KEY], is_flag=True)]
