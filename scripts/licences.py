"""Print the licences of all dependencies, by extra: `make licences` puts them on their page."""

from importlib.metadata import distribution, metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRAS = ("", *metadata("kneematch").get_all("Provides-Extra", []))


def dependencies(name: str, extras: set[str], found: set[str]) -> set[str]:
    """Return what an installed distribution needs, directly or not, in this environment."""
    for text in distribution(name).requires or ():
        needed = Requirement(text)
        other = canonicalize_name(needed.name)
        wanted = needed.marker is None or any(
            needed.marker.evaluate({"extra": extra}) for extra in ("", *extras)
        )
        if wanted and other not in found:
            found.add(other)
            dependencies(other, needed.extras, found)
    return found


def licence(name: str) -> str:
    """Return what a distribution's metadata say: an SPDX expression, classifiers, or a text."""
    told = metadata(name)
    classes = [
        each.split(" :: ")[-1] for each in told.get_all("Classifier", []) if "License" in each
    ]
    return told["License-Expression"] or ", ".join(classes) or told["License"].splitlines()[0]


if __name__ == "__main__":
    named: set[str] = set()
    for extra in EXTRAS:
        needed = dependencies("kneematch", {extra}, set())
        print(f"\n| {f'extra `{extra}`' if extra else 'kneematch itself'} | licence |\n|---|---|")
        print("\n".join(f"| {name} | {licence(name)} |" for name in sorted(needed - named)))
        named |= needed
