"""The kinds that batchyard serves: groups, versions, names, scope, and the tables of their fields."""

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
ENDPOINTS: Final = "Endpoints"
ENDPOINT_SLICE: Final = "EndpointSlice.discovery.k8s.io"
RUNTIME_CLASS: Final = "RuntimeClass.node.k8s.io"
REPLICATION_CONTROLLER: Final = "ReplicationController"
INGRESS: Final = "Ingress.networking.k8s.io"
PERSISTENT_VOLUME: Final = "PersistentVolume"
PERSISTENT_VOLUME_CLAIM: Final = "PersistentVolumeClaim"
MUTATING_WEBHOOKS: Final = "MutatingWebhookConfiguration.admissionregistration.k8s.io"
VALIDATING_WEBHOOKS: Final = "ValidatingWebhookConfiguration.admissionregistration.k8s.io"
COST_RECORD: Final = "CostRecord.cost.batchyard.dev"
BUDGET: Final = "Budget.cost.batchyard.dev"
SCENARIO: Final = "Scenario.sim.batchyard.dev"
PLATFORM: Final = "Platform.platform.batchyard.dev"
CONFIGURATION: Final = "Configuration.config.kueue.x-k8s.io"
#: Kinds that are files and not API resources.
FILES: Final = frozenset({SCENARIO, PLATFORM, CONFIGURATION})


@dataclass(frozen=True, slots=True)
class ServedKind:
    """A served kind. `constant` is its key everywhere: `Kind.group`, or bare `Kind` in the core group."""

    constant: str
    kind: str
    group: str
    versions: tuple[str, ...]
    """All served versions, oldest first."""
    storage_version: str
    """The version of decoded objects."""
    plural: str
    singular: str
    short_names: tuple[str, ...] = ()
    namespaced: bool = False
    has_status: bool = False
    """Whether the status is a subresource."""
    deprecated_versions: tuple[str, ...] = ()
    deprecation: str = ""
    """The warning for users of a deprecated version, from the CRD."""
    is_idle: bool = False
    """Whether no controller acts on its objects; clients that create one get a warning."""
    categories: tuple[str, ...] = ()
    """Categories for command lines, such as `all`."""
    selectable_fields: tuple[str, ...] = ()
    """Field selectors that lists and watches support besides name and namespace."""

    def __hash__(self) -> int:
        """Hash by the constant: caches use it for every request, and a hash of all fields would be slow."""
        return hash(self.constant)

    @property
    def api_version(self) -> str:
        """The storage version in the form of `apiVersion`."""
        return self.api_version_for(self.storage_version)

    def api_version_for(self, version: str) -> str:
        """Return a version in the form of `apiVersion`: `group/version`, or the version alone in the core group."""
        return f"{self.group}/{version}" if self.group else version

    def version_of(self, api_version: str) -> str | None:
        """Return the version in an `apiVersion`, or None if this kind is not served there."""
        version = api_version.rpartition("/")[2]
        return version if version in self.versions and self.api_version_for(version) == api_version else None


def _built_in(
    constant: str, plural: str, *short_names: str, namespaced: bool = True, has_status: bool = False
) -> ServedKind:
    kind, _, group = constant.partition(".")
    names = plural, kind.lower(), short_names
    categories = ("all",) if constant in _OF_ALL else ()
    return ServedKind(constant, kind, group, ("v1",), "v1", *names, namespaced, has_status, categories=categories)


def _idle(constant: str, plural: str, *short_names: str, has_status: bool = True) -> ServedKind:
    return replace(_built_in(constant, plural, *short_names, has_status=has_status), is_idle=True)


def _kueue(
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
        "This version is deprecated. Use v1beta2 instead." if deprecated else "",
    )


def _own(constant: str, *, namespaced: bool = False, has_status: bool = False) -> ServedKind:
    kind, _, group = constant.partition(".")
    names = f"{kind.lower()}s", kind.lower(), ()
    return ServedKind(constant, kind, group, ("v1alpha1",), "v1alpha1", *names, namespaced, has_status)


#: The kinds in `kubectl get all`.
_OF_ALL: Final = (
    POD,
    SERVICE,
    JOB,
    CRON_JOB,
    *(DEPLOYMENT, REPLICA_SET, STATEFUL_SET, DAEMON_SET, REPLICATION_CONTROLLER),
)

