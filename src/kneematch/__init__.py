"""Find the knee joint areas in knee radiographs."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kneematch.errors import KneematchError as KneematchError
    from kneematch.evaluation.config import EvaluateConfig as EvaluateConfig
    from kneematch.evaluation.run import evaluate as evaluate
    from kneematch.films.radiograph import Radiograph as Radiograph
    from kneematch.films.read import read as read
    from kneematch.knee.detection import Detection as Detection
    from kneematch.knee.detector import Detector as Detector
    from kneematch.run.config import DetectConfig as DetectConfig
    from kneematch.run.pipeline import DetectResult as DetectResult
    from kneematch.run.pipeline import detect_folder as detect_folder
    from kneematch.training.config import TrainConfig as TrainConfig
    from kneematch.training.trainer import train as train

__version__ = "0.2.0"
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
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for, so that `import kneematch` stays fast."""
    if name not in _HOME:
        raise AttributeError(f"module 'kneematch' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
