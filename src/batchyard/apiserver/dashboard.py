"""HTTP handlers of the dashboard: public static files, and the access-controlled JSON documents (models) of its pages.

A client gets a model once or watches it. A watch sends the changed parts after changes of stored objects, at most a few
times a second, and less often the more streams are open.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from batchyard.api import scheme
from batchyard.apiserver.auth.authorization import Authorizer, RequestAttributes
from batchyard.apiserver.request import (
    JSON,
    NO_SUCH_PATH_RESPONSE,
    PLAIN_TEXT,
    ApiRequest,
    Response,
    StatusError,
    UserInfo,
    flow_of,
    is_exempt_from_limits,
)
from batchyard.base.instant import MILLISECOND, Duration
from batchyard.interfaces.client import WatchEvent
from batchyard.interfaces.controller import Kernel

#: The URL path prefixes of static files and of page documents (models).
DASHBOARD_FILES_PATH: Final = "/ui"
DASHBOARD_MODELS_PATH: Final = "/apis/ui.batchyard.dev/v1alpha1/"
DASHBOARD_TIME_PATH: Final = f"{DASHBOARD_MODELS_PATH}time"
#: The path at which actions are offered (GET) and executed (POST).
DASHBOARD_ACTIONS_PATH: Final = f"{DASHBOARD_MODELS_PATH}actions"
#: The path of the Events about an object, on servers whose models contain no Events.
DASHBOARD_EVENTS_PATH: Final = f"{DASHBOARD_MODELS_PATH}events"
#: The same message for missing and for hidden objects.
_NO_MODEL_MESSAGE: Final = "not found, or not visible to you"
#: Maximum number of open streams: in total, for one flow, and reserved for `system:masters`.
DASHBOARD_STREAMS_MAX: Final = 50
DASHBOARD_STREAMS_PER_FLOW_MAX: Final = 10
DASHBOARD_STREAMS_FOR_OWNER: Final = 10
#: The minimum interval between updates of a stream, and its increase for each open stream.
_UPDATE_INTERVAL_MIN: Final = 200 * MILLISECOND
_UPDATE_INTERVAL_PER_STREAM: Final = 50 * MILLISECOND
#: Kinds that change constantly and appear on no page.
_KINDS_WITHOUT_UPDATE: Final = (scheme.LEASE, scheme.ENDPOINTS, scheme.ENDPOINT_SLICE)
_encode_json = msgspec.json.Encoder().encode
_LOG: Final = logging.getLogger("batchyard")


class ListPermissions(Protocol):
    """The permissions of a user to list objects."""

    def may_list(self, kind: str, namespace: str = "") -> bool:
        """Return whether the user may list a kind in a namespace, or in all namespaces for ''."""


class StaticFile(Protocol):
    """A static file of the dashboard."""

    @property
    def content(self) -> bytes:
        """The content of the file."""

    @property
    def content_type(self) -> str:
        """The media type of the file."""


class ModelProvider(Protocol):
    """Computes the models of the dashboard: the JSON document of each page."""

    def model(self, view_name: str, query: Mapping[str, str], permissions: ListPermissions) -> dict[str, Any] | None:
        """Return the JSON document of a dashboard page, limited to what the user may list.

        None if there is no such page, or if its object does not exist or the user may not list it.
        """

    def time(self) -> dict[str, Any]:
        """Return the current time of the platform as a JSON document."""


class ModelFeed(Protocol):
    """Passes changes of stored objects to the dashboard's streams."""

    def subscribe(self, stream: "ModelStream") -> None:
        """Pass later changes of stored objects to a stream."""


class UserListPermissions:
    """The permissions of a user to list objects, by the current RBAC rules."""

    def __init__(self, user: UserInfo, authorizer: Authorizer) -> None:
        self._user = user
        self._authorizer = authorizer

    def may_list(self, kind: str, namespace: str = "") -> bool:
        """Return whether the user may list a kind in a namespace, or in all namespaces for ''."""
        served_kind = scheme.kind_info(kind)
        attributes = RequestAttributes(self._user, "list", served_kind.group, served_kind.plural, namespace=namespace)
        return self._authorizer.decide(attributes).allowed


