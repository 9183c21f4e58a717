"""Data model of steps: commands, their results, probes, consent, and leftovers.

All commands run in the rendered folder; paths in them are below it. This module runs nothing.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeAlias

#: Default time limit of a command, in seconds.
COMMAND_LIMIT: Final = 600
#: Exit codes as in shells and timeout(1); the first line of stderr then says why.
NO_SUCH_PROGRAM: Final = 127
TOO_LONG: Final = 124


@dataclass(frozen=True, slots=True)
class StepCommand:
    """A program to run, with its standard input and additional environment variables."""

    argv: tuple[str, ...]
    sent: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    #: Its output contains a secret and is not stored.
    is_secret: bool = False
    limit_seconds: int = COMMAND_LIMIT
    #: Errors with these words mean that the object does not exist; the command may fail with them.
    tolerates: tuple[str, ...] = ()

    @property
    def full_argv(self) -> tuple[str, ...]:
        """The command line that is run; env(1) sets the variables."""
        pairs = [f"{name}={value}" for name, value in self.environment]
        return ("env", *pairs, *self.argv) if pairs else self.argv

    def tolerating(self, words: tuple[str, ...]) -> "StepCommand":
        """Return the command with these tolerated errors."""
        return replace(self, tolerates=words)


def run(*argv: str, sent: str = "", limit_seconds: int = COMMAND_LIMIT, tolerates: tuple[str, ...] = ()) -> StepCommand:
    """Return a command."""
    return StepCommand(argv, sent, limit_seconds=limit_seconds, tolerates=tolerates)


class CommandOutput(NamedTuple):
    """The result of a command: its exit code and both outputs."""

    code: int
    printed: str
    reported: str = ""

    @property
    def last_word(self) -> str:
        """The most informative line of the error output: the first that names an error, else the last."""
        lines = [line.strip(" │╷╵") for line in (self.reported or self.printed).splitlines()]
        lines = [line for line in lines if line]
        if self.code in (NO_SUCH_PROGRAM, TOO_LONG) and lines:
            return lines[0]
        complaints = [line for line in lines if "error" in line.lower()]
        return (complaints or lines[-1:] or [f"exit code {self.code}"])[0]

    def document(self) -> Any:
        """Parse the output as JSON; None if the command failed or the output is invalid."""
        if self.code:
            return None
        try:
            return json.loads(self.printed)
        except ValueError:
            return None


class ProbeResult(NamedTuple):
    """What a probe observed: whether its condition holds, and a short description."""

    is_so: bool
    what: str = ""


#: Evaluates a result.
ResultParser: TypeAlias = Callable[[CommandOutput], ProbeResult]


@dataclass(frozen=True, slots=True)
class Probe:
    """A read-only command, and how its result is evaluated."""

    command: StepCommand
    reading: ResultParser


#: Computes the input of a step's commands from the results of its probes.
InputFromProbes: TypeAlias = Callable[[Sequence[CommandOutput]], str]


class ConsentDetails(NamedTuple):
    """A lookup before a question, whose text (from the result and the commands' input) is appended to the question."""

    command: StepCommand
    says: Callable[[CommandOutput, str], str]


@dataclass(frozen=True, slots=True)
class Consent:
    """The question before a step: what it costs or destroys; {seen} is replaced by the probes' description."""

    question: str
    #: It destroys data: the user confirms by typing the platform's name.
    destroys: bool = False
    #: It also destroys data if the description matches this regular expression.
    destroys_where: str = ""
    asking: ConsentDetails | None = None

    @property
    def beforehand(self) -> str:
        """The question as far as it is known before the probes run."""
        found = " (details)" if self.asking else ""
        return self.question.replace("{seen}", "(changes)") + found

    def is_grave(self, what: str) -> bool:
        """Whether data is lost, given the probes' description."""
        return self.destroys or bool(self.destroys_where and re.search(self.destroys_where, what))


@dataclass(frozen=True, slots=True)
class Retry:
    """Retries of failed commands: how often, after which pause, and on which words in the output."""

    times: int = 0
    pause_seconds: int = 0
    on: tuple[str, ...] = ()

    def helps(self, output: str, tried: int) -> bool:
        """Whether to try again after `tried` attempts."""
        return tried <= self.times and any(word in output for word in self.on)


@dataclass(frozen=True, slots=True)
class PlatformStep:
    """One step. Without commands it is a demand: it must hold, or become true within its patience.

    It is done if all its probes hold. A step without probes runs every time, which is harmless.
    """

    name: str
    purpose: str
    commands: tuple[StepCommand, ...] = ()
    probes: tuple[Probe, ...] = ()
    consent: Consent | None = None
    retry: Retry = Retry()
    #: Computes the input of the commands from the probes' results.
    sends: InputFromProbes | None = None
    #: How many seconds to wait until the probes hold.
    patience_seconds: int = 0
    #: Whether the probes run again after the commands; otherwise exit codes suffice.
    is_checked: bool = True
    #: Whether later steps depend on it.
    carries: bool = False
    #: Whether a failure is only reported.
    is_optional: bool = False
    #: What to do if it fails.
    remedy: str = ""
    #: If this probe does not hold, the step is skipped, with its description as the reason.
    only_if: Probe | None = None


@dataclass(frozen=True, slots=True)
class Leftover:
    """A resource that destroy leaves behind: what, why and at what cost; how to list and how to remove it."""

    name: str
    purpose: str
    #: Prints the resources, one a line; None if they cannot be listed.
    look: StepCommand | None
    removal: tuple[str, ...]


def demand(name: str, purpose: str, probe: Probe, remedy: str) -> PlatformStep:
    """Return a step that only checks: if it fails, the user must act."""
    return PlatformStep(name, purpose, probes=(probe,), remedy=remedy, carries=True)


def waiting(name: str, purpose: str, probes: Sequence[Probe], patience_seconds: int, remedy: str = "") -> PlatformStep:
    """Return a step that waits until the probes hold."""
    return PlatformStep(name, purpose, probes=tuple(probes), patience_seconds=patience_seconds, remedy=remedy)
