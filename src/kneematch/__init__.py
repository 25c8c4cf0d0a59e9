"""Find the knee joint areas in knee radiographs."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kneematch.errors import KneematchError
    from kneematch.evaluation.config import EvaluateConfig
    from kneematch.evaluation.run import evaluate
    from kneematch.films.radiograph import Radiograph
    from kneematch.films.read import read
    from kneematch.knee.detection import Detection
    from kneematch.knee.detector import Detector
    from kneematch.run.config import DetectConfig
    from kneematch.run.pipeline import DetectResult, detect_folder
    from kneematch.training.config import TrainConfig
    from kneematch.training.trainer import train

__version__ = "0.2.0"
__all__ = [
    "DetectConfig",
    "DetectResult",
    "Detection",
    "Detector",
    "EvaluateConfig",
    "KneematchError",
    "Radiograph",
    "TrainConfig",
    "__version__",
    "detect_folder",
    "evaluate",
    "read",
    "train",
]

_HOME = {
    "DetectConfig": "kneematch.run.config",
    "DetectResult": "kneematch.run.pipeline",
    "Detection": "kneematch.knee.detection",
    "Detector": "kneematch.knee.detector",
    "EvaluateConfig": "kneematch.evaluation.config",
    "KneematchError": "kneematch.errors",
    "Radiograph": "kneematch.films.radiograph",
    "TrainConfig": "kneematch.training.config",
    "detect_folder": "kneematch.run.pipeline",
    "evaluate": "kneematch.evaluation.run",
    "read": "kneematch.films.read",
    "train": "kneematch.training.trainer",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for, so that `import kneematch` stays fast."""
    if name not in _HOME:
        raise AttributeError(f"module 'kneematch' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
