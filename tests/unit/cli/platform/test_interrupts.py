"""Interrupts, waiting and questions, in separate processes with real signals and terminals."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from batchyard.cli.platform import drive
from batchyard.cli.platform.journal import FolderLock, StepJournal
from batchyard.cli.platform.processes import CommandRunner
from batchyard.cli.platform.step_runner import StepRunnerSettings
from batchyard.cli.platform.target import ClusterOptions
from batchyard.provision.steps.model import NO_SUCH_PROGRAM, TOO_LONG, StepCommand
from cloud_commands import CloudProject, run_in_process, start_process, wait_for_exit

pytestmark = pytest.mark.slow

#: The number of the call that makes the bucket, in an undisturbed create.
MAKES_BUCKET = 13
WITHIN_SECONDS = 60


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CloudProject:
    result = CloudProject(tmp_path, monkeypatch)
    os.mkfifo(result.state / "gate")
    return result


def create_command(cloud: CloudProject) -> Callable[[], None]:
    request = drive.PlatformRequest(
        str(cloud.file), cloud.out, "", ClusterOptions("", ""), is_confirmed=True, settings=StepRunnerSettings(pace=0)
    )
    return lambda: drive.run_create(drive.render_requested_platform(request), request)


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for a condition, with a long timeout."""
    for _ in range(WITHIN_SECONDS * 50):
        if is_so():
            return
        Event().wait(0.02)
    raise AssertionError(f"timeout: {what}")


def start_hanging_create(cloud: CloudProject) -> int:
    """Start a create whose command hangs while it makes the bucket."""
    cloud.inject_fault(MAKES_BUCKET, "hang")
    child = start_process(create_command(cloud), cloud.reported)
    wait_until(lambda: any("buckets create" in call for call in cloud.calls), "the bucket is being made")
    return child


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_ends_command_and_reports_how_to_resume(cloud: CloudProject, number: signal.Signals) -> None:
    child = start_hanging_create(cloud)
    os.kill(child, number)
    assert wait_for_exit(child) == drive.INTERRUPTED_EXIT_CODE
    reported = cloud.reported.read_text("utf-8")
    assert "interrupted gcloud, waiting until it ends" in reported
    assert "create stopped at step state-bucket; run the same command again" in reported
    assert "bucket" not in cloud.effects
    assert [entry["event"] for entry in StepJournal(cloud.out).entries()][-1] == "interrupted"


def test_create_resumes_after_interrupt(cloud: CloudProject) -> None:
    child = start_hanging_create(cloud)
    os.kill(child, signal.SIGINT)
    wait_for_exit(child)
    assert run_in_process(create_command(cloud), cloud.reported) == 0
    assert cloud.effects.count("bucket") == 1


def test_create_waits_for_command_of_killed_create(cloud: CloudProject) -> None:
    child = start_hanging_create(cloud)
    os.kill(child, signal.SIGKILL)
    assert wait_for_exit(child) == -signal.SIGKILL
    other = start_process(create_command(cloud), cloud.reported)
    wait_until(lambda: "of an earlier run" in cloud.reported.read_text("utf-8"), "the next one waits")
    assert "bucket" not in cloud.effects
    (cloud.state / "gate").write_text("go\n", "utf-8")
    assert wait_for_exit(other) == 0
    assert cloud.effects.count("bucket") == 1


def test_command_above_time_limit_is_terminated(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    with FolderLock(tmp_path, fail) as lock:
        command = StepCommand(("sh", "-c", "read word <gate"), limit_seconds=0)
        answer = CommandRunner(tmp_path, lock, fail).run_logged(command, tmp_path / "log", ignore_line)
    assert answer.code == TOO_LONG
    assert "took longer than 0 s" in (tmp_path / "log").read_text("utf-8")


def test_missing_program_is_reported(tmp_path: Path) -> None:
    with FolderLock(tmp_path, fail) as lock:
        answer = CommandRunner(tmp_path, lock, fail).run_probe(StepCommand(("no-such-program",)), ignore_line)
    assert (answer.code, answer.main_error) == (
        NO_SUCH_PROGRAM,
        "no-such-program: program not found on the PATH; install it first",
    )


def ignore_line(line: str, seconds: float) -> None:
    """Ignore the line."""


def fail(line: str) -> None:
    raise AssertionError(line)


def test_command_receives_input(tmp_path: Path) -> None:
    with FolderLock(tmp_path, fail) as lock:
        command = StepCommand(("cat",), stdin_text="a document")
        assert CommandRunner(tmp_path, lock, fail).run_probe(command, ignore_line).stdout == "a document"


def test_journal_continues_after_truncated_line(tmp_path: Path) -> None:
    (tmp_path / ".batchyard").mkdir()
    journal = StepJournal(tmp_path)
    journal.note(event="run", verb="create")
    with (tmp_path / ".batchyard/steps.jsonl").open("a") as file:
        file.write('{"event": "don')
    journal.note(event="finished", verb="create")
    assert [entry["event"] for entry in journal.entries()] == ["run", "finished"]


def run_at_terminal(cloud: CloudProject, verb: str, typed: str) -> tuple[int, str]:
    """Run the command at a terminal, and type this answer to its first question; return the exit code and output."""
    main, side = pty.openpty()
    command = [sys.executable, "-m", "batchyard", "platform", verb, str(cloud.file), "--out", str(cloud.out)]
    with subprocess.Popen(command, stdin=side, stdout=side, stderr=side) as process:
        os.close(side)
        shown = ""
        while "Type small to continue" not in shown and "[y/N]" not in shown:
            shown += os.read(main, 4096).decode()
        os.write(main, typed.encode() + b"\n")
        shown += remaining_output(main)
    os.close(main)
    return process.returncode, shown


def remaining_output(terminal: int) -> str:
    """Return all output until the other side closes the terminal."""
    shown = b""
    while True:
        try:
            shown += os.read(terminal, 4096)
        except OSError:
            return shown.decode()


def test_declined_create_makes_nothing(cloud: CloudProject) -> None:
    code, shown = run_at_terminal(cloud, "create", "n")
    assert code == 1
    assert "state-bucket: declined" in shown
    assert "bucket" not in cloud.effects


def test_destroy_requires_typed_platform_name(cloud: CloudProject) -> None:
    assert run_in_process(create_command(cloud), cloud.reported) == 0
    (cloud.state / "protected").unlink()
    code, shown = run_at_terminal(cloud, "destroy", "smal")
    assert (code, "confirm: declined" in shown) == (1, True)
    assert "stopped" not in cloud.effects
    code, shown = run_at_terminal(cloud, "destroy", "small")
    assert code == 0, shown
    assert cloud.effects[-1] == "unmade network"
