"""The commands `batchyard platform create`, `status` and `destroy`: render a platform, and run or check its steps."""

import errno
import json
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import typer

from batchyard.base.counts import count_with_noun
from batchyard.cli import output
from batchyard.cli.options import ProgressFormat
from batchyard.cli.platform.journal import FolderBusyError, FolderLock, StepJournal
from batchyard.cli.platform.processes import CommandRunner
from batchyard.cli.platform.render import contents_by_path, write_platform_files
from batchyard.cli.platform.step_runner import (
    Display,
    ProgressEvent,
    ProgressKind,
    RunStoppedError,
    StepRunner,
    StepRunnerSettings,
    format_seconds,
    probe_steps,
)
from batchyard.cli.platform.target import (
    ClusterOptions,
    TargetError,
    read_source,
    read_valid_platform,
    requested_connection,
    resolve_connection,
)
from batchyard.provision.model import PlatformModel
from batchyard.provision.render import render
from batchyard.provision.steps.cluster import ClusterConnection
from batchyard.provision.steps.destroy import creation_steps, destruction_steps, leftovers
from batchyard.provision.steps.model import Leftover, PlatformStep, StepCommand
from batchyard.provision.system_pods import system_pod_errors

# Progress output of steps: permanent lines and a status line on a terminal, lines only elsewhere, or JSON lines.


if TYPE_CHECKING:
    from rich.status import Status

_KIND_TEXTS: Final = {
    ProgressKind.PASSED: "ok",
    ProgressKind.SKIPPED: "not needed",
    ProgressKind.DONE: "done",
    ProgressKind.UNMET: "failed, optional",
    ProgressKind.REFUSED: "declined",
    ProgressKind.FAILED: "FAILED",
    ProgressKind.INTERRUPTED: "interrupted",
    ProgressKind.RETRIED: "retry",
    ProgressKind.WAITING: "waiting",
    ProgressKind.BEGUN: "...",
}
_KIND_STYLES: Final = {
    ProgressKind.PASSED: "dim",
    ProgressKind.SKIPPED: "dim",
    ProgressKind.DONE: "green",
    ProgressKind.UNMET: "yellow",
    ProgressKind.FAILED: "bold red",
    ProgressKind.INTERRUPTED: "yellow",
    ProgressKind.RETRIED: "yellow",
}
#: Kinds of events that are shown in the status line only, because a result follows.
_TRANSIENT_KINDS: Final = frozenset({ProgressKind.BEGUN, ProgressKind.WAITING})


def display_for(progress_format: ProgressFormat) -> Display:
    """Return the progress display for an output format; text has a status line if standard error is a terminal."""
    if progress_format is ProgressFormat.JSON:
        return JsonDisplay()
    return TerminalDisplay() if sys.stderr.isatty() else LineDisplay()


def format_progress_event(event: ProgressEvent) -> str:
    """Format a step's progress event as a line such as `[12/31] terraform-apply: done (8m40s)`."""
    step = event.step
    step_prefix = f"[{event.number:>{len(str(event.total))}}/{event.total}] {step.name}: "
    if event.kind is ProgressKind.BEGUN:
        return step_prefix + step.purpose + (f" ({event.description})" if event.description else "")
    result_text = "already done" if event.kind is ProgressKind.PASSED and step.commands else _KIND_TEXTS[event.kind]
    text = result_text + (f": {event.description}" if event.description else "")
    is_duration_shown = (
        event.kind in (ProgressKind.DONE, ProgressKind.FAILED, ProgressKind.INTERRUPTED, ProgressKind.UNMET)
        and event.seconds >= 1
    )
    return step_prefix + text + (f" ({format_seconds(event.seconds)})" if is_duration_shown else "")


def format_failure_lines(progress_event: ProgressEvent) -> list[str]:
    """Return details of a failed step: the command's last output lines, its log file, and the step's remedy."""
    lines = [f"    {line}" for line in progress_event.tail]
    if progress_event.log:
        lines.append(f"  full log: {progress_event.log}")
    if progress_event.step.remedy:
        lines.append(f"  remedy: {progress_event.step.remedy}")
    return lines


