"""The registry of built-in API kinds with groups, versions, names and scope; loads the field tables of schemas."""

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, TypeAlias

import msgspec

NAMESPACE: Final = "Namespace"
CONFIG_MAP: Final = "ConfigMap"
SERVICE: Final = "Service"
SERVICE_ACCOUNT: Final = "ServiceAccount"
SECRET: Final = "Secret"  # noqa: S105 - a kind
POD: Final = "Pod"
POD_TEMPLATE: Final = "PodTemplate"
PRIORITY_CLASS: Final = "PriorityClass.scheduling.k8s.io"
JOB: Final = "Job.batch"
JOB_SET: Final = "JobSet.jobset.x-k8s.io"
RESOURCE_FLAVOR: Final = "ResourceFlavor.kueue.x-k8s.io"
CLUSTER_QUEUE: Final = "ClusterQueue.kueue.x-k8s.io"
COHORT: Final = "Cohort.kueue.x-k8s.io"
LOCAL_QUEUE: Final = "LocalQueue.kueue.x-k8s.io"
WORKLOAD: Final = "Workload.kueue.x-k8s.io"
WORKLOAD_PRIORITY_CLASS: Final = "WorkloadPriorityClass.kueue.x-k8s.io"
ADMISSION_CHECK: Final = "AdmissionCheck.kueue.x-k8s.io"
PROVISIONING_REQUEST_CONFIG: Final = "ProvisioningRequestConfig.kueue.x-k8s.io"
TOPOLOGY: Final = "Topology.kueue.x-k8s.io"
PREEMPTION_CONFIG: Final = "PreemptionConfig.kueue.x-k8s.io"
MULTI_KUEUE_CONFIG: Final = "MultiKueueConfig.kueue.x-k8s.io"
MULTI_KUEUE_CLUSTER: Final = "MultiKueueCluster.kueue.x-k8s.io"
NODE: Final = "Node"
LEASE: Final = "Lease.coordination.k8s.io"
ROLE: Final = "Role.rbac.authorization.k8s.io"
ROLE_BINDING: Final = "RoleBinding.rbac.authorization.k8s.io"
CLUSTER_ROLE: Final = "ClusterRole.rbac.authorization.k8s.io"
CLUSTER_ROLE_BINDING: Final = "ClusterRoleBinding.rbac.authorization.k8s.io"
PROVISIONING_REQUEST: Final = "ProvisioningRequest.autoscaling.x-k8s.io"
CLUSTER: Final = "Cluster.cloud.batchyard.dev"
NODE_POOL: Final = "NodePool.cloud.batchyard.dev"
INSTANCE: Final = "Instance.cloud.batchyard.dev"
RESIZE_REQUEST: Final = "ResizeRequest.cloud.batchyard.dev"
EVENT: Final = "Event"
RESOURCE_QUOTA: Final = "ResourceQuota"
LIMIT_RANGE: Final = "LimitRange"
NETWORK_POLICY: Final = "NetworkPolicy.networking.k8s.io"
POD_DISRUPTION_BUDGET: Final = "PodDisruptionBudget.policy"
CRON_JOB: Final = "CronJob.batch"
DEPLOYMENT: Final = "Deployment.apps"
REPLICA_SET: Final = "ReplicaSet.apps"
STATEFUL_SET: Final = "StatefulSet.apps"
DAEMON_SET: Final = "DaemonSet.apps"
CONTROLLER_REVISION: Final = "ControllerRevision.apps"
ENDPOINTS: Final = "Endpoints"
ENDPOINT_SLICE: Final = "EndpointSlice.discovery.k8s.io"
RUNTIME_CLASS: Final = "RuntimeClass.node.k8s.io"
REPLICATION_CONTROLLER: Final = "ReplicationController"
HORIZONTAL_POD_AUTOSCALER: Final = "HorizontalPodAutoscaler.autoscaling"
INGRESS: Final = "Ingress.networking.k8s.io"
PERSISTENT_VOLUME: Final = "PersistentVolume"
PERSISTENT_VOLUME_CLAIM: Final = "PersistentVolumeClaim"
STORAGE_CLASS: Final = "StorageClass.storage.k8s.io"
MUTATING_WEBHOOKS: Final = "MutatingWebhookConfiguration.admissionregistration.k8s.io"
LEADER_WORKER_SET: Final = "LeaderWorkerSet.leaderworkerset.x-k8s.io"
_KUBEFLOW_KINDS: Final = ("PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob", "MPIJob")
#: The integration that Kueue has only with the feature gate SparkApplicationIntegration.
SPARK_FRAMEWORK: Final = "sparkoperator.k8s.io/sparkapplication"
#: The kinds of jobs that can be queued, by their name in `integrations.frameworks` of Kueue's Configuration: first the
#: built-in kinds, then custom kinds.
JOB_FRAMEWORKS: Final[Mapping[str, str]] = {
    "batch/job": JOB,
    "jobset.x-k8s.io/jobset": JOB_SET,
    "pod": POD,
    "deployment": DEPLOYMENT,
    "statefulset": STATEFUL_SET,
    **{f"kubeflow.org/{kind.lower()}": f"{kind}.kubeflow.org" for kind in _KUBEFLOW_KINDS},
    **{f"ray.io/{kind.lower()}": f"{kind}.ray.io" for kind in ("RayCluster", "RayJob", "RayService")},
    "leaderworkerset.x-k8s.io/leaderworkerset": LEADER_WORKER_SET,
    "trainer.kubeflow.org/trainjob": "TrainJob.trainer.kubeflow.org",
    "workload.codeflare.dev/appwrapper": "AppWrapper.workload.codeflare.dev",
    SPARK_FRAMEWORK: "SparkApplication.sparkoperator.k8s.io",
}
#: The kinds that serve, whose pods are queued.
SERVING_KINDS: Final = (DEPLOYMENT, STATEFUL_SET, LEADER_WORKER_SET)
VALIDATING_WEBHOOKS: Final = "ValidatingWebhookConfiguration.admissionregistration.k8s.io"
MUTATING_POLICY: Final = "MutatingAdmissionPolicy.admissionregistration.k8s.io"
MUTATING_POLICY_BINDING: Final = "MutatingAdmissionPolicyBinding.admissionregistration.k8s.io"
VALIDATING_POLICY: Final = "ValidatingAdmissionPolicy.admissionregistration.k8s.io"
VALIDATING_POLICY_BINDING: Final = "ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io"
FLOW_SCHEMA: Final = "FlowSchema.flowcontrol.apiserver.k8s.io"
PRIORITY_LEVEL: Final = "PriorityLevelConfiguration.flowcontrol.apiserver.k8s.io"
COST_RECORD: Final = "CostRecord.cost.batchyard.dev"
BUDGET: Final = "Budget.cost.batchyard.dev"
JOB_KIND: Final = "JobKind.jobs.batchyard.dev"
SCENARIO: Final = "Scenario.sim.batchyard.dev"
PLATFORM: Final = "Platform.platform.batchyard.dev"
CONFIGURATION: Final = "Configuration.config.kueue.x-k8s.io"
#: Kinds that are read from files only; the API server does not serve them.
FILE_KINDS: Final = frozenset({SCENARIO, PLATFORM, CONFIGURATION})


