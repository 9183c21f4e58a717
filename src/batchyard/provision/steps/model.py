"""The words for steps: a command, what it answered, what one sees by it, a step, and what stays behind.

All commands work in the rendered folder; paths in them are below it. Nothing here runs anything.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeAlias

#: How long a command may take, in seconds, where nothing else is said.
COMMAND_LIMIT: Final = 600
#: Exit codes, as shells and timeout(1) have them; the first line of what is told says why then.
NO_SUCH_PROGRAM: Final = 127
TOO_LONG: Final = 124


@dataclass(frozen=True, slots=True)
class Command:
    """A program to run, with what it gets by its standard input and the variables it gets besides its surroundings."""

    argv: tuple[str, ...]
    sent: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    #: Its output holds a secret: nobody keeps it.
    is_secret: bool = False
    limit_seconds: int = COMMAND_LIMIT
    #: It may fail with one of these words: what it is about is not there.
    tolerates: tuple[str, ...] = ()

    @property
    def full_argv(self) -> tuple[str, ...]:
        """What is really run: the variables are given by env(1)."""
        pairs = [f"{name}={value}" for name, value in self.environment]
        return ("env", *pairs, *self.argv) if pairs else self.argv

    def tolerating(self, words: tuple[str, ...]) -> "Command":
        """The same, which may fail with one of these words."""
        return replace(self, tolerates=words)


def run(*argv: str, sent: str = "", limit_seconds: int = COMMAND_LIMIT, tolerates: tuple[str, ...] = ()) -> Command:
    """A command of these words."""
    return Command(argv, sent, limit_seconds=limit_seconds, tolerates=tolerates)


class Answer(NamedTuple):
    """What came of a command: its exit code and its two outputs."""

    code: int
    printed: str
    told: str = ""

    @property
    def last_word(self) -> str:
        """The line of its complaints that says most: the first that names an error, else the last."""
        lines = [line.strip(" │╷╵") for line in (self.told or self.printed).splitlines()]
        lines = [line for line in lines if line]
        if self.code in (NO_SUCH_PROGRAM, TOO_LONG) and lines:
            return lines[0]
        complaints = [line for line in lines if "error" in line.lower()]
        return (complaints or lines[-1:] or [f"exit code {self.code}"])[0]

    def document(self) -> Any:
        """Its output read as JSON; None where it failed or is none."""
        if self.code:
            return None
        try:
            return json.loads(self.printed)
        except ValueError:
            return None


class Seen(NamedTuple):
    """What one sees: whether it is so, and in a few words what is there or lacking."""

    is_so: bool
    what: str = ""


#: How an answer is read.
Reading: TypeAlias = Callable[[Answer], Seen]


@dataclass(frozen=True, slots=True)
class Probe:
    """A command that changes nothing, and how its answer is read."""

    command: Command
    reading: Reading


#: What commands are sent, made of what the probes' commands answered.
Sending: TypeAlias = Callable[[Sequence[Answer]], str]


class Asking(NamedTuple):
    """What is looked up before a question is asked, and said behind it, given what the commands would be sent."""

    command: Command
    says: Callable[[Answer, str], str]


@dataclass(frozen=True, slots=True)
class Consent:
    """What is asked before a step: a sentence that says what it costs or destroys; {seen} is what the probes saw."""

    question: str
    #: What it destroys is lost: who says yes types the platform's name.
    destroys: bool = False
    #: So it is too where what was seen has this (a regular expression).
    destroys_where: str = ""
    asking: Asking | None = None

    @property
    def beforehand(self) -> str:
        """What is asked, as far as it is known before anybody has looked."""
        found = " (what is found)" if self.asking else ""
        return self.question.replace("{seen}", "(what is seen)") + found

    def is_grave(self, what: str) -> bool:
        """Whether something is lost, given what was seen."""
        return self.destroys or bool(self.destroys_where and re.search(self.destroys_where, what))


@dataclass(frozen=True, slots=True)
class Retry:
    """When failing commands are tried again: how often, after how long, on which words in what they said."""

    times: int = 0
    pause_seconds: int = 0
    on: tuple[str, ...] = ()

    def helps(self, told: str, tried: int) -> bool:
        """Whether to try once more after that many tries."""
        return tried <= self.times and any(word in told for word in self.on)


@dataclass(frozen=True, slots=True)
class Step:
    """One step. Without commands it is a demand on the world: that holds, or comes true within its patience.

    It is done where all its probes say so; one without probes is gone through every time, which does no harm.
    """

    name: str
    tells: str
    commands: tuple[Command, ...] = ()
    probes: tuple[Probe, ...] = ()
    consent: Consent | None = None
    retry: Retry = Retry()
    #: What its commands are sent is known only when it is done: it is made of what its probes' commands answer.
    sends: Sending | None = None
    #: How many seconds one waits until the probes say that it is done.
    patience_seconds: int = 0
    #: Whether the probes are asked again after the commands; their exit codes are proof enough otherwise.
    is_checked: bool = True
    #: Whether nothing of the later steps can be seen without it.
    carries: bool = False
    #: Whether one goes on where it fails, and says so.
    is_optional: bool = False
    #: What to do where it fails.
    remedy: str = ""
    #: Where this says that it is not so, the step is passed over, and what is seen is told.
    only_if: Probe | None = None


@dataclass(frozen=True, slots=True)
class Leftover:
    """What destroy leaves behind: what, why, what it costs; how one looks whether it is there; how it is removed."""

    name: str
    tells: str
    #: Prints what is there, one thing a line; None where there is nothing to ask.
    look: Command | None
    removal: tuple[str, ...]


def demand(name: str, tells: str, probe: Probe, remedy: str) -> Step:
    """A step that only looks: it is so, or the user does something about it."""
    return Step(name, tells, probes=(probe,), remedy=remedy, carries=True)


def waiting(name: str, tells: str, probes: Sequence[Probe], patience_seconds: int, remedy: str = "") -> Step:
    """A step that waits until something is so."""
    return Step(name, tells, probes=tuple(probes), patience_seconds=patience_seconds, remedy=remedy)
