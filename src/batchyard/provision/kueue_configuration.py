"""Kueue's Configuration of a platform: the release's defaults with the fields of `spec.kueue`.

Defaults: config/components/manager/controller_manager_config.yaml of Kueue v0.19. The manager reads the file at start,
so a digest in the pods' annotations restarts them when it changes.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api.decode import decode
from batchyard.api.errors import FieldError
from batchyard.provision.model import PlatformEngine, PlatformModel
from batchyard.provision.yaml_output import dumped
from batchyard.scheduling.kueue_configuration import decision_fields, ignored_settings, unsupported_field_errors
from batchyard.scheduling.preemption.fair import BOTH

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
#: Kueue's own default, which must be written when fair sharing is enabled.
_STRATEGIES: Final = tuple(each.value for each in BOTH)


_HEAD: Final[Mapping[str, Any]] = {field: _RELEASED[field] for field in ("apiVersion", "kind")}
_PATH: Final = "spec.kueue"
_KUEUE: Final = "choose engine: kueue"


def configuration(platform: PlatformModel) -> Mapping[str, Any] | None:
    """Return the complete Configuration of Kueue; None if the release's is unchanged."""
    fields = _kueue_fields(platform)
    return {**_RELEASED, **fields} if fields else None


def own_configuration(platform: PlatformModel) -> Mapping[str, Any] | None:
    """Return the platform's fields for our operator, `batchyard up` and the simulator; None if there are none."""
    fields = decision_fields({**_HEAD, **_kueue_fields(platform)})
    return fields if len(fields) > len(_HEAD) else None


def configuration_faults(platform: PlatformModel) -> Iterator[FieldError]:
    """Yield errors: fields that Kueue rejects, or that our operator does not support."""
    if not platform.kueue:
        return
    decoded = decode({**_HEAD, **platform.kueue})
    for fault in decoded.faults:
        yield fault._replace(path=f"{_PATH}.{fault.path}")
    if decoded.obj is None or platform.engine is PlatformEngine.KUEUE:
        return
    for fault in unsupported_field_errors(decoded.obj):
        yield fault._replace(path=f"{_PATH}.{fault.path}", remedy=f"{fault.remedy}, or {_KUEUE}")
    for feature in ignored_settings(decoded.obj):
        yield FieldError(_PATH, f"our operator does not support {feature}", f"leave it out, or {_KUEUE}")


def _kueue_fields(platform: PlatformModel) -> Mapping[str, Any]:
    fields: dict[str, Any] = dict(platform.kueue)
    if platform.fair_sharing:
        fields["fairSharing"] = {"preemptionStrategies": list(_STRATEGIES)}
    return fields


def patches(platform: PlatformModel) -> Sequence[Mapping[str, str]]:
    """Return the kustomize patches that put it into the release's manifests."""
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
