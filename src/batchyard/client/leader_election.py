"""Leader election with a Lease. Source: client-go, tools/leaderelection.

A candidate that sees the record change knows that the holder is alive. If the record has not changed for its lease
duration, the candidate may take it. Only the candidate's own clock counts for that. The holder may write until its
renew deadline, counted from the start of its last successful renewal. The deadline ends before another candidate may
take the Lease. `LeaderElector` sends nothing itself: `begin` returns the first request, and `answered` processes a
response and returns the next request.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

import msgspec

from batchyard.api.times import format_micro_time
from batchyard.base import draw
from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.client.transport import HttpAnswer, HttpRequest, Transport, decoded, failure_reason, is_object
from batchyard.interfaces.controller import Kernel

_encode: Final = msgspec.json.Encoder().encode
_OK: Final = (200, 201)


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """The Lease, our identity, and the durations."""

    identity: str
    namespace: str
    name: str
    lease: Duration = 15 * SECOND
    renew_deadline: Duration = 10 * SECOND
    retry_period: Duration = 2 * SECOND


def lease_in(answer: HttpAnswer) -> Mapping[str, Any] | None:
    """Return the Lease in a response, or None. A proxy may also answer 200, so the body is checked."""
    found = decoded(answer.body) if answer.code in _OK else {}
    return found if found.get("kind") == "Lease" and is_object(found) else None


class _Step(Enum):
    """The last request: read the Lease, renew it from its known state, or take it from the state just read."""

    LOOK = auto()
    RENEW = auto()
    TAKE = auto()


class LeaderElector:
    """The state machine of a candidate: the Lease as last seen, and whether the candidate leads."""

    def __init__(self, terms: LeaseSettings) -> None:
        self.terms = terms
        #: Whether we hold the Lease, as far as is known.
        self.leads = False
        #: The Lease as last seen, and when it was seen to change.
        self._seen: Mapping[str, Any] = {}
        self._seen_at: Instant = 0
        #: When the last successful renewal was started.
        self._renewed_at: Instant = 0
        self._began_at: Instant = 0
        self._step = _Step.LOOK
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{terms.namespace}/leases"

    @property
    def holder(self) -> str:
        """The holder of the Lease as last seen; '' if there is none."""
        holder: str = (self._seen.get("spec") or {}).get("holderIdentity") or ""
        return holder

    @property
    def deadline(self) -> Instant:
        """The time until which a leader may write without another renewal."""
        return self._renewed_at + self.terms.renew_deadline

    def may_write(self, now: Instant) -> bool:
        """Whether we lead, and no other candidate can hold the Lease yet."""
        return self.leads and now < self.deadline

    def begin(self, now: Instant) -> HttpRequest:
        """Try to take or renew the Lease. A leader that knows the state of the Lease does not read it first."""
        self._began_at = now
        if self.leads and self._seen:
            return self._write(now, _Step.RENEW)
        return self._look()

    def answered(self, answer: HttpAnswer, now: Instant) -> HttpRequest | None:
        """Process a response; return the next request, or None if this attempt is over."""
        if self._step is not _Step.LOOK:
            return self._was_written(answer, now)
        if answer.code == 404:
            self._seen = {}
            return self._write(now, _Step.TAKE)
        lease = lease_in(answer)
        if lease is None:
            return None
        self._see(lease, now)
        if self.holder not in {"", self.terms.identity} and now < self._expires_at():
            self.leads = False
            return None
        return self._write(now, _Step.TAKE)

    def release(self, now: Instant) -> HttpRequest:
        """Release the Lease, so that the next candidate need not wait for its expiry."""
        spec = {**self._seen["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        spec |= {"renewTime": format_micro_time(now), "acquireTime": format_micro_time(now)}
        self.leads = False
        return self._request("PUT", f"/{self.terms.name}", {**self._seen, "spec": spec})

    def look(self) -> HttpRequest:
        """Read the Lease."""
        return self._look()

    def release_as_seen(self, answer: HttpAnswer, now: Instant) -> HttpRequest | None:
        """Release the Lease in the state that a response shows; None if we no longer hold it."""
        lease = lease_in(answer)
        if lease is None:
            return None
        self._see(lease, now)
        return self.release(now) if self.holder == self.terms.identity else None

    def _look(self) -> HttpRequest:
        self._step = _Step.LOOK
        return self._request("GET", f"/{self.terms.name}")

    def _write(self, now: Instant, step: _Step) -> HttpRequest:
        """Write our identity into the Lease, based on its last known state."""
        self._step = step
        old = self._seen.get("spec") or {}
        is_ours = self.holder == self.terms.identity
        spec = {
            "holderIdentity": self.terms.identity,
            "leaseDurationSeconds": -(-self.terms.lease // SECOND),  # rounded up: it ends after our deadline
            "acquireTime": old.get("acquireTime") if is_ours else format_micro_time(now),
            "renewTime": format_micro_time(now),
            "leaseTransitions": (old.get("leaseTransitions") or 0) + (bool(self._seen) and not is_ours),
        }
        new = {"name": self.terms.name, "namespace": self.terms.namespace}
        kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        lease = {**kind, "metadata": self._seen.get("metadata") or new, "spec": spec}
        return self._request("PUT", f"/{self.terms.name}", lease) if self._seen else self._request("POST", "", lease)

    def _was_written(self, answer: HttpAnswer, now: Instant) -> HttpRequest | None:
        """Process the response to a write; after a failed renewal, read the Lease at once."""
        lease = lease_in(answer)
        if lease is not None:
            self._see(lease, now)
            self.leads, self._renewed_at = True, self._began_at
            return None
        if self._step is _Step.RENEW:
            return self._look()
        self._seen = {} if answer.code == 404 else self._seen
        return None

    def _see(self, lease: Mapping[str, Any], now: Instant) -> None:
        if lease.get("spec") != self._seen.get("spec"):
            self._seen_at = now
        self._seen = lease

    def _expires_at(self) -> Instant:
        seconds = (self._seen.get("spec") or {}).get("leaseDurationSeconds") or 0
        return self._seen_at + seconds * SECOND

    def _request(self, method: str, place: str, body: Mapping[str, Any] | None = None) -> HttpRequest:
        sent = b"" if body is None else _encode(body)
        return HttpRequest(method, self._path + place, sent, self.terms.renew_deadline // 2)


# --- leadership ---
#
# Drives a candidate: tries to take the Lease, renews it, and reports when leadership starts and ends.


#: Jitter in percent of the retry period, so that candidates do not retry at the same time.
_JITTER = 120
#: The Lease does not exist, or another candidate was faster.
_ABSENT = (404, 409)
_CONFLICT = 409


class Leadership:
    """A candidate at work. It ends when leadership is lost: the process must not continue with its state."""

    def __init__(self, election: LeaderElector, timers: Kernel, transport: Transport) -> None:
        self._election = election
        self._timers = timers
        self._transport = transport
        self._has_led = False
        self._tries = 0
        self._is_over = False
        #: Called with an error that hides the state of the Lease, once for each different error.
        self.on_trouble: Callable[[str], None] = _ignore_trouble
        self._trouble = ""
        self.on_leading: Callable[[], None] = _noop
        self.on_lost: Callable[[], None] = _noop

    def start(self) -> None:
        """Start trying."""
        self._try()

    def may_write(self) -> bool:
        """Whether no other candidate can hold the Lease yet. Once leadership is lost, this stays False."""
        if self._is_over:
            return False
        if self._election.may_write(self._timers.now()):
            return True
        if self._has_led:
            self._lose()
        return False

    def end(self, released: Callable[[], None]) -> None:
        """Stop trying; release the Lease if we hold it."""
        if self._election.leads and not self._is_over:
            request = self._election.release(self._timers.now())
            self._transport.send(request, lambda answer: self._was_given_up(answer, released))
        else:
            released()
        self._is_over = True

    def _was_given_up(self, answer: HttpAnswer, released: Callable[[], None]) -> None:
        """If a concurrent renewal came first, read the Lease and release it in that state: no candidate must wait."""
        if answer.code != _CONFLICT:
            released()
            return

        def seen(answer: HttpAnswer) -> None:
            request = self._election.release_as_seen(answer, self._timers.now())
            if request is None:
                released()
            else:
                self._transport.send(request, lambda _answer: released())

        self._transport.send(self._election.look(), seen)

    def _try(self) -> None:
        if not self._is_over:
            self._tries += 1
            self._ask(self._election.begin(self._timers.now()))

    def _ask(self, request: HttpRequest) -> None:
        self._transport.send(request, self._answered)

    def _answered(self, answer: HttpAnswer) -> None:
        if self._is_over:
            return
        self._report_trouble(answer)
        following = self._election.answered(answer, self._timers.now())
        if following is not None:
            self._ask(following)
            return
        if self.may_write() and not self._has_led:
            self._has_led = True
            self._watch_the_deadline()
            self.on_leading()
        elif self._has_led and not self._election.leads:
            self._lose()
            return
        self._timers.call_at(self._timers.now() + self._wait(), self._try)

    def _report_trouble(self, answer: HttpAnswer) -> None:
        is_usual = answer.code in _ABSENT or lease_in(answer) is not None
        trouble = "" if is_usual else failure_reason(answer)
        if trouble and trouble != self._trouble:
            self.on_trouble(f"the Lease: {trouble}")
        self._trouble = trouble

    def _wait(self) -> Duration:
        terms = self._election.terms
        if self._has_led:
            return terms.retry_period
        return terms.retry_period * (100 + draw(0, terms.identity, str(self._tries)) % _JITTER) // 100

    def _watch_the_deadline(self) -> None:
        """Check at the renew deadline whether leadership is lost."""
        if self.may_write():
            self._timers.call_at(self._election.deadline, self._watch_the_deadline)

    def _lose(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._timers.call_soon(self.on_lost)


def _noop() -> None:
    pass


def _ignore_trouble(_trouble: str) -> None:
    pass