class LineDisplay:
    """A progress display that prints each event of a step as one line, for output to a file."""

    def show(self, progress_event: ProgressEvent) -> None:
        """Print an event of a step; after a failure, also the last output lines and the remedy."""
        output.report_line(format_progress_event(progress_event))
        if progress_event.kind is ProgressKind.FAILED:
            for line in format_failure_lines(progress_event):
                output.report_line(line)

    def show_progress(self, line: str, seconds: float) -> None:
        """Do nothing: updates about a running command would fill the output file."""

    def report(self, line: str) -> None:
        """Print a line to standard error."""
        output.report_line(line)

    def clear_status(self) -> None:
        """Do nothing, because this display has no status line."""


class TerminalDisplay:
    """A progress display for terminals: a line for each result of a step, and a status line about the current step."""

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415 - slow to load

        self._console = Console(stderr=True, highlight=False)
        self._status: Status | None = None
        self._current_line = ""

    def show(self, progress_event: ProgressEvent) -> None:
        """Print the result of a step as a line, or show in the status line that the step begins or waits."""
        if progress_event.kind in _TRANSIENT_KINDS:
            self._current_line = format_progress_event(progress_event)
            self._update_status(self._current_line)
            return
        self.clear_status()
        self._write(format_progress_event(progress_event), _KIND_STYLES.get(progress_event.kind, ""))
        if progress_event.kind is ProgressKind.FAILED:
            for line in format_failure_lines(progress_event):
                self._write(line, "")

    def show_progress(self, line: str, seconds: float) -> None:
        """After one second, show the last output line and the run time of the running command in the status line."""
        if seconds < 1:
            return
        self._update_status(f"{self._current_line}  {format_seconds(seconds)}  {line}")

    def report(self, line: str) -> None:
        """Remove the status line and print this line."""
        self.clear_status()
        self._write(line, "")

    def clear_status(self) -> None:
        """Remove the status line."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _update_status(self, text: str) -> None:
        from rich.text import Text  # noqa: PLC0415 - slow to load

        status_text = Text(text, overflow="ellipsis", no_wrap=True)
        if self._status is None:
            self._status = self._console.status(status_text)
            self._status.start()
        else:
            self._status.update(status_text)

    def _write(self, line: str, style: str) -> None:
        self._console.print(line, style=style or None, markup=False, soft_wrap=True)


class JsonDisplay:
    """A progress display that prints events of steps as JSON to standard output, other lines to standard error."""

    def show(self, event: ProgressEvent) -> None:
        """Print an event of a step as one JSON line."""
        event_fields: dict[str, object] = {"event": event.kind.value, "step": event.step.name}
        event_fields |= {"number": event.number, "total": event.total, "what": event.description}
        event_fields["seconds"] = round(event.seconds, 1)
        if event.kind is ProgressKind.FAILED:
            event_fields |= {"tail": list(event.tail), "log": event.log, "remedy": event.step.remedy}
        output.write(json.dumps(event_fields) + "\n")

    def show_progress(self, line: str, seconds: float) -> None:
        """Do nothing: programs that read the JSON lines receive only events of steps."""

    def report(self, line: str) -> None:
        """Print a line to standard error."""
        output.report_line(line)

    def clear_status(self) -> None:
        """Do nothing, because this display has no status line."""


# Confirmation before steps that cost money or destroy resources: at the terminal, or by --yes.


@dataclass(frozen=True, slots=True)
class TerminalConfirmation:
    """Asks the user at the terminal to confirm a step, unless the option --yes has confirmed all steps."""

    #: The platform's name, which the user types to confirm a destruction.
    name: str
    #: Whether the user confirmed with --yes.
    is_confirmed: bool

    def confirm(self, question: str, destroys: bool) -> bool:
        """Return whether the user confirms; a step that destroys data needs the platform's name as the answer.

        The answer is True with --yes, otherwise False without a terminal. Raises KeyboardInterrupt after Ctrl-C.
        """
        if self.is_confirmed:
            output.report_line(f"{question} (--yes)")
            return True
        if not sys.stdin.isatty():
            output.report_line(f"{question}\nbatchyard: no terminal to ask for confirmation: use --yes to confirm")
            return False
        try:
            if destroys:
                text = f"{question}\nType {self.name} to continue"
                typed_text = typer.prompt(text, default="", show_default=False, err=True)
                return bool(typed_text.strip() == self.name)
            return bool(typer.confirm(f"{question}\nContinue?", err=True))
        except typer.Abort:
            raise KeyboardInterrupt from None


INTERRUPTED_EXIT_CODE: Final = 130
_DISK_FULL_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True)
class PlatformRequest:
    """The arguments of the commands `batchyard platform create`, `status` and `destroy`."""

    file: str
    #: The rendered folder; None selects ./NAME, where NAME is the platform's name.
    out: Path | None
    project: str
    cluster: ClusterOptions
    is_confirmed: bool = False
    is_dry_run: bool = False
    #: Whether `create` removes objects that the file no longer contains, without asking.
    is_pruning: bool = False
    progress_format: ProgressFormat = ProgressFormat.TEXT
    settings: StepRunnerSettings = field(default_factory=StepRunnerSettings)


@dataclass(frozen=True, slots=True)
class RenderedPlatform:
    """A platform, the texts of its rendered files by path, and the folder to write the files to."""

    platform: PlatformModel
    files: Mapping[str, str]
    folder: Path

    def creation_steps(self, connection: ClusterConnection, is_pruning: bool = False) -> list[PlatformStep]:
        """Return the steps that create the platform; with `is_pruning`, also remove objects no longer rendered."""
        return creation_steps(self.platform, self.files, connection, is_pruning=is_pruning)

    def destruction_steps(self, connection: ClusterConnection, is_unprotecting: bool) -> list[PlatformStep]:
        """Return the steps that destroy the platform; `is_unprotecting` turns off deletion protection on GKE."""
        return destruction_steps(self.platform, self.files, connection, is_unprotecting=is_unprotecting)


def render_requested_platform(request: PlatformRequest) -> RenderedPlatform:
    """Render the requested platform; the command exits if the platform file is invalid or lacks the Google project."""
    platform = read_valid_platform(read_source(request.file), request.project)
    if platform.google is not None and not platform.google.project:
        remedy = "set spec.google.project, or use --project ID"
        output.fail(f"batchyard: {request.file} sets no Google Cloud project; {remedy}")
    folder = (request.out or Path(platform.name)).resolve()
    return RenderedPlatform(platform, render(platform), folder)


def run_create(rendered_platform: RenderedPlatform, request: PlatformRequest) -> None:
    """Create the platform or its missing resources, or print the steps of a dry run.

    Exits with 1 if a step fails or is declined, with 130 after Ctrl-C.
    """
    for fault in system_pod_errors(rendered_platform.platform):
        output.report_line(f"batchyard: warning: {fault}")
    is_pruning = request.is_pruning or (not request.is_confirmed and (request.is_dry_run or sys.stdin.isatty()))
    if request.is_dry_run:
        connection = requested_connection(rendered_platform.platform, request.cluster)
        _print_dry_run(rendered_platform, request, rendered_platform.creation_steps(connection, is_pruning))
        return
    display = display_for(request.progress_format)
    with _lock_folder(rendered_platform, display) as (lock, journal):
        connection = _find_connection(rendered_platform, request, journal)
        _write_files(rendered_platform)
        steps = rendered_platform.creation_steps(connection, is_pruning)
        outcomes = _run_steps(rendered_platform, request, (lock, journal, display), steps, "create")
    skipped_count = outcomes[ProgressKind.PASSED] + outcomes[ProgressKind.SKIPPED]
    steps_text = f"{count_with_noun(outcomes[ProgressKind.DONE], 'step')} done, {skipped_count} skipped"
    display.report(f"{rendered_platform.platform.name} is ready: {steps_text}")
    for line in _queue_commands(rendered_platform, connection):
        display.report(f"  {line}")


def run_destroy(rendered_platform: RenderedPlatform, request: PlatformRequest, *, is_unprotecting: bool) -> None:
    """Destroy the platform and list the remaining resources, or print the steps of a dry run.

    Exits with 1 if a step fails or is declined, with 130 after Ctrl-C.
    """
    if request.is_dry_run:
        connection = requested_connection(rendered_platform.platform, request.cluster)
        _print_dry_run(rendered_platform, request, rendered_platform.destruction_steps(connection, is_unprotecting))
        return
    display = display_for(request.progress_format)
    with _lock_folder(rendered_platform, display) as (lock, journal):
        connection = _find_connection(rendered_platform, request, journal)
        _write_files(rendered_platform)
        steps = rendered_platform.destruction_steps(connection, is_unprotecting)
        _run_steps(rendered_platform, request, (lock, journal, display), steps, "destroy")
        runner = CommandRunner(rendered_platform.folder, lock, display.report)
        remaining_leftovers = list(_find_leftovers(rendered_platform, connection, runner, display))
    display.report(f"{rendered_platform.platform.name} is destroyed. Remaining resources:")
    if request.progress_format is ProgressFormat.JSON:
        leftover_rows = [
            {"name": leftover.name, "what": leftover.purpose, "found": resource_lines, "remove": leftover.removal}
            for leftover, resource_lines in remaining_leftovers
        ]
        output.write(json.dumps({"event": "stays", "leftovers": leftover_rows}) + "\n")
        return
    for leftover, resource_lines in remaining_leftovers:
        output.write(f"{leftover.name}: {leftover.purpose}\n")
        output.write("".join(f"    {line}\n" for line in resource_lines))
        output.write(f"  to remove: {shlex.join(leftover.removal)}\n")


def run_status(rendered_platform: RenderedPlatform, request: PlatformRequest) -> None:
    """Print for each step of `create` that has probes whether its result exists, after writing the rendered files.

    Exits with 1 if a required result is missing, or if a step was not probed.
    """
    display = LineDisplay()
    with _lock_folder(rendered_platform, display) as (lock, journal):
        connection = _find_connection(rendered_platform, request, journal)
        _write_files(rendered_platform)
        runner = CommandRunner(rendered_platform.folder, lock, display.report)
        probe_results = probe_steps(runner, display, rendered_platform.creation_steps(connection))
    is_present = all(result is not None and (result.is_satisfied or step.is_optional) for step, result in probe_results)
    if request.progress_format is ProgressFormat.JSON:
        step_rows = [
            {
                "step": step.name,
                "isThere": None if result is None else result.is_satisfied,
                "what": result.description if result else "",
            }
            for step, result in probe_results
        ]
        document = {"platform": rendered_platform.platform.name, "isThere": is_present, "steps": step_rows}
        output.write(json.dumps(document, indent=4) + "\n")
    else:
        for step, result in probe_results:
            state = "unknown" if result is None else "present" if result.is_satisfied else "MISSING"
            description = f"{step.name}: {result.description}" if result and result.description else step.name
            output.write(f"{state:<8} {description}\n")
    if not is_present:
        raise SystemExit(1)


def _write_files(rendered_platform: RenderedPlatform) -> None:
    paths, _ = write_platform_files(
        contents_by_path(rendered_platform.platform), rendered_platform.folder, overwrite=False
    )
    if paths:
        message = "".join(f"\n  {path}" for path in paths[:10])
        message += f"\n  and {len(paths) - 10} more" if len(paths) > 10 else ""
        output.fail(
            f"batchyard: rendering would overwrite files in {rendered_platform.folder} that it did not write:"
            f"{message}\nmove those files, choose another folder with --out DIR, or replace the "
            "files with `batchyard platform render --overwrite`"
        )


@contextmanager
def _lock_folder(rendered_platform: RenderedPlatform, display: Display) -> Iterator[tuple[FolderLock, StepJournal]]:
    """Lock the folder during the `with` block; from then on, SIGTERM acts like Ctrl-C, also after the block."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with FolderLock(rendered_platform.folder, display.report) as lock:
            yield lock, StepJournal(rendered_platform.folder)
    except FolderBusyError as busy:
        output.fail(f"batchyard: {busy}")
    except OSError as error:
        message = f"batchyard: {error.filename or rendered_platform.folder}: {error.strerror}"
        if error.errno in _DISK_FULL_ERRORS:
            output.fail(f"{message}; free disk space and run the command again to resume")
        output.fail(f"{message}; check its permissions, or choose another folder with --out DIR")