class StaticFileHandler:
    """The handler of requests for the dashboard's static files."""

    def __init__(self, find_file: Callable[[str], StaticFile | None], headers: Sequence[tuple[str, str]]) -> None:
        self._find_file = find_file
        self._headers = tuple(headers)

    def respond(self, request: ApiRequest) -> Response:
        """Return the static file at the path of a request, a redirect to the start page, or 404."""
        if request.path == DASHBOARD_FILES_PATH:
            return Response(307, "", content_type=PLAIN_TEXT, headers=(("location", f"{DASHBOARD_FILES_PATH}/"),))
        static_file = self._find_file(request.path.removeprefix(f"{DASHBOARD_FILES_PATH}/"))
        if static_file is None:
            return NO_SUCH_PATH_RESPONSE
        return Response(200, static_file.content, content_type=static_file.content_type, headers=self._headers)


class ModelHandler:
    """The handler of requests for the JSON documents of dashboard pages."""

    def __init__(self, models: ModelProvider, authorizer: Authorizer, feed: ModelFeed, timers: Kernel) -> None:
        """Create the handler. `timers` run on the wall clock even if the platform runs on simulated time."""
        self._models = models
        self._authorizer = authorizer
        self._feed = feed
        self._timers = timers
        #: The flow of each open stream.
        self._open_streams: dict[ModelStream, str] = {}

    def respond(self, request: ApiRequest) -> "Response | ModelStream":
        """Return the JSON document of a dashboard page, or with `watch` a stream of the document and its changes.

        Raises StatusError if the page or its object is unknown or hidden from the user, or too many streams are open.
        """
        view_name, query = request.path.removeprefix(DASHBOARD_MODELS_PATH), dict(request.query)
        permissions = UserListPermissions(request.user, self._authorizer)

        def compute_model() -> dict[str, Any] | None:
            return self._models.model(view_name, query, permissions)

        model = compute_model()
        if model is None:
            raise StatusError(404, "NotFound", _NO_MODEL_MESSAGE)
        if not request.has_flag("watch"):
            return Response(200, {**self._models.time(), "model": model}, headers=_MODEL_RESPONSE_HEADERS)
        self._check_stream_limits(request.user)
        stream = ModelStream(compute_model, self._models.time, self._timers, self._open_streams, flow_of(request.user))
        stream.start(model)
        self._feed.subscribe(stream)
        return stream

    def _check_stream_limits(self, user: UserInfo) -> None:
        if is_exempt_from_limits(user):
            streams_max = DASHBOARD_STREAMS_MAX
        else:
            streams_max = DASHBOARD_STREAMS_MAX - DASHBOARD_STREAMS_FOR_OWNER
            flow = flow_of(user)
            if sum(1 for each in self._open_streams.values() if each == flow) >= DASHBOARD_STREAMS_PER_FLOW_MAX:
                raise _too_many_streams_error(f"{DASHBOARD_STREAMS_PER_FLOW_MAX} dashboard streams are open for {flow}")
        if len(self._open_streams) >= streams_max:
            raise _too_many_streams_error(f"{len(self._open_streams)} dashboard streams are open")


def _too_many_streams_error(problem: str) -> StatusError:
    return StatusError(
        429, "TooManyRequests", f"{problem}; close a stream, or try again later", {"retryAfterSeconds": 1}
    )


_MODEL_RESPONSE_HEADERS: Final = (("x-content-type-options", "nosniff"), ("cache-control", "no-store"))


