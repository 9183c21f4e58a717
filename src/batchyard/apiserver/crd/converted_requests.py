"""Requests and watches of custom objects that webhooks convert, which wait for the conversions.

Lists and watches share converted objects in a cache, as the watch caches of Kubernetes do. Source: k8s.io/apiserver,
pkg/storage/cacher.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api.meta import Obj
from batchyard.apiserver.admission.calls import (
    CallPorts,
    CallRun,
    WebhookCalls,
    internal_error,
    prepare_outside,
    respond_later,
)
from batchyard.apiserver.conversions import ConversionCache, ConversionNeeded, ConversionScope, convert_all, converting
from batchyard.apiserver.handlers.prepared_writes import PREPARE_ATTEMPTS_MAX
from batchyard.apiserver.handlers.read import EXPIRED_STATUS, WATCH_BACKLOG_MAX, WatchStream
from batchyard.apiserver.handlers.write import WriteHandler
from batchyard.apiserver.request import AnyResponse, ApiRequest, DeferredResponse, FinalResponse, StatusError
from batchyard.apiserver.resources import ResourcePath, conflict_error
from batchyard.interfaces.client import WatchEvent

#: The maximum number of events that a watch converts at once.
_EVENTS_MAX: Final = 500
#: The maximum number of lists and watches that wait for conversions to one version.
_WAITING_MAX: Final = 1_000
ConversionCallback: TypeAlias = Callable[[StatusError | None], None]
"""Called after a conversion, with its error if it failed."""


class _WaitingConversion(NamedTuple):
    objects: Sequence[Obj]
    scope: ConversionScope
    on_done: ConversionCallback


class WebhookConversions:
    """Answers requests and fills watches with objects that webhooks convert."""

    def __init__(self, ports: CallPorts) -> None:
        self._ports = ports
        self._cache = ConversionCache()
        #: The waiting lists and watches, by webhook and version: they use the objects that those before them convert.
        self._waiting: dict[tuple[str, str], list[_WaitingConversion]] = {}

    def answer(self, step: Callable[[], AnyResponse], need: ConversionNeeded, *, is_list: bool) -> AnyResponse:
        """Answer a request by a step that was interrupted, after the conversion that it needs."""
        if not is_list:
            return respond_later(converting(step, ConversionScope(), need), self._ports)
        return _ListAnswer(self, step).start(need)

    def answer_large_write(self, request: ApiRequest, path: ResourcePath, handler: WriteHandler) -> AnyResponse:
        """Answer a large write, which is prepared outside the server's thread."""
        return respond_later(_write_outside(request, path, handler), self._ports)

    def create_watch(self, *arguments: Any, with_bookmarks: bool = False) -> WatchStream:
        """Create a watch that receives converted objects, with the arguments of WatchStream."""
        return ConvertedWatchStream(self, *arguments, with_bookmarks=with_bookmarks)

    def new_scope(self) -> ConversionScope:
        """Return a scope of a list or a watch, which shares converted objects with others."""
        return ConversionScope(self._cache)

    def convert_in_turn(self, need: ConversionNeeded, scope: ConversionScope, on_done: ConversionCallback) -> None:
        """Convert objects, and add them to a scope; `on_done` is called now or later."""
        converter, api_version = need.converter, need.api_version
        missing = [obj for obj in need.objects if scope.find(converter, obj, api_version) is None]
        if not missing:
            on_done(None)
            return
        key = converter.key, api_version
        if key in self._waiting:
            if len(self._waiting[key]) >= _WAITING_MAX:
                message = "Too many requests, please try again later."
                on_done(StatusError(429, "TooManyRequests", message, {"retryAfterSeconds": 1}))
            else:
                self._waiting[key].append(_WaitingConversion(missing, scope, on_done))
            return
        self._waiting[key] = []

        def end(result: Any) -> None:
            error = result if isinstance(result, StatusError) else None
            waiting = self._waiting.pop(key)
            on_done(error)
            for objects, waiting_scope, on_waiting_done in waiting:
                if error is None:
                    waiting_need = ConversionNeeded(converter, api_version, objects)
                    self.convert_in_turn(waiting_need, waiting_scope, on_waiting_done)
                else:
                    on_waiting_done(error)

        CallRun(converter.calls(missing, api_version, scope), self._ports, end).start()


class _ListAnswer:
    """The response to a list: its step runs again after each conversion that it needs."""

    def __init__(self, service: WebhookConversions, step: Callable[[], AnyResponse]) -> None:
        self._service = service
        self._step = step
        self._scope = service.new_scope()
        self._response: AnyResponse | None = None
        self._receivers: list[Callable[[FinalResponse], None]] = []

    def start(self, need: ConversionNeeded) -> AnyResponse:
        """Return the response, or a response that comes later."""
        self._service.convert_in_turn(need, self._scope, self._proceed)
        return self._response or DeferredResponse(self._receivers.append)

    def _proceed(self, error: StatusError | None) -> None:
        if error is not None:
            self._respond(error.response())
            return
        with ExitStack() as on_exception:
            defect = internal_error("an unexpected exception ended the list; see the server log")
            on_exception.callback(self._respond, defect.response())
            response = self._run_step()
            on_exception.pop_all()
        if isinstance(response, DeferredResponse):
            response.then(self._respond)
        elif response is not None:
            self._respond(response)

    def _run_step(self) -> AnyResponse | None:
        """Return the response; None if it comes after further conversions."""
        try:
            return self._scope.run(self._step)
        except ConversionNeeded as need:
            self._service.convert_in_turn(need, self._scope, self._proceed)
            return None
        except StatusError as step_error:
            return step_error.response()

    def _respond(self, response: FinalResponse) -> None:
        if self._receivers:
            self._receivers[0](response)
        else:
            self._response = response


