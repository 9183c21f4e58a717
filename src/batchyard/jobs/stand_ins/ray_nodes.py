"""RayClusters as values: the names of KubeRay, and the fields of a spec with defaults and validation.

Source: ray-operator/apis/ray/v1 and ray-operator/controllers/ray/utils (validation.go, util.go) of KubeRay.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from batchyard.api.meta import Obj, annotation, label, parse_quantity
from batchyard.api.validation.rules import dns1035_label_errors
from batchyard.jobs.stand_ins.new_objects import convert_fields

RAY_CLUSTER: Final = "RayCluster.ray.io"
RAY_JOB: Final = "RayJob.ray.io"
#: The value of `managedBy` that selects KubeRay's operator, or this stand-in.
_KUBERAY_OPERATOR: Final = "ray.io/kuberay-operator"
#: The most workers of a cluster.
WORKERS_MAX: Final = 1_000
INT32_MAX: Final = 2**31 - 1
#: The longest name of a RayCluster, so that the names of its Services are valid.
CLUSTER_NAME_LENGTH_MAX: Final = 53

CLUSTER_LABEL: Final = "ray.io/cluster"
NODE_TYPE_LABEL: Final = "ray.io/node-type"
GROUP_LABEL: Final = "ray.io/group"
IDENTIFIER_LABEL: Final = "ray.io/identifier"
REPLICA_NAME_LABEL: Final = "ray.io/worker-group-replica-name"
REPLICA_INDEX_LABEL: Final = "ray.io/worker-group-replica-index"
ORIGIN_NAME_LABEL: Final = "ray.io/originated-from-cr-name"
ORIGIN_KIND_LABEL: Final = "ray.io/originated-from-crd"
CREATED_BY_LABEL: Final = "app.kubernetes.io/created-by"
#: The value of the label `app.kubernetes.io/created-by`.
COMPONENT: Final = "kuberay-operator"
FAULT_TOLERANCE_ANNOTATION: Final = "ray.io/ft-enabled"
_SERVE_SERVICE_ANNOTATION: Final = "ray.io/enable-serve-service"
#: Node types, the values of the label `ray.io/node-type`.
HEAD: Final = "head"
WORKER: Final = "worker"

_Strings: TypeAlias = dict[str, str] | None
_Objects: TypeAlias = list[dict[str, Any]] | None


class InvalidRayObject(Exception):  # noqa: N818 - named after the condition
    """Raised if a Ray object is invalid, or needs KubeRay's own operator. The message names the field."""


class _RayPort(msgspec.Struct, frozen=True, rename="camel"):
    container_port: int
    name: str = ""


class _RayResources(msgspec.Struct, frozen=True):
    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None


