"""The command as users run it: a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

ROOT = Path(__file__).parents[3]

Finished: TypeAlias = "subprocess.CompletedProcess[str]"
Batchyard: TypeAlias = Callable[..., Finished]


@pytest.fixture
def batchyard() -> Batchyard:
    """Runs the command from the repository's root; keywords are environment variables, `stdin` its input."""

    def run(*arguments: str | Path, stdin: str = "", **environment: str) -> Finished:
        return subprocess.run(
            [sys.executable, "-m", "batchyard", *map(str, arguments)],
            capture_output=True,
            check=False,
            cwd=ROOT,
            env={**os.environ, **environment},
            input=stdin,
            text=True,
            timeout=60,
        )

    return run
