"""Probe workers: startup, liveness and readiness of a container, as in the kubelet.

The rules are those of pkg/kubelet/prober/worker.go. A result counts once it occurred as often in a row as the threshold
says. The other probes wait for the startup probe. A liveness or startup probe that has failed is not run any more.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from batchyard.shim.event_loop import Loop
from batchyard.shim.probes import ProbeOutcome

_ATTEMPTS = 3
_KINDS = {"startup": "Startup", "liveness": "Liveness", "readiness": "Readiness"}

#: Runs a handler with a timeout in seconds, and calls back.
StartAttempt: TypeAlias = Callable[[Mapping[str, Any], float | None, Callable[[ProbeOutcome], None]], None]


class Health:
    """The probes of one run. `started` and `ready` are the fields of the container's status."""

    def __init__(self, probes: Mapping[str, Any], loop: Loop, attempt: StartAttempt, report: "ProbeCallbacks") -> None:
        self.started = "startup" not in probes
        self._is_ready = "readiness" not in probes
        self._report = report
        self._workers = {kind: _Worker(kind, probe, loop, attempt, self) for kind, probe in probes.items()}
        self._leaving = False

    @property
    def ready(self) -> bool:
        """Whether the container has started and its readiness probe, if any, has succeeded."""
        return self.started and self._is_ready

    def begin(self) -> None:
        """Start probing: the container runs."""
        for worker in self._workers.values():
            worker.begin()

    def leave(self) -> None:
        """Stop the liveness and startup probes: the container is terminating."""
        self._leaving = True

    def wants(self, kind: str) -> bool:
        """Whether a probe should run now."""
        if kind == "startup":
            return not self.started and not self._leaving
        return self.started and not (kind == "liveness" and self._leaving)

    def warn(self, reason: str, message: str) -> None:
        """Report a warning that the kubelet records as an Event."""
        self._report.warn(reason, message)

    def take(self, kind: str, succeeded: bool, message: str) -> bool:
        """Handle a result that has reached its threshold; return whether probing continues."""
        if kind == "readiness":
            self._is_ready = succeeded
        elif not succeeded:
            self._report.failed({"probe": kind, "message": message})
            return False
        elif kind == "startup":
            self.started = True
            if "readiness" in self._workers:
                self._workers["readiness"].hurry()
        self._report.changed()
        return True


class ProbeCallbacks:
    """The shim's callbacks for probe results."""

    def __init__(
        self,
        warn: Callable[[str, str], None],
        failed: Callable[[Mapping[str, str]], None],
        changed: Callable[[], None],
    ) -> None:
        self.warn = warn
        self.failed = failed
        self.changed = changed


class _Worker:
    """One probe of a container, and its count of equal results in a row."""

    def __init__(self, kind: str, probe: Mapping[str, Any], loop: Loop, attempt: StartAttempt, health: Health) -> None:
        self._kind = kind
        self._probe = probe
        self._loop = loop
        self._attempt = attempt
        self._health = health
        self._last: bool | None = None
        self._in_a_row = 0
        self._tries = 0
        self._turns = 0

    def begin(self) -> None:
        self._loop.after(self._probe.get("initialDelaySeconds", 0), partial(self._turn, 0))

    def hurry(self) -> None:
        """Probe now instead of after the period, unless the first attempt is still delayed."""
        if self._turns:
            self._turn(self._turns)

    def _turn(self, turn: int) -> None:
        """Run the probe if it is enabled now, and again after the period."""
        if turn != self._turns:
            return
        self._turns += 1
        if self._health.wants(self._kind):
            self._tries = 1
            self._attempt(self._probe, self._probe["timeoutSeconds"], self._take)
        else:
            self._again()

    def _again(self) -> None:
        self._loop.after(self._probe["periodSeconds"], partial(self._turn, self._turns))

    def _take(self, outcome: ProbeOutcome) -> None:
        """Handle an outcome; retry an unknown one, then ignore it."""
        name = _KINDS[self._kind]
        if outcome.result == "unknown":
            if self._tries < _ATTEMPTS:
                self._tries += 1
                self._attempt(self._probe, self._probe["timeoutSeconds"], self._take)
                return
            self._health.warn("Unhealthy", f"{name} probe errored and resulted in unknown state: {outcome.text}")
            self._again()
            return
        if outcome.result == "failure":
            self._health.warn("Unhealthy", f"{name} probe failed: {outcome.text}")
        elif outcome.result == "warning":
            self._health.warn("ProbeWarning", f"{name} probe warning: {outcome.text}")
        if self._count(outcome.result != "failure", f"{name} probe failed: {outcome.text}"):
            self._again()

    def _count(self, succeeded: bool, message: str) -> bool:
        """Count a result; return whether probing continues."""
        self._in_a_row = self._in_a_row + 1 if self._last == succeeded else 1
        self._last = succeeded
        threshold = self._probe["successThreshold" if succeeded else "failureThreshold"]
        return self._in_a_row < threshold or self._health.take(self._kind, succeeded, message)
