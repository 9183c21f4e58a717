"""Runs the steps that create or destroy a platform, in order: probe, run the commands if needed, probe again.

The probes (read-only commands) decide which steps are done, not the journal of earlier runs. So a run after a failure,
or after this process was killed, executes only the remaining steps.
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
from batchyard.server.clocks.wall import monotonic_seconds

# Progress events of the steps, and the interfaces of the display and the confirmation.


class ProgressKind(StrEnum):
    """The kinds of progress events of a step."""

    BEGUN = "begun"
    #: The step was already done before this run.
    PASSED = "passed"
    #: The step is not needed, or skipped by --skip.
    SKIPPED = "skipped"
    WAITING = "waiting"
    RETRIED = "retried"
    DONE = "done"
    #: An optional step failed or was declined; the run continues.
    UNMET = "unmet"
    FAILED = "failed"
    #: The user declined the step.
    REFUSED = "refused"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """A progress event of a step; the step has this `number` (from 1) of `total`, and started `seconds` ago."""

    kind: ProgressKind
    step: PlatformStep
    number: int
    total: int
    description: str = ""
    seconds: float = 0.0
    #: The last output lines of a failed command; `log` is the path of its log file.
    tail: tuple[str, ...] = ()
    log: str = ""


class Display(Protocol):
    """The interface of progress displays for the steps of a platform."""

    def show(self, progress_event: ProgressEvent) -> None:
        """Show a progress event of a step."""

    def show_progress(self, line: str, seconds: float) -> None:
        """Show the progress of a running command: its last output line and its run time in seconds."""

    def report(self, line: str) -> None:
        """Print a line that is not about a single step."""

    def clear_status(self) -> None:
        """Remove the status line, before a prompt or at the end of the run."""


class Confirmation(Protocol):
    """The interface that asks the user to confirm steps which cost money or destroy resources."""

    def confirm(self, question: str, destroys: bool) -> bool:
        """Ask the question; return whether the user confirms. `destroys` is true if the step can destroy resources."""


def format_seconds(seconds: float) -> str:
    """Format a duration in seconds as 8s, 2m10s or 1h04m."""
    rounded_seconds = round(seconds)
    if rounded_seconds < 60:
        return f"{rounded_seconds}s"
    if rounded_seconds < 3600:
        return f"{rounded_seconds // 60}m{rounded_seconds % 60:02}s"
    return f"{rounded_seconds // 3600}h{rounded_seconds % 3600 // 60:02}m"


_LOG_TAIL_LINES: Final = 15
#: The initial and the maximum interval between two probes, in seconds.
_PROBE_INTERVALS: Final = (0.25, 5.0)


@dataclass(frozen=True, slots=True)
class StepRunnerSettings:
    """The settings of a StepRunner: a factor on its pauses (`pace`, for tests), and the names of steps to skip."""

    pace: float = 1.0
    skipped_steps: frozenset[str] = frozenset()


class RunStoppedError(Exception):
    """A step failed, or the user declined or interrupted it, so the later steps did not run."""

    def __init__(self, kind: ProgressKind, step: str) -> None:
        super().__init__(step)
        self.kind = kind
        self.step = step


class StepDeclinedError(Exception):
    """The user declined a step that costs money or destroys resources."""


class StepFailedError(Exception):
    """A step cannot be completed; the error has the reason, the command's last output lines, and the log file."""

    def __init__(self, detail: str, tail: tuple[str, ...] = (), log: str = "") -> None:
        super().__init__(detail)
        self.description = detail
        self.tail = tail
        self.log = log