@dataclass(frozen=True, slots=True)
class ServedKind:
    """An API kind with its versions and names. `constant` identifies it: `Kind.group`, or `Kind` in the core group."""

    constant: str
    kind: str
    group: str
    versions: tuple[str, ...]
    """All served versions, oldest first."""
    storage_version: str
    """The version in which objects are stored; decoded objects have it."""
    plural: str
    singular: str
    short_names: tuple[str, ...] = ()
    namespaced: bool = False
    has_status: bool = False
    """Whether the status is a subresource."""
    deprecated_versions: tuple[str, ...] = ()
    deprecation: str = ""
    """The warning to clients that use a deprecated version, from the CRD."""
    is_idle: bool = False
    """Whether no controller acts on objects of this kind; a client that creates one gets a warning."""
    categories: tuple[str, ...] = ()
    """Categories of kinds for `kubectl get`, such as `all`."""
    selectable_fields: tuple[str, ...] = ()
    """Field selectors that lists and watches support besides name and namespace."""

    def __hash__(self) -> int:
        """Return the hash of `constant` only: hashing all fields would be slow, and every request hashes kinds."""
        return hash(self.constant)

    @property
    def api_version(self) -> str:
        """The `apiVersion` of objects in the storage version, such as `batch/v1`."""
        return self.api_version_for(self.storage_version)

    @property
    def group_resource(self) -> str:
        """The name of the resource in messages: `jobs.batch`, or `pods` in the core group."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def group_kind(self) -> str:
        """The name of the kind in messages: `Job.batch`, or `Pod` in the core group."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    def api_version_for(self, version: str) -> str:
        """Return the `apiVersion` of a version: `group/version`, or the version alone in the core group."""
        return f"{self.group}/{version}" if self.group else version

    def version_of(self, api_version: str) -> str | None:
        """Return the version in an `apiVersion`, or None if this kind is not served in that group and version."""
        version = api_version.rpartition("/")[2]
        return version if version in self.versions and self.api_version_for(version) == api_version else None


