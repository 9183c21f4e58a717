"""Prometheus and Grafana in the cluster, in the namespace `monitoring`, if the platform's file enables them.

With `engine: kueue` kube-state-metrics is added: our operator serves metrics of nodes, pods and Jobs itself.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from batchyard.api.meta import Obj
from batchyard.provision.manifests.rendered import RenderedObject
from batchyard.provision.manifests.stack import grafana, prometheus
from batchyard.provision.manifests.stack_parts import NAMESPACE, namespace_objects
from batchyard.provision.model import PlatformEngine, PlatformModel

__all__ = ["NAMESPACE", "access_objects", "stack_objects", "stack_requests"]

_PATH: Final = "spec.monitoring.stack"


def stack_objects(platform: PlatformModel) -> Sequence[RenderedObject]:
    """Return all objects, in the order in which they are applied; empty if the stack is disabled."""
    stack = platform.monitoring.stack
    if stack is None:
        return []
    objects = [
        *namespace_objects(platform),
        *prometheus.prometheus_objects(platform, stack),
        *grafana.objects(platform, stack),
    ]
    if platform.engine is PlatformEngine.KUEUE:
        objects += prometheus.kube_state_metrics_objects(platform, stack)
    return [RenderedObject(obj, _PATH) for obj in objects]


def access_objects(platform: PlatformModel) -> Sequence[Obj]:
    """Return the objects in the engine's namespace that let Prometheus reach it; empty if the stack is disabled."""
    return [] if platform.monitoring.stack is None else prometheus.access_objects(platform)


def stack_requests(platform: PlatformModel) -> Mapping[str, Mapping[str, str]]:
    """Return the requests of its pods by Deployment name: one pod each."""
    if platform.monitoring.stack is None:
        return {}
    found = {prometheus.PROMETHEUS_NAME: prometheus.PROMETHEUS_REQUESTS, grafana.NAME: grafana.REQUESTS}
    if platform.engine is PlatformEngine.KUEUE:
        found[prometheus.KUBE_STATE_METRICS_NAME] = prometheus.KUBE_STATE_METRICS_REQUESTS
    return found
