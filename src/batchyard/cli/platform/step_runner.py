"""Runs steps in order: probes whether each is done, executes it if not, probes again, and writes the journal.

The probes decide which steps are done, not the journal. So a run after a failure, or after this process was killed,
executes only the remaining steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from threading import Event
from typing import Final, Protocol

from batchyard.cli.platform.journal import OWN_FOLDER, StepJournal
from batchyard.cli.platform.processes import CommandRunner
from batchyard.provision.steps.model import CommandOutput, PlatformStep, Probe, ProbeResult, StepCommand
from batchyard.server.clocks.wall import ticks

# --- progress events ---
#
# Progress events of the steps, and the interfaces of the display and the confirmation.


class ProgressKind(StrEnum):
    """What happened to a step."""

    BEGUN = "begun"
    #: Already done before this run.
    PASSED = "passed"
    #: Not applicable, or skipped by option.
    SKIPPED = "skipped"
    WAITING = "waiting"
    RETRIED = "retried"
    DONE = "done"
    #: An optional step failed; the run continues.
    UNMET = "unmet"
    FAILED = "failed"
    #: The user declined it.
    REFUSED = "refused"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """An event of a step: its number (from 1), the number of steps, a detail, and the seconds since its start."""

    kind: ProgressKind
    step: PlatformStep
    number: int
    total: int
    what: str = ""
    seconds: float = 0.0
    #: The last output lines of a failed command, and its log file.
    tail: tuple[str, ...] = ()
    log: str = ""


class Display(Protocol):
    """Shows progress events."""

    def show(self, happening: ProgressEvent) -> None:
        """Show an event."""

    def tick(self, line: str, seconds: float) -> None:
        """Update the progress of a running command: its last output line and its run time."""

    def report(self, line: str) -> None:
        """Print a line about the run."""

    def quiet(self) -> None:
        """Remove the status line: the terminal is used otherwise, or the run is over."""


class Confirmation(Protocol):
    """Asks the user for confirmation."""

    def agrees(self, question: str, destroys: bool) -> bool:
        """Whether the user agrees."""


def duration_text(seconds: float) -> str:
    """Format a duration: 8s, 2m10s, 1h04m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"


_TAIL_LINES: Final = 15
#: The seconds between two probes: at first, and at most.
_PAUSES: Final = (0.25, 5.0)


@dataclass(frozen=True, slots=True)
class StepRunnerSettings:
    """The factor on all pauses (for tests), and the steps to skip."""

    pace: float = 1.0
    skipped: frozenset[str] = frozenset()


class StoppedError(Exception):
    """A step failed, was declined or was interrupted; the steps after it did not run."""

    def __init__(self, kind: ProgressKind, step: str) -> None:
        super().__init__(step)
        self.kind = kind
        self.step = step


class RefusedError(Exception):
    """The user declined the cost or destruction of a step."""


