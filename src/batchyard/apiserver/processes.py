"""`pods/NAME/exec`, `attach`, `portforward`, `proxy`, `ephemeralcontainers`: what reaches for a process of a pod.

Pods here have none as long as their runtime says so; whoever asks is told, after all that Kubernetes checks before.
Sources: Kubernetes's pkg/registry/core/pod/{rest/subresources.go,strategy.go,storage/storage.go}.
"""

from collections.abc import Mapping
from typing import Final

from batchyard.api.meta import Obj
from batchyard.apiserver.pod_containers import PodContainers, chosen_container, is_somewhere
from batchyard.apiserver.request import Request, Response, bad_request
from batchyard.apiserver.resources import Answer

_PROXIED: Final = ("POST", "DELETE", "GET", "PATCH", "PUT")


class Processes:
    """See the module."""

    def __init__(self, pods: PodContainers) -> None:
        self._pods = pods

    def answers(self) -> Mapping[str, Answer]:
        """Who answers, by part of a pod."""
        upgraded = ("POST", "GET")
        return {
            "attach": Answer("", "v1", "PodAttachOptions", dict.fromkeys(upgraded, self._into_container)),
            "exec": Answer("", "v1", "PodExecOptions", dict.fromkeys(upgraded, self._into_container)),
            "portforward": Answer("", "v1", "PodPortForwardOptions", dict.fromkeys(upgraded, self._into_pod)),
            "proxy": Answer("", "v1", "PodProxyOptions", dict.fromkeys(_PROXIED, self._to_address), takes_path=True),
            "ephemeralcontainers": Answer(
                "", "v1", "Pod", {"GET": self._whole, "PATCH": self._with_another, "PUT": self._with_another}
            ),
        }

    def _into_container(self, request: Request, namespace: str, name: str) -> Response:
        pod = self._pods.pod(namespace, name)
        chosen_container(pod, request.query.get("container", ""))
        raise self._no_process(pod)

    def _into_pod(self, _request: Request, namespace: str, name: str) -> Response:
        raise self._no_process(self._pods.pod(namespace, name))

    def _to_address(self, _request: Request, namespace: str, name: str) -> Response:
        """The name may say which scheme and which port: `https:NAME:443`."""
        parts = name.split(":")
        raise self._no_process(self._pods.pod(namespace, parts[0] if len(parts) < 3 else parts[1]))

    def _whole(self, _request: Request, namespace: str, name: str) -> Response:
        return Response(200, self._pods.pod(namespace, name))

    def _with_another(self, _request: Request, namespace: str, name: str) -> Response:
        raise self._no_process(self._pods.pod(namespace, name))

    def _no_process(self, pod: Obj) -> Exception:
        if not is_somewhere(pod):
            return bad_request(f"pod {pod['metadata']['name']} does not have a host assigned")
        return bad_request(self._pods.runtime.why_no_process(pod))
