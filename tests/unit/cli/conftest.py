"""The command as users run it, in a fork of the test's process: that saves the start of an interpreter."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TypeAlias

import pytest

from batchyard.cli import main
from batchyard.cli.commands import compare, guide, lint, simulate, why

ROOT = Path(__file__).parents[3]
#: Imported before the fork, so that no child imports them again.
IMPORTED = (compare, guide, lint, simulate, why)

Finished: TypeAlias = "subprocess.CompletedProcess[str]"
Batchyard: TypeAlias = Callable[..., Finished]


@pytest.fixture
def batchyard() -> Batchyard:
    """Runs the command from the repository's root; keywords are environment variables, `stdin` its input."""

    def run(*arguments: str | Path, stdin: str = "", **environment: str) -> Finished:
        words = ["batchyard", *map(str, arguments)]
        with TemporaryFile("w+") as sent, TemporaryFile("w+") as printed, TemporaryFile("w+") as reported:
            sent.write(stdin)
            sent.seek(0)
            child = os.fork()
            if not child:
                _replace_streams(sent, printed, reported)
                os.chdir(ROOT)
                os.environ.update(environment)
                _run_and_exit(words)
            _, status = os.waitpid(child, 0)
            printed.seek(0)
            reported.seek(0)
            code = os.waitstatus_to_exitcode(status)
            return subprocess.CompletedProcess(words, code, printed.read(), reported.read())

    return run


def _replace_streams(*files: IO[str]) -> None:
    for number, file in enumerate(files):
        os.dup2(file.fileno(), number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115 - until the exit


def _run_and_exit(words: list[str]) -> None:
    """Run the command in this process; end it, whatever happens, so that the child does not return into the test."""
    sys.argv = words
    code: object = 70
    try:
        main.main()
        code = 0
    except SystemExit as ended:
        code = ended.code
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))
