"""Hooks of the documentation site: parts that are generated from the code, and pages outside docs/.

In a page, `<!-- commands -->` becomes every command with its arguments and options, and
`<!-- public names -->` the documentation of every name that `kneematch` exports.
"""

import ast
import dataclasses
import inspect
import re
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_type_hints

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import kneematch
from kneematch.cli.main import app

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
    """Return a table of a dataclass's fields, with the help of an option, docstring or comment."""
    meanings = _comments(kind) | _docstrings(kind) | _help(kind)
    lines = [f"Fields of `{kind.__name__}`:", "", "| field | default | meaning |", "|---|---|---|"]
    for field in dataclasses.fields(kind):
        if field.name.startswith("_"):
            continue
        known = field.default is not dataclasses.MISSING
        default = f"`{field.default!r}`" if known else ""
        lines.append(f"| `{field.name}` | {default} | {_escaped(meanings.get(field.name, ''))} |")
    return "\n".join(lines)


def _help(kind: Any) -> dict[str, str]:
    """Return the help of settings that several commands have, which their types hold."""
    hints = get_type_hints(kind, include_extras=True).items()
    parameters = ((name, part) for name, hint in hints for part in get_args(hint)[1:])
    return {name: part.help for name, part in parameters if getattr(part, "help", None)}


def _docstrings(kind: Any) -> dict[str, str]:
    """Return the text below every field that has one."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    body = getattr(definition, "body", [])
    return {
        field.target.id: " ".join(str(text.value.value).split())
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


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
    _, *sections = re.split(r"^## kneematch ", app.generate_docs(), flags=re.MULTILINE)
    return "\n".join(f"## {section}" for section in sections)


def _escaped(text: str) -> str:
    """Return a text without signs that Markdown would read."""
    return re.sub(r"([][|*])", r"\\\1", text).replace("\n", " ")
