"""Access to pods: `pods/NAME/exec`, `attach`, `portforward` and `log`.

A simulated pod has no processes, so requests that need one fail. Sources: Kubernetes's
pkg/registry/core/pod/{rest/subresources.go,strategy.go,storage/storage.go}, pkg/kubelet/server; k8s.io/cri-streaming.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from batchyard.api.errors import FieldError, InvalidObject
from batchyard.api.meta import Obj
from batchyard.api.times import format_micro_time, parse_time
from batchyard.apiserver import request as api_request
from batchyard.apiserver.resources import EndpointHandlers
from batchyard.apiserver.subresources.pod_actions import PodContainers, has_host, select_container
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.containers import ContainerLog, LogLine, SessionEnd, Streams

# Protocol upgrades: negotiation of the protocol and of its version.
#
# Sources: k8s.io/streaming pkg/httpstream (SPDY) and pkg/httpstream/wsstream (WebSockets), k8s.io/apimachinery
# pkg/util/proxy, k8s.io/apiserver pkg/util/proxy (tunnels).


WEBSOCKET: Final = "websocket"
SPDY: Final = "SPDY/3.1"
#: The prefix of WebSocket subprotocols that tunnel SPDY.
SPDY_TUNNEL_PREFIX: Final = f"{SPDY}+"
#: The protocol of a WebSocket if its client names none.
UNNAMED_PROTOCOL: Final = ""
_WEBSOCKET_KEY_HEADER: Final = "sec-websocket-key"
_WEBSOCKET_VERSION: Final = "13"


def negotiate_upgrade(
    request: api_request.ApiRequest, websocket_protocols: Sequence[str], spdy_protocols: Sequence[str]
) -> api_request.ProtocolUpgrade:
    """Return the protocol upgrade of a request. Raises StatusError if the request asks for no supported protocol."""
    protocol = request.headers.get("upgrade", "").lower()
    if "upgrade" not in request.headers.get("connection", "").lower():
        raise api_request.bad_request("Upgrade request required")
    if protocol == WEBSOCKET:
        return api_request.ProtocolUpgrade(WEBSOCKET, _websocket_protocol(request, websocket_protocols))
    if SPDY.lower() in protocol:
        return api_request.ProtocolUpgrade(SPDY, _spdy_protocol(request, spdy_protocols))
    raise api_request.bad_request(
        f"unable to upgrade: {protocol or 'an empty protocol'} is not supported; use {WEBSOCKET} or {SPDY}"
    )


def _websocket_protocol(request: api_request.ApiRequest, supported_names: Sequence[str]) -> str:
    if request.headers.get("sec-websocket-version", "") != _WEBSOCKET_VERSION:
        raise api_request.bad_request("unable to upgrade: missing or bad WebSocket Version")
    if request.method != "GET" or not request.headers.get(_WEBSOCKET_KEY_HEADER):
        raise api_request.bad_request(
            "unable to upgrade: a WebSocket handshake must be a GET request with the header Sec-WebSocket-Key"
        )
    requested_names = _header_values(request, "sec-websocket-protocol")
    name = next((each for each in requested_names or [UNNAMED_PROTOCOL] if each in supported_names), None)
    if name is None:
        message = f"[{' '.join(requested_names)}]; supports [{' '.join(filter(None, supported_names))}]"
        raise api_request.StatusError(
            403, "Forbidden", f"unable to upgrade: requested protocol(s) are not supported: {message}"
        )
    return name


def _spdy_protocol(request: api_request.ApiRequest, supported_names: Sequence[str]) -> str:
    header = "x-stream-protocol-version"
    requested_names = _header_values(request, header)
    if not requested_names:
        raise api_request.bad_request(f"unable to upgrade: header {header.title()} does not exist in request")
    name = next((each for each in requested_names if each in supported_names), None)
    if name is None:
        message = f"client supports [{' '.join(requested_names)}], server accepts [{' '.join(supported_names)}]"
        raise api_request.StatusError(403, "Forbidden", f"unable to upgrade: unable to negotiate protocol: {message}")
    return name


def _header_values(request: api_request.ApiRequest, header: str) -> list[str]:
    text = request.headers.get(header, "").replace(api_request.HEADER_SEPARATOR, ",")
    return [value for each in text.split(",") if (value := each.strip())]


#: Versions of the remote command protocol; with the fifth a client can close stdin.
COMMAND_V5: Final = "v5.channel.k8s.io"
COMMAND_V4: Final = "v4.channel.k8s.io"
PORT_FORWARD: Final = "portforward.k8s.io"
PORT_TUNNEL: Final = f"{SPDY_TUNNEL_PREFIX}{PORT_FORWARD}"
_CHANNEL_PROTOCOLS: Final = (COMMAND_V4, UNNAMED_PROTOCOL)
_PORT_MAX: Final = 65535
#: Each port has two channels, whose number is one byte.
_PORTS_MAX: Final = 128


class PodStreams:
    """The handlers of exec, attach and port-forward requests."""

    def __init__(self, pods: PodContainers) -> None:
        self._pods = pods

    def handlers(self) -> Mapping[str, EndpointHandlers]:
        """Return the handlers by subresource; exec, attach and port-forward require `create` for any HTTP method."""
        methods = ("POST", "GET")

        def upgrade_handlers(kind: str, handler: Any) -> EndpointHandlers:
            return EndpointHandlers("", "v1", kind, dict.fromkeys(methods, handler), required_verb="create")

        return {
            "attach": upgrade_handlers("PodAttachOptions", self._attach),
            "exec": upgrade_handlers("PodExecOptions", self._execute),
            "portforward": upgrade_handlers("PodPortForwardOptions", self._forward_ports),
        }

    def _execute(self, request: api_request.ApiRequest, namespace: str, name: str) -> api_request.AnyResponse:
        pod = self._pods.get_pod(namespace, name)
        container = select_container(pod, request.query.get("container", ""))
        self._pods.check_has_process(pod)
        upgrade = negotiate_upgrade(request, (COMMAND_V5, COMMAND_V4), (COMMAND_V4,))
        streams, command = _requested_streams(request), request.query_values("command")
        if not command:
            raise api_request.bad_request("you must specify at least 1 command for the container")
        open_session = partial(self._pods.runtime.execute, pod, container, command, streams)
        return api_request.ExecResponse(upgrade, streams, open_session, partial(session_status, command))

    def _attach(self, request: api_request.ApiRequest, namespace: str, name: str) -> api_request.AnyResponse:
        pod = self._pods.get_pod(namespace, name)
        container = select_container(pod, request.query.get("container", ""))
        self._pods.check_has_process(pod)
        upgrade = negotiate_upgrade(request, (COMMAND_V5, COMMAND_V4), (COMMAND_V4,))
        streams = _requested_streams(request)
        open_session = partial(self._pods.runtime.attach, pod, container, streams)
        return api_request.ExecResponse(upgrade, streams, open_session, partial(session_status, ()))

    def _forward_ports(self, request: api_request.ApiRequest, namespace: str, name: str) -> api_request.AnyResponse:
        pod = self._pods.get_pod(namespace, name)
        self._pods.check_has_process(pod)
        upgrade = negotiate_upgrade(request, (PORT_TUNNEL, COMMAND_V4, UNNAMED_PROTOCOL), (PORT_FORWARD,))
        ports = requested_ports(request) if upgrade.subprotocol in _CHANNEL_PROTOCOLS else ()

        def format_failure(port: int, session_end: SessionEnd) -> str:
            return f"error forwarding port {port} to pod {name}, uid {pod['metadata']['uid']}: {session_end.failure}"

        return api_request.PortForwardResponse(upgrade, ports, partial(self._pods.runtime.connect, pod), format_failure)


def session_status(command: Sequence[str], session_end: SessionEnd) -> Mapping[str, Any]:
    """Return the Status for the end of an exec or attach session, as kubelet and containerd report it."""
    if session_end.failure:
        details = {"causes": [{"message": session_end.failure}]}
        message = f"Internal error occurred: {session_end.failure}"
        status = {"metadata": {}, "status": "Failure", "message": message, "reason": "InternalError"}
        return {**status, "details": details, "code": 500}
    if not session_end.exit_code:
        return {"metadata": {}, "status": "Success"}
    description = f"error executing command [{' '.join(command)}], exit code {session_end.exit_code}"
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: {description}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(session_end.exit_code)}]},
    }


def _requested_streams(request: api_request.ApiRequest) -> Streams:
    stdin, stdout, stderr, tty = (request.has_flag(name) for name in ("stdin", "stdout", "stderr", "tty"))
    streams = Streams(stdin, stdout, stderr and not tty, tty)
    if not any(streams[:3]):
        raise api_request.bad_request("you must specify at least 1 of stdin, stdout, stderr")
    return streams


def requested_ports(request: api_request.ApiRequest) -> Sequence[int]:
    """Return the ports in a port-forward request; each query parameter is a port or a list of ports.

    Raises StatusError if there are none or too many, or one is invalid.
    """
    port_parameters = request.query_values("ports")
    if not port_parameters:
        raise api_request.bad_request('query parameter "ports" is required')
    ports = tuple(_parse_port(text, each) for text in port_parameters for each in text.split(","))
    if len(ports) > _PORTS_MAX:
        raise api_request.bad_request(
            f"{len(ports)} ports are too many for one connection: forward at most {_PORTS_MAX}"
        )
    return ports


def _parse_port(text: str, port_text: str) -> int:
    if not text:
        raise api_request.bad_request('query parameter "ports" cannot be empty')
    if not port_text.isdecimal() or not port_text.isascii() or len(port_text) > 5 or int(port_text) > _PORT_MAX:
        raise api_request.bad_request(f'unable to parse "{text}" as a port')
    if not int(port_text):
        raise api_request.bad_request(f'port "{port_text}" must be > 0')
    return int(port_text)


# `pods/NAME/log`: container logs, as `kubectl logs` requests them.
#
# Sources: Kubernetes's pkg/registry/core/pod/strategy.go, pkg/kubelet/kubelet_pods.go (choice of the log, errors),
# pkg/apis/core/validation (options), pkg/kubelet/kuberuntime/logs (times).


_PLAIN_TEXT: Final = "text/plain"
_STATUS_FIELDS: Final = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
_IMAGE_ERRORS: Final = {"ErrImagePull": "image can't be pulled", "ImagePullBackOff": "trying and failing to pull image"}


class LogOptions(NamedTuple):
    """The options of a request for a container log."""

    container: str
    follow: bool
    previous: bool
    timestamps: bool
    #: Only lines from this time on are sent; 0 for all.
    since: Instant
    #: The maximum number of existing lines; the last ones are sent.
    tail_lines: int | None
    limit_bytes: int | None


class PodLogs:
    """The handler of requests for container logs."""

    def __init__(self, pods: PodContainers, now: Callable[[], Instant]) -> None:
        self._pods = pods
        self._now = now

    def handlers(self) -> EndpointHandlers:
        """Return the handlers of the subresource `log`."""
        return EndpointHandlers("", "v1", "Pod", {"GET": self._get})

    def _get(self, request: api_request.ApiRequest, namespace: str, name: str) -> api_request.AnyResponse:
        options = parse_log_options(request, name, self._now())
        pod = self._pods.get_pod(namespace, name)
        container = select_container(pod, options.container)
        if not has_host(pod):
            return api_request.Response(
                204, "", content_type=_PLAIN_TEXT
            )  # not bound to a node: no kubelet to read from
        _check_has_log(pod, container, previous=options.previous)
        log = self._pods.runtime.log(pod, container, previous=options.previous)
        stream = LogStream(log, options, self._now())
        if options.follow:
            return stream
        data = stream.take_buffered_data()
        if not stream.is_over:
            return stream.put_back_data(data)
        text = b"".join(data).decode(errors="replace")
        log.close()
        return api_request.Response(200, text, content_type=_PLAIN_TEXT)


class LogStream:
    """The requested part of a container log; without `follow` it ends with the lines that exist at the request."""

    content_type: Final = _PLAIN_TEXT
    times_out: Final = False

    def __init__(self, log: ContainerLog, options: LogOptions, requested_at: Instant) -> None:
        self._log = log
        self._options = options
        self._requested_at = requested_at
        #: The last existing lines while reading up to the request time; None after that or without `tail`.
        self._last_lines: deque[LogLine] | None = None
        if options.tail_lines is not None:
            self._last_lines = deque(maxlen=options.tail_lines)
            log.skip_to_last(options.tail_lines)
        #: Data read before the stream was handed to the writer.
        self._pending_data: list[bytes] = []
        self._remaining_bytes = options.limit_bytes
        self.is_over = False
        self.on_new_data: Callable[[], None] = _do_nothing
        log.on_new_data = self._notify

    def take_buffered_data(self) -> Sequence[bytes]:
        """Return log data that is new since the last call; after the last data, close the log."""
        new_lines = self._log.read()
        lines = [line for line in new_lines if line.at >= self._options.since]
        is_complete = not self._log.is_behind or bool(new_lines and new_lines[-1].at > self._requested_at)
        if self._last_lines is not None:
            self._last_lines.extend(lines)
            lines = list(self._last_lines) if is_complete else []
            self._last_lines = None if is_complete else self._last_lines
        text = self._truncate_to_limit(b"".join(self._format_lines(lines)))
        self.is_over = self._log.is_over or self._remaining_bytes == 0 or (is_complete and not self._options.follow)
        if self.is_over and not self._log.is_over:
            self._log.on_new_data = _do_nothing
            self._log.close()
        data_to_send, self._pending_data = self._pending_data, []
        return [*data_to_send, text] if text else data_to_send

    def put_back_data(self, data: Sequence[bytes]) -> "LogStream":
        """Put unsent data back into the stream, and return the stream, so that another reader can take the data."""
        self._pending_data = list(data)
        return self

    def send_keep_alive(self) -> None:
        """Do nothing: log streams have no keep-alive messages."""

    def end(self) -> None:
        """Stop reading the log."""
        self._log.close()

    def _format_lines(self, lines: Sequence[LogLine]) -> Iterator[bytes]:
        for line in lines:
            time_prefix = f"{format_micro_time(line.at)[:-1]}000Z " if self._options.timestamps else ""
            line_end = "\n" if line.is_whole else ""
            yield f"{time_prefix}{line.text}{line_end}".encode()

    def _truncate_to_limit(self, text: bytes) -> bytes:
        if self._remaining_bytes is None:
            return text
        text = text[: self._remaining_bytes]
        self._remaining_bytes -= len(text)
        return text

    def _notify(self) -> None:
        self.on_new_data()


def parse_log_options(request: api_request.ApiRequest, name: str, now: Instant) -> LogOptions:
    """Parse the options of a log request. Raises StatusError if they are invalid."""
    query = request.query
    tail_lines, limit_bytes = _integer_parameter(query, "tailLines"), _integer_parameter(query, "limitBytes")
    seconds, since_time = _integer_parameter(query, "sinceSeconds"), query.get("sinceTime", "")
    if errors := [*_log_option_errors(tail_lines, limit_bytes, seconds, since_time)]:
        details = {"name": name, "kind": "PodLogOptions", "causes": api_request.causes_of(tuple(errors))}
        raise api_request.StatusError(
            422, "Invalid", f'PodLogOptions "{name}" is invalid: {InvalidObject(tuple(errors))}', details
        )
    start_time = now - seconds * SECOND if seconds is not None else _parse_since_time(since_time) if since_time else 0
    follow, is_previous, timestamps = (request.has_flag(flag) for flag in ("follow", "previous", "timestamps"))
    return LogOptions(query.get("container", ""), follow, is_previous, timestamps, start_time, tail_lines, limit_bytes)


def _log_option_errors(
    tail_lines: int | None, limit_bytes: int | None, since_seconds: int | None, since_time: str
) -> Iterator[FieldError]:
    if tail_lines is not None and tail_lines < 0:
        yield FieldError("tailLines", f"Invalid value: {tail_lines}: must be greater than or equal to 0")
    if limit_bytes is not None and limit_bytes < 1:
        yield FieldError("limitBytes", f"Invalid value: {limit_bytes}: must be greater than 0")
    if since_seconds is not None and since_time:
        yield FieldError("", "Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified")
    elif since_seconds is not None and since_seconds < 1:
        yield FieldError("sinceSeconds", f"Invalid value: {since_seconds}: must be greater than 0")


def _integer_parameter(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    if not text.removeprefix("-").isdecimal() or not text.isascii() or len(text) > 18:
        raise api_request.bad_request(f'{name}: "{text}" is not an integer of at most 18 digits')
    return int(text)


def _parse_since_time(text: str) -> Instant:
    try:
        return parse_time(text)
    except ValueError as error:
        raise api_request.bad_request(f"sinceTime: {error}") from error


def _check_has_log(pod: Obj, container: str, *, previous: bool) -> None:
    name, status = pod["metadata"]["name"], _container_status(pod, container)
    container_text = f'container "{container}" in pod "{name}"'
    if not status:
        raise api_request.bad_request(f"{container_text} is not available")
    container_state, last_terminated_state = status.get("state") or {}, _terminated_state(status.get("lastState"))
    if previous:
        if not _has_started(last_terminated_state):
            raise api_request.bad_request(f"previous terminated {container_text} not found")
    elif "running" in container_state:
        return
    elif (terminated := _terminated_state(container_state) or last_terminated_state) is not None:
        if not _has_started(terminated) and not _has_started(last_terminated_state):
            raise api_request.bad_request(f"{container_text} is terminated")
    elif "waiting" in container_state:
        reason = container_state["waiting"].get("reason", "")
        raise api_request.bad_request(f"{container_text} is waiting to start: {_IMAGE_ERRORS.get(reason, reason)}")
    else:
        raise api_request.bad_request(f"{container_text} is waiting to start - no logs yet")


def _container_status(pod: Obj, container: str) -> Mapping[str, Any]:
    status = pod.get("status") or {}
    container_statuses = (each for field in _STATUS_FIELDS for each in status.get(field) or ())
    return next((each for each in container_statuses if each["name"] == container), {})


def _terminated_state(container_state: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return (container_state or {}).get("terminated")


def _has_started(terminated_state: Mapping[str, Any] | None) -> bool:
    return terminated_state is not None and bool(terminated_state.get("startedAt"))


def _do_nothing() -> None:
    pass
