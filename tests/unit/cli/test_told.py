"""What the READMEs tell is what the command prints and what the Python code does."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
READMES = [ROOT / "README.md", ROOT / "docs" / "platform.md", *sorted((ROOT / "examples").glob("*/README.md"))]
TOLD = re.compile(r"```bash\n\S*batchyard ([^\n]*)\n```.*?```text\n(.*?)```", re.DOTALL)
PYTHON = re.compile(r"```python\n(.*?)```\s*```text\n(.*?)```", re.DOTALL)

Batchyard = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize("path", READMES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_output_is_what_is_really_printed(batchyard: Batchyard, path: Path) -> None:
    command, reported = first(TOLD, path)
    done = batchyard(*command.split())
    printed = done.stdout + done.stderr
    for part in reported.split("...\n"):
        assert part in printed


def test_the_python_example_prints_what_is_told() -> None:
    code, reported = first(PYTHON, ROOT / "README.md")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == reported


def first(pattern: re.Pattern[str], path: Path) -> tuple[str, str]:
    """The first match in a file, which must be there."""
    found = pattern.search(path.read_text("utf-8"))
    assert found is not None, f"{path} shows nothing"
    return found[1], found[2]
