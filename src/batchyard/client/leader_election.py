"""Leader election with a Lease. Source: client-go, tools/leaderelection.

A candidate that sees the Lease change knows that its holder is alive. If the Lease has not changed for its duration, by
the candidate's own clock, the candidate may take it. The holder may write until its renew deadline, which counts from
the start of its last successful renewal. That deadline passes before another candidate may take the Lease.
`LeaderElector` is the state machine and sends nothing: `begin` returns the first request, `process_response` the next
one. `Leadership` sends the requests, and reports when leadership starts and ends.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

import msgspec

from batchyard.api.times import format_micro_time
from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.base.primitives import draw_integer
from batchyard.client.transport import HttpRequest, HttpResponse, Transport, decode_object, failure_reason, is_object
from batchyard.interfaces.controller import Kernel

_encode: Final = msgspec.json.Encoder().encode
_OK: Final = (200, 201)


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """The settings of leader election: the candidate's identity, the Lease's namespace and name, and the durations."""

    identity: str
    namespace: str
    name: str
    lease: Duration = 15 * SECOND
    renew_deadline: Duration = 10 * SECOND
    retry_period: Duration = 2 * SECOND


def lease_in(response: HttpResponse) -> Mapping[str, Any] | None:
    """Return the Lease in an HTTP response; None for an error, or if the body is no Lease (such as a proxy's page)."""
    received_lease = decode_object(response.body) if response.code in _OK else {}
    return received_lease if received_lease.get("kind") == "Lease" and is_object(received_lease) else None


class _RequestKind(Enum):
    READ = auto()
    RENEW = auto()
    ACQUIRE = auto()


class LeaderElector:
    """The state machine of a candidate in leader election: the Lease as last read, and whether the candidate leads."""

    def __init__(self, lease_settings: LeaseSettings) -> None:
        self.settings = lease_settings
        #: Whether this candidate holds the Lease, as far as is known.
        self.leads = False
        #: The Lease as last read, and when this candidate noticed its last change.
        self._last_lease: Mapping[str, Any] = {}
        self._changed_at: Instant = 0
        #: When the last successful renewal was started.
        self._renewal_started_at: Instant = 0
        self._attempt_started_at: Instant = 0
        self._last_request = _RequestKind.READ
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{lease_settings.namespace}/leases"

    @property
    def holder(self) -> str:
        """The identity that held the Lease when it was last read; '' if there is none."""
        holder: str = (self._last_lease.get("spec") or {}).get("holderIdentity") or ""
        return holder

    @property
    def deadline(self) -> Instant:
        """The instant until which this candidate, as leader, may write without another renewal of the Lease."""
        return self._renewal_started_at + self.settings.renew_deadline

    def may_write(self, now: Instant) -> bool:
        """Return whether this candidate leads, and no other candidate can hold the Lease yet."""
        return self.leads and now < self.deadline

    def begin(self, now: Instant) -> HttpRequest:
        """Start an attempt to take or renew the Lease; return the request: for the leader a write, else a read."""
        self._attempt_started_at = now
        if self.leads and self._last_lease:
            return self._request_write(now, _RequestKind.RENEW)
        return self._request_lease_read()

    def process_response(self, response: HttpResponse, now: Instant) -> HttpRequest | None:
        """Process the response to the last request; return the next request, or None if this attempt is over."""
        if self._last_request is not _RequestKind.READ:
            return self._process_write_response(response, now)
        if response.code == 404:
            self._last_lease = {}
            return self._request_write(now, _RequestKind.ACQUIRE)
        lease = lease_in(response)
        if lease is None:
            return None
        self._record_lease(lease, now)
        if self.holder not in {"", self.settings.identity} and now < self._expires_at():
            self.leads = False
            return None
        return self._request_write(now, _RequestKind.ACQUIRE)

    def release(self, now: Instant) -> HttpRequest:
        """Give up leadership; return a request that clears the holder of the Lease, so that candidates can take it."""
        spec = {**self._last_lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        spec |= {"renewTime": format_micro_time(now), "acquireTime": format_micro_time(now)}
        self.leads = False
        return self._request("PUT", f"/{self.settings.name}", {**self._last_lease, "spec": spec})

    def read_request(self) -> HttpRequest:
        """Return a request that reads the Lease."""
        return self._request_lease_read()

    def release_observed_lease(self, response: HttpResponse, now: Instant) -> HttpRequest | None:
        """Return a request that releases the Lease in a response; None if the response has none of this candidate."""
        lease = lease_in(response)
        if lease is None:
            return None
        self._record_lease(lease, now)
        return self.release(now) if self.holder == self.settings.identity else None

    def _request_lease_read(self) -> HttpRequest:
        self._last_request = _RequestKind.READ
        return self._request("GET", f"/{self.settings.name}")

    def _request_write(self, now: Instant, request_kind: _RequestKind) -> HttpRequest:
        self._last_request = request_kind
        old_spec = self._last_lease.get("spec") or {}
        is_own_lease = self.holder == self.settings.identity
        spec = {
            "holderIdentity": self.settings.identity,
            "leaseDurationSeconds": -(-self.settings.lease // SECOND),  # rounded up: it ends after the deadline
            "acquireTime": old_spec.get("acquireTime") if is_own_lease else format_micro_time(now),
            "renewTime": format_micro_time(now),
            "leaseTransitions": (old_spec.get("leaseTransitions") or 0) + (bool(self._last_lease) and not is_own_lease),
        }
        new_metadata = {"name": self.settings.name, "namespace": self.settings.namespace}
        type_meta = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        new_lease = {**type_meta, "metadata": self._last_lease.get("metadata") or new_metadata, "spec": spec}
        method, path = ("PUT", f"/{self.settings.name}") if self._last_lease else ("POST", "")
        return self._request(method, path, new_lease)

    def _process_write_response(self, response: HttpResponse, now: Instant) -> HttpRequest | None:
        lease = lease_in(response)
        if lease is not None:
            self._record_lease(lease, now)
            self.leads, self._renewal_started_at = True, self._attempt_started_at
            return None
        if self._last_request is _RequestKind.RENEW:
            return self._request_lease_read()
        self._last_lease = {} if response.code == 404 else self._last_lease
        return None

    def _record_lease(self, lease: Mapping[str, Any], now: Instant) -> None:
        if lease.get("spec") != self._last_lease.get("spec"):
            self._changed_at = now
        self._last_lease = lease

    def _expires_at(self) -> Instant:
        lease_seconds = (self._last_lease.get("spec") or {}).get("leaseDurationSeconds") or 0
        return self._changed_at + lease_seconds * SECOND

    def _request(self, method: str, name_suffix: str, body: Mapping[str, Any] | None = None) -> HttpRequest:
        encoded_body = b"" if body is None else _encode(body)
        return HttpRequest(method, self._path + name_suffix, encoded_body, self.settings.renew_deadline // 2)


# Runs a candidate: tries to take the Lease, renews it, and reports when leadership starts and ends.


#: Jitter in percent of the retry period, so that candidates do not retry at the same time.
_JITTER = 120
#: Response codes that are no errors: the Lease does not exist, or another candidate was faster.
_EXPECTED_ERROR_CODES = (404, 409)
_CONFLICT = 409


class Leadership:
    """A candidate in leader election. After it loses leadership, the process must exit: its state may be stale."""

    def __init__(self, elector: LeaderElector, timers: Kernel, transport: Transport) -> None:
        self._elector = elector
        self._timers = timers
        self._transport = transport
        self._has_led = False
        self._attempts = 0
        self._is_over = False
        #: Called with an error of reading or writing the Lease, unless it is the same as in the last response.
        self.on_trouble: Callable[[str], None] = _ignore_error
        self._last_error = ""
        self.on_leading: Callable[[], None] = _noop
        self.on_lost: Callable[[], None] = _noop

    def start(self) -> None:
        """Start to take and renew the Lease, until `end` is called or leadership is lost."""
        self._start_attempt()

    def may_write(self) -> bool:
        """Return whether this candidate leads and no other can hold the Lease.

        If the renew deadline of the leader has passed, leadership ends for good, and the result is always False.
        """
        if self._is_over:
            return False
        if self._elector.may_write(self._timers.now()):
            return True
        if self._has_led:
            self._lose_leadership()
        return False

    def end(self, on_released: Callable[[], None]) -> None:
        """Stop the candidate, release the Lease if this candidate holds it, then call `on_released`."""
        if self._elector.leads and not self._is_over:
            request = self._elector.release(self._timers.now())
            self._transport.send(request, lambda response: self._process_release(response, on_released))
        else:
            on_released()
        self._is_over = True

    def _process_release(self, response: HttpResponse, on_released: Callable[[], None]) -> None:
        if response.code != _CONFLICT:
            on_released()
            return

        def release_again(response: HttpResponse) -> None:
            request = self._elector.release_observed_lease(response, self._timers.now())
            if request is None:
                on_released()
            else:
                self._transport.send(request, lambda _answer: on_released())

        self._transport.send(self._elector.read_request(), release_again)

    def _start_attempt(self) -> None:
        if not self._is_over:
            self._attempts += 1
            self._send_request(self._elector.begin(self._timers.now()))

    def _send_request(self, request: HttpRequest) -> None:
        self._transport.send(request, self._process_response)

    def _process_response(self, response: HttpResponse) -> None:
        if self._is_over:
            return
        self._report_error(response)
        next_request = self._elector.process_response(response, self._timers.now())
        if next_request is not None:
            self._send_request(next_request)
            return
        if self.may_write() and not self._has_led:
            self._has_led = True
            self._check_deadline()
            self.on_leading()
        elif self._has_led and not self._elector.leads:
            self._lose_leadership()
            return
        self._timers.call_at(self._timers.now() + self._retry_delay(), self._start_attempt)

    def _report_error(self, response: HttpResponse) -> None:
        is_error_expected = response.code in _EXPECTED_ERROR_CODES or lease_in(response) is not None
        error_text = "" if is_error_expected else failure_reason(response)
        if error_text and error_text != self._last_error:
            settings = self._elector.settings
            self.on_trouble(f"cannot read or write the Lease {settings.namespace}/{settings.name}: {error_text}")
        self._last_error = error_text

    def _retry_delay(self) -> Duration:
        settings = self._elector.settings
        if self._has_led:
            return settings.retry_period
        return settings.retry_period * (100 + draw_integer(0, settings.identity, str(self._attempts)) % _JITTER) // 100

    def _check_deadline(self) -> None:
        """Check at a renew deadline whether the Lease was renewed, and end leadership if not."""
        if self.may_write():
            self._timers.call_at(self._elector.deadline, self._check_deadline)

    def _lose_leadership(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._timers.call_soon(self.on_lost)


def _noop() -> None:
    pass


def _ignore_error(_last_error: str) -> None:
    pass
