"""`pods/NAME/exec`, `attach`, `portforward`, `proxy`, `ephemeralcontainers`: what reaches for a process of a pod.

A simulated pod has none; whoever asks is told so, after all that Kubernetes checks before. Sources: Kubernetes's
pkg/registry/core/pod/{rest/subresources.go,strategy.go,storage/storage.go}, pkg/kubelet/server; k8s.io/cri-streaming.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from batchyard.api.meta import Obj
from batchyard.apiserver.pod_containers import PodContainers, chosen_container, is_somewhere
from batchyard.apiserver.request import Refused, Request, Response, bad_request
from batchyard.apiserver.resources import Answer
from batchyard.apiserver.streams import Command, Forwarding, Reply
from batchyard.apiserver.upgrades import TUNNEL, UNNAMED, upgrade_of
from batchyard.ports.containers import Ending, Streams

_PROXIED: Final = ("POST", "DELETE", "GET", "PATCH", "PUT")
#: Versions of the protocol of commands: with the fifth a client can end its input.
COMMAND_V5: Final = "v5.channel.k8s.io"
COMMAND_V4: Final = "v4.channel.k8s.io"
PORT_FORWARD: Final = "portforward.k8s.io"
PORT_TUNNEL: Final = f"{TUNNEL}{PORT_FORWARD}"
_PORTS_BY_CHANNELS: Final = (COMMAND_V4, UNNAMED)
_PORT_MAX: Final = 65535


class Processes:
    """See the module."""

    def __init__(self, pods: PodContainers) -> None:
        self._pods = pods

    def answers(self) -> Mapping[str, Answer]:
        """Who answers, by part of a pod. Who talks to a process needs leave to create that, however he asks."""
        upgraded = ("POST", "GET")

        def conversation(kind: str, answer: Any) -> Answer:
            return Answer("", "v1", kind, dict.fromkeys(upgraded, answer), needs="create")

        return {
            "attach": conversation("PodAttachOptions", self._attach),
            "exec": conversation("PodExecOptions", self._execute),
            "portforward": conversation("PodPortForwardOptions", self._forward),
            "proxy": Answer("", "v1", "PodProxyOptions", dict.fromkeys(_PROXIED, self._to_address), takes_path=True),
            "ephemeralcontainers": Answer(
                "", "v1", "Pod", {"GET": self._whole, "PATCH": self._with_another, "PUT": self._with_another}
            ),
        }

    def _execute(self, request: Request, namespace: str, name: str) -> Reply:
        pod = self._pods.pod(namespace, name)
        container = chosen_container(pod, request.query.get("container", ""))
        self._check_has_process(pod)
        upgrade = upgrade_of(request, (COMMAND_V5, COMMAND_V4), (COMMAND_V4,))
        streams, command = _streams(request), request.all_of("command")
        if not command:
            raise bad_request("you must specify at least 1 command for the container")
        return Command(
            upgrade,
            streams,
            lambda talker: self._pods.runtime.execute(pod, container, command, streams, talker),
            partial(status_of, command),
        )

    def _attach(self, request: Request, namespace: str, name: str) -> Reply:
        pod = self._pods.pod(namespace, name)
        container = chosen_container(pod, request.query.get("container", ""))
        self._check_has_process(pod)
        upgrade, streams = upgrade_of(request, (COMMAND_V5, COMMAND_V4), (COMMAND_V4,)), _streams(request)
        return Command(
            upgrade,
            streams,
            lambda talker: self._pods.runtime.attach(pod, container, streams, talker),
            partial(status_of, ()),
        )

    def _forward(self, request: Request, namespace: str, name: str) -> Reply:
        pod = self._pods.pod(namespace, name)
        self._check_has_process(pod)
        upgrade = upgrade_of(request, (PORT_TUNNEL, COMMAND_V4, UNNAMED), (PORT_FORWARD,))
        ports = _ports(request) if upgrade.protocol in _PORTS_BY_CHANNELS else ()

        def failure(port: int, ending: Ending) -> str:
            return f"error forwarding port {port} to pod {name}, uid {pod['metadata']['uid']}: {ending.failure}"

        return Forwarding(upgrade, ports, lambda port, talker: self._pods.runtime.connect(pod, port, talker), failure)

    def _to_address(self, _request: Request, namespace: str, name: str) -> Response:
        """The name may say which scheme and which port: `https:NAME:443`."""
        parts = name.split(":")
        raise self._not_proxied(self._pods.pod(namespace, parts[0] if len(parts) < 3 else parts[1]))

    def _whole(self, _request: Request, namespace: str, name: str) -> Response:
        return Response(200, self._pods.pod(namespace, name))

    def _with_another(self, _request: Request, namespace: str, name: str) -> Response:
        raise self._not_proxied(self._pods.pod(namespace, name))

    def _not_proxied(self, pod: Obj) -> Refused:
        self._check_has_process(pod)
        return bad_request(f"pod {pod['metadata']['name']}: this platform cannot do that yet")

    def _check_has_process(self, pod: Obj) -> None:
        """Refused where nobody can get at a process of the pod."""
        if not is_somewhere(pod):
            raise bad_request(f"pod {pod['metadata']['name']} does not have a host assigned")
        why = self._pods.runtime.why_no_process(pod)
        if why:
            raise bad_request(why)


def status_of(command: Sequence[str], ending: Ending) -> Mapping[str, Any]:
    """The Status that tells how a command ended, as a kubelet and containerd tell it."""
    if ending.failure:
        causes = {"causes": [{"message": ending.failure}]}
        told = f"Internal error occurred: {ending.failure}"
        return {"metadata": {}, "status": "Failure", "message": told, "reason": "InternalError", "details": causes} | {
            "code": 500
        }
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


def _streams(request: Request) -> Streams:
    """What of a process a request wants; a terminal has no stderr of its own."""
    stdin, stdout, stderr, tty = (request.flag(name) for name in ("stdin", "stdout", "stderr", "tty"))
    streams = Streams(stdin, stdout, stderr and not tty, tty)
    if not any(streams[:3]):
        raise bad_request("you must specify at least 1 of stdin, stdout, stderr")
    return streams


def _ports(request: Request) -> Sequence[int]:
    """The ports that a request names, each alone or several in a list."""
    found = request.all_of("ports")
    if not found:
        raise bad_request('query parameter "ports" is required')
    return tuple(_port(text, each) for text in found for each in text.split(","))


def _port(text: str, port: str) -> int:
    if not text:
        raise bad_request('query parameter "ports" cannot be empty')
    if not port.isdecimal() or not port.isascii() or len(port) > 5 or int(port) > _PORT_MAX:
        raise bad_request(f'unable to parse "{text}" as a port')
    if not int(port):
        raise bad_request(f'port "{port}" must be > 0')
    return int(port)
