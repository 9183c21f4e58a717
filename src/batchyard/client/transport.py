"""Transport to a remote API server: requests and responses as values, rate limit, and backoff."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote

from batchyard.api import conversion, scheme
from batchyard.api.defaults import jobset_defaults, with_spec
from batchyard.api.meta import Key, Obj
from batchyard.api.scheme import ServedKind
from batchyard.base import draw
from batchyard.base.instant import MILLISECOND, SECOND, Duration, Instant, backoff


class HttpRequest(NamedTuple):
    """An HTTP request; the path includes the query."""

    method: str
    path: str
    body: bytes = b""
    #: The timeout of the response.
    within: Duration = 30 * SECOND
    #: The Accept header.
    accept: str = "application/json"
    #: The Content-Type header.
    content_type: str = "application/json"


class HttpAnswer(NamedTuple):
    """An HTTP response. The code is 0 if there is none."""

    code: int
    body: bytes = b""
    #: The Retry-After header.
    retry_after: Duration | None = None
    #: Why there is no response, or why a watch broke off.
    trouble: str = ""
    #: Whether the server may have received the request.
    was_sent: bool = True
    #: The server's Date header, in whole seconds; 0 if absent.
    server_time: Instant = 0


class Transport(Protocol):
    """Sends requests to one server, as one user. It calls back from the event loop, never re-entrantly."""

    def send(self, request: HttpRequest, answered: Callable[[HttpAnswer], None]) -> None:
        """Send a request; call `answered` with its response, once."""

    def watch(
        self,
        request: HttpRequest,
        received: Callable[[Sequence[bytes]], None],
        ended: Callable[[HttpAnswer], None],
    ) -> None:
        """Send a watch request; call back with lines as they arrive, first with none, and once at its end."""


# --- reading only ---
#
# A transport that sends no writes, so that its user cannot change anything.


_READS: Final = "GET"


class WriteRefusedError(Exception):
    """A write on a read-only transport: a defect in its user."""


class ReadOnlyTransport:
    """Sends read requests over another transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def send(self, request: HttpRequest, answered: Callable[[HttpAnswer], None]) -> None:
        """Send a read request; WriteRefusedError for any other."""
        if request.method != _READS or request.body:
            raise WriteRefusedError(f"{request.method} {request.path}")
        self._transport.send(request, answered)

    def watch(
        self,
        request: HttpRequest,
        received: Callable[[Sequence[bytes]], None],
        ended: Callable[[HttpAnswer], None],
    ) -> None:
        """Send a watch request; WriteRefusedError for any other."""
        if request.method != _READS or request.body:
            raise WriteRefusedError(f"{request.method} {request.path}")
        self._transport.watch(request, received, ended)


# --- rate limit ---
#
# Client-side rate limit. Source: golang.org/x/time/rate, as client-go uses it.


class RateLimit:
    """A token bucket of `burst` requests, refilled with `qps` a second; requests beyond it are delayed."""

    def __init__(self, qps: float, burst: int) -> None:
        self._qps = qps
        self._burst = float(burst)
        self._left = float(burst)
        self._as_of: Instant | None = None

    def wait(self, now: Instant) -> Duration:
        """Take one token; return the delay of the request."""
        passed = 0 if self._as_of is None else now - self._as_of
        self._as_of = now
        self._left = min(self._burst, self._left + passed / SECOND * self._qps) - 1
        return 0 if self._left >= 0 else int(-self._left / self._qps * SECOND)


# --- backoff ---
#
# Exponential backoff with jitter and an upper bound.


FIRST: Final = 200 * MILLISECOND
LONGEST: Final = 30 * SECOND


def jittered_backoff(failures: int, seed: int, *names: str) -> Duration:
    """Return the delay after so many failures in a row: one half fixed, one half pseudo-random."""
    if not failures:
        return 0
    whole = backoff(FIRST, LONGEST, failures)
    return whole // 2 + draw(seed, *names, str(failures)) % (whole // 2 + 1)


# --- resource paths ---
#
# URL paths of kinds and objects on an API server, and decoding of received objects.


_SPECIFIED: Final = frozenset(
    {
        *(scheme.TOPOLOGY, scheme.ADMISSION_CHECK, scheme.PROVISIONING_REQUEST_CONFIG),
        *(scheme.COHORT, scheme.CLUSTER_QUEUE, scheme.LOCAL_QUEUE, scheme.WORKLOAD),
    }
)


def path_of_kind(info: ServedKind, version: str) -> str:
    """Return the path of all objects of a kind."""
    return f"{root_of(info.group, version)}/{info.plural}"


def root_of(group: str, version: str) -> str:
    """Return the path of a group's version."""
    return f"/apis/{group}/{version}" if group else f"/api/{version}"


def path_of(info: ServedKind, version: str, namespace: str, name: str = "", part: str = "") -> str:
    """Return the path of an object, or of a subresource; without a name the path of all objects in the namespace."""
    within = f"/namespaces/{quote(namespace)}" if info.namespaced else ""
    path = f"{root_of(info.group, version)}{within}/{info.plural}"
    return "/".join([path, *[quote(each) for each in (name, part) if each]])


def received(info: ServedKind, version: str, sent: Mapping[str, Any]) -> Obj:
    """Convert a received object to its storage version. Items of lists may lack apiVersion and kind.

    A JobSet gets its defaults, and Kueue's kinds get a `spec`: a foreign server may not have set them, and Kueue allows
    writers to omit the spec.
    """
    obj: Obj = sent
    if "kind" not in sent or "apiVersion" not in sent:
        obj = {"apiVersion": info.api_version_for(version), "kind": info.kind, **sent}
    stored = conversion.to_storage(obj)
    if info.constant == scheme.JOB_SET:
        return jobset_defaults(stored)
    return with_spec(stored) if info.constant in _SPECIFIED else stored


def key_in(info: ServedKind, obj: Obj) -> Key:
    """Return the key of an object of a kind."""
    metadata = obj["metadata"]
    return Key(info.constant, metadata.get("namespace") or "", metadata["name"])


def revision_of(obj: Mapping[str, Any]) -> int:
    """Return the revision of an object or a list; 0 if it is not a number."""
    text = str((obj.get("metadata") or {}).get("resourceVersion") or "")
    return int(text) if text.isdecimal() else 0
