"""Runs batchyard commands to their end."""

import subprocess
import sys
from typing import NamedTuple


class CompletedCommand(NamedTuple):
    """The result of a command."""

    code: int
    stdout: str
    stderr: str


def batchyard(*arguments: str) -> CompletedCommand:
    """Run a batchyard command."""
    command = [sys.executable, "-m", "batchyard", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return CompletedCommand(done.returncode, done.stdout, done.stderr)
