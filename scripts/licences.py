"""Print the licences of all dependencies, by extra: `make licences` puts them on their page."""

import tomllib
from collections import defaultdict
from collections.abc import Iterable
from importlib.metadata import metadata, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))
DEVELOPMENT = ("test", "docs")  # extras that only those install who work on kneematch
# Other spellings in the metadata of packages.
SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}


def dependencies(requirements: Iterable[str], extras: set[str], found: set[str]) -> set[str]:
    """Return the packages that requirements name, directly or not, in this environment."""
    for text in requirements:
        needed = Requirement(text)
        name = canonicalize_name(needed.name)
        wanted = needed.marker is None or any(
            needed.marker.evaluate({"extra": extra}) for extra in ("", *extras)
        )
        if wanted and name not in found:
            found.add(name)
            dependencies(requires(name) or (), needed.extras, found)
    return found


def licence(name: str) -> str:
    """Return what a distribution's metadata say: an SPDX expression, classifiers, or a text."""
    told = metadata(name)
    classes = [
        each.split(" :: ")[-1] for each in told.get_all("Classifier", []) if "License" in each
    ]
    text = told["License-Expression"] or ", ".join(classes) or told["License"].splitlines()[0]
    return SPDX.get(text, text)


def by_licence(names: set[str]) -> dict[str, list[str]]:
    """Return the packages of each licence, in order."""
    packages = defaultdict(list)
    for name in sorted(names):
        packages[licence(name)].append(name)
    return dict(sorted(packages.items()))


if __name__ == "__main__":
    project = PROJECT["project"]
    optional = project["optional-dependencies"]
    named: set[str] = set()
    print("\n| installed with | licence | packages |\n|---|---|---|")
    for extra in ("", *(extra for extra in optional if extra not in DEVELOPMENT)):
        needed = dependencies(optional[extra] if extra else project["dependencies"], set(), set())
        for terms, packages in by_licence(needed - named).items():
            print(f"| {f'`{extra}`' if extra else 'kneematch'} | {terms} | {', '.join(packages)} |")
        named |= needed
    for extra in DEVELOPMENT:
        needed = dependencies(optional[extra], set(), set()) - named
        print(f"| `{extra}` | {', '.join(by_licence(needed))} | for work on kneematch only |")
        named |= needed
