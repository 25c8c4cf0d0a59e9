"""How films are searched: which detector, built where it is needed, and the hash of its parts."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kneematch import __version__

if TYPE_CHECKING:
    from kneematch.detection.detector import Detector

AUTO: Final = "auto"


@dataclass(frozen=True, slots=True)
class Recipe:
    """The settings of a detector; small, so that it can travel to other machines."""

    model: str | None = None
    template: str | None = None
    method: str = AUTO
    paper: bool = False
    device: str = AUTO
    batch_size: int = 8  # films that are searched at once

    def build(self) -> "Detector":
        """The detector itself."""
        from kneematch.detection.detector import Detector

        return Detector.load(
            self.model,
            template=self.template,
            method=self.method,
            paper=self.paper,
            device=self.device,
            batch_size=self.batch_size,
        )

    def fingerprint(self, method: str, device: str) -> dict[str, str | int | bool]:
        """All that rows depend on, but for the films."""
        return {
            "version": __version__,
            **self.hashes(),
            "method": method,
            "paper": self.paper,
            "device": device.split(":")[0],
            "batch_size": self.batch_size,
        }

    def hashes(self) -> dict[str, str]:
        """SHA-256 of the files that it is made of; a template is a part of its film."""
        from kneematch.detection.registry import NEURAL
        from kneematch.export.run_file import content_hash
        from kneematch.matching.annotation import load_annotation
        from kneematch.networks.model_file import shipped_model

        files: dict[str, str | Path] = {}
        if self.template is None or self.method in (AUTO, *NEURAL):
            files["model"] = self.model or shipped_model()
        if self.template is not None:
            files["template"] = self.template
            files["template_film"] = load_annotation(self.template).film
        return {name: content_hash(path) for name, path in files.items()}
