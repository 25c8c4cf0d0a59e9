"""What the fixtures of the pages' tests are called with, and return."""

from collections.abc import Callable

from fastapi import FastAPI
from playwright.sync_api import Page

from kneematch.web.server import Credentials

Serve = Callable[[FastAPI], Credentials]
Open = Callable[..., Page]
