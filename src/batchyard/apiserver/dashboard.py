"""HTTP handlers of the dashboard: public static files, and view models with access control.

A model is returned once or watched. A watch sends changed parts after durable changes, at most a few times a second.
The interval grows with the number of streams, and no model is computed without streams.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from batchyard.api import scheme
from batchyard.apiserver.auth.authorization import Attributes, Authorizer
from batchyard.apiserver.request import (
    JSON,
    NO_SUCH_PATH,
    TEXT,
    ApiRequest,
    Response,
    StatusError,
    UserInfo,
    flow_of,
    is_exempt,
)
from batchyard.base.instant import MILLISECOND, Duration
from batchyard.interfaces.client import WatchEvent
from batchyard.interfaces.controller import Kernel

#: The paths of files and of models.
FILES: Final = "/ui"
MODELS: Final = "/apis/ui.batchyard.dev/v1alpha1/"
#: The same message for missing and for hidden objects.
_NO_MODEL: Final = "not found, or not visible to you"
#: Maximum number of open streams: in total, for one flow, and reserved for the owner.
PAGE_STREAMS_MAX: Final = 50
PAGE_STREAMS_PER_FLOW_MAX: Final = 10
PAGE_STREAMS_FOR_OWNER: Final = 10
#: The minimum interval between updates of a stream, and the interval for each open stream.
_EVERY: Final = 200 * MILLISECOND
_EACH: Final = 50 * MILLISECOND
#: Kinds that change constantly and appear in no model.
_IDLE_KINDS: Final = (scheme.LEASE, scheme.ENDPOINTS, scheme.ENDPOINT_SLICE)
_encode = msgspec.json.Encoder().encode
_LOG: Final = logging.getLogger("batchyard")


class ListPermissions(Protocol):
    """The list permissions of a user."""

    def may_list(self, kind: str, namespace: str = "") -> bool:
        """Report whether the user may list a kind in a namespace, or in all namespaces for ''."""


class StaticFile(Protocol):
    """A static file."""

    @property
    def content(self) -> bytes:
        """The content."""

    @property
    def content_type(self) -> str:
        """The media type."""


class ModelProvider(Protocol):
    """Computes models."""

    def model(self, view: str, query: Mapping[str, str], sight: ListPermissions) -> dict[str, Any] | None:
        """Return the model of a view; None if it does not exist or is hidden from the user."""

    def time(self) -> dict[str, Any]:
        """Return the current time of the platform."""


class ModelFeed(Protocol):
    """The feed of durable changes."""

    def join(self, watch: "ModelStream") -> None:
        """Feed a stream with all later changes."""


class UserListPermissions:
    """The list permissions of a user, from the current RBAC rules."""

    def __init__(self, user: UserInfo, authorizer: Authorizer) -> None:
        self._user = user
        self._authorizer = authorizer

    def may_list(self, kind: str, namespace: str = "") -> bool:
        """Report whether the user may list a kind."""
        info = scheme.kind_info(kind)
        asked = Attributes(self._user, "list", info.group, info.plural, namespace=namespace)
        return self._authorizer.decide(asked).allowed


class StaticFileHandler:
    """The handler of static files."""

    def __init__(self, find: Callable[[str], StaticFile | None], headers: Sequence[tuple[str, str]]) -> None:
        self._find = find
        self._headers = tuple(headers)

    def answer(self, request: ApiRequest) -> Response:
        """Return the file at a path."""
        if request.path == FILES:
            return Response(307, "", content_type=TEXT, headers=(("location", f"{FILES}/"),))
        found = self._find(request.path.removeprefix(f"{FILES}/"))
        if found is None:
            return NO_SUCH_PATH
        return Response(200, found.content, content_type=found.content_type, headers=self._headers)


class ModelHandler:
    """The handler of view models."""

    def __init__(self, pages: ModelProvider, authorizer: Authorizer, feed: ModelFeed, timers: Kernel) -> None:
        """`timers` run on the wall clock, independent of the platform's time."""
        self._pages = pages
        self._authorizer = authorizer
        self._feed = feed
        self._timers = timers
        #: The flow of each open stream.
        self._open_streams: dict[ModelStream, str] = {}

    def answer(self, request: ApiRequest) -> "Response | ModelStream":
        """Return a model, or a stream of its changes."""
        view, query = request.path.removeprefix(MODELS), dict(request.query)
        sight = UserListPermissions(request.user, self._authorizer)

        def make() -> dict[str, Any] | None:
            return self._pages.model(view, query, sight)

        made = make()
        if made is None:
            raise StatusError(404, "NotFound", _NO_MODEL)
        if not request.flag("watch"):
            return Response(200, {**self._pages.time(), "model": made}, headers=_HEADERS)
        self._check_room(request.user)
        stream = ModelStream(make, self._pages.time, self._timers, self._open_streams, flow_of(request.user))
        stream.begin(made)
        self._feed.join(stream)
        return stream

    def _check_room(self, user: UserInfo) -> None:
        """Raise Refused if too many streams are open, for the user's flow or for all users but the owner."""
        if is_exempt(user):
            most = PAGE_STREAMS_MAX
        else:
            most = PAGE_STREAMS_MAX - PAGE_STREAMS_FOR_OWNER
            flow = flow_of(user)
            if sum(1 for each in self._open_streams.values() if each == flow) >= PAGE_STREAMS_PER_FLOW_MAX:
                raise _too_many(f"{PAGE_STREAMS_PER_FLOW_MAX} dashboard streams are open for {flow}")
        if len(self._open_streams) >= most:
            raise _too_many(f"{len(self._open_streams)} dashboard streams are open")


