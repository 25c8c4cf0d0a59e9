"""The stable part of the library: what callers may rely on until the next announced change."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import kneematch
from kneematch import errors

PARAMETERS: list[tuple[Callable[..., Any], list[str]]] = [
    (kneematch.read, ["path"]),
    (kneematch.Detector.load, ["model", "template", "method", "device", "batch_size"]),
    (kneematch.Detector.detect, ["self", "films"]),
    (kneematch.Detector.detect_each, ["self", "films"]),
    (kneematch.detect_folder, ["films", "out", "config", "progress"]),
    (kneematch.train, ["films", "template", "out", "config", "progress"]),
    (kneematch.evaluate, ["films", "out", "config", "progress"]),
    (kneematch.apply, ["out", "root", "decisions", "workers", "progress"]),
    (kneematch.compare, ["runs", "out", "visits", "force"]),
    (kneematch.synth, ["out", "config"]),
    (kneematch.DetectResult.to_dataframe, ["self", "table"]),
    (kneematch.Detection.measure, ["self", "film"]),
    (kneematch.Detection.crop, ["self", "film", "mm", "spacing_mm", "mirror"]),
    (kneematch.Detection.draw, ["self", "film"]),
]
FIELDS = [
    (
        kneematch.Detection,
        "side laterality energy loss polarity method corners centre width_px height_px "
        "rotation_deg mm_per_px landmarks needs_review reasons",
    ),
    (kneematch.Radiograph, "pixels mm_per_px laterality view series"),
    (kneematch.DetectResult, "out films knees review failed reasons"),
    (kneematch.DetectConfig, "model template method crops overlays export"),
    (kneematch.TrainConfig, "epochs device seed"),
    (kneematch.EvaluateConfig, "truth methods model template"),
]


@pytest.mark.parametrize(("function", "names"), PARAMETERS)
def test_public_functions_keep_their_parameters(
    function: Callable[..., Any], names: list[str]
) -> None:
    found = inspect.signature(function).parameters
    assert [name for name in found if name in names] == names
    added = [each for name, each in found.items() if name not in names]
    assert all(each.default is not each.empty for each in added)  # so that old calls still work
    assert inspect.getdoc(function)


@pytest.mark.parametrize(("kind", "names"), FIELDS)
def test_public_classes_keep_their_fields(kind: type, names: str) -> None:
    assert {*names.split()} <= {*(field.name for field in dataclasses.fields(kind)), *dir(kind)}
    assert inspect.getdoc(kind)


def test_public_errors_are_one_family() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    assert all(issubclass(kind, kneematch.KneematchError) for kind in kinds)


def test_public_names_are_these() -> None:
    assert set(kneematch.__all__) == {
        *("DetectConfig", "DetectResult", "Detection", "Detector", "EvaluateConfig"),
        *("KneematchError", "Radiograph", "SynthConfig", "TrainConfig", "__version__"),
        *("apply", "compare", "detect_folder", "evaluate", "read", "synth", "train"),
    }
    assert all(hasattr(kneematch, name) for name in kneematch.__all__)
    assert not hasattr(kneematch, "anything_else")
