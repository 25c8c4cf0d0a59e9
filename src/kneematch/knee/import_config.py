"""Settings of `kneematch import-template`; importing this module imports nothing heavy."""

from dataclasses import dataclass

from kneematch.options import INPUT, OUTPUT, check_options, option, parse_names


@dataclass(frozen=True, slots=True)
class ImportConfig:
    """How the shapes of the file are read."""

    side: str | None = option(
        None,
        help="Half of the picture that the knee is in. Shapes in the other half are left out.",
        group=INPUT,
        choices=("left", "right"),
        default_text="where the shapes are",
    )
    names: tuple[str, ...] = option(
        (),
        help="Names of the points of a .pts file, separated by commas.",
        group=INPUT,
        metavar="NAMES",
        default_text="point_1,point_2,...",
        parser=parse_names,
    )
    mm: bool = option(
        False,
        help="The points of a .pts file are in millimetres.",
        group=INPUT,
        flags=("--mm",),
    )
    force: bool = option(
        False, help="Replace a template that exists.", group=OUTPUT, flags=("--force",)
    )

    def __post_init__(self) -> None:
        """Check each setting."""
        check_options(self)
