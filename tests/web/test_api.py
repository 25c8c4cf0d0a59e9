"""Both pages' APIs, called with whatever their OpenAPI schema allows and forbids."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from kneematch.web.annotate import annotate_app
from kneematch.web.review import ReviewSession, review_app
from kneematch.web.server import COOKIE, Credentials
from pages import Serve

# Requests for each operation and kind; more take longer and may find more.
EXAMPLES = int(os.environ.get("KNEEMATCH_API_EXAMPLES", "8"))
QUICKLY = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def operations(app: FastAPI) -> Iterator[Any]:
    schema = schemathesis.openapi.from_dict(app.openapi())
    for result in schema.get_all_operations():
        yield result.ok()


def probe(operation: Any, mode: GenerationMode, credentials: Credentials) -> set[int]:
    """Send requests of one kind; return the statuses of the answers."""
    own = f"http://127.0.0.1:{credentials.port}"
    statuses: set[int] = set()

    @QUICKLY
    @given(case=operation.as_strategy(generation_mode=mode))
    def call(case: Any) -> None:
        answer = case.call(
            base_url=f"{own}{credentials.path.rstrip('/')}",
            headers={"Origin": own},
            cookies={COOKIE: credentials.secret},
            timeout=120,
        )
        statuses.add(answer.status_code)
        assert answer.status_code < 500, (case.method, case.path, case.body)
        assert b"Traceback" not in answer.content

    with suppress(Unsatisfiable):  # an operation without parameters has no wrong ones
        call()
    return statuses


@pytest.fixture(params=["annotate", "review"])
def app(
    request: pytest.FixtureRequest, films: list[Path], run_folder: Path, tmp_path: Path
) -> FastAPI:
    if request.param == "review":
        return review_app(ReviewSession(run_folder, Path()))
    return annotate_app(films[0], tmp_path / "new.json", films[:1])


@pytest.mark.usefixtures("model_already_run")
def test_api_answers_every_request_without_a_server_error(app: FastAPI, serve: Serve) -> None:
    credentials = serve(app)
    statuses = {
        (operation.label, mode): probe(operation, mode, credentials)
        for operation in operations(app)
        for mode in GenerationMode
    }
    assert len(statuses) > 10
    assert {200, 422} <= set.union(*statuses.values())
