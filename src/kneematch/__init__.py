"""Find the knee joint areas in knee radiographs."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kneematch.errors import KneematchError
    from kneematch.evaluation import EvaluateConfig
    from kneematch.evaluation.longitudinal import compare_runs as compare
    from kneematch.evaluation.run import evaluate
    from kneematch.films.radiograph import Radiograph
    from kneematch.films.read import read
    from kneematch.knee.detection import Detection
    from kneematch.knee.detector import Detector
    from kneematch.run.apply import apply_review as apply
    from kneematch.run.config import DetectConfig
    from kneematch.run.pipeline import DetectResult, detect_folder
    from kneematch.training import TrainConfig
    from kneematch.training.trainer import train
    from kneephantoms import SynthConfig
    from kneephantoms import synthesize as synth

__version__ = "0.3.0"
_HOME = {
    "DetectConfig": "kneematch.run.config",
    "DetectResult": "kneematch.run.pipeline",
    "Detection": "kneematch.knee.detection",
    "Detector": "kneematch.knee.detector",
    "EvaluateConfig": "kneematch.evaluation",
    "KneematchError": "kneematch.errors",
    "Radiograph": "kneematch.films.radiograph",
    "SynthConfig": "kneephantoms",
    "TrainConfig": "kneematch.training",
    "apply": "kneematch.run.apply:apply_review",
    "compare": "kneematch.evaluation.longitudinal:compare_runs",
    "detect_folder": "kneematch.run.pipeline",
    "evaluate": "kneematch.evaluation.run",
    "read": "kneematch.films.read",
    "synth": "kneephantoms:synthesize",
    "train": "kneematch.training.trainer",
}
# fmt: off
__all__ = [
    "DetectConfig", "DetectResult", "Detection", "Detector", "EvaluateConfig", "KneematchError",
    "Radiograph", "SynthConfig", "TrainConfig", "__version__", "apply", "compare", "detect_folder",
    "evaluate", "read", "synth", "train",
]
# fmt: on


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for, so that `import kneematch` stays fast."""
    if name not in _HOME:
        raise AttributeError(f"module 'kneematch' has no attribute {name!r}")
    from importlib import import_module

    module, _, other = _HOME[name].partition(":")
    return getattr(import_module(module), other or name)


def __dir__() -> list[str]:
    return __all__
