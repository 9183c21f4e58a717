"""The page on the wire: its files, for everybody, and its models, each for whoever may see what is in it.

A model is asked for once, or watched: then it is sent again, as far as it has changed, after whatever may have changed
it has become durable; a few times a second at most, the less often the more look on, and never while nobody does.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from batchyard.api import scheme
from batchyard.apiserver.auth.authentication import User, flow_of, is_exempt
from batchyard.apiserver.auth.authorization import Attributes, Authorizer
from batchyard.apiserver.request import JSON, NO_SUCH_PATH, TEXT, Refused, Request, Response
from batchyard.base.instant import MILLISECOND, Duration
from batchyard.interfaces.client import WatchEvent
from batchyard.interfaces.controller import Kernel

#: Where the files are, and where the models.
FILES: Final = "/ui"
MODELS: Final = "/apis/ui.batchyard.dev/v1alpha1/"
#: Of what does not exist, and of what the asker may not see.
_NO_MODEL: Final = "there is nothing of that name, or nothing that you may see"
#: Streams that may be open at once: all, those of one flow, and those that are kept for the owner.
LOOKERS_MAX: Final = 50
LOOKERS_OF_ONE_MAX: Final = 10
LOOKERS_OF_OWNER: Final = 10
#: How often all streams together are sent something.
_EVERY: Final = 200 * MILLISECOND
_EACH: Final = 50 * MILLISECOND
#: What is written all the time, and is in no model.
_IDLE_KINDS: Final = (scheme.LEASE, scheme.ENDPOINTS, scheme.ENDPOINT_SLICE)
_encode = msgspec.json.Encoder().encode
_LOG: Final = logging.getLogger("batchyard")


class Sight(Protocol):
    """What somebody may list."""

    def may_list(self, kind: str, namespace: str = "") -> bool:
        """Whether he may list a kind in a namespace or, for '', wherever its objects are."""


class File(Protocol):
    """A file."""

    @property
    def content(self) -> bytes:
        """Its bytes."""

    @property
    def content_type(self) -> str:
        """What it is made of."""


class Pages(Protocol):
    """What makes models."""

    def model(self, view: str, query: Mapping[str, str], sight: Sight) -> dict[str, Any] | None:
        """A view for somebody; None where there is none, or nothing that he may see of it."""

    def time(self) -> dict[str, Any]:
        """What time it is for the platform."""


class Feed(Protocol):
    """The changes that are durable."""

    def join(self, watch: "ModelStream") -> None:
        """Feed a stream with all that comes."""


class UserSight:
    """What a user may list, by the rights that he has now."""

    def __init__(self, user: User, authorizer: Authorizer) -> None:
        self._user = user
        self._authorizer = authorizer

    def may_list(self, kind: str, namespace: str = "") -> bool:
        """Whether he may."""
        info = scheme.kind_info(kind)
        asked = Attributes(self._user, "list", info.group, info.plural, namespace=namespace)
        return self._authorizer.decide(asked).allowed


class Files:
    """The files of the page, as answers."""

    def __init__(self, find: Callable[[str], File | None], headers: Sequence[tuple[str, str]]) -> None:
        self._find = find
        self._headers = tuple(headers)

    def answer(self, request: Request) -> Response:
        """The file at a path."""
        if request.path == FILES:
            return Response(307, "", content_type=TEXT, headers=(("location", f"{FILES}/"),))
        found = self._find(request.path.removeprefix(f"{FILES}/"))
        if found is None:
            return NO_SUCH_PATH
        return Response(200, found.content, content_type=found.content_type, headers=self._headers)


class Models:
    """The models of the page, as answers."""

    def __init__(self, pages: Pages, authorizer: Authorizer, feed: Feed, timers: Kernel) -> None:
        """`timers` are those of the clock, whatever the platform's time is."""
        self._pages = pages
        self._authorizer = authorizer
        self._feed = feed
        self._timers = timers
        #: The streams, each with its flow.
        self._lookers: dict[ModelStream, str] = {}

    def answer(self, request: Request) -> "Response | ModelStream":
        """A model, or a stream of what becomes of it."""
        view, query = request.path.removeprefix(MODELS), dict(request.query)
        sight = UserSight(request.user, self._authorizer)

        def make() -> dict[str, Any] | None:
            return self._pages.model(view, query, sight)

        made = make()
        if made is None:
            raise Refused(404, "NotFound", _NO_MODEL)
        if not request.flag("watch"):
            return Response(200, {**self._pages.time(), "model": made}, headers=_HEADERS)
        self._check_room(request.user)
        stream = ModelStream(make, self._pages.time, self._timers, self._lookers, flow_of(request.user))
        stream.begin(made)
        self._feed.join(stream)
        return stream

    def _check_room(self, user: User) -> None:
        """Refuse a stream where there are too many: of the user's flow, or of all who are not the owner."""
        if is_exempt(user):
            most = LOOKERS_MAX
        else:
            most = LOOKERS_MAX - LOOKERS_OF_OWNER
            flow = flow_of(user)
            if sum(1 for each in self._lookers.values() if each == flow) >= LOOKERS_OF_ONE_MAX:
                raise _too_many(f"{LOOKERS_OF_ONE_MAX} streams of the page are open for {flow}")
        if len(self._lookers) >= most:
            raise _too_many(f"{len(self._lookers)} streams of the page are open")


