"""`batchyard platform create`, `status` and `destroy`: render a platform and run its steps."""

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

from batchyard.cli import output
from batchyard.cli.options import ProgressFormat
from batchyard.cli.platform.journal import BusyError, Lock, StepJournal
from batchyard.cli.platform.processes import CommandRunner
from batchyard.cli.platform.render import contents_of, write
from batchyard.cli.platform.step_runner import (
    Display,
    ProgressEvent,
    ProgressKind,
    StepRunner,
    StepRunnerSettings,
    StoppedError,
    duration_text,
    probe_steps,
)
from batchyard.cli.platform.target import ClusterOptions, TargetError, reached_by, read_source, settled, sound_platform
from batchyard.provision.model import PlatformModel
from batchyard.provision.render import render
from batchyard.provision.steps.cluster import ClusterConnection
from batchyard.provision.steps.destroy import create, destroy, leftovers
from batchyard.provision.steps.model import Leftover, PlatformStep, StepCommand
from batchyard.provision.system_pods import system_pod_faults

# --- display ---
#
# Progress output of steps: permanent lines and a status line on a terminal, lines only elsewhere, or JSON lines.


if TYPE_CHECKING:
    from rich.status import Status

_MARKS: Final = {
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
_COLORS: Final = {
    ProgressKind.PASSED: "dim",
    ProgressKind.SKIPPED: "dim",
    ProgressKind.DONE: "green",
    ProgressKind.UNMET: "yellow",
    ProgressKind.FAILED: "bold red",
    ProgressKind.INTERRUPTED: "yellow",
    ProgressKind.RETRIED: "yellow",
}
#: Kinds that are soon followed by a result.
_PASSING: Final = frozenset({ProgressKind.BEGUN, ProgressKind.WAITING})


def display_for(reporting: ProgressFormat) -> Display:
    """The display that suits the output option and standard error."""
    if reporting is ProgressFormat.JSON:
        return JsonDisplay()
    return TerminalDisplay() if sys.stderr.isatty() else LineDisplay()


def line_of(happening: ProgressEvent) -> str:
    """A progress event as a line: `[12/31] terraform-apply: done (8m40s)`."""
    step = happening.step
    head = f"[{happening.number:>{len(str(happening.total))}}/{happening.total}] {step.name}: "
    if happening.kind is ProgressKind.BEGUN:
        return head + step.purpose + (f" ({happening.what})" if happening.what else "")
    mark = "already done" if happening.kind is ProgressKind.PASSED and step.commands else _MARKS[happening.kind]
    message = mark + (f": {happening.what}" if happening.what else "")
    is_long = (
        happening.kind in (ProgressKind.DONE, ProgressKind.FAILED, ProgressKind.INTERRUPTED, ProgressKind.UNMET)
        and happening.seconds >= 1
    )
    return head + message + (f" ({duration_text(happening.seconds)})" if is_long else "")


def lines_of_failure(happening: ProgressEvent) -> list[str]:
    """The last output of a failed command, its log file, and the remedy."""
    lines = [f"    {line}" for line in happening.tail]
    if happening.log:
        lines.append(f"  full log: {happening.log}")
    if happening.step.remedy:
        lines.append(f"  remedy: {happening.step.remedy}")
    return lines


class LineDisplay:
    """Prints one line per event."""

    def show(self, happening: ProgressEvent) -> None:
        """Print an event; a failure also with its details."""
        output.report_line(line_of(happening))
        if happening.kind is ProgressKind.FAILED:
            for line in lines_of_failure(happening):
                output.report_line(line)

    def tick(self, line: str, seconds: float) -> None:
        """Ignore a tick: it would fill a file."""

    def report(self, line: str) -> None:
        """Print a line."""
        output.report_line(line)

    def quiet(self) -> None:
        """Do nothing: there is no status line."""


class TerminalDisplay:
    """Prints lines, and below them a status line while a command runs."""

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415 - slow to load

        self._console = Console(stderr=True, highlight=False)
        self._status: Status | None = None
        self._now = ""

    def show(self, happening: ProgressEvent) -> None:
        """Print a finished event; show one that has just begun in the status line."""
        if happening.kind in _PASSING:
            self._now = line_of(happening)
            self._moves(self._now)
            return
        self.quiet()
        self._write(line_of(happening), _COLORS.get(happening.kind, ""))
        if happening.kind is ProgressKind.FAILED:
            for line in lines_of_failure(happening):
                self._write(line, "")

    def tick(self, line: str, seconds: float) -> None:
        """Show the last line of a command and its run time in the status line."""
        if seconds < 1:
            return
        self._moves(f"{self._now}  {duration_text(seconds)}  {line}")

    def report(self, line: str) -> None:
        """Print a line."""
        self.quiet()
        self._write(line, "")

    def quiet(self) -> None:
        """Remove the status line."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _moves(self, text: str) -> None:
        from rich.text import Text  # noqa: PLC0415 - slow to load

        shown = Text(text, overflow="ellipsis", no_wrap=True)
        if self._status is None:
            self._status = self._console.status(shown)
            self._status.start()
        else:
            self._status.update(shown)

    def _write(self, line: str, style: str) -> None:
        self._console.print(line, style=style or None, markup=False, soft_wrap=True)


class JsonDisplay:
    """Prints events as JSON lines on standard output, and lines about the run on standard error."""

    def show(self, happening: ProgressEvent) -> None:
        """Print an event."""
        fields: dict[str, object] = {"event": happening.kind.value, "step": happening.step.name}
        fields |= {"number": happening.number, "total": happening.total, "what": happening.what}
        fields["seconds"] = round(happening.seconds, 1)
        if happening.kind is ProgressKind.FAILED:
            fields |= {"tail": list(happening.tail), "log": happening.log, "remedy": happening.step.remedy}
        output.write(json.dumps(fields) + "\n")

    def tick(self, line: str, seconds: float) -> None:
        """Ignore a tick: programs get completed events only."""

    def report(self, line: str) -> None:
        """Print a line to standard error."""
        output.report_line(line)

    def quiet(self) -> None:
        """Do nothing: there is no status line."""


# --- asking ---
#
# Confirmation before steps that cost or destroy: at the terminal, by --yes, or denied.


@dataclass(frozen=True, slots=True)
class TerminalConfirmation:
    """Asks the user at the terminal."""

    #: The platform's name, which the user types to confirm a destruction.
    name: str
    #: Whether the user confirmed with --yes.
    is_yes: bool

    def agrees(self, question: str, destroys: bool) -> bool:
        """Whether the user agrees; False without a terminal and --yes."""
        if self.is_yes:
            output.report_line(f"{question} (--yes)")
            return True
        if not sys.stdin.isatty():
            output.report_line(f"{question}\nbatchyard: no terminal to ask for confirmation: use --yes to confirm")
            return False
        try:
            if destroys:
                typed = typer.prompt(
                    f"{question}\nType {self.name} to continue", default="", show_default=False, err=True
                )
                return bool(typed.strip() == self.name)
            return bool(typer.confirm(f"{question}\nContinue?", err=True))
        except typer.Abort:
            raise KeyboardInterrupt from None


INTERRUPTED: Final = 130
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True)
class PlatformRequest:
    """The arguments of the commands."""

    file: str
    #: The rendered folder; None: named after the platform, in the current folder.
    out: Path | None
    project: str
    cluster: ClusterOptions
    is_yes: bool = False
    is_dry: bool = False
    #: Whether create removes objects that the file no longer contains, without asking.
    is_pruning: bool = False
    reporting: ProgressFormat = ProgressFormat.TEXT
    settings: StepRunnerSettings = field(default_factory=StepRunnerSettings)


@dataclass(frozen=True, slots=True)
class RenderedPlatform:
    """A platform, its rendered files, and their folder."""

    platform: PlatformModel
    files: Mapping[str, str]
    folder: Path

    def create(self, reached: ClusterConnection, is_pruning: bool = False) -> list[PlatformStep]:
        """The steps that create the platform."""
        return create(self.platform, self.files, reached, is_pruning=is_pruning)

    def destroy(self, reached: ClusterConnection, is_unprotecting: bool) -> list[PlatformStep]:
        """The steps that remove the platform."""
        return destroy(self.platform, self.files, reached, is_unprotecting=is_unprotecting)


def work_of(request: PlatformRequest) -> RenderedPlatform:
    """The platform of a request; ends the command with 1 if the file is invalid or names no project."""
    platform = sound_platform(read_source(request.file), request.project)
    if platform.google is not None and not platform.google.project:
        output.fail("batchyard: no Google Cloud project is set; set spec.google.project, or use --project ID")
    folder = (request.out or Path(platform.name)).resolve()
    return RenderedPlatform(platform, render(platform), folder)


def run_create(work: RenderedPlatform, request: PlatformRequest) -> None:
    """Create the platform or its missing parts; ends the command with 1 after a failed step, 130 after Ctrl-C."""
    for fault in system_pod_faults(work.platform):
        output.report_line(f"batchyard: warning: {fault}")
    prunes = request.is_pruning or (not request.is_yes and (request.is_dry or sys.stdin.isatty()))
    if request.is_dry:
        _print_dry(work, request, work.create(reached_by(work.platform, request.cluster), prunes))
        return
    display = display_for(request.reporting)
    with _locked(work, display) as (lock, journal):
        reached = _settled(work, request, journal)
        _write(work)
        counts = _driven(work, request, (lock, journal, display), work.create(reached, prunes), "create")
    passed = counts[ProgressKind.PASSED] + counts[ProgressKind.SKIPPED]
    display.report(f"{work.platform.name} is ready: {counts[ProgressKind.DONE]} steps done, {passed} skipped")
    for line in _how_to_look(work, reached):
        display.report(f"  {line}")


def run_destroy(work: RenderedPlatform, request: PlatformRequest, *, is_unprotecting: bool) -> None:
    """Destroy the platform and list what remains; ends the command with 1 after a failed step, 130 after Ctrl-C."""
    if request.is_dry:
        reached = reached_by(work.platform, request.cluster)
        _print_dry(work, request, work.destroy(reached, is_unprotecting))
        return
    display = display_for(request.reporting)
    with _locked(work, display) as (lock, journal):
        reached = _settled(work, request, journal)
        _write(work)
        _driven(work, request, (lock, journal, display), work.destroy(reached, is_unprotecting), "destroy")
        stays = list(_staying(work, reached, CommandRunner(work.folder, lock, display.report), display))
    display.report(f"{work.platform.name} is destroyed. Remaining resources:")
    if request.reporting is ProgressFormat.JSON:
        rows = [{"name": row.name, "what": row.purpose, "found": found, "remove": row.removal} for row, found in stays]
        output.write(json.dumps({"event": "stays", "leftovers": rows}) + "\n")
        return
    for row, found in stays:
        output.write(f"{row.name}: {row.purpose}\n")
        output.write("".join(f"    {line}\n" for line in found))
        output.write(f"  to remove: {shlex.join(row.removal)}\n")


def run_status(work: RenderedPlatform, request: PlatformRequest) -> None:
    """Print the state of each step's result; ends the command with 1 if one is missing."""
    display = LineDisplay()
    with _locked(work, display) as (lock, journal):
        reached = _settled(work, request, journal)
        _write(work)
        found = probe_steps(CommandRunner(work.folder, lock, display.report), display, work.create(reached))
    is_there = all(seen is not None and (seen.is_so or step.is_optional) for step, seen in found)
    if request.reporting is ProgressFormat.JSON:
        rows = [
            {"step": step.name, "isThere": None if seen is None else seen.is_so, "what": seen.what if seen else ""}
            for step, seen in found
        ]
        output.write(json.dumps({"platform": work.platform.name, "isThere": is_there, "steps": rows}, indent=4) + "\n")
    else:
        for step, seen in found:
            word = "unknown" if seen is None else "present" if seen.is_so else "MISSING"
            what = f"{step.name}: {seen.what}" if seen and seen.what else step.name
            output.write(f"{word:<8} {what}\n")
    if not is_there:
        raise SystemExit(1)


def _write(work: RenderedPlatform) -> None:
    """Write the rendered files; ends the command if they would overwrite the user's own."""
    in_the_way, _ = write(contents_of(work.platform), work.folder, overwrite=False)
    if in_the_way:
        message = "".join(f"\n  {path}" for path in in_the_way[:10])
        output.fail(
            f"batchyard: files in {work.folder} that were not rendered are in the way:{message}\nmove them, choose "
            "another folder with --out DIR, or replace them with `batchyard platform render --overwrite`"
        )


@contextmanager
def _locked(work: RenderedPlatform, display: Display) -> Iterator[tuple[Lock, StepJournal]]:
    """Lock the folder; SIGTERM is handled as Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Lock(work.folder, display.report) as lock:
            yield lock, StepJournal(work.folder)
    except BusyError as busy:
        output.fail(f"batchyard: {busy}")
    except OSError as wrong:
        message = f"batchyard: {wrong.filename or work.folder}: {wrong.strerror}"
        if wrong.errno in _FULL:
            output.fail(f"{message}; free some space and run the command again: it resumes from here")
        output.fail(f"{message}; choose another folder with --out DIR")


def _settled(work: RenderedPlatform, request: PlatformRequest, journal: StepJournal) -> ClusterConnection:
    try:
        return settled(work.platform, request.cluster, journal)
    except TargetError as wrong:
        output.fail(f"batchyard: {wrong}")


def _driven(
    work: RenderedPlatform,
    request: PlatformRequest,
    means: tuple[Lock, StepJournal, Display],
    steps: Sequence[PlatformStep],
    verb: str,
) -> dict[ProgressKind, int]:
    """Run the steps; ends the command if one is not completed."""
    lock, journal, display = means
    unknown = sorted(request.settings.skipped - {step.name for step in steps})
    if unknown:
        output.fail(f"batchyard: unknown step {', '.join(unknown)}; --dry-run lists all steps")
    before = _unfinished(journal)
    if before:
        display.report(f"an earlier {before} did not finish: completed steps are skipped")
    journal.note(event="run", verb=verb, platform=work.platform.name)
    driver = StepRunner(
        work.folder,
        CommandRunner(work.folder, lock, display.report),
        journal,
        display,
        TerminalConfirmation(work.platform.name, request.is_yes),
        request.settings,
    )
    try:
        counts = driver.drive(steps)
    except StoppedError as stopped:
        _end(stopped, verb, display)
    finally:
        display.quiet()
    journal.note(event="finished", verb=verb)
    return counts


def _end(stopped: StoppedError, verb: str, display: Display) -> NoReturn:
    display.quiet()
    display.report(f"batchyard: {verb} ended at {stopped.step}; run the same command again to resume from there")
    raise SystemExit(INTERRUPTED if stopped.kind is ProgressKind.INTERRUPTED else 1)


def _unfinished(journal: StepJournal) -> str:
    """The verb of the last run if it did not finish, else ''."""
    verb = ""
    for entry in journal.entries():
        if entry.get("event") == "run":
            verb = str(entry.get("verb"))
        elif entry.get("event") == "finished":
            verb = ""
    return verb


def _how_to_look(work: RenderedPlatform, reached: ClusterConnection) -> Iterator[str]:
    """Commands that show the queues of the new cluster."""
    if work.platform.google is not None:
        place = Path(reached.kubeconfig)
        yield f"export KUBECONFIG={shlex.quote(str(place if place.is_absolute() else work.folder / place))}"
        yield "kubectl get clusterqueues"
    else:
        yield _shell(reached.kubectl("get", "clusterqueues"))


def _staying(
    work: RenderedPlatform, reached: ClusterConnection, processes: CommandRunner, display: Display
) -> Iterator[tuple[Leftover, list[str]]]:
    """The resources that destroy keeps, with those found; a row whose probe finds nothing is omitted."""
    for row in leftovers(work.platform, reached, str(work.folder)):
        if row.look is None:
            yield row, []
            continue
        answer = processes.look(row.look, display.tick)
        found = [line.strip() for line in answer.printed.splitlines() if line.strip()]
        if found:
            yield row, found


def _print_dry(work: RenderedPlatform, request: PlatformRequest, steps: Sequence[PlatformStep]) -> None:
    """Print every command that would run, in order, without running any."""
    if request.reporting is ProgressFormat.JSON:
        rows = [_dry_row(step) for step in steps]
        output.write(json.dumps({"folder": str(work.folder), "steps": rows}, indent=4) + "\n")
        return
    output.write(f"# the rendered files are written to this folder first\ncd {shlex.quote(str(work.folder))}\n")
    for number, step in enumerate(steps, 1):
        output.write(f"\n# {number}/{len(steps)} {step.name}: {step.purpose}\n")
        if step.consent is not None:
            output.write(f"#   asks first: {step.consent.beforehand}\n")
        if step.only_if is not None:
            output.write(f"#   only if this command confirms it: {_shell(step.only_if.command)}\n")
        for probe in step.probes:
            word = "unless" if step.commands else "until" if step.patience_seconds else "if"
            output.write(f"#   {word} this command confirms it: {_shell(probe.command)}\n")
        for command in step.commands:
            sent = " <<< FROM-PROBES" if step.sends else ""
            output.write(f"{_shell(command)}{sent}\n")


def _dry_row(step: PlatformStep) -> dict[str, object]:
    return {
        "step": step.name,
        "tells": step.purpose,
        "asks": step.consent.beforehand if step.consent else None,
        "probes": [list(probe.command.full_argv) for probe in step.probes],
        "commands": [list(command.full_argv) for command in step.commands],
    }


def _shell(command: StepCommand) -> str:
    """Format a command for a shell."""
    pairs = "".join(f"{name}={shlex.quote(value)} " for name, value in command.environment)
    sent = f" <<< {shlex.quote(command.sent)}" if command.sent else ""
    return f"{pairs}{shlex.join(command.argv)}{sent}"
