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
from typing import Final, NoReturn

from batchyard.cli import output
from batchyard.cli.options import ProgressFormat
from batchyard.cli.platform.asking import TerminalConfirmation
from batchyard.cli.platform.display import LineDisplay, display_for
from batchyard.cli.platform.driving import StepRunner, StepRunnerSettings, StoppedError, probe_steps
from batchyard.cli.platform.files import read_source, sound_platform
from batchyard.cli.platform.happenings import Display, ProgressKind
from batchyard.cli.platform.journal import StepJournal
from batchyard.cli.platform.lock import BusyError, Lock
from batchyard.cli.platform.processes import CommandRunner
from batchyard.cli.platform.render import contents_of, write
from batchyard.cli.platform.target import ClusterOptions, TargetError, reached_by, settled
from batchyard.provision.model import PlatformModel
from batchyard.provision.render import render
from batchyard.provision.steps.cluster import ClusterConnection
from batchyard.provision.steps.create import create
from batchyard.provision.steps.destroy import destroy, leftovers
from batchyard.provision.steps.model import Leftover, PlatformStep, StepCommand
from batchyard.provision.system_pods import system_pod_faults

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