class UnmetError(Exception):
    """A step cannot be completed: the reason, and the last output of its command."""

    def __init__(self, what: str, tail: tuple[str, ...] = (), log: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.tail = tail
        self.log = log


@dataclass(slots=True)
class StepRunner:
    """Runs the steps of a locked folder; holds the answers of probes that run once."""

    folder: Path
    processes: CommandRunner
    journal: StepJournal
    display: Display
    asking: Confirmation
    settings: StepRunnerSettings = field(default_factory=StepRunnerSettings)
    _memory: dict[StepCommand, CommandOutput] = field(default_factory=dict)

    def drive(self, steps: Sequence[PlatformStep]) -> dict[ProgressKind, int]:
        """Run all steps; return the number of each outcome. Raises StoppedError if a step is not completed."""
        counts = dict.fromkeys(ProgressKind, 0)
        for number, step in enumerate(steps, 1):
            counts[self._settled(step, number, len(steps))] += 1
        return counts

    def _settled(self, step: PlatformStep, number: int, total: int) -> ProgressKind:
        begun = ticks()

        def happened(kind: ProgressKind, what: str = "", tail: tuple[str, ...] = (), log: str = "") -> None:
            seconds = ticks() - begun
            self.journal.note(event=kind.value, step=step.name, what=what, seconds=round(seconds, 1))
            self.display.show(ProgressEvent(kind, step, number, total, what, seconds, tail, log))

        try:
            kind, what = self._outcome(step, happened)
        except RefusedError:
            happened(ProgressKind.REFUSED)
            raise StoppedError(ProgressKind.REFUSED, step.name) from None
        except UnmetError as unmet:
            if not step.is_optional:
                happened(ProgressKind.FAILED, unmet.what, unmet.tail, unmet.log)
                raise StoppedError(ProgressKind.FAILED, step.name) from None
            kind, what = ProgressKind.UNMET, unmet.what
        except KeyboardInterrupt:
            happened(ProgressKind.INTERRUPTED)
            raise StoppedError(ProgressKind.INTERRUPTED, step.name) from None
        happened(kind, what)
        return kind

    def _outcome(self, step: PlatformStep, happened: Callable[..., None]) -> tuple[ProgressKind, str]:
        if step.name in self.settings.skipped:
            return ProgressKind.SKIPPED, "skipped by option"
        if step.only_if is not None and not (seen := self._remembered(step.only_if)).is_so:
            return ProgressKind.SKIPPED, seen.what
        seen = self._seen(step)
        if step.probes and seen.is_so:
            return ProgressKind.PASSED, seen.what
        step, sent = self._complete(step)
        if step.consent is not None and not self._agreed(step, seen.what, sent):
            if step.is_optional:
                raise UnmetError(f"declined: {seen.what}")
            raise RefusedError
        if step.commands:
            happened(ProgressKind.BEGUN, seen.what)
            self._do(step, happened)
            if not step.is_checked:
                return ProgressKind.DONE, ""
            seen = self._seen(step)
        if step.probes and not seen.is_so:
            if step.patience_seconds:
                happened(ProgressKind.WAITING, seen.what)
            seen = self._awaited(step, seen)
        return ProgressKind.DONE, seen.what

    def _complete(self, step: PlatformStep) -> tuple[PlatformStep, str]:
        """The step with the input of its commands, and that input, about which the user is then asked."""
        if step.sends is None:
            return step, ""
        sent = step.sends([self.processes.look(probe.command, self.display.tick) for probe in step.probes])
        return replace(step, commands=tuple(replace(command, sent=sent) for command in step.commands)), sent

    def _agreed(self, step: PlatformStep, what: str, sent: str) -> bool:
        consent = step.consent
        assert consent is not None, "the step requires consent"
        question = consent.question.replace("{seen}", what)
        if consent.asking is not None:
            looked = self.processes.look(consent.asking.command, self.display.tick)
            question += consent.asking.says(looked, sent)
        self.display.quiet()
        return self.asking.agrees(question, consent.is_grave(what))

    def _do(self, step: PlatformStep, happened: Callable[..., None]) -> None:
        """Run the commands with retries; before each retry, probe whether the step is done."""
        log = self.folder / OWN_FOLDER / "logs" / f"{step.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        tried = 0
        while (answer := self._first_failure(step, log)) is not None:
            tried += 1
            if not step.retry.helps(answer.reported, tried):
                lines = [line.rstrip() for line in answer.reported.splitlines() if line.strip()]
                raise UnmetError(answer.last_word, tuple(lines[-_TAIL_LINES:]), str(log))
            happened(ProgressKind.RETRIED, f"{answer.last_word}; again in {step.retry.pause_seconds} s")
            Event().wait(step.retry.pause_seconds * self.settings.pace)
            if step.probes and self._seen(step).is_so:
                return

    def _first_failure(self, step: PlatformStep, log: Path) -> CommandOutput | None:
        """Run the commands until one fails; return its answer, None if all succeed."""
        for command in step.commands:
            answer = self.processes.act(command, log, self.display.tick)
            if answer.code and not any(word in answer.reported for word in command.tolerates):
                return answer
        return None

    def _awaited(self, step: PlatformStep, seen: ProbeResult) -> ProbeResult:
        """Probe until the step is done; UnmetError when its patience is over."""
        begun = ticks()
        pause = _PAUSES[0]
        while not seen.is_so:
            waited = ticks() - begun
            if waited >= step.patience_seconds:
                within = f", after {step.patience_seconds} s" if step.patience_seconds else ""
                raise UnmetError(f"{seen.what}{within}")
            self.display.tick(seen.what, waited)
            Event().wait(pause * self.settings.pace)
            pause = min(2 * pause, _PAUSES[1])
            seen = self._seen(step)
        return seen

    def _seen(self, step: PlatformStep) -> ProbeResult:
        """Run the probes; return the first result that is not so, else the last."""
        seen = ProbeResult(not step.probes)
        for probe in step.probes:
            seen = probe.reading(self.processes.look(probe.command, self.display.tick))
            if not seen.is_so:
                return seen
        return seen

    def _remembered(self, probe: Probe) -> ProbeResult:
        """The result of a probe that runs once per run."""
        if probe.command not in self._memory:
            self._memory[probe.command] = self.processes.look(probe.command, self.display.tick)
        return probe.reading(self._memory[probe.command])


def probe_steps(
    processes: CommandRunner, display: Display, steps: Sequence[PlatformStep]
) -> list[tuple[PlatformStep, ProbeResult | None]]:
    """The probe result of each step; None after a step that failed and that the later steps depend on."""
    found: list[tuple[PlatformStep, ProbeResult | None]] = []
    lacking = False
    for step in steps:
        if not step.probes:
            continue
        if lacking:
            found.append((step, None))
            continue
        seen = ProbeResult(True)
        for probe in step.probes:
            seen = probe.reading(processes.look(probe.command, display.tick))
            if not seen.is_so:
                break
        found.append((step, seen))
        lacking = step.carries and not seen.is_so
    return found
