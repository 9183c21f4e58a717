"""kube-state-metrics in the cluster: metrics of nodes, pods and Jobs for Kueue's dashboard."""

from collections.abc import Mapping
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.plan.manifests.made import obj_of
from batchyard.plan.manifests.stack.parts import Server, account, deployment, role_ref, subjects_of
from batchyard.plan.model import MonitoringStack, Platform

NAME: Final = "kube-state-metrics"
PORT: Final = 8080
REQUESTS: Final[Mapping[str, str]] = {"cpu": "50m", "memory": "128Mi"}
_MEMORY_LIMIT: Final = "512Mi"
_USER: Final = 65534
_TELEMETRY_PORT: Final = 8081
_SEEN: Final = ("list", "watch")


def objects(platform: Platform, stack: MonitoringStack) -> list[Obj]:
    """All of its objects."""
    name = f"{platform.name}-{NAME}"
    rules = [
        {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": list(_SEEN)},
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": list(_SEEN)},
    ]
    server = Server(
        name=NAME,
        image=stack.kube_state_metrics_image,
        port=PORT,
        ready="/healthz",
        user=_USER,
        requests=REQUESTS,
        memory_limit=_MEMORY_LIMIT,
        args=["--resources=nodes,pods,jobs", f"--port={PORT}", f"--telemetry-port={_TELEMETRY_PORT}"],
        calls_api=True,
    )
    role, subjects = role_ref("ClusterRole", name), subjects_of(NAME)
    return [
        account(platform, NAME),
        obj_of(scheme.CLUSTER_ROLE, platform.name, name, rules=rules),
        obj_of(scheme.CLUSTER_ROLE_BINDING, platform.name, name, roleRef=role, subjects=subjects),
        deployment(platform, server),
    ]
