"""Documented output in the READMEs matches the command and the Python code."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
READMES = [ROOT / "README.md", ROOT / "docs" / "how-to" / "platform.md", *sorted((ROOT / "examples").glob("*/README.md"))]
DOCUMENTED = re.compile(r"```bash\n\S*batchyard ([^\n]*)\n```.*?```text\n(.*?)```", re.DOTALL)
PYTHON = re.compile(r"```python\n(.*?)```\s*```text\n(.*?)```", re.DOTALL)

Batchyard = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize("path", READMES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_documented_output_matches_printed_output(batchyard: Batchyard, path: Path) -> None:
    command, reported = first(DOCUMENTED, path)
    done = batchyard(*command.split())
    printed = done.stdout + done.stderr
    for part in reported.split("...\n"):
        assert part in printed


def test_python_example_prints_documented_output() -> None:
    code, reported = first(PYTHON, ROOT / "README.md")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == reported


def first(pattern: re.Pattern[str], path: Path) -> tuple[str, str]:
    """Return the first match in a file, which must exist."""
    found = pattern.search(path.read_text("utf-8"))
    assert found is not None, f"{path} shows nothing"
    return found[1], found[2]
