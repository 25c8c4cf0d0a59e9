"""Methods by name, and what auto stands for."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kneematch.errors import SettingsError, TemplateError
from kneematch.films.annotation import annotate
from kneematch.knee import methods
from kneematch.knee.methods import (
    TemplateSource,
    check_method,
    choose_solver,
    read_template,
)
from kneematch.models.locator import VIEW_SIZE
from kneematch.models.two_stage import TwoStageNetworks
from kneematch.paper.energy import Solution
from kneematch.paper.grid_search import grid_search
from kneematch.paper.pose import vector_from_pose
from kneematch.paper.sliding_window import sliding_window
from kneematch.paper.split import HALF_SIZE
from kneematch.paper.template import Template
from kneematch.search.exhaustive_search import exhaustive_search
from kneematch.search.robust_energy import robust_problem
from kneematch.search.settings import NEURAL, SEARCHES, PaperSettings
from kneephantoms import phantom
from kneephantoms.files import write_dicom


def fine(images: Tensor) -> Tensor:
    """Say of any image that the template has half its width, a bit to the right."""
    v = vector_from_pose(torch.tensor([0.5, 0.125, 0.0, 0.0]), 1.0)
    return v.expand(*images.shape[:-2], 4)


class AModel:
    """A stand-in for a model, whose networks need not be made."""

    def __init__(self, template: Template) -> None:
        self.fine_template = self.coarse_template = template

    def networks(
        self, device: str, *, located: bool = False, float32: bool = False
    ) -> TwoStageNetworks:
        """Networks that see a knee in the same place of any half."""
        return TwoStageNetworks(torch.tensor([0.8, 0.0, 0.0, 0.0]), fine, 1.0, 1.0)


@pytest.fixture
def asked(clouds: Callable, cut: Callable) -> tuple[Any, Template]:
    template, _ = cut(clouds(seed=1))
    return robust_problem(clouds(2, 2), template), template


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which sharpening was asked for."""
    names: list[str] = []
    for name in ("sharpen", "refine_anchored"):

        def sharpen(problem: Any, theta: Tensor, name: str = name, **options: Any) -> Solution:
            names.append(name)
            return Solution(theta, problem.energy(theta))

        monkeypatch.setattr(methods, name, sharpen)
    return names


@pytest.fixture
def draw(monkeypatch: pytest.MonkeyPatch) -> Callable:
    """Make a source the template that is read from any file."""

    def use(source: TemplateSource) -> None:
        monkeypatch.setattr(methods, "read_template", lambda template, *, located: source)

    return use