def _too_many(problem: str) -> StatusError:
    return StatusError(429, "TooManyRequests", f"{problem}; try again later", {"retryAfterSeconds": 1})


_HEADERS: Final = (("x-content-type-options", "nosniff"), ("cache-control", "no-store"))


class ModelStream:
    """A model and its changes: lines of JSON with the changed parts."""

    content_type: Final = JSON
    times_out: Final = True

    def __init__(
        self,
        make: Callable[[], dict[str, Any] | None],
        time: Callable[[], dict[str, Any]],
        timers: Kernel,
        open_streams: "dict[ModelStream, str]",
        flow: str,
    ) -> None:
        self._make = make
        self._time = time
        self._timers = timers
        self._open_streams = open_streams
        self._open_streams[self] = flow
        #: The parts as last sent.
        self._sent: dict[str, bytes] = {}
        self._waiting: list[bytes] = []
        self._is_stale = False
        self._ticket: int | None = None
        self.is_over = False
        #: Called when lines are available.
        self.on_news: Callable[[], None] = _noop

    def begin(self, model: dict[str, Any]) -> None:
        """Send the whole model."""
        self._send(model)

    def take(self) -> list[bytes]:
        """Take the buffered lines."""
        taken, self._waiting = self._waiting, []
        if self._is_stale and self._ticket is None and not self.is_over:
            self._look_later()
        return taken

    def feed(self, changes: Iterable[WatchEvent]) -> None:
        """Mark the model as stale after relevant changes."""
        if not self._is_stale and any(change.key.kind not in _IDLE_KINDS for change in changes):
            self.touch()

    def touch(self) -> None:
        """Schedule an update, unless the client has not read the last one yet."""
        if self.is_over:
            return
        self._is_stale = True
        if self._ticket is None and not self._waiting:
            self._look_later()

    def mark(self) -> None:
        """Send the time as a keep-alive."""
        self._waiting.append(_encode(self._time()) + b"\n")
        self.on_news()

    def end(self) -> None:
        """End the stream after the buffered lines."""
        self.is_over = True
        self._open_streams.pop(self, None)
        if self._ticket is not None:
            self._timers.cancel(self._ticket)
            self._ticket = None
        self.on_news()

    def _look_later(self) -> None:
        wait: Duration = max(_EVERY, _EACH * len(self._open_streams))
        self._ticket = self._timers.call_at(self._timers.now() + wait, self._look)

    def _look(self) -> None:
        self._ticket, self._is_stale = None, False
        try:
            model = self._make()
        except Exception:  # noqa: BLE001 - ends only this stream; its client reconnects
            _LOG.exception("dashboard model failed")
            model = None
        if model is None:
            self.end()
        elif self._send(model):
            self.on_news()

    def _send(self, model: dict[str, Any]) -> bool:
        """Send the changed parts; return whether there were any."""
        parts = {name: _encode(part) for name, part in model.items()}
        changed = {name: msgspec.Raw(part) for name, part in parts.items() if self._sent.get(name) != part}
        gone = [name for name in self._sent if name not in parts]
        self._sent = parts
        if changed or gone:
            self._waiting.append(_encode({**self._time(), "set": changed, "gone": gone}) + b"\n")
        return bool(changed or gone)


def _noop() -> None:
    pass