def _write_outside(request: ApiRequest, path: ResourcePath, handler: WriteHandler) -> WebhookCalls:
    scope = ConversionScope()
    for _ in range(PREPARE_ATTEMPTS_MAX):
        prepared_write = yield from prepare_outside(partial(handler.prepare, request, path), request.user, scope)
        if handler.is_current(prepared_write, path):
            store = partial(handler.store_prepared, prepared_write, path)
            return (yield from converting(store, scope))
    raise conflict_error(path.served_kind, path.name)


_BookmarkMetadata: TypeAlias = tuple[int, bool]


class ConvertedWatchStream(WatchStream):
    """A watch whose events wait in order until the webhook has converted their objects."""

    def __init__(self, service: WebhookConversions, path: ResourcePath, *arguments: Any, with_bookmarks: bool) -> None:
        super().__init__(path, *arguments, with_bookmarks=with_bookmarks)
        self._service = service
        self._path = path
        #: Changes, initial objects and bookmarks that are not converted yet.
        self._pending: deque[WatchEvent | Obj | _BookmarkMetadata] = deque()
        self._initial_pending = 0
        self._is_waiting = False
        self._is_converting = False

    def start(self, objs: Iterable[Obj], revision: int) -> None:
        """Send objects as ADDED events once they are converted; `process_changes` skips changes up to `revision`."""
        self._pending.extend(objs)
        self._initial_pending = len(self._pending)
        self._revision = revision
        self._convert_pending()

    def process_changes(self, watch_events: Iterable[WatchEvent]) -> None:
        """Queue changes for conversion; if too many wait, end the watch with an Expired error."""
        if self.is_over:
            return
        for change in watch_events:
            if change.revision > self._revision:
                self._revision = change.revision
                if change.key.kind == self._kind and self._namespace in ("", change.key.namespace):
                    self._pending.append(change)
        if len(self._pending) > self._initial_pending + WATCH_BACKLOG_MAX:
            self._pending.clear()
            self.fail(EXPIRED_STATUS)
        self._convert_pending()

    def take_buffered_data(self) -> Sequence[Mapping[str, Any]]:
        """Return and remove the converted events, and convert further ones."""
        events = super().take_buffered_data()
        self._convert_pending()
        return events

    def send_bookmark(self, revision: int, *, is_initial: bool = False) -> None:
        """Send a bookmark after the events that wait for conversion."""
        if not self._pending and not self._is_waiting:
            super().send_bookmark(revision, is_initial=is_initial)
        elif len(self._pending) <= self._initial_pending + WATCH_BACKLOG_MAX:
            self._pending.append((revision, is_initial))

    def _convert_pending(self) -> None:
        if self._is_converting:
            return
        self._is_converting = True
        try:
            self._convert_batches()
        finally:
            self._is_converting = False

    def _convert_batches(self) -> None:
        # The client reads converted events before further ones are converted: they use memory of their own.
        while self._pending and not self._buffered and not self._is_waiting and not self.is_over:
            batch = list(islice(self._pending, _EVENTS_MAX))
            upgrade, api_version = self._path.resource.strategy.in_version, self._path.api_version
            objects = [obj for item in batch for obj in self._objects_of(item)]
            try:
                convert_all(upgrade, objects, api_version)
            except ConversionNeeded as need:
                self._is_waiting = True
                scope = self._service.new_scope()
                self._service.convert_in_turn(need, scope, partial(self._receive, len(batch), scope))
            else:
                self._emit(len(batch))

    def _objects_of(self, item: WatchEvent | Obj | _BookmarkMetadata) -> Iterator[Obj]:
        if isinstance(item, WatchEvent):
            yield item.obj
            if item.old is not None:
                yield item.old
        elif not isinstance(item, tuple):
            yield item

    def _receive(self, count: int, scope: ConversionScope, error: StatusError | None) -> None:
        self._is_waiting = False
        if self.is_over:
            return
        if error is not None:
            self._pending.clear()
            self.fail(internal_error(str(error)).response().body)
            return
        scope.run(partial(self._emit, count))
        self._convert_pending()

    def _emit(self, count: int) -> None:
        in_version, api_version = self._path.resource.strategy.in_version, self._path.api_version
        for _ in range(min(count, len(self._pending))):
            item = self._pending.popleft()
            self._initial_pending = max(0, self._initial_pending - 1)
            if isinstance(item, WatchEvent):
                obj, old = in_version(item.obj, api_version), item.old
                self._buffer_change(item._replace(obj=obj, old=None if old is None else in_version(old, api_version)))
            elif isinstance(item, tuple):
                super().send_bookmark(item[0], is_initial=item[1])
            elif self._selection.accepts(obj := in_version(item, api_version)):
                self._buffered.append(("ADDED", obj))
        if self._buffered:
            self.on_new_data()
