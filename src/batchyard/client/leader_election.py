"""Who of several works: whoever holds a Lease and renews it. Source: client-go, tools/leaderelection.

A candidate that sees the record change knows that its holder lives; when it has not changed for as long as the record
says, it may be taken. Only the candidate's own clock counts for that. Who holds the Lease may work until a deadline
after it last began to renew it with success, which comes before anybody may take it. Nothing here sends anything:
`begin` says what to ask, `answered` takes in the answer and says what to ask then.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

import msgspec

from batchyard.api.times import format_micro_time
from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.base.seeded_draws import draw
from batchyard.client.transport import HttpAnswer, HttpRequest, Transport
from batchyard.client.writes import decoded, is_object, trouble_of
from batchyard.interfaces.controller import Kernel

_encode: Final = msgspec.json.Encoder().encode
_OK: Final = (200, 201)


@dataclass(frozen=True, slots=True)
class Terms:
    """Which Lease, who we are, and how long things last."""

    identity: str
    namespace: str
    name: str
    lease: Duration = 15 * SECOND
    renew_deadline: Duration = 10 * SECOND
    retry_period: Duration = 2 * SECOND


def lease_in(answer: HttpAnswer) -> Mapping[str, Any] | None:
    """The Lease that an answer holds; None where it holds none, whoever says 200 to that."""
    found = decoded(answer.body) if answer.code in _OK else {}
    return found if found.get("kind") == "Lease" and is_object(found) else None


class _Step(Enum):
    """What was asked last: to see the Lease, to renew it as it was, or to take it as it was seen to be."""

    LOOK = auto()
    RENEW = auto()
    TAKE = auto()


class Election:
    """See the module."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        #: Whether we hold the Lease, as far as is known.
        self.leads = False
        #: The Lease as last seen, and when it was seen to change.
        self._seen: Mapping[str, Any] = {}
        self._seen_at: Instant = 0
        #: When the last renewal was begun that was done.
        self._renewed_at: Instant = 0
        self._began_at: Instant = 0
        self._step = _Step.LOOK
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{terms.namespace}/leases"

    @property
    def holder(self) -> str:
        """Who holds the Lease, as last seen; '' if nobody does."""
        holder: str = (self._seen.get("spec") or {}).get("holderIdentity") or ""
        return holder

    @property
    def deadline(self) -> Instant:
        """Until when whoever leads may write without having renewed the Lease."""
        return self._renewed_at + self.terms.renew_deadline

    def may_write(self, now: Instant) -> bool:
        """Whether nobody else can hold the Lease yet."""
        return self.leads and now < self.deadline

    def begin(self, now: Instant) -> HttpRequest:
        """Try to take or to renew the Lease. Who holds it and knows how it stands writes without looking."""
        self._began_at = now
        if self.leads and self._seen:
            return self._write(now, _Step.RENEW)
        return self._look()

    def answered(self, answer: HttpAnswer, now: Instant) -> HttpRequest | None:
        """Take in an answer; what to ask then, None if this try is over."""
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
        """Give the Lease up, so that the next need not wait until it is over."""
        spec = {**self._seen["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        spec |= {"renewTime": format_micro_time(now), "acquireTime": format_micro_time(now)}
        self.leads = False
        return self._request("PUT", f"/{self.terms.name}", {**self._seen, "spec": spec})

    def look(self) -> HttpRequest:
        """See how the Lease stands."""
        return self._look()

    def release_as_seen(self, answer: HttpAnswer, now: Instant) -> HttpRequest | None:
        """Give it up upon how an answer says that it stands; None if it is ours no more."""
        lease = lease_in(answer)
        if lease is None:
            return None
        self._see(lease, now)
        return self.release(now) if self.holder == self.terms.identity else None

    def _look(self) -> HttpRequest:
        self._step = _Step.LOOK
        return self._request("GET", f"/{self.terms.name}")

    def _write(self, now: Instant, step: _Step) -> HttpRequest:
        """Write our name into the Lease, upon what was seen of it."""
        self._step = step
        old = self._seen.get("spec") or {}
        is_ours = self.holder == self.terms.identity
        spec = {
            "holderIdentity": self.terms.identity,
            "leaseDurationSeconds": -(-self.terms.lease // SECOND),  # nobody may take it before our deadline
            "acquireTime": old.get("acquireTime") if is_ours else format_micro_time(now),
            "renewTime": format_micro_time(now),
            "leaseTransitions": (old.get("leaseTransitions") or 0) + (bool(self._seen) and not is_ours),
        }
        new = {"name": self.terms.name, "namespace": self.terms.namespace}
        kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        lease = {**kind, "metadata": self._seen.get("metadata") or new, "spec": spec}
        return self._request("PUT", f"/{self.terms.name}", lease) if self._seen else self._request("POST", "", lease)

    def _was_written(self, answer: HttpAnswer, now: Instant) -> HttpRequest | None:
        """The Lease is ours, or it is not known whether it is: who renewed it looks at once how it stands."""
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
# A candidate at work: it tries for the Lease and renews it, and says when it has it and when no more.


#: A candidate waits up to so many hundredths of the retry period longer, so that not all try at once.
_JITTER = 120
#: It is not there; somebody else was faster.
_ABSENT = (404, 409)
_CONFLICT = 409


class Leadership:
    """See the module. It ends when it is lost: what leads then must not go on with what it knows."""

    def __init__(self, election: Election, timers: Kernel, transport: Transport) -> None:
        self._election = election
        self._timers = timers
        self._transport = transport
        self._has_led = False
        self._tries = 0
        self._is_over = False
        #: Told what keeps it from knowing who leads, once for each reason.
        self.on_trouble: Callable[[str], None] = _nobody_told
        self._trouble = ""
        self.on_leading: Callable[[], None] = _nobody
        self.on_lost: Callable[[], None] = _nobody

    def start(self) -> None:
        """Begin to try."""
        self._try()

    def may_write(self) -> bool:
        """Whether nobody else can hold the Lease yet. Once that was not so it never is again."""
        if self._is_over:
            return False
        if self._election.may_write(self._timers.now()):
            return True
        if self._has_led:
            self._lose()
        return False

    def end(self, released: Callable[[], None]) -> None:
        """Try no more; give the Lease up if it is ours."""
        if self._election.leads and not self._is_over:
            request = self._election.release(self._timers.now())
            self._transport.send(request, lambda answer: self._was_given_up(answer, released))
        else:
            released()
        self._is_over = True

    def _was_given_up(self, answer: HttpAnswer, released: Callable[[], None]) -> None:
        """Where a renewal that was under way came first, it is given up upon that: nobody has to wait for its end."""
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
        self._tell_trouble(answer)
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

    def _tell_trouble(self, answer: HttpAnswer) -> None:
        is_usual = answer.code in _ABSENT or lease_in(answer) is not None
        trouble = "" if is_usual else trouble_of(answer)
        if trouble and trouble != self._trouble:
            self.on_trouble(f"the Lease: {trouble}")
        self._trouble = trouble

    def _wait(self) -> Duration:
        terms = self._election.terms
        if self._has_led:
            return terms.retry_period
        return terms.retry_period * (100 + draw(0, terms.identity, str(self._tries)) % _JITTER) // 100

    def _watch_the_deadline(self) -> None:
        """See when the time is over in which we may work without having renewed the Lease."""
        if self.may_write():
            self._timers.call_at(self._election.deadline, self._watch_the_deadline)

    def _lose(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._timers.call_soon(self.on_lost)


def _nobody() -> None:
    pass


def _nobody_told(_trouble: str) -> None:
    pass
