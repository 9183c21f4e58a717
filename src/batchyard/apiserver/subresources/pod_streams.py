"""`pods/NAME/exec`, `attach`, `portforward`, `proxy`, `ephemeralcontainers`: access to the processes of a pod.

A simulated pod has no processes; such requests fail after all checks that Kubernetes makes. Sources: Kubernetes's
pkg/registry/core/pod/{rest/subresources.go,strategy.go,storage/storage.go}, pkg/kubelet/server; k8s.io/cri-streaming.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from batchyard.api.meta import Obj
from batchyard.apiserver.request import SEPARATOR, ApiRequest, Response, StatusError, bad_request
from batchyard.apiserver.resources import EndpointHandlers
from batchyard.apiserver.responses import AnyResponse, ExecResponse, PortForwardResponse, ProtocolUpgrade
from batchyard.apiserver.subresources.pod_containers import PodContainers, chosen_container, is_somewhere
from batchyard.interfaces.containers import SessionEnd, Streams

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
