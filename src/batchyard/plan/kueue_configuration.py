"""Kueue's own Configuration, where a platform says something of it; else that of the release is as it is.

Without a word of it: config/components/manager/controller_manager_config.yaml of Kueue v0.19. Its manager reads the
file when it starts: a digest of it in the pods' annotations has them replaced when it changes.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchyard.plan.model import Platform
from batchyard.plan.texts import dumped

_NAMESPACE: Final = "kueue-system"
_FILE: Final = "controller_manager_config.yaml"
_DIGEST: Final = "platform.batchyard.dev/configuration"
_FRAMEWORKS: Final = (
    "batch/job",
    "kubeflow.org/mpijob",
    "ray.io/rayjob",
    "ray.io/raycluster",
    "ray.io/rayservice",
    "jobset.x-k8s.io/jobset",
    "workload.codeflare.dev/appwrapper",
    "trainer.kubeflow.org/trainjob",
    "pod",
    "deployment",
    "statefulset",
    "leaderworkerset.x-k8s.io/leaderworkerset",
)
_RELEASED: Final[Mapping[str, Any]] = {
    "apiVersion": "config.kueue.x-k8s.io/v1beta2",
    "kind": "Configuration",
    "health": {"healthProbeBindAddress": ":8081"},
    "metrics": {"bindAddress": ":8443"},
    "webhook": {"port": 9443},
    "leaderElection": {"leaderElect": True, "resourceName": "c1f6bfd2.kueue.x-k8s.io"},
    "controller": {
        "groupKindConcurrency": {
            "Job.batch": 5,
            "Pod": 5,
            "Workload.kueue.x-k8s.io": 10,
            "LocalQueue.kueue.x-k8s.io": 5,
            "Cohort.kueue.x-k8s.io": 1,
            "ClusterQueue.kueue.x-k8s.io": 5,
            "ResourceFlavor.kueue.x-k8s.io": 1,
        }
    },
    "clientConnection": {"qps": 300, "burst": 500},
    "integrations": {"frameworks": list(_FRAMEWORKS)},
}
#: Kueue's own default, which has to be written where fair sharing is on.
_STRATEGIES: Final = ("LessThanOrEqualToFinalShare", "LessThanInitialShare")


def configuration(platform: Platform) -> Mapping[str, Any] | None:
    """The whole Configuration; None where that of the release is meant."""
    said: dict[str, Any] = dict(platform.kueue)
    if platform.fair_sharing:
        said["fairSharing"] = {"preemptionStrategies": list(_STRATEGIES)}
    return {**_RELEASED, **said} if said else None


def patches(platform: Platform) -> Sequence[Mapping[str, str]]:
    """The patches of a kustomization that put it into the manifests of the release."""
    config = configuration(platform)
    if config is None:
        return []
    text = dumped(config)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    file = _object("v1", "ConfigMap", "kueue-manager-config") | {"data": {_FILE: text}}
    restarted = {"template": {"metadata": {"annotations": {_DIGEST: digest}}}}
    manager = _object("apps/v1", "Deployment", "kueue-controller-manager") | {"spec": restarted}
    return [{"patch": dumped(each)} for each in (file, manager)]


def _object(version: str, kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": _NAMESPACE}}
