"""Commands run to their end beside a platform."""

import subprocess
import sys
from typing import NamedTuple


class Finished(NamedTuple):
    """What became of a command."""

    code: int
    stdout: str
    stderr: str


def batchyard(*arguments: str) -> Finished:
    """Run a command of ours."""
    command = [sys.executable, "-m", "batchyard", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return Finished(done.returncode, done.stdout, done.stderr)
