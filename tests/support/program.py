"""The program as a process of its own."""

import subprocess
from collections.abc import Callable

Run = Callable[..., subprocess.CompletedProcess[str]]
SEARCH = ("--template", "template.json", "--method", "search", "--device", "cpu")
