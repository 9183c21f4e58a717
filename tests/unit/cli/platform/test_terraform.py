"""The steps of Terraform, with the real program, on a configuration without external providers."""

import shutil
from pathlib import Path

import pytest

from batchyard.cli.platform.drive import LineDisplay
from batchyard.cli.platform.journal import FolderLock, StepJournal
from batchyard.cli.platform.processes import CommandRunner
from batchyard.cli.platform.step_runner import ProgressKind, RunStoppedError, StepRunner
from batchyard.provision.loading import PlatformSource, read_platform
from batchyard.provision.model import GoogleSettings
from batchyard.provision.steps import google
from batchyard.provision.steps.model import PlatformStep
from cloud_commands import PLATFORM

TEXT = 'resource "terraform_data" "it" {\n  input = "%s"\n}\n'

pytestmark = pytest.mark.skipif(shutil.which("terraform") is None, reason="terraform is not there")


class ConfirmingUser:
    """Agrees to each question, and records it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.destroys_data = False

    def confirm(self, question: str, destroys: bool) -> bool:
        self.asked.append(question)
        self.destroys_data = destroys
        return True


def run_steps(folder: Path, *steps: PlatformStep) -> tuple[dict[ProgressKind, int], list[str]]:
    """Run the steps; return the number of outcomes of each kind, and the questions."""
    asking = ConfirmingUser()
    with FolderLock(folder, LineDisplay().report) as lock:
        processes = CommandRunner(folder, lock, LineDisplay().report)
        counts = StepRunner(folder, processes, StepJournal(folder), LineDisplay(), asking).run(steps)
    return counts, [f"{question} (grave)" if asking.destroys_data else question for question in asking.asked]


def google_settings() -> GoogleSettings:
    result = read_platform(PlatformSource("platform.yaml", PLATFORM)).google
    assert result is not None
    return result


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "terraform").mkdir()
    (tmp_path / "terraform/main.tf").write_text(TEXT % "one", "utf-8")
    return tmp_path


def test_terraform_plan_is_confirmed_applied_and_then_passed(folder: Path) -> None:
    counts, request = run_steps(folder, google.terraform_init_step(), google.terraform_apply_step())
    assert counts[ProgressKind.DONE] == 2
    assert [question.partition(". ")[0] for question in request] == ["Terraform: 1 to add, 0 to change, 0 to destroy"]
    assert run_steps(folder, google.terraform_apply_step()) == (
        {**dict.fromkeys(ProgressKind, 0), ProgressKind.PASSED: 1},
        [],
    )
    (folder / "terraform/main.tf").write_text(TEXT % "two", "utf-8")
    assert run_steps(folder, google.terraform_apply_step())[1][0].startswith(
        "Terraform: 0 to add, 1 to change, 0 to destroy."
    )


def test_change_that_destroys_resources_is_confirmed_like_destroy(folder: Path) -> None:
    assert not run_steps(folder, google.terraform_init_step(), google.terraform_apply_step())[1][0].endswith("(grave)")
    (folder / "terraform/main.tf").write_text('resource "terraform_data" "other" {}\n', "utf-8")
    (question,) = run_steps(folder, google.terraform_apply_step())[1]
    assert question.startswith("Terraform: 1 to add, 0 to change, 1 to destroy.")
    assert question.endswith("(grave)")


def test_terraform_resources_are_destroyed_once(folder: Path) -> None:
    run_steps(folder, google.terraform_init_step(), google.terraform_apply_step())
    assert (
        run_steps(folder, google.protection_step(False), google.destroy_step(google_settings()))[0][ProgressKind.DONE]
        == 1
    )
    assert run_steps(folder, google.destroy_step(google_settings()))[0][ProgressKind.PASSED] == 1


def test_terraform_error_is_reported(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "terraform/main.tf").write_text('resource "terraform_data" "it" {\n', "utf-8")
    with pytest.raises(RunStoppedError):
        run_steps(folder, google.terraform_init_step())
    assert "Unclosed configuration block" in capfd.readouterr().err