class _RayContainer(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    command: list[str] | None = None
    args: list[str] | None = None
    ports: list[_RayPort] | None = None
    env: _Objects = None
    volume_mounts: _Objects = None
    resources: _RayResources | None = None


class _RayPodSpec(msgspec.Struct, frozen=True, rename="camel"):
    containers: list[_RayContainer] | None = None
    init_containers: list[_RayContainer] | None = None
    volumes: _Objects = None


class _RayMetadata(msgspec.Struct, frozen=True):
    name: str = ""
    labels: _Strings = None
    annotations: _Strings = None
    finalizers: list[str] | None = None


class RayPodTemplate(msgspec.Struct, frozen=True):
    """The fields of a pod template that the controllers read."""

    spec: _RayPodSpec = _RayPodSpec()
    metadata: _RayMetadata | None = None


class _RayServiceSpec(msgspec.Struct, frozen=True):
    ports: _Objects = None
    type: str | None = None


class _HeadService(msgspec.Struct, frozen=True):
    metadata: _RayMetadata | None = None
    spec: _RayServiceSpec | None = None


class HeadGroup(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of `headGroupSpec` that the controllers read."""

    template: RayPodTemplate = RayPodTemplate()
    ray_start_params: _Strings = None
    resources: _Strings = None
    labels: _Strings = None
    service_type: str = ""
    head_service: _HeadService | None = None
    enable_ingress: bool | None = None


class _ScaleStrategy(msgspec.Struct, frozen=True, rename="camel"):
    workers_to_delete: list[str] | None = None


class WorkerGroup(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of an item of `workerGroupSpecs` that the controllers read."""

    group_name: str
    template: RayPodTemplate = RayPodTemplate()
    ray_start_params: _Strings = None
    resources: _Strings = None
    labels: _Strings = None
    replicas: int | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None
    num_of_hosts: int = 1
    suspend: bool | None = None
    scale_strategy: _ScaleStrategy | None = None

    @property
    def hosts(self) -> int:
        """The number of pods of one replica."""
        return max(self.num_of_hosts, 1)

    @property
    def min_max_replicas(self) -> tuple[int, int]:
        """The least and the greatest number of replicas."""
        return self.min_replicas or 0, INT32_MAX if self.max_replicas is None else self.max_replicas

    @property
    def desired_replicas(self) -> int:
        """The number of replicas, within `minReplicas` and `maxReplicas`; 0 if the group is suspended."""
        minimum, maximum = self.min_max_replicas
        return 0 if self.suspend else min(max(self.replicas or 0, minimum), maximum)

    @property
    def desired_pods(self) -> int:
        """The number of pods of the group."""
        return self.desired_replicas * self.hosts

    @property
    def workers_to_delete(self) -> Sequence[str]:
        """The names of the pods that `scaleStrategy` deletes."""
        return () if self.scale_strategy is None else self.scale_strategy.workers_to_delete or ()


class _UpgradeStrategy(msgspec.Struct, frozen=True):
    type: str | None = None


class _AuthOptions(msgspec.Struct, frozen=True):
    mode: str | None = None


class RayClusterFields(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a RayCluster's spec that the controllers read."""

    head_group_spec: HeadGroup
    worker_group_specs: list[WorkerGroup] | None = None
    ray_version: str = ""
    suspend: bool | None = None
    head_service_annotations: _Strings = None
    enable_in_tree_autoscaling: bool | None = None
    gcs_fault_tolerance_options: Any = None
    history_server_options: Any = None
    network_policy: Any = None
    tls_options: Any = None
    auth_options: _AuthOptions | None = None
    upgrade_strategy: _UpgradeStrategy | None = None

    @property
    def groups(self) -> Sequence[WorkerGroup]:
        """The worker groups."""
        return self.worker_group_specs or ()


def parse_cluster_fields(spec: Any, owner: Obj, path: str = "spec") -> RayClusterFields:
    """Return the fields of a valid RayCluster's spec at `path` of `owner`, a RayCluster or RayJob.

    Raises InvalidRayObject, also for a feature that needs KubeRay's own operator.
    """
    fields: RayClusterFields = convert_fields(spec, RayClusterFields, path, InvalidRayObject)
    for feature in _unsupported_features(fields, owner):
        raise InvalidRayObject(f"{feature} needs KubeRay's own operator")
    if not fields.head_group_spec.template.spec.containers:
        raise InvalidRayObject("headGroupSpec should have at least one container")
    _check_group("Head", fields.head_group_spec)
    for group in fields.groups:
        _check_worker_group(group)
    names = [group.group_name for group in fields.groups]
    if len(dict.fromkeys(names)) < len(names):
        raise InvalidRayObject("the names of worker groups must be unique")
    if sum(group.desired_pods for group in fields.groups) > WORKERS_MAX:
        raise InvalidRayObject(f"more than {WORKERS_MAX} workers need KubeRay's own operator")
    return fields


def _unsupported_features(fields: RayClusterFields, owner: Obj) -> Iterator[str]:
    tolerance = (annotation(owner, FAULT_TOLERANCE_ANNOTATION) or "").lower()
    features = {
        "enableInTreeAutoscaling": fields.enable_in_tree_autoscaling,
        "gcsFaultToleranceOptions": fields.gcs_fault_tolerance_options is not None,
        f"the annotation {FAULT_TOLERANCE_ANNOTATION}": tolerance == "true",
        f"the annotation {_SERVE_SERVICE_ANNOTATION}": annotation(owner, _SERVE_SERVICE_ANNOTATION) == "true",
        "historyServerOptions": fields.history_server_options is not None,
        "networkPolicy": fields.network_policy is not None,
        "tlsOptions": fields.tls_options is not None,
        "authOptions.mode token": fields.auth_options is not None and fields.auth_options.mode == "token",
        "upgradeStrategy Recreate": fields.upgrade_strategy is not None and fields.upgrade_strategy.type == "Recreate",
        "headGroupSpec.enableIngress": fields.head_group_spec.enable_ingress,
    }
    yield from (name for name, is_used in features.items() if is_used)


def _check_group(name: str, group: HeadGroup | WorkerGroup) -> None:
    params = group.ray_start_params or {}
    if group.resources and any(params.get(each) for each in ("num-cpus", "num-gpus", "memory", "resources")):
        problem = f"resource fields should not be set in both rayStartParams and Resources for {name} group"
        raise InvalidRayObject(f"{problem}; please use only one")
    if "labels" in params:
        problem = f"rayStartParams['labels'] is not supported for {name} group"
        raise InvalidRayObject(f"{problem}; please use the top-level Labels field instead")
    for container in group.template.spec.containers or ():
        resources = container.resources or _RayResources()
        for quantity in [*(resources.limits or {}).values(), *(resources.requests or {}).values()]:
            try:
                parse_quantity(quantity)
            except ValueError as error:
                raise InvalidRayObject(f"container {container.name} of {name} group: {error}") from error


def _check_worker_group(group: WorkerGroup) -> None:
    if not group.template.spec.containers:
        raise InvalidRayObject("workerGroupSpec should have at least one container")
    minimum, maximum = group.min_max_replicas
    for field, value in (("minReplicas", minimum), ("maxReplicas", maximum)):
        if value < 0:
            raise InvalidRayObject(f"worker group {group.group_name} has negative {field} {value}")
    if minimum > maximum:
        problem = f"has minReplicas {minimum} greater than maxReplicas {maximum}"
        raise InvalidRayObject(f"worker group {group.group_name} {problem}")
    _check_group(group.group_name, group)


def check_name(name: str, kind: str, length_max: int) -> None:
    """Raise InvalidRayObject unless the name of an object of this kind is a DNS label of at most `length_max`."""
    if len(name) > length_max:
        raise InvalidRayObject(f"{kind} name should be no more than {length_max} characters")
    if errors := dns1035_label_errors(name):
        raise InvalidRayObject(f"{kind} name should be a valid DNS1035 label: [{' '.join(errors)}]")


def is_managed_elsewhere(obj: Obj) -> bool:
    """Return whether `spec.managedBy` leaves a Ray object to another controller."""
    spec = obj.get("spec")
    return isinstance(spec, Mapping) and spec.get("managedBy") not in (None, _KUBERAY_OPERATOR)


def node_type(obj: Obj) -> str:
    """Return the role of a pod or Service in its cluster: `head`, `worker` or ''."""
    return label(obj, NODE_TYPE_LABEL) or ""
