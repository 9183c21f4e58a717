"""Completed commands for a running platform."""

import subprocess
import sys
from typing import NamedTuple


class Finished(NamedTuple):
    """The result of a command."""

    code: int
    stdout: str
    stderr: str


def batchyard(*arguments: str) -> Finished:
    """Run a batchyard command."""
    command = [sys.executable, "-m", "batchyard", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return Finished(done.returncode, done.stdout, done.stderr)