def _find_connection(
    rendered_platform: RenderedPlatform, request: PlatformRequest, journal: StepJournal
) -> ClusterConnection:
    try:
        return resolve_connection(rendered_platform.platform, request.cluster, journal)
    except TargetError as error:
        output.fail(f"batchyard: {error}")


def _run_steps(
    rendered_platform: RenderedPlatform,
    request: PlatformRequest,
    lock_journal_display: tuple[FolderLock, StepJournal, Display],
    steps: Sequence[PlatformStep],
    verb: str,
) -> dict[ProgressKind, int]:
    """Run the steps and return how many ended with each ProgressKind; exit if a step fails or the run is interrupted.

    `verb` is the subcommand of `batchyard platform`, such as `create`, for the journal and for messages.
    """
    lock, journal, display = lock_journal_display
    unknown_steps = sorted(request.settings.skipped_steps - {step.name for step in steps})
    if unknown_steps:
        noun = "steps" if len(unknown_steps) > 1 else "step"
        output.fail(f"batchyard: unknown {noun} {', '.join(unknown_steps)} in --skip; --dry-run lists all steps")
    unfinished_command = _unfinished_command(journal)
    if unfinished_command:
        display.report(f"the previous {unfinished_command} did not finish: its completed steps are skipped")
    journal.note(event="run", verb=verb, platform=rendered_platform.platform.name)
    runner = StepRunner(
        rendered_platform.folder,
        CommandRunner(rendered_platform.folder, lock, display.report),
        journal,
        display,
        TerminalConfirmation(rendered_platform.platform.name, request.is_confirmed),
        request.settings,
    )
    try:
        outcome_counts = runner.run(steps)
    except RunStoppedError as stopped:
        _exit_after_stop(stopped, verb, display)
    finally:
        display.clear_status()
    journal.note(event="finished", verb=verb)
    return outcome_counts


