"""Whether a container is alive, has started, is ready: its probes, as a kubelet runs them and takes their results.

The rules are those of pkg/kubelet/prober/worker.go: results count once there are as many of a kind in a row as the
thresholds say; a startup probe goes before all others; who failed a liveness or startup probe is probed no more.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from batchyard.shim.event_loop import Loop
from batchyard.shim.probes import Outcome

_ATTEMPTS = 3
_KINDS = {"startup": "Startup", "liveness": "Liveness", "readiness": "Readiness"}

#: Tries a handler with a timeout in seconds, and calls back.
Try: TypeAlias = Callable[[Mapping[str, Any], float | None, Callable[[Outcome], None]], None]


class Health:
    """The probes of one run. `started` and `ready` are what its status says."""

    def __init__(self, probes: Mapping[str, Any], loop: Loop, attempt: Try, report: "Report") -> None:
        self.started = "startup" not in probes
        self._is_ready = "readiness" not in probes
        self._report = report
        self._workers = {kind: _Worker(kind, probe, loop, attempt, self) for kind, probe in probes.items()}
        self._leaving = False

    @property
    def ready(self) -> bool:
        """Whether it has started, and its readiness probe, if any, has succeeded."""
        return self.started and self._is_ready

    def begin(self) -> None:
        """The container has begun to run: probe it."""
        for worker in self._workers.values():
            worker.begin()

    def leave(self) -> None:
        """The container is to end: whether it is alive is asked no more."""
        self._leaving = True

    def wants(self, kind: str) -> bool:
        """Whether a probe is to be tried now."""
        if kind == "startup":
            return not self.started and not self._leaving
        return self.started and not (kind == "liveness" and self._leaving)

    def warn(self, reason: str, message: str) -> None:
        """Tell what the kubelet would record as an event."""
        self._report.warn(reason, message)

    def take(self, kind: str, succeeded: bool, message: str) -> bool:
        """Take a result that has reached its threshold; whether the probe goes on."""
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


class Report:
    """What is done with the results; the keeper's part."""

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
    """One probe of a container."""

    def __init__(self, kind: str, probe: Mapping[str, Any], loop: Loop, attempt: Try, health: Health) -> None:
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
        """Try at once what would wait for its period, but not what waits for its first time."""
        if self._turns:
            self._turn(self._turns)

    def _turn(self, turn: int) -> None:
        """Try now, if it is time for this kind of probe; and again after the period."""
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

    def _take(self, outcome: Outcome) -> None:
        """Take an outcome; one that could not be tried is tried again, and then forgotten."""
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
        """Count a result; whether the probe goes on."""
        self._in_a_row = self._in_a_row + 1 if self._last == succeeded else 1
        self._last = succeeded
        threshold = self._probe["successThreshold" if succeeded else "failureThreshold"]
        return self._in_a_row < threshold or self._health.take(self._kind, succeeded, message)
