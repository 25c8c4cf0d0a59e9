"""DetectConfig: the settings of `detect_folder`, and which of them the rows of a run depend on."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kneematch import __version__, options
from kneematch.errors import SettingsError
from kneematch.options import INPUT, METHOD, OUTPUT, PERFORMANCE, check_options, option
from kneematch.search.settings import AUTO, DEFAULT_SETTINGS, LOCATOR, METHODS, PaperSettings

if TYPE_CHECKING:
    from kneematch.knee.crop import CropSize
    from kneematch.knee.detector import Detector

KNEES: Final = ("auto", "1", "2")
ENGINES: Final = ("local", "ray")
# Sizes that graders of knee radiographs commonly take: side in mm and in pixels.
CROP_PRESETS: Final = {
    "140mm-700px": (140.0, 700),
    "140mm-300px": (140.0, 300),
    "140mm-224px": (140.0, 224),
}
EXPORTS: Final = ("coco", "dicom", "markups", "pts")
# What users call the settings that rows depend on; others are shown by their own names.
SETTING_LABELS: Final = {
    **{name: f"--{name}" for name in ("model", "template", "method", "paper", "knees", "device")},
    "left_is": "--left-is",
    "template_film": "the template's film",
    "outlines": "the outline network (--outlines)",
    "locator": "the locator's network",
    "paper_settings": "the paper's settings",
    "version": "the version of kneematch",
}

Fingerprint = Mapping[str, str | int | bool]  # the settings that rows depend on

_input: Any = partial(option, group=INPUT)
_method: Any = partial(option, group=METHOD)
_output: Any = partial(option, group=OUTPUT)
_performance: Any = partial(option, group=PERFORMANCE)


@dataclass(frozen=True, slots=True)
class DetectConfig:
    """Which films, how they are searched, and what is written."""

    series: str | None = options.series_option()
    limit: int | None = options.limit_option()
    num_parts: int = _input(
        1, help="Number of shards to split the films into, for a job array.", metavar="N", minimum=1
    )
    part_id: int = _input(0, help="Shard to process, counted from 0.", metavar="N", minimum=0)

    model: str | None = options.model_option()
    template: str | None = options.template_option()
    method: str = _method(
        "auto",
        help="How knees are found; auto is locator (neural+sharpen with --paper). For a template "
        "without the middle of the plateau in its fine box it is neural+sharpen, or search if the "
        "networks see no knee there.",
        choices=METHODS,
    )
    paper: bool = options.paper_option()
    left_is: str | None = _method(
        None,
        help="The patient's side at the left of all pictures. Overrides headers and markers; knees "
        "that disagree are flagged.",
        choices=("R", "L"),
    )
    knees: str = _method(
        "auto",
        help="Number of frontal knees on each film, for the method locator; auto finds out.",
        choices=KNEES,
    )
    paper_settings: PaperSettings = DEFAULT_SETTINGS  # `kneematch evaluate` has options for them

    resume: bool = _output(False, help="Continue an interrupted run (the default).", hidden=True)
    force: bool = options.force_option()
    hash_films: bool = _input(
        False, help="Recognise changed films by their content instead of size and date."
    )
    measure: bool = _output(
        False, help="Measure the joint space and the alignment of every knee (experimental)."
    )
    magnification: float | None = _output(
        None,
        help="Magnification of the films, by which lengths in mm are divided.",
        metavar="FACTOR",
        default_text="1, mm at the detector",
    )
    outlines: str | None = _method(
        None,
        help="Outline network written by `kneematch train --outlines`.",
        metavar="FILE",
        default_text="the built-in one",
    )
    overlays: bool = _output(False, help="Draw a picture of every film.")
    crops: bool = _output(False, help="Cut every knee out, upright, as a 16-bit PNG.")
    crop_preset: str | None = _output(
        None,
        help="Size of crops as common graders take it: 140 mm in 700, 300 or 224 pixels.",
        choices=tuple(CROP_PRESETS),
    )
    crop_mm: float | None = _output(
        None, help="Side length of crops, in mm.", metavar="MM", default_text="140"
    )
    crop_spacing: float | None = _output(
        None, help="Pixel spacing of crops, in mm.", metavar="MM", default_text="0.3"
    )
    crop_px: int | None = _output(
        None,
        help="Side length of crops of films without pixel spacing, in film pixels.",
        metavar="N",
    )
    mirror: bool = _output(
        False, help="Mirror crops from the picture's left half, so that all knees look alike."
    )
    export: tuple[str, ...] = _output(
        (), help="Write results for other programs; may be repeated.", choices=EXPORTS
    )
    sheet: Path | None = _output(
        None, help="Draw the first films with knees, at most 48, side by side.", metavar="PNG"
    )

    device: str = options.device_option()
    batch_size: int | None = options.batch_size_option()
    workers: int | None = options.workers_option()
    engine: str = _performance(
        "local", help="Compute on this machine or on a Ray cluster.", choices=ENGINES
    )
    ray_address: str | None = _performance(
        None, help="Address of a running Ray cluster.", metavar="ADDRESS", default_text="start one"
    )

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        check_options(self)
        if self.part_id >= self.num_parts:
            raise SettingsError(
                f"--part-id must be from 0 to {self.num_parts - 1}, since --num-parts is "
                f"{self.num_parts}."
            )
        sizes = self.crop_mm, self.crop_spacing
        if self.crop_preset is not None and sizes != (None, None):
            raise SettingsError(
                "--crop-preset sets what --crop-mm and --crop-spacing set. Give one."
            )
        given = (*sizes, self.crop_px, self.crop_preset, self.mirror or None)
        if not self.crops and any(setting is not None for setting in given):
            raise SettingsError("The size of crops has no effect without --crops.")
        if not self.measure and (self.magnification, self.outlines) != (None, None):
            raise SettingsError("--magnification and --outlines have no effect without --measure.")
        if self.magnification is not None and not 1 <= self.magnification < 2:
            raise SettingsError("--magnification must be a factor from 1 to 2.")
        if self.ray_address is not None and self.engine != "ray":
            raise SettingsError("--ray-address has no effect without --engine ray.")

    def load_detector(self) -> "Detector":
        """Load the detector that these settings describe."""
        from kneematch.knee.detector import Detector

        return Detector.load(
            self.model,
            template=self.template,
            method=self.method,
            paper=self.paper,
            device=self.device,
            batch_size=self.batch_size,
            knees=None if self.knees == "auto" else int(self.knees),
            left_is=self.left_is,
            paper_settings=self.paper_settings,
        )

    def crop_size(self) -> "CropSize":
        """Return the size of crops; what is not given is CropSize's default."""
        from kneematch.knee.crop import CropSize

        given = {"mm": self.crop_mm, "spacing_mm": self.crop_spacing, "px": self.crop_px}
        if self.crop_preset is not None:
            mm, pixels = CROP_PRESETS[self.crop_preset]
            given |= {"mm": mm, "spacing_mm": mm / pixels}
        sizes = {name: value for name, value in given.items() if value is not None}
        return CropSize(**sizes, mirror=self.mirror)  # type: ignore[arg-type]

    def fingerprint(self, method: str, device: str, hashes: Mapping[str, str]) -> Fingerprint:
        """Return what rows depend on, given method and device as chosen and hashes of files."""
        return {
            "version": __version__,
            **hashes,
            "method": method,
            "paper": self.paper,
            "paper_settings": " ".join(map(str, self.paper_settings)),
            "left_is": self.left_is or "",
            "knees": self.knees,
            "device": device.split(":")[0],
        }

    def file_hashes(self) -> dict[str, str]:
        """Return the SHA-256 of the files that rows depend on; a template's film is one."""
        from kneematch.films.annotation import load_annotation
        from kneematch.films.files import content_hash
        from kneematch.knee.methods import needs_model
        from kneematch.models.locator import LOCATOR_FILE
        from kneematch.models.model_file import builtin_model

        files: dict[str, str | Path] = {}
        if needs_model(self.template is not None, self.method, paper=self.paper):
            files["model"] = self.model or builtin_model()
        if self.method == LOCATOR or (self.method == AUTO and not self.paper):
            files["locator"] = LOCATOR_FILE
        if self.template is not None:
            files["template"] = self.template
            files["template_film"] = load_annotation(self.template).film
        return {name: content_hash(path) for name, path in files.items()}

    def outline_hash(self) -> dict[str, str]:
        """Return the SHA-256 of the outline network, after checking that it can be used."""
        from kneematch.films.files import content_hash
        from kneematch.knee.measuring import outline_network
        from kneematch.models.outlines import builtin_network

        outline_network(self.outlines)
        return {"outlines": content_hash(self.outlines or builtin_network())}