def _too_many(problem: str) -> Refused:
    return Refused(429, "TooManyRequests", f"{problem}; try again later", {"retryAfterSeconds": 1})


_HEADERS: Final = (("x-content-type-options", "nosniff"), ("cache-control", "no-store"))


class ModelStream:
    """A model and what becomes of it: lines of JSON, each with the parts that have changed."""

    content_type: Final = JSON
    times_out: Final = True

    def __init__(
        self,
        make: Callable[[], dict[str, Any] | None],
        time: Callable[[], dict[str, Any]],
        timers: Kernel,
        lookers: "dict[ModelStream, str]",
        flow: str,
    ) -> None:
        self._make = make
        self._time = time
        self._timers = timers
        self._lookers = lookers
        self._lookers[self] = flow
        #: The parts as they were sent.
        self._sent: dict[str, bytes] = {}
        self._waiting: list[bytes] = []
        self._is_stale = False
        self._ticket: int | None = None
        self.is_over = False
        #: Called when there is something to take.
        self.on_news: Callable[[], None] = _nobody

    def begin(self, model: dict[str, Any]) -> None:
        """Send all of it."""
        self._send(model)

    def take(self) -> list[bytes]:
        """The lines that wait."""
        taken, self._waiting = self._waiting, []
        if self._is_stale and self._ticket is None and not self.is_over:
            self._look_later()
        return taken

    def feed(self, changes: Iterable[WatchEvent]) -> None:
        """Something has changed."""
        if not self._is_stale and any(change.key.kind not in _IDLE_KINDS for change in changes):
            self.touch()

    def touch(self) -> None:
        """The model may be another by now; whoever has not taken what was sent is sent nothing more until then."""
        if self.is_over:
            return
        self._is_stale = True
        if self._ticket is None and not self._waiting:
            self._look_later()

    def mark(self) -> None:
        """Tell the time, so that both sides know that the other is there."""
        self._waiting.append(_encode(self._time()) + b"\n")
        self.on_news()

    def end(self) -> None:
        """Tell what waits, and no more."""
        self.is_over = True
        self._lookers.pop(self, None)
        if self._ticket is not None:
            self._timers.cancel(self._ticket)
            self._ticket = None
        self.on_news()

    def _look_later(self) -> None:
        wait: Duration = max(_EVERY, _EACH * len(self._lookers))
        self._ticket = self._timers.call_at(self._timers.now() + wait, self._look)

    def _look(self) -> None:
        self._ticket, self._is_stale = None, False
        try:
            model = self._make()
        except Exception:  # noqa: BLE001 - whatever it is, whoever looks asks anew, and nobody else is stopped
            _LOG.exception("defect in a model of the page")
            model = None
        if model is None:
            self.end()
        elif self._send(model):
            self.on_news()

    def _send(self, model: dict[str, Any]) -> bool:
        """Send what is other than it was; whether there is anything."""
        parts = {name: _encode(part) for name, part in model.items()}
        changed = {name: msgspec.Raw(part) for name, part in parts.items() if self._sent.get(name) != part}
        gone = [name for name in self._sent if name not in parts]
        self._sent = parts
        if changed or gone:
            self._waiting.append(_encode({**self._time(), "set": changed, "gone": gone}) + b"\n")
        return bool(changed or gone)


def _nobody() -> None:
    pass