@pytest.fixture
def offset(monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Where any drawn template lies in the networks' own."""
    pose = torch.tensor([0.5, 0.2, 0.0, 0.0])
    monkeypatch.setattr(
        methods, "transfer_template", lambda networks, *drawn: replace(networks, offset=pose)
    )
    return pose


def test_check_method_refuses_unknown_names() -> None:
    for name in ("auto", *NEURAL, *SEARCHES):
        check_method(name)
    with pytest.raises(SettingsError, match=r"'Search'; expected one of auto, locator, .*sliding"):
        check_method("Search")


@pytest.mark.parametrize(
    ("name", "function"),
    [("search", exhaustive_search), ("grid", grid_search), ("sliding", sliding_window)],
)
def test_choose_solver_returns_the_search_of_a_name(
    asked: tuple[Any, Template], draw: Callable, name: str, function: Callable
) -> None:
    _, template = asked
    draw(TemplateSource(template))
    for model in (None, AModel(template)):
        given = choose_solver(name, "drawn", model, paper=False, device="cpu")  # type: ignore[arg-type]
        solver = given.solver.func if isinstance(given.solver, partial) else given.solver
        assert (given.method, solver) == (name, function)
        assert (given.check is None) == (model is None)


@pytest.mark.parametrize(
    ("method", "paper", "name", "sharpening"),
    [
        ("neural", False, "neural", []),
        ("neural", True, "neural", []),
        ("neural+sharpen", False, "neural+sharpen", ["refine_anchored"]),
        ("neural+sharpen", True, "neural+sharpen", ["sharpen"]),
        ("locator", False, "locator", []),
        ("auto", False, "locator", []),
        ("auto", True, "neural+sharpen", ["sharpen"]),
    ],
)
def test_choose_solver_refines_what_the_networks_see(
    asked: tuple[Any, Template],
    calls: list[str],
    method: str,
    paper: bool,
    name: str,
    sharpening: list[str],
) -> None:
    question, template = asked
    model: Any = AModel(template)
    given = choose_solver(method, None, model, paper=paper, device="cpu")
    found = given.solver(question)
    assert given.method == name
    assert given.check is not None
    assert calls == sharpening
    assert found.shape == (2, 2, 4)


def test_choose_solver_transfers_only_a_drawn_template(
    asked: tuple[Any, Template],
    clouds: Callable,
    draw: Callable,
    offset: Tensor,
) -> None:
    question, template = asked
    model: Any = AModel(template)
    own = choose_solver("neural", None, model, paper=False, device="cpu")
    draw(TemplateSource(template, clouds(), torch.tensor([0.3, 0.0, 0.1, 0.0])))
    other = choose_solver("neural", "drawn", model, paper=False, device="cpu")
    found = [each.solver(question) for each in (own, other)]
    assert torch.allclose(found[0], torch.tensor([0.4, 0.1, 0.0, 0.0]), atol=1e-5)
    assert torch.allclose(found[1], torch.tensor([0.2, 0.18, 0.0, 0.0]), atol=1e-5)
    assert own.check is not None
    assert own.check.networks.offset is None
    assert other.check is not None
    assert other.check.networks.offset is offset


def test_choose_solver_refines_what_it_locates_for_a_drawn_template(
    asked: tuple[Any, Template],
    calls: list[str],
    clouds: Callable,
    draw: Callable,
    offset: Tensor,
) -> None:
    question, template = asked
    model: Any = AModel(template)
    draw(TemplateSource(template, clouds(), torch.tensor([0.3, 0.0, 0.1, 0.0])))
    given = choose_solver("locator", "drawn", model, paper=False, device="cpu")
    given.solver(question)
    assert calls == ["refine_anchored"]


def test_choose_solver_searches_where_the_networks_see_no_knee(
    asked: tuple[Any, Template],
    clouds: Callable,
    draw: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*given: Any) -> None:
        raise TemplateError("the network sees no knee")

    monkeypatch.setattr(methods, "transfer_template", refuse)
    _, template = asked
    model: Any = AModel(template)
    draw(TemplateSource(template, clouds(), torch.tensor([0.3, 0.0, 0.1, 0.0])))
    given = choose_solver("auto", "drawn", model, paper=False, device="cpu")
    assert (given.method, given.solver, given.check) == ("search", exhaustive_search, None)
    for method in NEURAL:
        with pytest.raises(TemplateError, match="sees no knee"):
            choose_solver(method, "drawn", model, paper=False, device="cpu")


@pytest.mark.parametrize("located", [False, True])
def test_read_template_knows_where_it_was_drawn(tmp_path: Path, located: bool) -> None:
    film = phantom(0, size=(320, 400))
    write_dicom(tmp_path / "film.dcm", film.pixels, mm_per_px=None, laterality="B")
    knee = film.knees[1]
    boxes = annotate(tmp_path / "film.dcm", knee.side, knee.plateau_left, knee.plateau_right)
    sought = read_template(boxes, located=located)
    assert sought.view is not None
    assert sought.theta is not None
    assert sought.view.shape == (VIEW_SIZE if located else HALF_SIZE)
    assert set(sought.template.landmarks) == {"plateau_medial", "plateau_lateral"}
    question = robust_problem(sought.view[None, None], sought.template)
    found = methods.network_solver(
        type("Here", (), {"poses": lambda self, halves: sought.theta.float()[None, None]})()
    )(question)
    assert float(question.energy(found)) < 0.01
    with pytest.raises(TemplateError, match=r"called centre.*rename it"):
        read_template(replace(boxes, landmarks={"centre": (1.0, 2.0)}), located=located)


def test_choose_solver_passes_the_papers_settings_on(asked: Any, draw: Callable) -> None:
    draw(TemplateSource(asked[1]))
    settings = PaperSettings(adam_steps=7, adam_rate=0.2, grid_scales=3, grid_stride=0.5)
    chosen = choose_solver("grid", "drawn", None, paper=True, device="cpu", settings=settings)
    assert isinstance(chosen.solver, partial)
    assert chosen.solver.keywords == {"n_scales": 3, "stride": 0.5, "steps": 7, "rate": 0.2}