def _kubernetes_kind(
    constant: str, plural: str, *short_names: str, namespaced: bool = True, has_status: bool = False
) -> ServedKind:
    kind, _, group = constant.partition(".")
    names = plural, kind.lower(), short_names
    categories = ("all",) if constant in _GET_ALL_KINDS else ()
    return ServedKind(constant, kind, group, ("v1",), "v1", *names, namespaced, has_status, categories=categories)


def _kind_without_controller(constant: str, plural: str, *short_names: str, has_status: bool = True) -> ServedKind:
    return replace(_kubernetes_kind(constant, plural, *short_names, has_status=has_status), is_idle=True)


#: The warning about a version of Kueue's kinds that Kueue 0.20 no longer serves.
KUEUE_DEPRECATION: Final = "This version is deprecated. Use v1beta2 instead."


def _kueue_kind(
    constant: str, *short_names: str, namespaced: bool = False, has_status: bool = False, deprecated: bool = True
) -> ServedKind:
    kind, _, group = constant.partition(".")
    singular = kind.lower()
    plural = singular[:-1] + "ies" if singular.endswith("y") else singular + ("es" if singular.endswith("s") else "s")
    return ServedKind(
        constant,
        kind,
        group,
        ("v1beta1", "v1beta2"),
        "v1beta2",
        plural,
        singular,
        short_names,
        namespaced,
        has_status,
        ("v1beta1",) if deprecated else (),
        KUEUE_DEPRECATION if deprecated else "",
    )


def _batchyard_kind(constant: str, *, namespaced: bool = False, has_status: bool = False) -> ServedKind:
    kind, _, group = constant.partition(".")
    names = f"{kind.lower()}s", kind.lower(), ()
    return ServedKind(constant, kind, group, ("v1alpha1",), "v1alpha1", *names, namespaced, has_status)


#: The kinds that `kubectl get all` lists.
_GET_ALL_KINDS: Final = (
    POD,
    SERVICE,
    JOB,
    CRON_JOB,
    DEPLOYMENT,
    REPLICA_SET,
    STATEFUL_SET,
    DAEMON_SET,
    REPLICATION_CONTROLLER,
    HORIZONTAL_POD_AUTOSCALER,
)

#: The built-in kinds with the subresource `scale`.
SCALABLE_KINDS: Final = frozenset({DEPLOYMENT, REPLICA_SET, STATEFUL_SET, REPLICATION_CONTROLLER})

