"""The manual pages: one for each command, up to date, which groff and mandoc read without a warning."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from batchyard.cli.app import command_contexts
from batchyard.cli.help import command_name

ROOT = Path(__file__).parents[3]
TOOL = ROOT / "tools" / "man_pages.py"


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """The text of each page by its name."""
    spec = importlib.util.spec_from_file_location("man_pages", TOOL)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return dict(tool.pages())


def test_every_command_has_a_page(pages: dict[str, str]) -> None:
    names = ["-".join(["batchyard", *command_name(context).split()]) for context in command_contexts()]
    assert list(pages) == ["batchyard", *names]
    assert all(text.count("\n.SH EXAMPLES\n") == 1 for name, text in pages.items() if name != "batchyard")


def test_committed_pages_are_up_to_date(pages: dict[str, str]) -> None:
    committed = {path.stem: path.read_text("utf-8") for path in (ROOT / "deploy" / "man").glob("*.1")}
    assert committed == pages, "run make reference"


@pytest.mark.parametrize("command", [("groff", "-man", "-ww", "-z"), ("mandoc", "-Tlint", "-Wwarning")])
def test_page_has_no_warnings(pages: dict[str, str], tmp_path: Path, command: tuple[str, ...]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]} on this machine")
    for name, text in pages.items():
        (tmp_path / f"{name}.1").write_text(text, "utf-8")
    files = sorted(tmp_path.glob("*.1"))
    done = subprocess.run([*command, *files], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