def config_from_json(settings: Mapping[str, Any]) -> DetectConfig:
    """Return the configuration that JSON holds; other names than those of its fields are ignored.

    Raises:
        SettingsError, TypeError, ValueError: a value makes no sense.
    """
    known = {item.name for item in fields(DetectConfig)}
    given = {name: value for name, value in settings.items() if name in known}
    given["paper_settings"] = PaperSettings(*given.get("paper_settings", ()))
    return DetectConfig(**given)


def differences(before: Fingerprint, now: Fingerprint) -> list[str]:
    """Say how each setting differs from the one that a run began with."""
    return [
        _difference(name, before.get(name), now.get(name))
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]


def _difference(name: str, before: object, now: object) -> str:
    """Say how a setting differs from the one that the run began with."""
    if name == "outlines" and None in (before, now):
        given = ("was", "is not") if now is None else ("was not", "is")
        return f"--measure {given[0]} given before and {given[1]} now"
    return f"{SETTING_LABELS.get(name, name)} was {_shown(before)} and is {_shown(now)}"


def _shown(value: object) -> str:
    """Return a setting, in words where it is a hash or not there."""
    if value is None or value == "":
        return "not set"
    text = str(value)
    return f"a file with SHA-256 {text[:12]}" if re.fullmatch("[0-9a-f]{64}", text) else text[:24]