#: All built-in kinds. A kind usually comes after the kinds that its objects refer to, as a ClusterQueue after flavors.
KINDS: Final[tuple[ServedKind, ...]] = (
    ServedKind(SCENARIO, "Scenario", "sim.batchyard.dev", ("v1alpha1",), "v1alpha1", "scenarios", "scenario"),
    _batchyard_kind(PLATFORM),
    _kueue_kind(CONFIGURATION),
    _batchyard_kind(JOB_KIND),
    _batchyard_kind(CLUSTER),
    _batchyard_kind(NODE_POOL, has_status=True),
    _kubernetes_kind(NAMESPACE, "namespaces", "ns", namespaced=False, has_status=True),
    _kubernetes_kind(PRIORITY_CLASS, "priorityclasses", "pc", namespaced=False),
    _kubernetes_kind(CONFIG_MAP, "configmaps", "cm"),
    _kubernetes_kind(SECRET, "secrets"),
    _kubernetes_kind(SERVICE_ACCOUNT, "serviceaccounts", "sa"),
    _kubernetes_kind(CLUSTER_ROLE, "clusterroles", namespaced=False),
    _kubernetes_kind(CLUSTER_ROLE_BINDING, "clusterrolebindings", namespaced=False),
    _kubernetes_kind(ROLE, "roles"),
    _kubernetes_kind(ROLE_BINDING, "rolebindings"),
    _kubernetes_kind(SERVICE, "services", "svc", has_status=True),
    replace(
        _kubernetes_kind(ENDPOINTS, "endpoints", "ep"),
        deprecated_versions=("v1",),
        deprecation="v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
    ),
    _kubernetes_kind(ENDPOINT_SLICE, "endpointslices"),
    replace(_kind_without_controller(RUNTIME_CLASS, "runtimeclasses", has_status=False), namespaced=False),
    _kubernetes_kind(POD_TEMPLATE, "podtemplates"),
    _kubernetes_kind(RESOURCE_QUOTA, "resourcequotas", "quota", has_status=True),
    _kubernetes_kind(LIMIT_RANGE, "limitranges", "limits"),
    _kubernetes_kind(POD_DISRUPTION_BUDGET, "poddisruptionbudgets", "pdb", has_status=True),
    _kind_without_controller(NETWORK_POLICY, "networkpolicies", "netpol", has_status=False),
    _kubernetes_kind(NODE, "nodes", "no", namespaced=False, has_status=True),
    _kubernetes_kind(LEASE, "leases"),
    _batchyard_kind(INSTANCE, has_status=True),
    _batchyard_kind(RESIZE_REQUEST, has_status=True),
    _kueue_kind(TOPOLOGY, "topo"),
    _kueue_kind(RESOURCE_FLAVOR, "flavor", "flavors", "rf"),
    _kueue_kind(WORKLOAD_PRIORITY_CLASS, "wpc"),
    _kueue_kind(PROVISIONING_REQUEST_CONFIG, "prc"),
    _kueue_kind(MULTI_KUEUE_CLUSTER, "mkc", has_status=True),
    _kueue_kind(MULTI_KUEUE_CONFIG, "mkconf", deprecated=False),
    _kueue_kind(ADMISSION_CHECK, "ac", has_status=True),
    replace(_batchyard_kind(PREEMPTION_CONFIG), short_names=("preempcfg",)),
    _kueue_kind(COHORT, "co", has_status=True),
    _kueue_kind(CLUSTER_QUEUE, "cq", has_status=True),
    _kueue_kind(LOCAL_QUEUE, "queue", "queues", "lq", namespaced=True, has_status=True),
    _kueue_kind(WORKLOAD, "kwl", "kueueworkload", "kueueworkloads", namespaced=True, has_status=True),
    ServedKind(
        PROVISIONING_REQUEST,
        "ProvisioningRequest",
        "autoscaling.x-k8s.io",
        ("v1beta1", "v1"),
        "v1",
        "provisioningrequests",
        "provisioningrequest",
        ("provreq", "provreqs"),
        namespaced=True,
        has_status=True,
        deprecated_versions=("v1beta1",),
        deprecation="autoscaling.k8s.io/v1beta1 API is deprecated",
    ),
    _batchyard_kind(BUDGET, namespaced=True, has_status=True),
    _batchyard_kind(COST_RECORD, namespaced=True),
    _kubernetes_kind(JOB, "jobs", has_status=True),
    ServedKind(
        JOB_SET,
        "JobSet",
        "jobset.x-k8s.io",
        ("v1alpha2",),
        "v1alpha2",
        "jobsets",
        "jobset",
        namespaced=True,
        has_status=True,
    ),
    _kubernetes_kind(CRON_JOB, "cronjobs", "cj", has_status=True),
    _kubernetes_kind(DEPLOYMENT, "deployments", "deploy", has_status=True),
    _kubernetes_kind(REPLICA_SET, "replicasets", "rs", has_status=True),
    _kubernetes_kind(STATEFUL_SET, "statefulsets", "sts", has_status=True),
    _kubernetes_kind(DAEMON_SET, "daemonsets", "ds", has_status=True),
    _kubernetes_kind(CONTROLLER_REVISION, "controllerrevisions"),
    _kubernetes_kind(REPLICATION_CONTROLLER, "replicationcontrollers", "rc", has_status=True),
    replace(
        _kubernetes_kind(HORIZONTAL_POD_AUTOSCALER, "horizontalpodautoscalers", "hpa", has_status=True),
        versions=("v1", "v2"),
        storage_version="v2",
    ),
    _kind_without_controller(INGRESS, "ingresses", "ing"),
    _kubernetes_kind(STORAGE_CLASS, "storageclasses", "sc", namespaced=False),
    _kubernetes_kind(PERSISTENT_VOLUME, "persistentvolumes", "pv", namespaced=False, has_status=True),
    _kubernetes_kind(PERSISTENT_VOLUME_CLAIM, "persistentvolumeclaims", "pvc", has_status=True),
    _kubernetes_kind(MUTATING_WEBHOOKS, "mutatingwebhookconfigurations", namespaced=False),
    _kubernetes_kind(VALIDATING_WEBHOOKS, "validatingwebhookconfigurations", namespaced=False),
    _kubernetes_kind(MUTATING_POLICY, "mutatingadmissionpolicies", namespaced=False),
    _kubernetes_kind(MUTATING_POLICY_BINDING, "mutatingadmissionpolicybindings", namespaced=False),
    _kubernetes_kind(VALIDATING_POLICY, "validatingadmissionpolicies", namespaced=False, has_status=True),
    _kubernetes_kind(VALIDATING_POLICY_BINDING, "validatingadmissionpolicybindings", namespaced=False),
    _kubernetes_kind(FLOW_SCHEMA, "flowschemas", namespaced=False, has_status=True),
    _kubernetes_kind(PRIORITY_LEVEL, "prioritylevelconfigurations", namespaced=False, has_status=True),
    _kubernetes_kind(POD, "pods", "po", has_status=True),
    _kubernetes_kind(EVENT, "events", "ev"),
)