#: All kinds, in the order in which dependent manifests are best applied.
KINDS: Final[tuple[ServedKind, ...]] = (
    ServedKind(SCENARIO, "Scenario", "sim.batchyard.dev", ("v1alpha1",), "v1alpha1", "scenarios", "scenario"),
    _own(PLATFORM),
    _kueue(CONFIGURATION),
    _own(CLUSTER),
    _own(NODE_POOL, has_status=True),
    _built_in(NAMESPACE, "namespaces", "ns", namespaced=False, has_status=True),
    _built_in(PRIORITY_CLASS, "priorityclasses", "pc", namespaced=False),
    _built_in(CONFIG_MAP, "configmaps", "cm"),
    _built_in(SECRET, "secrets"),
    _built_in(SERVICE_ACCOUNT, "serviceaccounts", "sa"),
    _built_in(CLUSTER_ROLE, "clusterroles", namespaced=False),
    _built_in(CLUSTER_ROLE_BINDING, "clusterrolebindings", namespaced=False),
    _built_in(ROLE, "roles"),
    _built_in(ROLE_BINDING, "rolebindings"),
    _built_in(SERVICE, "services", "svc", has_status=True),
    _idle(ENDPOINTS, "endpoints", "ep", has_status=False),
    _idle(ENDPOINT_SLICE, "endpointslices", has_status=False),
    replace(_idle(RUNTIME_CLASS, "runtimeclasses", has_status=False), namespaced=False),
    _built_in(POD_TEMPLATE, "podtemplates"),
    _built_in(RESOURCE_QUOTA, "resourcequotas", "quota", has_status=True),
    _built_in(LIMIT_RANGE, "limitranges", "limits"),
    _built_in(POD_DISRUPTION_BUDGET, "poddisruptionbudgets", "pdb", has_status=True),
    _idle(NETWORK_POLICY, "networkpolicies", "netpol", has_status=False),
    _built_in(NODE, "nodes", "no", namespaced=False, has_status=True),
    _built_in(LEASE, "leases"),
    _own(INSTANCE, has_status=True),
    _own(RESIZE_REQUEST, has_status=True),
    _kueue(TOPOLOGY, "topo"),
    _kueue(RESOURCE_FLAVOR, "flavor", "flavors", "rf"),
    _kueue(WORKLOAD_PRIORITY_CLASS, "wpc"),
    _kueue(PROVISIONING_REQUEST_CONFIG, "prc"),
    _kueue(MULTI_KUEUE_CLUSTER, "mkc", has_status=True),
    _kueue(MULTI_KUEUE_CONFIG, "mkconf", deprecated=False),
    _kueue(ADMISSION_CHECK, "ac", has_status=True),
    _kueue(COHORT, "co", has_status=True),
    _kueue(CLUSTER_QUEUE, "cq", has_status=True),
    _kueue(LOCAL_QUEUE, "queue", "queues", "lq", namespaced=True, has_status=True),
    _kueue(WORKLOAD, "kwl", "kueueworkload", "kueueworkloads", namespaced=True, has_status=True),
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
    _own(BUDGET, namespaced=True, has_status=True),
    _own(COST_RECORD, namespaced=True),
    _built_in(JOB, "jobs", has_status=True),
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
    _idle(CRON_JOB, "cronjobs", "cj"),
    _idle(DEPLOYMENT, "deployments", "deploy"),
    _idle(REPLICA_SET, "replicasets", "rs"),
    _idle(STATEFUL_SET, "statefulsets", "sts"),
    _idle(DAEMON_SET, "daemonsets", "ds"),
    _idle(REPLICATION_CONTROLLER, "replicationcontrollers", "rc"),
    _idle(INGRESS, "ingresses", "ing"),
    replace(_idle(PERSISTENT_VOLUME, "persistentvolumes", "pv"), namespaced=False),
    _idle(PERSISTENT_VOLUME_CLAIM, "persistentvolumeclaims", "pvc"),
    replace(_idle(MUTATING_WEBHOOKS, "mutatingwebhookconfigurations", has_status=False), namespaced=False),
    replace(_idle(VALIDATING_WEBHOOKS, "validatingwebhookconfigurations", has_status=False), namespaced=False),
    _built_in(POD, "pods", "po", has_status=True),
    _built_in(EVENT, "events", "ev"),
)

_BY_CONSTANT: Final = {info.constant: info for info in KINDS}
_BY_NAME: Final = {(info.api_version_for(version), info.kind): info for info in KINDS for version in info.versions}


def find_kind(api_version: str, kind: str) -> ServedKind | None:
    """Return the kind of an object's `apiVersion` and `kind`, in any served version; None if there is none."""
    return _BY_NAME.get((api_version, kind))


def kind_info(constant: str) -> ServedKind:
    """Return the kind of a constant such as WORKLOAD; KeyError if there is none."""
    return _BY_CONSTANT[constant]