@dataclass(slots=True)
class StepRunner:
    """Runs the steps of a platform in its locked folder; outputs of `only_if` probes are cached for the whole run."""

    folder: Path
    runner: CommandRunner
    journal: StepJournal
    display: Display
    confirmation: Confirmation
    settings: StepRunnerSettings = field(default_factory=StepRunnerSettings)
    _probe_outputs: dict[StepCommand, CommandOutput] = field(default_factory=dict)

    def run(self, steps: Sequence[PlatformStep]) -> dict[ProgressKind, int]:
        """Run the steps in order; return how many ended with each event kind.

        Raises RunStoppedError if a required step fails or is declined, or after Ctrl-C.
        """
        outcome_counts = dict.fromkeys(ProgressKind, 0)
        for number, step in enumerate(steps, 1):
            outcome_counts[self._complete_step(step, number, len(steps))] += 1
        return outcome_counts

    def _complete_step(self, step: PlatformStep, step_number: int, step_count: int) -> ProgressKind:
        started_at = monotonic_seconds()

        def report_event(kind: ProgressKind, detail: str = "", tail: tuple[str, ...] = (), log: str = "") -> None:
            seconds = monotonic_seconds() - started_at
            self.journal.note(event=kind.value, step=step.name, what=detail, seconds=round(seconds, 1))
            self.display.show(ProgressEvent(kind, step, step_number, step_count, detail, seconds, tail, log))

        try:
            kind, detail = self._run_step(step, report_event)
        except StepDeclinedError:
            report_event(ProgressKind.REFUSED)
            raise RunStoppedError(ProgressKind.REFUSED, step.name) from None
        except StepFailedError as failure:
            if not step.is_optional:
                report_event(ProgressKind.FAILED, failure.description, failure.tail, failure.log)
                raise RunStoppedError(ProgressKind.FAILED, step.name) from None
            kind, detail = ProgressKind.UNMET, failure.description
        except KeyboardInterrupt:
            report_event(ProgressKind.INTERRUPTED)
            raise RunStoppedError(ProgressKind.INTERRUPTED, step.name) from None
        report_event(kind, detail)
        return kind

    def _run_step(self, step: PlatformStep, report_event: Callable[..., None]) -> tuple[ProgressKind, str]:
        if step.name in self.settings.skipped_steps:
            return ProgressKind.SKIPPED, "skipped by option"
        if step.only_if is not None and not (probe_result := self._probe_once(step.only_if)).is_satisfied:
            return ProgressKind.SKIPPED, probe_result.description
        probe_result = self._probe(step)
        if step.probes and probe_result.is_satisfied:
            return ProgressKind.PASSED, probe_result.description
        step, input_text = self._with_probed_input(step)
        if step.consent is not None and not self._ask_consent(step, probe_result.description, input_text):
            if step.is_optional:
                raise StepFailedError(f"declined: {probe_result.description}")
            raise StepDeclinedError
        if step.commands:
            report_event(ProgressKind.BEGUN, probe_result.description)
            self._run_commands(step, report_event)
            if not step.is_checked:
                return ProgressKind.DONE, ""
            probe_result = self._probe(step)
        if step.probes and not probe_result.is_satisfied:
            if step.patience_seconds:
                report_event(ProgressKind.WAITING, probe_result.description)
            probe_result = self._wait_until_done(step, probe_result)
        return ProgressKind.DONE, probe_result.description

    def _with_probed_input(self, step: PlatformStep) -> tuple[PlatformStep, str]:
        if step.stdin_from_probes is None:
            return step, ""
        show_progress = self.display.show_progress
        input_text = step.stdin_from_probes(
            [self.runner.run_probe(probe.command, show_progress) for probe in step.probes]
        )
        return replace(
            step, commands=tuple(replace(command, stdin_text=input_text) for command in step.commands)
        ), input_text

    def _ask_consent(self, step: PlatformStep, probe_description: str, input_text: str) -> bool:
        consent = step.consent
        assert consent is not None, "_ask_consent is called only for steps that require consent"
        question = consent.question.replace("{seen}", probe_description)
        if consent.details is not None:
            probe_output = self.runner.run_probe(consent.details.command, self.display.show_progress)
            question += consent.details.format_details(probe_output, input_text)
        self.display.clear_status()
        return self.confirmation.confirm(question, consent.destroys_data(probe_description))

    def _run_commands(self, step: PlatformStep, report_event: Callable[..., None]) -> None:
        log = self.folder / OWN_FOLDER / "logs" / f"{step.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        attempt_count = 0
        while (command_output := self._run_until_failure(step, log)) is not None:
            attempt_count += 1
            if not step.retry.should_retry(command_output.stderr, attempt_count):
                lines = [line.rstrip() for line in command_output.stderr.splitlines() if line.strip()]
                raise StepFailedError(command_output.main_error, tuple(lines[-_LOG_TAIL_LINES:]), str(log))
            report_event(ProgressKind.RETRIED, f"{command_output.main_error}; again in {step.retry.pause_seconds} s")
            Event().wait(step.retry.pause_seconds * self.settings.pace)
            if step.probes and self._probe(step).is_satisfied:
                return

    def _run_until_failure(self, step: PlatformStep, log: Path) -> CommandOutput | None:
        for command in step.commands:
            command_output = self.runner.run_logged(command, log, self.display.show_progress)
            if command_output.code and not any(text in command_output.stderr for text in command.tolerated_errors):
                return command_output
        return None

    def _wait_until_done(self, step: PlatformStep, result: ProbeResult) -> ProbeResult:
        started_at = monotonic_seconds()
        pause_seconds = _PROBE_INTERVALS[0]
        while not result.is_satisfied:
            waited_seconds = monotonic_seconds() - started_at
            if waited_seconds >= step.patience_seconds:
                timeout_note = f", after waiting {step.patience_seconds} s" if step.patience_seconds else ""
                raise StepFailedError(f"{result.description}{timeout_note}")
            self.display.show_progress(result.description, waited_seconds)
            Event().wait(pause_seconds * self.settings.pace)
            pause_seconds = min(2 * pause_seconds, _PROBE_INTERVALS[1])
            result = self._probe(step)
        return result

    def _probe(self, step: PlatformStep) -> ProbeResult:
        probe_result = ProbeResult(not step.probes)
        for probe in step.probes:
            probe_result = probe.parser(self.runner.run_probe(probe.command, self.display.show_progress))
            if not probe_result.is_satisfied:
                return probe_result
        return probe_result

    def _probe_once(self, probe: Probe) -> ProbeResult:
        if probe.command not in self._probe_outputs:
            self._probe_outputs[probe.command] = self.runner.run_probe(probe.command, self.display.show_progress)
        return probe.parser(self._probe_outputs[probe.command])


def probe_steps(
    runner: CommandRunner, display: Display, steps: Sequence[PlatformStep]
) -> list[tuple[PlatformStep, ProbeResult | None]]:
    """Run the probes of the steps that have probes; return these steps with their results.

    The result is that of the first probe that fails, or of the last one. Steps after a missing prerequisite are not
    probed: their result is None.
    """
    steps_with_results: list[tuple[PlatformStep, ProbeResult | None]] = []
    is_prerequisite_unmet = False
    for step in steps:
        if not step.probes:
            continue
        if is_prerequisite_unmet:
            steps_with_results.append((step, None))
            continue
        result = ProbeResult(True)
        for probe in step.probes:
            result = probe.parser(runner.run_probe(probe.command, display.show_progress))
            if not result.is_satisfied:
                break
        steps_with_results.append((step, result))
        is_prerequisite_unmet = step.is_prerequisite and not result.is_satisfied
    return steps_with_results
