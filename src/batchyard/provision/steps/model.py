"""Data model of the steps that create or destroy a platform: commands, results, probes, consent, and leftovers.

A probe is a read-only command that shows whether a step is done. `cli.platform` runs all commands in the
rendered folder.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeAlias

#: Default time limit of a command, in seconds.
COMMAND_LIMIT: Final = 600
#: Exit codes as in shells and timeout(1); for both, the first line of stderr contains the error.
NO_SUCH_PROGRAM: Final = 127
TOO_LONG: Final = 124


@dataclass(frozen=True, slots=True)
class StepCommand:
    """A command that a step or probe runs, with its standard input, environment variables and time limit."""

    argv: tuple[str, ...]
    stdin_text: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    #: Whether the output contains a secret and must not be stored.
    is_secret: bool = False
    limit_seconds: int = COMMAND_LIMIT
    #: Texts in stderr with which the command may fail, because the object does not exist.
    tolerated_errors: tuple[str, ...] = ()

    @property
    def full_argv(self) -> tuple[str, ...]:
        """The complete command line; if there are environment variables, env(1) sets them."""
        variable_texts = [f"{name}={value}" for name, value in self.environment]
        return ("env", *variable_texts, *self.argv) if variable_texts else self.argv

    def with_tolerated_errors(self, errors: tuple[str, ...]) -> "StepCommand":
        """Return a copy of the command whose failure is tolerated if stderr contains one of the texts `errors`."""
        return replace(self, tolerated_errors=errors)


def command(
    *argv: str, stdin_text: str = "", limit_seconds: int = COMMAND_LIMIT, tolerated_errors: tuple[str, ...] = ()
) -> StepCommand:
    """Return a StepCommand with these arguments and without environment variables."""
    return StepCommand(argv, stdin_text, limit_seconds=limit_seconds, tolerated_errors=tolerated_errors)


class CommandOutput(NamedTuple):
    """The exit code, stdout and stderr of a command."""

    code: int
    stdout: str
    stderr: str = ""

    @property
    def main_error(self) -> str:
        """The first line of stderr (of stdout, if stderr is empty) that contains `error`, or else the last line.

        If the program was missing or timed out, it is the first line; without any output, it is the exit code.
        """
        lines = [line.strip(" │╷╵") for line in (self.stderr or self.stdout).splitlines()]
        lines = [line for line in lines if line]
        if self.code in (NO_SUCH_PROGRAM, TOO_LONG) and lines:
            return lines[0]
        error_lines = [line for line in lines if "error" in line.lower()]
        return (error_lines or lines[-1:] or [f"exit code {self.code}"])[0]

    def document(self) -> Any:
        """Return the value of the JSON in stdout; None if the command failed or stdout is not JSON."""
        if self.code:
            return None
        try:
            return json.loads(self.stdout)
        except ValueError:
            return None


class ProbeResult(NamedTuple):
    """The result of a probe: whether its condition is satisfied, and a short description for the user."""

    is_satisfied: bool
    description: str = ""


#: A function that parses the output of a probe's command.
ResultParser: TypeAlias = Callable[[CommandOutput], ProbeResult]


@dataclass(frozen=True, slots=True)
class Probe:
    """A read-only command, and the parser that decides from its output whether a condition is satisfied."""

    command: StepCommand
    parser: ResultParser


#: A function that computes the input of a step's commands from the outputs of its probes.
InputFromProbes: TypeAlias = Callable[[Sequence[CommandOutput]], str]


class ConsentDetails(NamedTuple):
    """A command that runs before the user is asked, and a function that returns text to append to the question.

    The function's arguments are the output of the command and the standard input of the step.
    """

    command: StepCommand
    format_details: Callable[[CommandOutput, str], str]


@dataclass(frozen=True, slots=True)
class Consent:
    """The question before a step that costs money or destroys data; `{seen}` in it stands for the probes' result."""

    question: str
    #: Whether the step destroys data: the user must then type the platform's name.
    destroys: bool = False
    #: A regular expression; if the description of the probes' result matches it, the step destroys data.
    destroys_pattern: str = ""
    details: ConsentDetails | None = None

    @property
    def preview(self) -> str:
        """The question as a dry run shows it: with placeholders, because no probe has run."""
        placeholder = " (details)" if self.details else ""
        return self.question.replace("{seen}", "(changes)") + placeholder

    def destroys_data(self, description: str) -> bool:
        """Return whether the step destroys data; `description` is the text of the probe's result."""
        return self.destroys or bool(self.destroys_pattern and re.search(self.destroys_pattern, description))


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a failed command is retried, after which pause, and for which errors (texts in stderr)."""

    retries_max: int = 0
    pause_seconds: int = 0
    error_texts: tuple[str, ...] = ()

    def should_retry(self, stderr: str, attempt_count: int) -> bool:
        """Return whether to run a command again that failed `attempt_count` times, the last time with this stderr."""
        return attempt_count <= self.retries_max and any(text in stderr for text in self.error_texts)


@dataclass(frozen=True, slots=True)
class PlatformStep:
    """A step of creating or destroying a platform; it is done if all its probes are satisfied.

    A step without commands only waits until its probes are satisfied. A step without probes runs every time.
    """

    name: str
    purpose: str
    commands: tuple[StepCommand, ...] = ()
    probes: tuple[Probe, ...] = ()
    consent: Consent | None = None
    retry: Retry = Retry()
    #: Computes the standard input of the commands from the outputs of the probes.
    stdin_from_probes: InputFromProbes | None = None
    #: How many seconds to wait until the probes are satisfied.
    patience_seconds: int = 0
    #: Whether the probes run again after the commands; otherwise exit codes suffice.
    is_checked: bool = True
    #: Whether later steps depend on this step.
    is_prerequisite: bool = False
    #: Whether the run continues after a failure of this step.
    is_optional: bool = False
    #: The text that tells the user how to fix a failure.
    remedy: str = ""
    #: If this probe is not satisfied, the step is skipped; the description of its result is the reason.
    only_if: Probe | None = None


@dataclass(frozen=True, slots=True)
class Leftover:
    """A resource that `destroy` keeps: its purpose and cost, and commands that list and remove it."""

    name: str
    purpose: str
    #: The command that prints one resource per line; None if the resources cannot be listed.
    list_command: StepCommand | None
    removal: tuple[str, ...]


def requirement_step(name: str, purpose: str, probe: Probe, remedy: str) -> PlatformStep:
    """Return a step that only checks a requirement of later steps; if the probe fails, the user must act."""
    return PlatformStep(name, purpose, probes=(probe,), remedy=remedy, is_prerequisite=True)


def wait_step(
    name: str, purpose: str, probes: Sequence[Probe], patience_seconds: int, remedy: str = ""
) -> PlatformStep:
    """Return a step that only waits until its probes are satisfied, at most `patience_seconds`."""
    return PlatformStep(name, purpose, probes=tuple(probes), patience_seconds=patience_seconds, remedy=remedy)
