"""`pods/NAME/exec`, `attach`, `portforward`, `proxy`, `ephemeralcontainers`: access to the processes of a pod.

A simulated pod has no processes; such requests fail after all checks that Kubernetes makes. Sources: Kubernetes's
pkg/registry/core/pod/{rest/subresources.go,strategy.go,storage/storage.go}, pkg/kubelet/server; k8s.io/cri-streaming.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from batchyard.api.errors import FieldError, InvalidObject
from batchyard.api.meta import Obj
from batchyard.api.times import format_micro_time, parse_time
from batchyard.apiserver.request import (
    SEPARATOR,
    AnyResponse,
    ApiRequest,
    ExecResponse,
    PortForwardResponse,
    ProtocolUpgrade,
    Response,
    StatusError,
    bad_request,
    causes_of,
)
from batchyard.apiserver.resources import EndpointHandlers
from batchyard.apiserver.subresources.pod_actions import PodContainers, chosen_container, is_somewhere
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.containers import ContainerLog, LogLine, SessionEnd, Streams

# --- upgrades ---
#
# Protocol upgrades: negotiation of the protocol and of its version.
#
# Sources: k8s.io/streaming pkg/httpstream (SPDY) and pkg/httpstream/wsstream (WebSockets), k8s.io/apimachinery
# pkg/util/proxy, k8s.io/apiserver pkg/util/proxy (tunnels).


WEBSOCKET: Final = "websocket"
SPDY: Final = "SPDY/3.1"
#: The prefix of WebSocket subprotocols that tunnel SPDY.
TUNNEL: Final = f"{SPDY}+"
#: The protocol of a WebSocket if its client names none.
UNNAMED: Final = ""
_KEY: Final = "sec-websocket-key"
_VERSION: Final = "13"


def upgrade_of(request: ApiRequest, websockets: Sequence[str], spdy: Sequence[str]) -> ProtocolUpgrade:
    """Negotiate the upgrade of a request. Raises Refused if no supported protocol is requested."""
    wanted = request.headers.get("upgrade", "").lower()
    if "upgrade" not in request.headers.get("connection", "").lower():
        raise bad_request("Upgrade request required")
    if wanted == WEBSOCKET:
        return ProtocolUpgrade(WEBSOCKET, _websocket_protocol(request, websockets))
    if SPDY.lower() in wanted:
        return ProtocolUpgrade(SPDY, _spdy_protocol(request, spdy))
    raise bad_request(f"unable to upgrade: {wanted or 'nothing'} is not supported; use {WEBSOCKET} or {SPDY}")


def _websocket_protocol(request: ApiRequest, spoken: Sequence[str]) -> str:
    if request.headers.get("sec-websocket-version", "") != _VERSION:
        raise bad_request("unable to upgrade: missing or bad WebSocket Version")
    if request.method != "GET" or not request.headers.get(_KEY):
        raise bad_request("unable to upgrade: not a WebSocket handshake")
    asked = _listed(request, "sec-websocket-protocol")
    chosen = next((each for each in asked or [UNNAMED] if each in spoken), None)
    if chosen is None:
        message = f"[{' '.join(asked)}]; supports [{' '.join(filter(None, spoken))}]"
        raise StatusError(403, "Forbidden", f"unable to upgrade: requested protocol(s) are not supported: {message}")
    return chosen


def _spdy_protocol(request: ApiRequest, spoken: Sequence[str]) -> str:
    header = "x-stream-protocol-version"
    asked = _listed(request, header)
    if not asked:
        raise bad_request(f"unable to upgrade: header {header.title()} does not exist in request")
    chosen = next((each for each in asked if each in spoken), None)
    if chosen is None:
        message = f"client supports [{' '.join(asked)}], server accepts [{' '.join(spoken)}]"
        raise StatusError(403, "Forbidden", f"unable to upgrade: unable to negotiate protocol: {message}")
    return chosen


def _listed(request: ApiRequest, header: str) -> list[str]:
    """Return the values of a list header that may occur more than once."""
    text = request.headers.get(header, "").replace(SEPARATOR, ",")
    return [value for each in text.split(",") if (value := each.strip())]


_PROXIED: Final = ("POST", "DELETE", "GET", "PATCH", "PUT")
#: Versions of the remote command protocol; with the fifth a client can close stdin.
COMMAND_V5: Final = "v5.channel.k8s.io"
COMMAND_V4: Final = "v4.channel.k8s.io"
PORT_FORWARD: Final = "portforward.k8s.io"
PORT_TUNNEL: Final = f"{TUNNEL}{PORT_FORWARD}"
_PORTS_BY_CHANNELS: Final = (COMMAND_V4, UNNAMED)
_PORT_MAX: Final = 65535
#: Each port has two channels, whose number is one byte.
_PORTS_MAX: Final = 128


class PodStreams:
    """The handlers of exec, attach, port-forward and the unsupported subresources."""

    def __init__(self, pods: PodContainers) -> None:
        self._pods = pods

    def answers(self) -> Mapping[str, EndpointHandlers]:
        """Return the handlers by subresource. Exec, attach and port-forward need the verb `create` for any method."""
        upgraded = ("POST", "GET")

        def conversation(kind: str, answer: Any) -> EndpointHandlers:
            return EndpointHandlers("", "v1", kind, dict.fromkeys(upgraded, answer), needs="create")

        return {
            "attach": conversation("PodAttachOptions", self._attach),
            "exec": conversation("PodExecOptions", self._execute),
            "portforward": conversation("PodPortForwardOptions", self._forward),
            "proxy": EndpointHandlers(
                "", "v1", "PodProxyOptions", dict.fromkeys(_PROXIED, self._to_address), takes_path=True
            ),
            "ephemeralcontainers": EndpointHandlers(
                "", "v1", "Pod", {"GET": self._whole, "PATCH": self._with_another, "PUT": self._with_another}
            ),
        }

    def _execute(self, request: ApiRequest, namespace: str, name: str) -> AnyResponse:
        pod = self._pods.pod(namespace, name)
        container = chosen_container(pod, request.query.get("container", ""))
        self._check_has_process(pod)
        upgrade = upgrade_of(request, (COMMAND_V5, COMMAND_V4), (COMMAND_V4,))
        streams, command = _streams(request), request.all_of("command")
        if not command:
            raise bad_request("you must specify at least 1 command for the container")
        return ExecResponse(
            upgrade,
            streams,
            lambda talker: self._pods.runtime.execute(pod, container, command, streams, talker),
            partial(status_of, command),
        )

    def _attach(self, request: ApiRequest, namespace: str, name: str) -> AnyResponse:
        pod = self._pods.pod(namespace, name)
        container = chosen_container(pod, request.query.get("container", ""))
        self._check_has_process(pod)
        upgrade, streams = upgrade_of(request, (COMMAND_V5, COMMAND_V4), (COMMAND_V4,)), _streams(request)
        return ExecResponse(
            upgrade,
            streams,
            lambda talker: self._pods.runtime.attach(pod, container, streams, talker),
            partial(status_of, ()),
        )

    def _forward(self, request: ApiRequest, namespace: str, name: str) -> AnyResponse:
        pod = self._pods.pod(namespace, name)
        self._check_has_process(pod)
        upgrade = upgrade_of(request, (PORT_TUNNEL, COMMAND_V4, UNNAMED), (PORT_FORWARD,))
        ports = ports_of(request) if upgrade.protocol in _PORTS_BY_CHANNELS else ()

        def failure(port: int, ending: SessionEnd) -> str:
            return f"error forwarding port {port} to pod {name}, uid {pod['metadata']['uid']}: {ending.failure}"

        return PortForwardResponse(
            upgrade, ports, lambda port, talker: self._pods.runtime.connect(pod, port, talker), failure
        )

    def _to_address(self, _request: ApiRequest, namespace: str, name: str) -> Response:
        """Reject a proxy request; the name may include scheme and port: `https:NAME:443`."""
        parts = name.split(":")
        raise self._not_proxied(self._pods.pod(namespace, parts[0] if len(parts) < 3 else parts[1]))

    def _whole(self, _request: ApiRequest, namespace: str, name: str) -> Response:
        return Response(200, self._pods.pod(namespace, name))

    def _with_another(self, _request: ApiRequest, namespace: str, name: str) -> Response:
        raise self._not_proxied(self._pods.pod(namespace, name))

    def _not_proxied(self, pod: Obj) -> StatusError:
        self._check_has_process(pod)
        return bad_request(f"pod {pod['metadata']['name']}: not supported by this platform")

    def _check_has_process(self, pod: Obj) -> None:
        """Raise Refused if the pod has no process to connect to."""
        if not is_somewhere(pod):
            raise bad_request(f"pod {pod['metadata']['name']} does not have a host assigned")
        why = self._pods.runtime.why_no_process(pod)
        if why:
            raise bad_request(why)


def status_of(command: Sequence[str], ending: SessionEnd) -> Mapping[str, Any]:
    """Return the Status of a finished command, as kubelet and containerd report it."""
    if ending.failure:
        causes = {"causes": [{"message": ending.failure}]}
        message = f"Internal error occurred: {ending.failure}"
        return {
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": "InternalError",
            "details": causes,
        } | {"code": 500}
    if not ending.exit_code:
        return {"metadata": {}, "status": "Success"}
    why = f"error executing command [{' '.join(command)}], exit code {ending.exit_code}"
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: {why}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(ending.exit_code)}]},
    }


def _streams(request: ApiRequest) -> Streams:
    """Return the requested streams; a terminal has no separate stderr."""
    stdin, stdout, stderr, tty = (request.flag(name) for name in ("stdin", "stdout", "stderr", "tty"))
    streams = Streams(stdin, stdout, stderr and not tty, tty)
    if not any(streams[:3]):
        raise bad_request("you must specify at least 1 of stdin, stdout, stderr")
    return streams


def ports_of(request: ApiRequest) -> Sequence[int]:
    """Return the requested ports; each parameter is a port or a list of ports."""
    found = request.all_of("ports")
    if not found:
        raise bad_request('query parameter "ports" is required')
    ports = tuple(_port(text, each) for text in found for each in text.split(","))
    if len(ports) > _PORTS_MAX:
        raise bad_request(f"{len(ports)} ports are more than {_PORTS_MAX}, which one connection has channels for")
    return ports


def _port(text: str, port: str) -> int:
    if not text:
        raise bad_request('query parameter "ports" cannot be empty')
    if not port.isdecimal() or not port.isascii() or len(port) > 5 or int(port) > _PORT_MAX:
        raise bad_request(f'unable to parse "{text}" as a port')
    if not int(port):
        raise bad_request(f'port "{port}" must be > 0')
    return int(port)


# --- pod logs ---
#
# `pods/NAME/log`: container logs, as `kubectl logs` requests them.
#
# Sources: Kubernetes's pkg/registry/core/pod/strategy.go, pkg/kubelet/kubelet_pods.go (choice of the log, errors),
# pkg/apis/core/validation (options), pkg/kubelet/kuberuntime/logs (times).


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
