"""Methods by name, and what auto stands for."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kneematch.paper.problem import make_problem
from scipy.ndimage import gaussian_filter

from kneematch.errors import SettingsError, TemplateError
from kneematch.films.annotation import Annotation, annotate
from kneematch.knee.methods import ChosenSolver, check_method, choose_solver, read_template
from kneematch.models.locator import VIEW_SIZE
from kneematch.models.model_file import Model, builtin_model, load_model
from kneematch.paper.grid_search import grid_search
from kneematch.paper.sliding_window import sliding_window
from kneematch.paper.split import HALF_SIZE
from kneematch.search.exhaustive_search import exhaustive_search
from kneematch.search.settings import NEURAL, SEARCHES, PaperSettings
from kneephantoms import phantom
from kneephantoms.files import write_dicom


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(builtin_model())


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Annotation:
    """The boxes of the right knee of a phantom."""
    made = phantom(0, size=(320, 400))
    path, knee = tmp_path_factory.mktemp("films") / "film.dcm", made.knees[1]
    write_dicom(path, made.pixels, mm_per_px=None, laterality="B")
    return annotate(path, knee.side, knee.plateau_left, knee.plateau_right)


def choose(
    method: str, template: Annotation | None, model: Model | None, **options: Any
) -> ChosenSolver:
    return choose_solver(method, template, model, **({"paper": False, "device": "cpu"} | options))


def test_check_method_refuses_unknown_names() -> None:
    for name in ("auto", *NEURAL, *SEARCHES):
        check_method(name)
    with pytest.raises(SettingsError, match=r"'Search'.*auto, locator, .*sliding"):
        check_method("Search")


@pytest.mark.parametrize(
    ("name", "function"),
    [("search", exhaustive_search), ("grid", grid_search), ("sliding", sliding_window)],
)
def test_choose_solver_returns_the_search_of_a_name(
    drawn: Annotation, model: Model, name: str, function: Callable[..., Any]
) -> None:
    for given in (None, model):
        chosen = choose(name, drawn, given)
        solver = chosen.solver.func if isinstance(chosen.solver, partial) else chosen.solver
        assert (chosen.method, solver) == (name, function)
        assert (chosen.check is None) == (given is None)


def test_choose_solver_passes_the_papers_settings_on(drawn: Annotation) -> None:
    settings = PaperSettings(adam_steps=7, adam_rate=0.2, grid_scales=3, grid_stride=0.5)
    chosen = choose("grid", drawn, None, paper=True, settings=settings)
    assert isinstance(chosen.solver, partial)
    assert chosen.solver.keywords == {"n_scales": 3, "stride": 0.5, "steps": 7, "rate": 0.2}


@pytest.mark.parametrize(("paper", "name"), [(False, "locator"), (True, "neural+sharpen")])
def test_choose_solver_of_auto(model: Model, paper: bool, name: str) -> None:
    chosen = choose("auto", None, model, paper=paper)
    assert chosen.method == name
    assert chosen.check is not None


@pytest.mark.parametrize("paper", [False, True])
def test_choose_solver_refines_what_the_networks_see(
    drawn: Annotation, model: Model, paper: bool
) -> None:
    source = read_template(drawn, located=False)
    assert source.view is not None
    image = source.view[None, None]
    raw, refined = (
        choose(name, drawn, model, paper=paper) for name in ("neural", "neural+sharpen")
    )
    problem = make_problem(image, raw.template, paper=paper)
    energies = [float(problem.energy(each.solver(problem))) for each in (raw, refined)]
    assert energies[1] < energies[0] < 0.2


def test_choose_solver_transfers_only_a_drawn_template(drawn: Annotation, model: Model) -> None:
    own, other = (choose("neural", template, model) for template in (None, drawn))
    assert own.check is not None
    assert own.check.networks.offset is None
    assert other.check is not None
    assert other.check.networks.offset is not None


def test_choose_solver_searches_where_the_networks_see_no_knee(
    drawn: Annotation, model: Model, tmp_path: Path
) -> None:
    clouds = gaussian_filter(np.random.default_rng(0).normal(size=(320, 400)), 8)
    clouds = ((clouds - clouds.min()) / np.ptp(clouds)).astype(np.float32)
    write_dicom(tmp_path / "clouds.dcm", clouds, mm_per_px=None, laterality="B")
    elsewhere = replace(drawn, film=tmp_path / "clouds.dcm")
    chosen = choose("auto", elsewhere, model)
    assert (chosen.method, chosen.solver, chosen.check) == ("search", exhaustive_search, None)
    for method in NEURAL:
        with pytest.raises(TemplateError, match="network sees"):
            choose(method, elsewhere, model)


@pytest.mark.parametrize("located", [False, True])
def test_read_template_knows_where_it_was_drawn(drawn: Annotation, located: bool) -> None:
    source = read_template(drawn, located=located)
    assert source.view is not None
    assert source.theta is not None
    assert source.view.shape == (VIEW_SIZE if located else HALF_SIZE)
    assert set(source.template.landmarks) == {"plateau_medial", "plateau_lateral"}
    term = make_problem(source.view[None, None], source.template).terms[0]
    patch = term.patches(source.theta[None, None])[0, 0]
    assert np.corrcoef(patch.flatten(), source.template.image.flatten())[0, 1] > 0.999
    with pytest.raises(TemplateError, match=r"called centre"):
        read_template(replace(drawn, landmarks={"centre": (1.0, 2.0)}), located=located)
