"""DetectConfig: the settings of `detect_folder` and of `kneematch detect`."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kneematch.errors import SettingsError
from kneematch.options import (
    INPUT,
    METHOD,
    OUTPUT,
    PERFORMANCE,
    batch_size_option,
    device_option,
    force_option,
    limit_option,
    model_option,
    option,
    paper_option,
    series_option,
    template_option,
    workers_option,
)
from kneematch.solvers.settings import DEFAULT_SETTINGS, PaperSettings

if TYPE_CHECKING:
    from kneematch.detection.detector import Detector

METHODS: Final = ("auto", "locator", "neural+sharpen", "neural", "search", "grid", "sliding")
KNEES: Final = ("auto", "1", "2")
ENGINES: Final = ("local", "ray")
# Sizes that graders of knee radiographs commonly take: side in mm and in pixels.
CROP_PRESETS: Final = {
    "140mm-700px": (140.0, 700),
    "140mm-300px": (140.0, 300),
    "140mm-224px": (140.0, 224),
}
EXPORTS: Final = ("coco", "dicom", "markups", "pts")
PRELOAD: Final = "KNEEMATCH_PRELOAD"  # environment variable: a DetectorSource as JSON


@dataclass(frozen=True, slots=True)
class DetectConfig:
    """Which films, how they are searched, and what is written."""

    series: str | None = series_option()
    limit: int | None = limit_option()
    num_parts: int = option(
        1,
        help="Number of shards to split the films into, for a job array.",
        group=INPUT,
        metavar="N",
        minimum=1,
    )
    part_id: int = option(
        0, help="Shard to process, counted from 0.", group=INPUT, metavar="N", minimum=0
    )

    model: str | None = model_option()
    template: str | None = template_option()
    method: str = option(
        "auto",
        help="How knees are found; auto is locator (neural+sharpen with --paper), or search if the "
        "networks see no knee where the template was drawn.",
        group=METHOD,
        choices=METHODS,
    )
    paper: bool = paper_option()
    left_is: str | None = option(
        None,
        help="The patient's side at the left of the pictures, where headers do not tell it.",
        group=METHOD,
        choices=("R", "L"),
    )
    knees: str = option(
        "auto",
        help="Number of frontal knees on each film, for the method locator; auto finds out.",
        group=METHOD,
        choices=KNEES,
    )
    paper_settings: PaperSettings = DEFAULT_SETTINGS  # `kneematch evaluate` has options for them

    resume: bool = option(
        False,
        help="Continue the run in the folder; this is done in any case.",
        group=OUTPUT,
        flags=("--resume",),
    )
    force: bool = force_option()
    hash_films: bool = option(
        False,
        help="Recognise changed films by their content instead of size and date.",
        group=INPUT,
        flags=("--hash-films",),
    )
    measure: bool = option(
        False,
        help="Measure the joint space and the alignment of every knee (experimental).",
        group=OUTPUT,
        flags=("--measure",),
    )
    magnification: float | None = option(
        None,
        help="Magnification of the films, by which lengths in mm are divided.",
        group=OUTPUT,
        metavar="FACTOR",
        default_text="1, mm at the detector",
    )
    outlines: str | None = option(
        None,
        help="Outline network written by `kneematch train --outlines`.",
        group=METHOD,
        metavar="FILE",
        default_text="the built-in one",
    )
    overlays: bool = option(
        False, help="Draw a picture of every film.", group=OUTPUT, flags=("--overlays",)
    )
    crops: bool = option(
        False,
        help="Cut every knee out, upright, as a 16-bit PNG.",
        group=OUTPUT,
        flags=("--crops",),
    )
    crop_preset: str | None = option(
        None,
        help="Size of crops as common graders take it: 140 mm in 700, 300 or 224 pixels.",
        group=OUTPUT,
        choices=tuple(CROP_PRESETS),
    )
    crop_mm: float | None = option(
        None, help="Side length of crops, in mm.", group=OUTPUT, metavar="MM", default_text="140"
    )
    crop_spacing: float | None = option(
        None, help="Pixel spacing of crops, in mm.", group=OUTPUT, metavar="MM", default_text="0.3"
    )
    crop_px: int | None = option(
        None,
        help="Side length of crops of films without pixel spacing, in film pixels.",
        group=OUTPUT,
        metavar="N",
    )
    mirror: bool = option(
        False,
        help="Mirror crops of the picture's left half, so that all knees look alike.",
        group=OUTPUT,
        flags=("--mirror",),
    )
    export: tuple[str, ...] = option(
        (), help="Write results for other programs; may be repeated.", group=OUTPUT, choices=EXPORTS
    )
    sheet: Path | None = option(
        None, help="Draw the first films side by side.", group=OUTPUT, metavar="PNG"
    )

    device: str = device_option()
    batch_size: int | None = batch_size_option()
    workers: int | None = workers_option()
    engine: str = option(
        "local",
        help="Compute on this machine or on a Ray cluster.",
        group=PERFORMANCE,
        choices=ENGINES,
    )
    ray_address: str | None = option(
        None,
        help="Address of a running Ray cluster.",
        group=PERFORMANCE,
        metavar="ADDRESS",
        default_text="start one",
    )

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        if self.limit is not None and self.limit < 1:
            raise SettingsError(f"--limit {self.limit}; expected 1 film or more; raise it")
        if self.num_parts < 1 or not 0 <= self.part_id < self.num_parts:
            raise SettingsError(
                f"--part-id {self.part_id} of --num-parts {self.num_parts}; expected a part from "
                "0 to num-parts - 1; correct them"
            )
        if self.workers is not None and self.workers < 0:
            raise SettingsError(f"{self.workers} workers; expected 0 or more; raise it")
        check_choice("engine", self.engine, ENGINES)
        check_choice("knees", self.knees, KNEES)
        for name in self.export:
            check_choice("export", name, EXPORTS)
        if self.resume and self.force:
            raise SettingsError(
                "--resume and --force; expected one of them: to continue, or to start over"
            )
        if self.crop_preset is not None:
            check_choice("crop_preset", self.crop_preset, tuple(CROP_PRESETS))
            if self.crop_mm is not None or self.crop_spacing is not None:
                raise SettingsError(
                    "--crop-preset with --crop-mm or --crop-spacing; expected one or the other: "
                    "leave one out"
                )
        sizes = (
            *(self.crop_mm, self.crop_spacing, self.crop_px, self.crop_preset),
            self.mirror or None,
        )
        if not self.crops and any(size is not None for size in sizes):
            raise SettingsError("the size of crops, but no crops; expected --crops; add it")
        measured = self.magnification, self.outlines
        if not self.measure and any(setting is not None for setting in measured):
            raise SettingsError(
                "--magnification or --outlines without measures; expected --measure; add it"
            )
        if self.magnification is not None and not 1 <= self.magnification < 2:
            raise SettingsError(
                f"--magnification {self.magnification}; expected a factor from 1 to 2; correct it"
            )
        if self.ray_address is not None and self.engine != "ray":
            raise SettingsError("--ray-address without Ray; expected --engine ray; add it")

    def source(self) -> "DetectorSource":
        """Return the part of the settings that loads the detector."""
        return DetectorSource(
            self.model,
            self.template,
            self.method,
            self.paper,
            self.device,
            self.batch_size,
            self.left_is,
            None if self.knees == "auto" else int(self.knees),
            self.paper_settings,
        )


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise SettingsError unless a value is one of the choices."""
    if value not in choices:
        raise SettingsError(f"{name} {value!r}; expected one of {', '.join(choices)}")


