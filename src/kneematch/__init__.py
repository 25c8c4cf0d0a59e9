"""Draw boxes on one knee of one X-ray; get both knee joint areas in every other one."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kneematch.detection.detection import Detection
    from kneematch.detection.detector import Detector
    from kneematch.errors import KneematchError
    from kneematch.evaluation.config import EvaluateConfig
    from kneematch.evaluation.run import evaluate
    from kneematch.io.radiograph import Radiograph
    from kneematch.io.read import read
    from kneematch.training.config import TrainConfig
    from kneematch.training.trainer import train

__version__ = "0.1.0"
__all__ = [
    "Detection",
    "Detector",
    "EvaluateConfig",
    "KneematchError",
    "Radiograph",
    "TrainConfig",
    "__version__",
    "evaluate",
    "read",
    "train",
]

_HOME = {
    "Detection": "kneematch.detection.detection",
    "Detector": "kneematch.detection.detector",
    "EvaluateConfig": "kneematch.evaluation.config",
    "KneematchError": "kneematch.errors",
    "Radiograph": "kneematch.io.radiograph",
    "TrainConfig": "kneematch.training.config",
    "evaluate": "kneematch.evaluation.run",
    "read": "kneematch.io.read",
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