NATIVE: Final = "native"
NATIVE_PREFIX: Final = "native."
#: The groups of Kubernetes itself with kinds here, each by the first part of its name.
_NATIVE_GROUPS: Final = frozenset(
    {
        "admissionregistration",
        *("", "apps", "batch", "coordination", "discovery", "networking", "node", "policy", "rbac", "scheduling"),
    }
)
_SCALARS: Final = frozenset(
    {
        *("string", "bool", "int", "int32", "int64", "quantity", "int-or-string"),
        *("time", "micro-time", "duration", "bytes", "any"),
    }
)

Table: TypeAlias = dict[str, dict[str, str | tuple[str, dict[str, Any]]]]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a type, or the element of a list or a mapping."""

    expression: str
    required: bool
    facts: Mapping[str, Any]

    @property
    def is_list(self) -> bool:
        """Whether it is a list."""
        return self.expression.startswith("[")

    @property
    def is_map(self) -> bool:
        """Whether it is a mapping with user-defined keys."""
        return self.expression.startswith("{")

    @property
    def is_object(self) -> bool:
        """Whether it is an object with its own fields."""
        return not (self.is_list or self.is_map) and self.expression not in _SCALARS

    @property
    def element(self) -> "Field":
        """The element of the list or the mapping."""
        return Field(self.expression[1:-1], False, self.facts.get("items" if self.is_list else "values", {}))

    @property
    def object_type(self) -> str:
        """The innermost object type, of the field or of its elements; '' if there is none."""
        if self.is_list or self.is_map:
            return self.element.object_type
        return self.expression if self.is_object else ""


class TypeScope:
    """A namespace of type names, with the fields of each type."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._types: dict[str, Mapping[str, Field]] = {}

    def fields(self, type_name: str) -> Mapping[str, Field]:
        """Return the fields of a type, sorted by name; KeyError if the type does not exist."""
        if type_name not in self._types:
            self._types[type_name] = self._read(type_name)
        return self._types[type_name]

    def scope_of(self, type_name: str) -> "tuple[TypeScope, str]":
        """Return the scope that a name refers to, and the name there."""
        if type_name.startswith(NATIVE_PREFIX):
            return scope(NATIVE), type_name.removeprefix(NATIVE_PREFIX)
        elsewhere, slash, name = type_name.rpartition("/")
        if slash:
            return scope(elsewhere), name
        return self, type_name

    def _read(self, type_name: str) -> Mapping[str, Field]:
        own, core = table(self.name).get(type_name), table("core").get(type_name)
        if own is None and core is None:
            raise KeyError(f"no type {type_name} in {self.name}")
        merged = {**(core or {}), **(own or {})}
        return {name: _field(merged[name]) for name in sorted(merged)}


@cache
def table(name: str) -> Table:
    """Return a table of the package."""
    content = pkgutil.get_data(__package__, f"schema/fields/{name}.json")
    assert content is not None, f"the package lacks its table {name}"
    return msgspec.json.decode(content, type=Table)


@cache
def scope(name: str) -> TypeScope:
    """Return the scope of that name; it is read once."""
    return TypeScope(name)


def scope_for(info: ServedKind, version: str) -> TypeScope:
    """Return the scope of a version of a kind."""
    return scope(NATIVE if is_native(info) else f"{_first_part(info)}.{version}")


def is_native(info: ServedKind) -> bool:
    """Report whether a kind belongs to Kubernetes itself."""
    return _first_part(info) in _NATIVE_GROUPS


def _first_part(info: ServedKind) -> str:
    return info.group.partition(".")[0]


def _field(spec: str | tuple[str, dict[str, Any]]) -> Field:
    expression, facts = (spec, {}) if isinstance(spec, str) else spec
    return Field(expression.removesuffix("!"), expression.endswith("!"), facts)


# --- descriptions ---
#
# Descriptions of types and fields: `descriptions.json`, by type and by `Type.field`.
#
# The text of `*.field` applies to any field of that name without its own text.


_ANY: Final = "*"


def description(type_name: str, field: str = "") -> str:
    """Return the description of a type or of one of its fields; empty if there is none."""
    texts = _texts()
    if not field:
        return texts.get(type_name, "")
    return texts.get(f"{type_name}.{field}") or texts.get(f"{_ANY}.{field}", "")


@cache
def _texts() -> dict[str, str]:
    content = pkgutil.get_data(__package__, "schema/descriptions.json")
    assert content is not None, "the package lacks its descriptions"
    return msgspec.json.decode(content, type=dict[str, str])
