"""An API with all controllers, in this process, for malformed requests."""

from pathlib import Path
from typing import Final

import msgspec
import yaml

from batchyard.apiserver.request import ApiRequest, DeferredResponse, ProxyResponse, Response, UpgradeResponse
from batchyard.apiserver.resources import Resource
from batchyard.cloud.simulated import simulated_cloud
from batchyard.controller_runtime.runner import ignore_event
from batchyard.kubelet.simulated.durations import BareWorkloads
from batchyard.kubelet.simulated.kubelet import SimulatedKubelets, container_delays_of
from batchyard.kubelet.simulated.pod_status import NodeAgents
from batchyard.wiring import PlatformPorts, PlatformSettings, build_platform
from fuzz.requests import FuzzedResource, FuzzRequest
from unit.apiserver.api import OWNER, Api, body_bytes

ROCKETS: Final = Path(__file__).parents[1] / "e2e_platform" / "rockets.yaml"
_DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_encode: Final = msgspec.json.Encoder().encode


class FuzzedApi(Api):
    """An API with running controllers whose exceptions are raised."""

    def __init__(self) -> None:
        super().__init__()
        stored = self.stored
        runtime = (BareWorkloads(), SimulatedKubelets(container_delays_of(None, 0), with_nodes=True), NodeAgents())
        ports = PlatformPorts(stored.kernel, stored.client, runtime, simulated_cloud(0), ignore_event, lambda _: None)
        build_platform(ports, PlatformSettings(with_nodes=True, with_api=True))
        self.post(_DEFINITIONS, yaml.safe_load(ROCKETS.read_text("utf-8")))
        self.pass_time(1)

    def places(self) -> list[FuzzedResource]:
        """Return all served resources."""
        return [
            FuzzedResource(info.api_version_for(version), info.kind, info.plural, info.namespaced, _parts(resource))
            for resource in self.resources.all()
            for info in (resource.served_kind,)
            for version in info.versions
        ]

    def meet(self, asked: FuzzRequest) -> int:
        """Handle a request completely, run all due work, and return the code of the response."""
        request = ApiRequest(asked.method, asked.path, asked.query, asked.headers, asked.body, OWNER)
        answer = self.server.handle(request)
        if isinstance(answer, Response):
            body_bytes(answer)
        elif not isinstance(answer, UpgradeResponse | DeferredResponse | ProxyResponse):
            _encode(list(answer.take_buffered_data()))
            answer.end()
        self.stored.kernel.run(end_time=self.stored.kernel.now())
        return answer.code if isinstance(answer, Response) else 200


class RequestNote:
    """Adds a note with the request to each exception."""

    def __init__(self, reported: str) -> None:
        self._reported = reported

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, _kind: object, error: BaseException | None, _where: object) -> None:
        if error is not None:
            error.add_note(self._reported)


def _parts(resource: Resource) -> tuple[str, ...]:
    return tuple(filter(None, (*resource.subresources, *resource.handlers)))
