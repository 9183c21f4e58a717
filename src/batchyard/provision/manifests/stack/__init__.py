"""Prometheus and Grafana in the cluster, in the namespace `monitoring`, if the platform's file enables them.

With `engine: kueue` kube-state-metrics is added: our operator serves metrics of nodes, pods and Jobs itself.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from batchyard.api.meta import Obj
from batchyard.provision.manifests.rendered import RenderedObject
from batchyard.provision.manifests.stack import grafana, prometheus
from batchyard.provision.manifests.stack import prometheus as kube_state_metrics
from batchyard.provision.manifests.stack_parts import NAMESPACE, namespace_objects
from batchyard.provision.model import PlatformEngine, PlatformModel

__all__ = ["NAMESPACE", "access_objects", "stack_objects", "stack_requests"]

_PATH: Final = "spec.monitoring.stack"


def stack_objects(platform: PlatformModel) -> Sequence[RenderedObject]:
    """Return all objects, in the order in which they are applied; empty if the stack is disabled."""
    stack = platform.monitoring.stack
    if stack is None:
        return []
    objects = [*namespace_objects(platform), *prometheus.objects(platform, stack), *grafana.objects(platform, stack)]
    if platform.engine is PlatformEngine.KUEUE:
        objects += kube_state_metrics.objects(platform, stack)
    return [RenderedObject(obj, _PATH) for obj in objects]


def access_objects(platform: PlatformModel) -> Sequence[Obj]:
    """Return the objects in the engine's namespace that let Prometheus reach it; empty if the stack is disabled."""
    return [] if platform.monitoring.stack is None else prometheus.access_objects(platform)


def stack_requests(platform: PlatformModel) -> Mapping[str, Mapping[str, str]]:
    """Return the requests of its pods by Deployment name: one pod each."""
    if platform.monitoring.stack is None:
        return {}
    found = {prometheus.NAME: prometheus.REQUESTS, grafana.NAME: grafana.REQUESTS}
    if platform.engine is PlatformEngine.KUEUE:
        found[kube_state_metrics.NAME] = kube_state_metrics.REQUESTS
    return found
