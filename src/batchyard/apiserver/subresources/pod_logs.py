"""`pods/NAME/log`: container logs, as `kubectl logs` requests them.

Sources: Kubernetes's pkg/registry/core/pod/strategy.go, pkg/kubelet/kubelet_pods.go (choice of the log, errors),
pkg/apis/core/validation (options), pkg/kubelet/kuberuntime/logs (times).
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api.errors import FieldError, InvalidObject
from batchyard.api.meta import Obj
from batchyard.api.times import format_micro_time, parse_time
from batchyard.apiserver.request import ApiRequest, Response, StatusError, bad_request, causes_of
from batchyard.apiserver.resources import EndpointHandlers
from batchyard.apiserver.responses import AnyResponse
from batchyard.apiserver.subresources.pod_containers import PodContainers, chosen_container, is_somewhere
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.containers import ContainerLog, LogLine

_TEXT: Final = "text/plain"
_STATUSES: Final = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
_NO_IMAGE: Final = {
    "ErrImagePull": "image can't be pulled",
    "ImagePullBackOff": "trying and failing to pull image",
}


class LogOptions(NamedTuple):
    """The options of a log request."""

    container: str
    follow: bool
    previous: bool
    timestamps: bool
    #: Only lines at or after this time.
    since: Instant
    #: Of the existing lines, only this many last ones.
    tail: int | None
    limit_bytes: int | None


class PodLogs:
    """The handler of pod logs."""

    def __init__(self, pods: PodContainers, now: Callable[[], Instant]) -> None:
        self._pods = pods
        self._now = now

    def answer(self) -> EndpointHandlers:
        """Return the handlers of the subresource."""
        return EndpointHandlers("", "v1", "Pod", {"GET": self._get})

    def _get(self, request: ApiRequest, namespace: str, name: str) -> AnyResponse:
        options = log_options(request, name, self._now())
        pod = self._pods.pod(namespace, name)
        container = chosen_container(pod, options.container)
        if not is_somewhere(pod):
            return Response(204, "", content_type=_TEXT)  # not bound to a node: no kubelet to read from
        _check_has_log(pod, container, previous=options.previous)
        log = self._pods.runtime.log(pod, container, previous=options.previous)
        stream = LogStream(log, options, self._now())
        if options.follow:
            return stream
        taken = stream.take()
        if not stream.is_over:
            return stream.resumed_with(taken)
        text = b"".join(taken).decode(errors="replace")
        log.close()
        return Response(200, text, content_type=_TEXT)


class LogStream:
    """A log as its options select it; without `follow` it ends with the lines that existed at the request."""

    content_type: Final = _TEXT
    times_out: Final = False

    def __init__(self, log: ContainerLog, options: LogOptions, asked_at: Instant) -> None:
        self._log = log
        self._options = options
        self._asked_at = asked_at
        #: The last existing lines while reading up to the request time; None after that or without `tail`.
        self._last: deque[LogLine] | None = None
        if options.tail is not None:
            self._last = deque(maxlen=options.tail)
            log.skip_to_last(options.tail)
        #: Data read before the stream was handed to the writer.
        self._taken: list[bytes] = []
        self._bytes_left = options.limit_bytes
        self.is_over = False
        self.on_news: Callable[[], None] = _noop
        log.on_news = self._notify

    def take(self) -> Sequence[bytes]:
        """Return the data since the last call, or part of it."""
        found = self._log.read()
        lines = [line for line in found if line.at >= self._options.since]
        is_all = not self._log.is_behind or bool(found and found[-1].at > self._asked_at)
        if self._last is not None:
            self._last.extend(lines)
            lines = list(self._last) if is_all else []
            self._last = None if is_all else self._last
        text = self._bounded(b"".join(self._written(lines)))
        self.is_over = self._log.is_over or self._bytes_left == 0 or (is_all and not self._options.follow)
        if self.is_over and not self._log.is_over:
            self._log.on_news = _noop
            self._log.close()
        taken, self._taken = self._taken, []
        return [*taken, text] if text else taken

    def resumed_with(self, taken: Sequence[bytes]) -> "LogStream":
        """Return the stream with data put back, for another reader to take from the start."""
        self._taken = list(taken)
        return self

    def mark(self) -> None:
        """Do nothing; logs have no bookmarks."""

    def end(self) -> None:
        """End the log after the buffered data."""
        self._log.close()

    def _written(self, lines: Sequence[LogLine]) -> Iterator[bytes]:
        for line in lines:
            at = f"{format_micro_time(line.at)[:-1]}000Z " if self._options.timestamps else ""
            end = "\n" if line.is_whole else ""
            yield f"{at}{line.text}{end}".encode()

    def _bounded(self, text: bytes) -> bytes:
        if self._bytes_left is None:
            return text
        text = text[: self._bytes_left]
        self._bytes_left -= len(text)
        return text

    def _notify(self) -> None:
        self.on_news()


def log_options(request: ApiRequest, name: str, now: Instant) -> LogOptions:
    """Parse the options of a request. Raises Refused if they are invalid."""
    query = request.query
    tail, limit = _whole(query, "tailLines"), _whole(query, "limitBytes")
    seconds, since_time = _whole(query, "sinceSeconds"), query.get("sinceTime", "")
    if faults := [*_faults(tail, limit, seconds, since_time)]:
        about = {"name": name, "kind": "PodLogOptions", "causes": causes_of(tuple(faults))}
        raise StatusError(422, "Invalid", f'PodLogOptions "{name}" is invalid: {InvalidObject(tuple(faults))}', about)
    since = now - seconds * SECOND if seconds is not None else _instant(since_time) if since_time else 0
    follow, previous, timestamps = (request.flag(flag) for flag in ("follow", "previous", "timestamps"))
    return LogOptions(query.get("container", ""), follow, previous, timestamps, since, tail, limit)


def _faults(tail: int | None, limit: int | None, seconds: int | None, since_time: str) -> Iterator[FieldError]:
    if tail is not None and tail < 0:
        yield FieldError("tailLines", f"Invalid value: {tail}: must be greater than or equal to 0")
    if limit is not None and limit < 1:
        yield FieldError("limitBytes", f"Invalid value: {limit}: must be greater than 0")
    if seconds is not None and since_time:
        yield FieldError("", "Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified")
    elif seconds is not None and seconds < 1:
        yield FieldError("sinceSeconds", f"Invalid value: {seconds}: must be greater than 0")


def _whole(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    if not text.removeprefix("-").isdecimal() or not text.isascii() or len(text) > 18:
        raise bad_request(f'{name}: "{text}" is not a number')
    return int(text)


def _instant(text: str) -> Instant:
    try:
        return parse_time(text)
    except ValueError as error:
        raise bad_request(f"sinceTime: {error}") from error


def _check_has_log(pod: Obj, container: str, *, previous: bool) -> None:
    """Raise Refused, in the kubelet's words, if the container has no log."""
    name, status = pod["metadata"]["name"], _status_of(pod, container)
    message = f'container "{container}" in pod "{name}"'
    if not status:
        raise bad_request(f"{message} is not available")
    state, last = status.get("state") or {}, _ended(status.get("lastState"))
    if previous:
        if not _has_run(last):
            raise bad_request(f"previous terminated {message} not found")
    elif "running" in state:
        return
    elif (ended := _ended(state) or last) is not None:
        if not _has_run(ended) and not _has_run(last):
            raise bad_request(f"{message} is terminated")
    elif "waiting" in state:
        reason = state["waiting"].get("reason", "")
        raise bad_request(f"{message} is waiting to start: {_NO_IMAGE.get(reason, reason)}")
    else:
        raise bad_request(f"{message} is waiting to start - no logs yet")


def _status_of(pod: Obj, container: str) -> Mapping[str, Any]:
    status = pod.get("status") or {}
    reported = (each for field in _STATUSES for each in status.get(field) or ())
    return next((each for each in reported if each["name"] == container), {})


def _ended(state: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return (state or {}).get("terminated")


def _has_run(ended: Mapping[str, Any] | None) -> bool:
    """Report whether a terminated state has a start time."""
    return ended is not None and bool(ended.get("startedAt"))


def _noop() -> None:
    pass
