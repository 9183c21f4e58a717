"""A step whose commands receive the results of its probes: the user confirms exactly the input of the command."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from batchyard.cli import output
from batchyard.cli.platform.drive import LineDisplay
from batchyard.cli.platform.journal import FolderLock, StepJournal
from batchyard.cli.platform.processes import CommandRunner
from batchyard.cli.platform.step_runner import ProgressKind, StepRunner
from batchyard.provision.steps.model import Consent, ConsentDetails, PlatformStep, Probe, ProbeResult, command

FOUND = Probe(command("echo", "old"), lambda answer: ProbeResult(False, answer.stdout.strip()))
LOOKED = ConsentDetails(command("echo", "runs"), lambda answer, stdin_text: f" {stdin_text}; {answer.stdout.strip()}")
STEP = PlatformStep(
    "clean",
    "remove what is old",
    commands=(command("dd", "of=removed", "status=none"),),
    probes=(FOUND,),
    consent=Consent("It goes:", destroys=True, details=LOOKED),
    stdin_from_probes=lambda answers: "+".join(answer.stdout.strip() for answer in answers),
    is_checked=False,
    is_optional=True,
)


@dataclass
class FakeUser:
    agrees_to_all: bool
    asked: list[tuple[str, bool]] = field(default_factory=list)

    def confirm(self, question: str, destroys: bool) -> bool:
        self.asked.append((question, destroys))
        return self.agrees_to_all


def run_step(folder: Path, person: FakeUser) -> dict[ProgressKind, int]:
    """Run the step, and return the number of outcomes of each kind."""
    with FolderLock(folder, output.report_line) as lock:
        driver = StepRunner(
            folder, CommandRunner(folder, lock, output.report_line), StepJournal(folder), LineDisplay(), person
        )
        return driver.run([STEP])


def test_command_receives_input_shown_in_question(tmp_path: Path) -> None:
    person = FakeUser(agrees_to_all=True)
    assert run_step(tmp_path, person)[ProgressKind.DONE] == 1
    assert person.asked == [("It goes: old; runs", True)]
    assert (tmp_path / "removed").read_text("utf-8") == "old"


def test_declined_optional_step_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_step(tmp_path, FakeUser(agrees_to_all=False))[ProgressKind.UNMET] == 1
    assert "declined: old" in capsys.readouterr().err
    assert not (tmp_path / "removed").exists()
