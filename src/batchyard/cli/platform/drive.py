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
from batchyard.cli.options import Telling
from batchyard.cli.platform.asking import Asked
from batchyard.cli.platform.display import Lines, display_for
from batchyard.cli.platform.driving import Driver, Settings, StoppedError, looked_at
from batchyard.cli.platform.files import read_source, sound_platform
from batchyard.cli.platform.happenings import Display, Kind
from batchyard.cli.platform.journal import Journal
from batchyard.cli.platform.lock import BusyError, Lock
from batchyard.cli.platform.processes import Processes
from batchyard.cli.platform.render import contents_of, write
from batchyard.cli.platform.target import TargetError, Wanted, reached_by, settled
from batchyard.provision.model import Platform
from batchyard.provision.render import render
from batchyard.provision.steps.cluster import Reached
from batchyard.provision.steps.create import create
from batchyard.provision.steps.destroy import destroy, leftovers
from batchyard.provision.steps.model import Command, Leftover, Step
from batchyard.provision.system_pods import system_pod_faults

INTERRUPTED: Final = 130
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of the commands."""

    file: str
    #: The rendered folder; None: named after the platform, in the current folder.
    out: Path | None
    project: str
    cluster: Wanted
    is_yes: bool = False
    is_dry: bool = False
    #: Whether create removes objects that the file no longer contains, without asking.
    is_pruning: bool = False
    telling: Telling = Telling.TEXT
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True, slots=True)
class Work:
    """A platform, its rendered files, and their folder."""

    platform: Platform
    files: Mapping[str, str]
    folder: Path

    def create(self, reached: Reached, is_pruning: bool = False) -> list[Step]:
        """The steps that create the platform."""
        return create(self.platform, self.files, reached, is_pruning=is_pruning)

    def destroy(self, reached: Reached, is_unprotecting: bool) -> list[Step]:
        """The steps that remove the platform."""
        return destroy(self.platform, self.files, reached, is_unprotecting=is_unprotecting)


def work_of(request: Request) -> Work:
    """The platform of a request; ends the command with 1 if the file is invalid or names no project."""
    platform = sound_platform(read_source(request.file), request.project)
    if platform.google is not None and not platform.google.project:
        output.fail("batchyard: no Google Cloud project is set; set spec.google.project, or use --project ID")
    folder = (request.out or Path(platform.name)).resolve()
    return Work(platform, render(platform), folder)


def run_create(work: Work, request: Request) -> None:
    """Create the platform or its missing parts; ends the command with 1 after a failed step, 130 after Ctrl-C."""
    for fault in system_pod_faults(work.platform):
        output.tell(f"batchyard: warning: {fault}")
    prunes = request.is_pruning or (not request.is_yes and (request.is_dry or sys.stdin.isatty()))
    if request.is_dry:
        _print_dry(work, request, work.create(reached_by(work.platform, request.cluster), prunes))
        return
    display = display_for(request.telling)
    with _locked(work, display) as (lock, journal):
        reached = _settled(work, request, journal)
        _write(work)
        counts = _driven(work, request, (lock, journal, display), work.create(reached, prunes), "create")
    passed = counts[Kind.PASSED] + counts[Kind.SKIPPED]
    display.tell(f"{work.platform.name} is ready: {counts[Kind.DONE]} steps done, {passed} skipped")
    for line in _how_to_look(work, reached):
        display.tell(f"  {line}")


def run_destroy(work: Work, request: Request, *, is_unprotecting: bool) -> None:
    """Destroy the platform and list what remains; ends the command with 1 after a failed step, 130 after Ctrl-C."""
    if request.is_dry:
        reached = reached_by(work.platform, request.cluster)
        _print_dry(work, request, work.destroy(reached, is_unprotecting))
        return
    display = display_for(request.telling)
    with _locked(work, display) as (lock, journal):
        reached = _settled(work, request, journal)
        _write(work)
        _driven(work, request, (lock, journal, display), work.destroy(reached, is_unprotecting), "destroy")
        stays = list(_staying(work, reached, Processes(work.folder, lock, display.tell), display))
    display.tell(f"{work.platform.name} is destroyed. Remaining resources:")
    if request.telling is Telling.JSON:
        rows = [{"name": row.name, "what": row.tells, "found": found, "remove": row.removal} for row, found in stays]
        output.write(json.dumps({"event": "stays", "leftovers": rows}) + "\n")
        return
    for row, found in stays:
        output.write(f"{row.name}: {row.tells}\n")
        output.write("".join(f"    {line}\n" for line in found))
        output.write(f"  to remove: {shlex.join(row.removal)}\n")


def run_status(work: Work, request: Request) -> None:
    """Print the state of each step's result; ends the command with 1 if one is missing."""
    display = Lines()
    with _locked(work, display) as (lock, journal):
        reached = _settled(work, request, journal)
        _write(work)
        found = looked_at(Processes(work.folder, lock, display.tell), display, work.create(reached))
    is_there = all(seen is not None and (seen.is_so or step.is_optional) for step, seen in found)
    if request.telling is Telling.JSON:
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


