"""Hooks of the documentation site: parts that are generated from the code, and pages outside docs/.

In a page, `<!-- commands -->` becomes every command with its arguments and options, and
`<!-- public names -->` the documentation of every name that `kneematch` exports.
"""

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import kneematch
from kneematch.cli.main import app
from kneematch.options import KEY

ROOT = Path(__file__).parent.parent
# Pages of the repository's root, by their names on the site.
OUTSIDE = {
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "code-of-conduct.md": "CODE_OF_CONDUCT.md",
    "citation.cff": "CITATION.cff",
    "licence.txt": "LICENSE",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the repository's root."""
    for name, source in OUTSIDE.items():
        if (ROOT / source).exists():
            files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Insert the generated parts, and let links lead to where pages are on the site."""
    if page.file.src_uri in OUTSIDE:
        markdown = re.sub(r"\]\(docs/", "](", markdown)
    for name, source in OUTSIDE.items():
        markdown = re.sub(rf"\]\((\.\./)*{re.escape(source)}", f"]({_up(page)}{name}", markdown)
    if "<!-- commands -->" in markdown:
        markdown = markdown.replace("<!-- commands -->", commands())
    return markdown.replace("<!-- public names -->", public_names())


def _up(page: Any) -> str:
    return "../" * page.file.src_uri.count("/")


def public_names() -> str:
    """Return the documentation of every public name, functions last."""
    names = sorted(
        set(kneematch.__all__) - {"__version__"}, key=lambda name: (name.islower(), name)
    )
    parts = []
    for name in names:
        parts.append(f"::: kneematch.{name}")
        named = getattr(kneematch, name)
        if dataclasses.is_dataclass(named):
            parts.append(_fields(named))
    return "\n\n".join(parts)


def _fields(kind: Any) -> str:
    """Return a table of a dataclass's fields; their meaning is the option's help, or a comment."""
    comments = _comments(kind)
    lines = [f"Fields of `{kind.__name__}`:", "", "| field | default | meaning |", "|---|---|---|"]
    for field in dataclasses.fields(kind):
        if field.name.startswith("_"):
            continue
        option = field.metadata.get(KEY)
        meaning = option.help if option else comments.get(field.name, "")
        known = field.default is not dataclasses.MISSING
        default = f"`{field.default!r}`" if known else ""
        lines.append(f"| `{field.name}` | {default} | {_escaped(meaning)} |")
    return "\n".join(lines)


def _comments(kind: Any) -> dict[str, str]:
    """Return the comment at the end of every field's line, or on the lines above it."""
    found, above = {}, ""
    for line in inspect.getsource(kind).splitlines():
        field = re.match(r"    (\w+): [^#]*(?:# (.*))?$", line)
        if field:
            found[field[1]] = field[2] or above
        comment = re.match(r"    # (.*)", line)
        above = f"{above} {comment[1]}".strip() if comment else ""
    return found


def commands() -> str:
    """Return a section for every command."""
    group: Any = typer.main.get_command(app)
    return "\n\n".join(_command(name, command) for name, command in group.commands.items())


def _command(name: str, command: Any) -> str:
    context = command.make_context(name, [], resilient_parsing=True)
    usage = " ".join(["kneematch", name, *command.collect_usage_pieces(context)])
    about, _, examples = inspect.cleandoc(command.help or "").partition("\b\n")
    shown = "\n".join([usage, "", *examples.splitlines()]).strip()
    lines = [f"## {name}", "", about.strip(), "", "```text", shown, "```"]
    groups: dict[str, list[Any]] = {}
    for parameter in command.params:
        groups.setdefault(getattr(parameter, "rich_help_panel", None) or "", []).append(parameter)
    for group, parameters in groups.items():
        lines += ["", f"| {group} | default | meaning |", "|---|---|---|"]
        for each in parameters:
            lines.append(f"| {_names(each)} | {_default(each)} | {_escaped(each.help or '')} |")
    return "\n".join(lines)


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    return f"{names} {parameter.metavar or ''}".strip()


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    shown = getattr(parameter, "show_default", False)
    if isinstance(shown, str):
        return shown
    default = parameter.default
    if getattr(parameter, "is_flag", False) or default in (None, (), []) or callable(default):
        return ""
    return f"`{default}`"


def _escaped(text: str) -> str:
    """Return a text without signs that Markdown would read."""
    return re.sub(r"([][|*])", r"\\\1", text).replace("\n", " ")