class ModelStream:
    """A watch of one dashboard page's JSON document; after changes it sends the changed parts as a line of JSON."""

    content_type: Final = JSON
    times_out: Final = True

    def __init__(
        self,
        compute_model: Callable[[], dict[str, Any] | None],
        compute_time_document: Callable[[], dict[str, Any]],
        timers: Kernel,
        open_streams: "dict[ModelStream, str]",
        flow: str,
    ) -> None:
        self._compute_model = compute_model
        self._compute_time_document = compute_time_document
        self._timers = timers
        self._open_streams = open_streams
        self._open_streams[self] = flow
        #: The encoded parts of the document, by name, as last sent.
        self._sent_parts: dict[str, bytes] = {}
        #: The encoded parts of the document as of the lines that were taken.
        self._taken_parts: dict[str, bytes] = {}
        self._buffered: list[bytes] = []
        self._is_stale = False
        self._update_ticket: int | None = None
        self.is_over = False
        #: Called when lines are available.
        self.on_new_data: Callable[[], None] = _do_nothing

    def start(self, model: dict[str, Any]) -> None:
        """Buffer the complete JSON document as the first line of the stream."""
        self._send_model(model)

    def take_buffered_data(self) -> list[bytes]:
        """Return and remove the buffered lines of the stream; schedule an update if the document is stale."""
        lines, self._buffered, self._taken_parts = self._buffered, [], self._sent_parts
        if self._is_stale and self._update_ticket is None and not self.is_over:
            self._schedule_update()
        return lines

    def discard_buffered_data(self) -> None:
        """Discard the buffered lines, and compute the document again, since the permissions of the user changed."""
        self._buffered, self._sent_parts = [], self._taken_parts
        self.mark_stale()

    def process_changes(self, watch_events: Iterable[WatchEvent]) -> None:
        """Mark the dashboard page's document as stale if an object has changed whose kind appears on any page."""
        if not self._is_stale and any(change.key.kind not in _KINDS_WITHOUT_UPDATE for change in watch_events):
            self.mark_stale()

    def forget_changes(self, _revision: int) -> None:
        """Hold no changes."""

    def mark_stale(self) -> None:
        """Mark the page's document as stale: it is computed again after the client has read the buffered lines."""
        if self.is_over:
            return
        self._is_stale = True
        if self._update_ticket is None and not self._buffered:
            self._schedule_update()

    def send_keep_alive(self) -> None:
        """Send the platform's time as a keep-alive."""
        self._buffered.append(_encode_json(self._compute_time_document()) + b"\n")
        self.on_new_data()

    def end(self) -> None:
        """End the stream after the buffered lines."""
        self.is_over = True
        self._open_streams.pop(self, None)
        if self._update_ticket is not None:
            self._timers.cancel(self._update_ticket)
            self._update_ticket = None
        self.on_new_data()

    def _schedule_update(self) -> None:
        update_interval: Duration = max(_UPDATE_INTERVAL_MIN, _UPDATE_INTERVAL_PER_STREAM * len(self._open_streams))
        self._update_ticket = self._timers.call_at(self._timers.now() + update_interval, self._update_model)

    def _update_model(self) -> None:
        self._update_ticket, self._is_stale = None, False
        try:
            model = self._compute_model()
        except Exception:  # noqa: BLE001 - ends only this stream; its client reconnects
            _LOG.exception("cannot compute the model of a dashboard page; its stream ends, and the page reconnects")
            model = None
        if model is None:
            self.end()
        elif self._send_model(model):
            self.on_new_data()

    def _send_model(self, model: dict[str, Any]) -> bool:
        encoded_parts = {name: _encode_json(part) for name, part in model.items()}
        changed_parts = {
            name: msgspec.Raw(part) for name, part in encoded_parts.items() if self._sent_parts.get(name) != part
        }
        removed_names = [name for name in self._sent_parts if name not in encoded_parts]
        self._sent_parts = encoded_parts
        if changed_parts or removed_names:
            self._buffered.append(
                _encode_json({**self._compute_time_document(), "set": changed_parts, "gone": removed_names}) + b"\n"
            )
        return bool(changed_parts or removed_names)


def _do_nothing() -> None:
    pass