def _write(work: Work) -> None:
    """Write the rendered files; ends the command if they would overwrite the user's own."""
    in_the_way, _ = write(contents_of(work.platform), work.folder, overwrite=False)
    if in_the_way:
        message = "".join(f"\n  {path}" for path in in_the_way[:10])
        output.fail(
            f"batchyard: files in {work.folder} that were not rendered are in the way:{message}\nmove them, choose "
            "another folder with --out DIR, or replace them with `batchyard platform render --overwrite`"
        )


@contextmanager
def _locked(work: Work, display: Display) -> Iterator[tuple[Lock, Journal]]:
    """Lock the folder; SIGTERM is handled as Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Lock(work.folder, display.tell) as lock:
            yield lock, Journal(work.folder)
    except BusyError as busy:
        output.fail(f"batchyard: {busy}")
    except OSError as wrong:
        message = f"batchyard: {wrong.filename or work.folder}: {wrong.strerror}"
        if wrong.errno in _FULL:
            output.fail(f"{message}; free some space and run the command again: it resumes from here")
        output.fail(f"{message}; choose another folder with --out DIR")


def _settled(work: Work, request: Request, journal: Journal) -> Reached:
    try:
        return settled(work.platform, request.cluster, journal)
    except TargetError as wrong:
        output.fail(f"batchyard: {wrong}")


def _driven(
    work: Work, request: Request, means: tuple[Lock, Journal, Display], steps: Sequence[Step], verb: str
) -> dict[Kind, int]:
    """Run the steps; ends the command if one is not completed."""
    lock, journal, display = means
    unknown = sorted(request.settings.skipped - {step.name for step in steps})
    if unknown:
        output.fail(f"batchyard: unknown step {', '.join(unknown)}; --dry-run lists all steps")
    before = _unfinished(journal)
    if before:
        display.tell(f"an earlier {before} did not finish: completed steps are skipped")
    journal.note(event="run", verb=verb, platform=work.platform.name)
    driver = Driver(
        work.folder,
        Processes(work.folder, lock, display.tell),
        journal,
        display,
        Asked(work.platform.name, request.is_yes),
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
    display.tell(f"batchyard: {verb} ended at {stopped.step}; run the same command again to resume from there")
    raise SystemExit(INTERRUPTED if stopped.kind is Kind.INTERRUPTED else 1)


def _unfinished(journal: Journal) -> str:
    """The verb of the last run if it did not finish, else ''."""
    verb = ""
    for entry in journal.entries():
        if entry.get("event") == "run":
            verb = str(entry.get("verb"))
        elif entry.get("event") == "finished":
            verb = ""
    return verb


def _how_to_look(work: Work, reached: Reached) -> Iterator[str]:
    """Commands that show the queues of the new cluster."""
    if work.platform.google is not None:
        place = Path(reached.kubeconfig)
        yield f"export KUBECONFIG={shlex.quote(str(place if place.is_absolute() else work.folder / place))}"
        yield "kubectl get clusterqueues"
    else:
        yield _shell(reached.kubectl("get", "clusterqueues"))


def _staying(
    work: Work, reached: Reached, processes: Processes, display: Display
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


def _print_dry(work: Work, request: Request, steps: Sequence[Step]) -> None:
    """Print every command that would run, in order, without running any."""
    if request.telling is Telling.JSON:
        rows = [_dry_row(step) for step in steps]
        output.write(json.dumps({"folder": str(work.folder), "steps": rows}, indent=4) + "\n")
        return
    output.write(f"# the rendered files are written to this folder first\ncd {shlex.quote(str(work.folder))}\n")
    for number, step in enumerate(steps, 1):
        output.write(f"\n# {number}/{len(steps)} {step.name}: {step.tells}\n")
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


def _dry_row(step: Step) -> dict[str, object]:
    return {
        "step": step.name,
        "tells": step.tells,
        "asks": step.consent.beforehand if step.consent else None,
        "probes": [list(probe.command.full_argv) for probe in step.probes],
        "commands": [list(command.full_argv) for command in step.commands],
    }


def _shell(command: Command) -> str:
    """Format a command for a shell."""
    pairs = "".join(f"{name}={shlex.quote(value)} " for name, value in command.environment)
    sent = f" <<< {shlex.quote(command.sent)}" if command.sent else ""
    return f"{pairs}{shlex.join(command.argv)}{sent}"