@dataclass(frozen=True, slots=True)
class DetectorSource:
    """The arguments of `Detector.load`, small enough to send to another process or machine."""

    model: str | None = None
    template: str | None = None
    method: str = "auto"
    paper: bool = False
    device: str = "auto"
    batch_size: int | None = None
    left_is: str | None = None
    knees: int | None = None
    paper_settings: PaperSettings = DEFAULT_SETTINGS

    def load(self) -> "Detector":
        """Load the detector."""
        from kneematch.detection.detector import Detector

        return Detector.load(
            self.model,
            template=self.template,
            method=self.method,
            paper=self.paper,
            device=self.device,
            batch_size=self.batch_size,
            left_is=self.left_is,
            knees=self.knees,
            paper_settings=PaperSettings(*self.paper_settings),  # a list, if it came as JSON
        )

    def hashes(self) -> dict[str, str]:
        """Return the SHA-256 of the files that rows depend on; a template's film is one."""
        from kneematch.detection.detector import needs_model
        from kneematch.detection.locate import LOCATOR_FILE
        from kneematch.export.run_file import content_hash
        from kneematch.matching.annotation import load_annotation
        from kneematch.networks.model_file import shipped_model

        files: dict[str, str | Path] = {}
        if needs_model(self.template is not None, self.method, paper=self.paper):
            files["model"] = self.model or shipped_model()
        if self.method in ("auto", "locator") and not self.paper:
            files["locator"] = LOCATOR_FILE
        if self.template is not None:
            files["template"] = self.template
            files["template_film"] = load_annotation(self.template).film
        return {name: content_hash(path) for name, path in files.items()}

    def preload(self) -> dict[str, str]:
        """Return the environment of a process that loads the detector with this module.

        Workers that are forked from it share the model's memory.
        """
        return {PRELOAD: json.dumps(asdict(self))}