_KIND_BY_CONSTANT: Final = {served_kind.constant: served_kind for served_kind in KINDS}
_KIND_BY_API_VERSION_AND_NAME: Final = {
    (served_kind.api_version_for(version), served_kind.kind): served_kind
    for served_kind in KINDS
    for version in served_kind.versions
}


def custom_job_kind(kind: str, group: str, version: str, plural: str) -> ServedKind:
    """Return a custom kind of jobs with the names of its description."""
    names = plural, kind.lower(), ()
    return ServedKind(f"{kind}.{group}", kind, group, (version,), version, *names, namespaced=True, has_status=True)


_DESCRIBED_VERSIONS: Final = {
    "MPIJob": "v2beta1",
    "TrainJob": "v1alpha1",
    "AppWrapper": "v1beta2",
    "SparkApplication": "v1beta2",
}


def _described_kind(constant: str) -> ServedKind:
    kind, _, group = constant.partition(".")
    return custom_job_kind(kind, group, _DESCRIBED_VERSIONS.get(kind, "v1"), f"{kind.lower()}s")


#: The custom kinds of jobs that batchyard describes, and LeaderWorkerSets.
DESCRIBED_KINDS: Final = {
    kind: _described_kind(kind) for kind in JOB_FRAMEWORKS.values() if kind not in _KIND_BY_CONSTANT
}