def _exit_after_stop(error: RunStoppedError, verb: str, display: Display) -> NoReturn:
    display.clear_status()
    display.report(f"batchyard: {verb} stopped at step {error.step}; run the same command again to resume")
    raise SystemExit(INTERRUPTED_EXIT_CODE if error.kind is ProgressKind.INTERRUPTED else 1)


def _unfinished_command(journal: StepJournal) -> str:
    verb = ""
    for entry in journal.entries():
        if entry.get("event") == "run":
            verb = str(entry.get("verb"))
        elif entry.get("event") == "finished":
            verb = ""
    return verb


def _queue_commands(rendered_platform: RenderedPlatform, connection: ClusterConnection) -> Iterator[str]:
    if rendered_platform.platform.google is not None:
        kubeconfig = Path(connection.kubeconfig)
        path = kubeconfig if kubeconfig.is_absolute() else rendered_platform.folder / kubeconfig
        yield f"export KUBECONFIG={shlex.quote(str(path))}"
        yield "kubectl get clusterqueues"
    else:
        yield _format_shell_command(connection.kubectl("get", "clusterqueues"))


def _find_leftovers(
    rendered_platform: RenderedPlatform, connection: ClusterConnection, command_runner: CommandRunner, display: Display
) -> Iterator[tuple[Leftover, list[str]]]:
    for leftover in leftovers(rendered_platform.platform, connection, str(rendered_platform.folder)):
        if leftover.list_command is None:
            yield leftover, []
            continue
        command_output = command_runner.run_probe(leftover.list_command, display.show_progress)
        resource_lines = [line.strip() for line in command_output.stdout.splitlines() if line.strip()]
        if resource_lines:
            yield leftover, resource_lines


