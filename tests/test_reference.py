"""The pages of the reference that are made from the code are current and complete."""

import subprocess
import sys
from pathlib import Path

import pytest

from batchyard.api import scheme
from batchyard.cli.app import COMMANDS

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"
MADE = ("cli.md", "python.md", "kinds.md", "configuration.md", "events.md")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the pages as the tool makes them."""
    folder = tmp_path_factory.mktemp("reference")
    command = [sys.executable, str(ROOT / "tools" / "reference_pages.py"), str(folder)]
    subprocess.run(command, check=True, timeout=120)
    return folder


@pytest.mark.parametrize("name", MADE)
def test_page_is_as_the_code_makes_it(made: Path, name: str) -> None:
    current = (REFERENCE / name).read_text("utf-8")
    assert current == (made / name).read_text("utf-8"), "run make reference"


def test_the_tool_makes_the_pages_that_are_compared(made: Path) -> None:
    assert sorted(path.name for path in made.iterdir()) == sorted(MADE)


def test_reference_has_every_command_and_kind() -> None:
    commands, kinds = ((REFERENCE / name).read_text("utf-8") for name in ("cli.md", "kinds.md"))
    assert [name for name in COMMANDS if f"\n## batchyard {name}\n" not in commands] == []
    served = [kind for kind in scheme.KINDS if kind.constant not in scheme.FILE_KINDS]
    assert [kind.kind for kind in served if f"\n| {kind.kind} " not in kinds] == []


def test_reference_of_events_names_reasons_that_users_meet() -> None:
    events = (REFERENCE / "events.md").read_text("utf-8")
    expected = ("QuotaReserved", "Admitted", "Preempted", "FailedScheduling", "Started", "NodeNotReady")
    assert [reason for reason in expected if f"| `{reason}` |" not in events] == []


def test_reference_names_the_records_of_the_event_log() -> None:
    log = (REFERENCE / "events.md").read_text("utf-8").partition("## The event log of a simulation")[2]
    expected = ("Created", "QuotaReserved", "Admitted", "Preempted", "Evicted", "Finished", "Final", "PodBound")
    assert [name for name in expected if f"`{name}`" not in log] == []