def _training_runtime(kind: str, *, namespaced: bool) -> ServedKind:
    group, version = "trainer.kubeflow.org", "v1alpha1"
    names = f"{kind.lower()}s", kind.lower()
    return ServedKind(f"{kind}.{group}", kind, group, (version,), version, *names, namespaced=namespaced)


#: The custom kinds of the objects to which jobs of described kinds refer.
REFERENCED_KINDS: Final = {
    info.constant: info
    for info in (
        _training_runtime("ClusterTrainingRuntime", namespaced=False),
        _training_runtime("TrainingRuntime", namespaced=True),
    )
}
#: The kinds whose objects exist before the jobs that depend on them.
EARLY_KINDS: Final = frozenset({JOB_KIND, *REFERENCED_KINDS})


def find_kind(api_version: str, kind: str) -> ServedKind | None:
    """Return the kind that is served as `kind` in the given `apiVersion`, or None."""
    return _KIND_BY_API_VERSION_AND_NAME.get((api_version, kind))


def is_built_in(constant: str) -> bool:
    """Return whether a constant such as WORKLOAD identifies one of batchyard's own kinds."""
    return constant in _KIND_BY_CONSTANT


def kind_info(constant: str) -> ServedKind:
    """Return the API kind that a constant such as WORKLOAD identifies; raise KeyError if there is none."""
    return _KIND_BY_CONSTANT[constant]


NATIVE: Final = "native"
NATIVE_PREFIX: Final = "native."
#: The API groups of Kubernetes itself that batchyard supports, by the first part of their names.
_NATIVE_GROUPS: Final = frozenset(
    {
        "admissionregistration",
        *(
            "",
            "apps",
            "batch",
            "coordination",
            "discovery",
            "flowcontrol",
            "networking",
            "node",
            "policy",
            "rbac",
            "scheduling",
            "storage",
        ),
    }
)
#: A group of Kubernetes, although `autoscaling.x-k8s.io` is a group of CRDs.
_AUTOSCALING_GROUP: Final = "autoscaling"
_SCALAR_TYPES: Final = frozenset(
    {
        *("string", "bool", "int", "int32", "int64", "number", "quantity", "int-or-string"),
        *("time", "micro-time", "duration", "bytes", "any"),
    }
)

FieldTable: TypeAlias = dict[str, dict[str, str | tuple[str, dict[str, Any]]]]


@dataclass(frozen=True, slots=True)
class Field:
    """The schema of a field, list item or mapping value: its type expression, and constraints such as minimum."""

    expression: str
    required: bool
    constraints: Mapping[str, Any]

    @property
    def is_list(self) -> bool:
        """Whether the field contains a list."""
        return self.expression.startswith("[")

    @property
    def is_map(self) -> bool:
        """Whether the field contains a mapping with user-defined keys, such as labels."""
        return self.expression.startswith("{")

    @property
    def is_object(self) -> bool:
        """Whether the field contains an object whose type has named fields."""
        return not (self.is_list or self.is_map) and self.expression not in _SCALAR_TYPES

    @property
    def element(self) -> "Field":
        """The schema of the items of this list field, or of the values of this mapping field."""
        return Field(self.expression[1:-1], False, self.constraints.get("items" if self.is_list else "values", {}))

    @property
    def object_type(self) -> str:
        """The object type in the field or, for lists and mappings, of their innermost elements; '' for scalars."""
        if self.is_list or self.is_map:
            return self.element.object_type
        return self.expression if self.is_object else ""


