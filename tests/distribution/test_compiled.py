"""The compiled build decides as the sources do: the same event log, to the byte. Needs `make compiled`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPILED = ROOT / ".compiled/bin/python"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not COMPILED.exists(), reason="there is no compiled build: make compiled"),
]


def run_python(python: Path, folder: Path, *arguments: str) -> str:
    """Run a Python interpreter outside the checkout; return its standard output."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if python != COMPILED:
        environ["PYTHONPATH"] = str(ROOT / "src")
    return subprocess.check_output([str(python), *arguments], cwd=folder, env=environ, text=True)


def test_modules_are_compiled(tmp_path: Path) -> None:
    program = "import batchyard.scheduling.cycle as cycle; print(cycle.__file__)"
    assert run_python(COMPILED, tmp_path, "-c", program).strip().endswith(".so")


@pytest.mark.parametrize("example", ["refarch", "hotswap", "fair-sharing"])
def test_event_logs_are_identical(tmp_path: Path, example: str) -> None:
    manifests = str(ROOT / "examples" / example)
    simulation = ("-m", "batchyard", "simulate", manifests, "--events", "-")
    log = run_python(Path(sys.executable), tmp_path, *simulation)
    assert log.count("\n") > 10
    assert run_python(COMPILED, tmp_path, *simulation) == log