def _print_dry_run(
    rendered_platform: RenderedPlatform, request: PlatformRequest, steps: Sequence[PlatformStep]
) -> None:
    if request.progress_format is ProgressFormat.JSON:
        step_rows = [_dry_run_row(step) for step in steps]
        output.write(json.dumps({"folder": str(rendered_platform.folder), "steps": step_rows}, indent=4) + "\n")
        return
    output.write(
        f"# the rendered files are written to this folder first\ncd {shlex.quote(str(rendered_platform.folder))}\n"
    )
    for number, step in enumerate(steps, 1):
        output.write(f"\n# {number}/{len(steps)} {step.name}: {step.purpose}\n")
        if step.consent is not None:
            output.write(f"#   asks first: {step.consent.preview}\n")
        if step.only_if is not None:
            output.write(f"#   only if this command confirms it: {_format_shell_command(step.only_if.command)}\n")
        for probe in step.probes:
            probe_conjunction = "unless" if step.commands else "until" if step.patience_seconds else "if"
            output.write(f"#   {probe_conjunction} this command confirms it: {_format_shell_command(probe.command)}\n")
        for command in step.commands:
            input_note = " <<< FROM-PROBES" if step.stdin_from_probes else ""
            output.write(f"{_format_shell_command(command)}{input_note}\n")


def _dry_run_row(step: PlatformStep) -> dict[str, object]:
    return {
        "step": step.name,
        "purpose": step.purpose,
        "confirmation": step.consent.preview if step.consent else None,
        "probes": [list(probe.command.full_argv) for probe in step.probes],
        "commands": [list(command.full_argv) for command in step.commands],
    }


def _format_shell_command(command: StepCommand) -> str:
    environment_assignments = "".join(f"{name}={shlex.quote(value)} " for name, value in command.environment)
    input_text = f" <<< {shlex.quote(command.stdin_text)}" if command.stdin_text else ""
    return f"{environment_assignments}{shlex.join(command.argv)}{input_text}"