class TypeScope:
    """The object types of one API group and version, such as `kueue.v1beta2`, or of all Kubernetes kinds (`native`)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._types: dict[str, Mapping[str, Field]] = {}

    def fields(self, type_name: str) -> Mapping[str, Field]:
        """Return the fields of an object type by field name, sorted; raise KeyError if there is no such type."""
        if type_name not in self._types:
            self._types[type_name] = self._read_type(type_name)
        return self._types[type_name]

    def scope_of(self, type_name: str) -> "tuple[TypeScope, str]":
        """Return the scope and the local name of a type: those of `native.PodSpec` are `native` and `PodSpec`.

        A name without a scope belongs to this TypeScope.
        """
        if type_name.startswith(NATIVE_PREFIX):
            return load_scope(NATIVE), type_name.removeprefix(NATIVE_PREFIX)
        scope_name, slash, name = type_name.rpartition("/")
        if slash:
            return load_scope(scope_name), name
        return self, type_name

    def _read_type(self, type_name: str) -> Mapping[str, Field]:
        own_fields, core_fields = field_table(self.name).get(type_name), field_table("core").get(type_name)
        if own_fields is None and core_fields is None:
            raise KeyError(f"the schema {self.name} has no type {type_name}")
        all_fields = {**(core_fields or {}), **(own_fields or {})}
        return {name: _parse_field(all_fields[name]) for name in sorted(all_fields)}


@cache
def field_table(name: str) -> FieldTable:
    """Load a field table, which lists the fields of object types, from the package's JSON file of that name."""
    json_content = pkgutil.get_data(__package__, f"schema/fields/{name}.json")
    assert json_content is not None, f"the package has no schema/fields/{name}.json; reinstall batchyard"
    return msgspec.json.decode(json_content, type=FieldTable)


@cache
def load_scope(name: str) -> TypeScope:
    """Return the TypeScope of the given name, such as `kueue.v1beta2`; its types are loaded on first use."""
    return TypeScope(name)


def load_scope_for_kind(served_kind: ServedKind, version: str) -> TypeScope:
    """Return the TypeScope that defines a built-in API kind in the given version.

    For the kinds of Kubernetes, `native` has the types of the storage version.
    """
    if not is_native(served_kind):
        return load_scope(f"{_group_prefix(served_kind)}.{version}")
    is_stored = version == served_kind.storage_version
    return load_scope(NATIVE if is_stored else f"{NATIVE}-{served_kind.group}.{version}")


def is_native(served_kind: ServedKind) -> bool:
    """Return whether a built-in API kind belongs to Kubernetes itself, not to a CRD."""
    return _group_prefix(served_kind) in _NATIVE_GROUPS or served_kind.group == _AUTOSCALING_GROUP


def _group_prefix(served_kind: ServedKind) -> str:
    return served_kind.group.partition(".")[0]


def _parse_field(spec: str | tuple[str, dict[str, Any]]) -> Field:
    expression, constraints = (spec, {}) if isinstance(spec, str) else spec
    return Field(expression.removesuffix("!"), expression.endswith("!"), constraints)


# Descriptions of types and fields from `descriptions.json`, by type and by `Type.field`.
#
# The text of `*.field` applies to any field of that name without its own text.


_ANY_TYPE_EXPRESSION: Final = "*"


def description(type_name: str, field: str = "") -> str:
    """Return the documentation text of an object type or of one of its fields; '' if there is none."""
    text_by_name = _description_by_field_path()
    if not field:
        return text_by_name.get(type_name, "")
    return text_by_name.get(f"{type_name}.{field}") or text_by_name.get(f"{_ANY_TYPE_EXPRESSION}.{field}", "")


@cache
def _description_by_field_path() -> dict[str, str]:
    json_content = pkgutil.get_data(__package__, "schema/descriptions.json")
    assert json_content is not None, "the package has no schema/descriptions.json; reinstall batchyard"
    return msgspec.json.decode(json_content, type=dict[str, str])
