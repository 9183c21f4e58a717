"""Controller groups, such as `admission` or `jobset`: their names, and the kinds that each group reads and writes."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from batchyard.api import scheme

ADMISSION: Final = "admission"
PROVISIONING: Final = "provisioning"
JOBSET: Final = "jobset"
PODS: Final = "pods"
HOTSWAP: Final = "hotswap"
JOBS: Final = "jobs"
APPS: Final = "apps"
SERVICES: Final = "services"
VOLUMES: Final = "volumes"
PLACEMENT: Final = "placement"
NODES: Final = "nodes"
AUTOSCALER: Final = "autoscaler"
NAMESPACES: Final = "namespaces"
RESOURCE_QUOTA: Final = "resourcequota"
DISRUPTION: Final = "disruption"
API: Final = "api"
RUNTIME: Final = "runtime"
CLOUD: Final = "cloud"
COSTS: Final = "costs"

#: All groups; docs/how-to/operator.md describes them.
GROUPS: Final = (
    *(ADMISSION, PROVISIONING, PODS, JOBSET, HOTSWAP, JOBS, APPS, SERVICES, VOLUMES, PLACEMENT, NODES),
    *(AUTOSCALER, NAMESPACES, RESOURCE_QUOTA, DISRUPTION, API, RUNTIME, CLOUD, COSTS),
)
#: The groups that an operator runs by default: Kubernetes has no such controllers.
KUBERNETES_GROUPS: Final = (ADMISSION, PROVISIONING, PODS, JOBSET, HOTSWAP)
#: The groups that read all kinds, run pods or create machines, and those of which a Kubernetes cluster has its own.
_LOCAL_GROUPS: Final = frozenset({API, APPS, SERVICES, VOLUMES, RESOURCE_QUOTA, DISRUPTION, RUNTIME, CLOUD})
#: Groups that can run outside the platform's process.
REMOTE_GROUPS: Final = tuple(group for group in GROUPS if group not in _LOCAL_GROUPS)

_QUEUE_KINDS: Final = (
    scheme.JOB_KIND,  # before the jobs that JobKinds describe
    *(scheme.NAMESPACE, scheme.RESOURCE_FLAVOR, scheme.TOPOLOGY, scheme.ADMISSION_CHECK),
    *(scheme.COHORT, scheme.CLUSTER_QUEUE, scheme.LOCAL_QUEUE, scheme.LIMIT_RANGE, scheme.RUNTIME_CLASS),
    scheme.PREEMPTION_CONFIG,
)
_JOB_KINDS: Final = (scheme.PRIORITY_CLASS, scheme.WORKLOAD_PRIORITY_CLASS, scheme.JOB_SET, scheme.JOB, scheme.WORKLOAD)
_CAPACITY_KINDS: Final = (scheme.POD_TEMPLATE, scheme.PROVISIONING_REQUEST)
#: The kinds that each group reads.
_KINDS_READ: Final[Mapping[str, Sequence[str]]] = {
    ADMISSION: (*_QUEUE_KINDS, *_JOB_KINDS, scheme.POD, scheme.NODE),
    PROVISIONING: (
        *(scheme.ADMISSION_CHECK, scheme.PROVISIONING_REQUEST_CONFIG, scheme.RESOURCE_FLAVOR, scheme.WORKLOAD),
        *_CAPACITY_KINDS,
    ),
    PODS: (
        *(scheme.NAMESPACE, scheme.RESOURCE_FLAVOR, scheme.PRIORITY_CLASS, scheme.WORKLOAD_PRIORITY_CLASS),
        *(scheme.JOB_SET, scheme.JOB, scheme.WORKLOAD, scheme.STATEFUL_SET, scheme.POD),
    ),
    JOBSET: (scheme.JOB_SET, scheme.JOB, scheme.SERVICE, scheme.POD, scheme.NODE),
    HOTSWAP: (scheme.NODE, scheme.POD),
    JOBS: (scheme.PRIORITY_CLASS, scheme.JOB_SET, scheme.JOB, scheme.POD),
    PLACEMENT: (
        scheme.POD_DISRUPTION_BUDGET,
        scheme.NAMESPACE,
        scheme.NODE,
        scheme.WORKLOAD,
        scheme.JOB_SET,
        scheme.JOB,
        scheme.POD,
    ),
    NODES: (scheme.NODE, scheme.LEASE, scheme.POD),
    AUTOSCALER: (
        *(scheme.CLUSTER, scheme.NODE_POOL, scheme.INSTANCE, scheme.RESIZE_REQUEST, scheme.NODE),
        *(scheme.POD, scheme.POD_DISRUPTION_BUDGET, scheme.NAMESPACE, scheme.CONFIG_MAP),
        *_CAPACITY_KINDS,
    ),
    COSTS: (
        *(scheme.NAMESPACE, scheme.WORKLOAD, scheme.LOCAL_QUEUE, scheme.JOB_SET, scheme.JOB, scheme.POD, scheme.NODE),
        *(scheme.CLUSTER, scheme.NODE_POOL, scheme.INSTANCE, scheme.COST_RECORD, scheme.BUDGET),
    ),
    NAMESPACES: tuple(info.constant for info in scheme.KINDS if info.namespaced or info.constant == scheme.NAMESPACE),
}

#: The kinds of owners of jobs and pods that the webhooks of each group look up, although it may not watch them.
_KINDS_LOOKED_UP: Final[Mapping[str, Sequence[str]]] = dict.fromkeys(
    (ADMISSION, PODS), (scheme.DEPLOYMENT, scheme.REPLICA_SET, scheme.STATEFUL_SET)
)

#: The verbs on objects, as in RBAC; a status is a subresource with its own rule.
CREATE, PATCH, DELETE, STATUS = "create", "patch", "delete", "status"
#: Sets blockOwnerDeletion in owner references to the object. Source: the admission plugin
#: OwnerReferencesPermissionEnforcement, which requires the right to update the owner's `finalizers`.
FINALIZERS: Final = "finalizers"
#: Assigns pods to nodes by the subresource `binding`, because Kubernetes rejects updates of `spec.nodeName`.
BINDING: Final = "binding"
_CREATE_DELETE: Final = (CREATE, DELETE)
_ALL_VERBS: Final = (CREATE, PATCH, STATUS, DELETE)
#: The verbs that each group uses on each kind, besides Events. The list is complete.
_VERBS_USED: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    ADMISSION: {
        scheme.WORKLOAD: _ALL_VERBS,
        scheme.JOB: (PATCH, STATUS, DELETE, FINALIZERS),
        scheme.JOB_SET: (PATCH, DELETE, FINALIZERS),
        scheme.POD: (PATCH, STATUS),
        scheme.CLUSTER_QUEUE: (PATCH, STATUS),
        **dict.fromkeys((scheme.RESOURCE_FLAVOR, scheme.ADMISSION_CHECK, scheme.TOPOLOGY), (PATCH,)),
        **dict.fromkeys((scheme.LOCAL_QUEUE, scheme.COHORT), (STATUS,)),
    },
    PROVISIONING: {
        scheme.WORKLOAD: (STATUS, FINALIZERS),
        scheme.ADMISSION_CHECK: (STATUS,),
        scheme.PROVISIONING_REQUEST: (*_CREATE_DELETE, FINALIZERS),
        scheme.POD_TEMPLATE: (CREATE, PATCH, DELETE),
    },
    PODS: {scheme.POD: (PATCH, STATUS, DELETE, FINALIZERS), scheme.WORKLOAD: _ALL_VERBS},
    JOBSET: {
        scheme.JOB_SET: (STATUS, DELETE, FINALIZERS),
        scheme.JOB: _ALL_VERBS,
        scheme.SERVICE: (CREATE,),
        scheme.POD: (STATUS, DELETE),
    },
    HOTSWAP: {scheme.POD: (STATUS, DELETE)},
    JOBS: {scheme.JOB: (STATUS, DELETE, FINALIZERS), scheme.POD: (CREATE, PATCH, DELETE)},
    PLACEMENT: {scheme.POD: (PATCH, STATUS, DELETE, BINDING), scheme.WORKLOAD: (STATUS,)},
    NODES: {scheme.NODE: (PATCH, STATUS), scheme.POD: (STATUS, DELETE)},
    AUTOSCALER: {
        **dict.fromkeys((scheme.NODE_POOL, scheme.INSTANCE, scheme.RESIZE_REQUEST), _CREATE_DELETE),
        scheme.CONFIG_MAP: (CREATE, PATCH),
        scheme.NODE: (PATCH,),
        scheme.POD: (STATUS, DELETE),
        scheme.PROVISIONING_REQUEST: (STATUS, DELETE),
    },
    COSTS: {
        scheme.COST_RECORD: (CREATE, PATCH, DELETE),
        scheme.BUDGET: (STATUS,),
        scheme.LOCAL_QUEUE: (PATCH,),
        scheme.WORKLOAD: (PATCH,),
    },
    NAMESPACES: {
        **{info.constant: (DELETE,) for info in scheme.KINDS if info.namespaced},
        scheme.NAMESPACE: (CREATE, PATCH, STATUS),
    },
}


class UpstreamProject(NamedTuple):
    """A project whose API and controllers are built in: its API groups, and the controller groups that it replaces."""

    api_groups: tuple[str, ...]
    controllers: tuple[str, ...]


#: By name: the projects that a platform can leave to their own definitions, webhooks and controllers.
UPSTREAM_PROJECTS: Final[Mapping[str, UpstreamProject]] = {
    "kueue": UpstreamProject(("kueue.x-k8s.io", "visibility.kueue.x-k8s.io"), (ADMISSION, PROVISIONING, PODS)),
    "jobset": UpstreamProject(("jobset.x-k8s.io",), (JOBSET,)),
}

#: By name: the kinds of jobs that a platform can run itself, without the project's own controllers.
JOB_CONTROLLERS: Final[Mapping[str, tuple[str, ...]]] = {
    "kubeflow": tuple(f"{kind}.kubeflow.org" for kind in ("PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob")),
    "ray": ("RayCluster.ray.io", "RayJob.ray.io"),
}

#: Groups whose controllers Kueue or JobSet also has; an operator with these groups lists webhooks to detect both.
UPSTREAM_GROUPS: Final = (ADMISSION, PROVISIONING, PODS, JOBSET)


def select_groups(text: str, known_groups: Sequence[str] = GROUPS) -> tuple[str, ...]:
    """Return the controller groups that a list such as `*,-costs` selects; raise ValueError for an unknown group name.

    `*` selects all groups, `name` adds one and `-name` excludes one. The first item about a group decides. Source:
    IsControllerEnabled in cmd/controller-manager of Kubernetes.
    """
    group_items = [item.strip() for item in text.split(",") if item.strip()]
    for item in group_items:
        if item != "*" and item.removeprefix("-") not in known_groups:
            raise ValueError(f"{item!r} is not in the list of known controllers: {', '.join(known_groups)}")
    return tuple(group for group in known_groups if _is_selected(group, group_items))


def upstream_api_groups(projects: Sequence[str]) -> frozenset[str]:
    """Return the API groups of projects, such as `kueue`, that a platform does not serve itself."""
    return frozenset(group for project in projects for group in UPSTREAM_PROJECTS[project].api_groups)


def without_upstream(groups: Sequence[str], projects: Sequence[str]) -> tuple[str, ...]:
    """Return the controller groups without those that the projects' own controllers replace."""
    replaced_groups = {group for project in projects for group in UPSTREAM_PROJECTS[project].controllers}
    return tuple(group for group in groups if group not in replaced_groups)


def kinds_read(groups: Sequence[str]) -> tuple[str, ...]:
    """Return the kinds that the controllers of `groups` read, each once. `groups` must be a subset of REMOTE_GROUPS."""
    return tuple(dict.fromkeys(kind for group in groups for kind in _KINDS_READ[group]))


def kinds_looked_up(groups: Sequence[str]) -> tuple[str, ...]:
    """Return the kinds of owners that the webhooks of `groups` look up, each once."""
    return tuple(dict.fromkeys(kind for group in groups for kind in _KINDS_LOOKED_UP.get(group, ())))


def watches_nodes_for_topologies(groups: Sequence[str]) -> bool:
    """Return whether the controllers of `groups` need Nodes only for ResourceFlavors with a Topology."""
    others = [group for group in groups if group != ADMISSION]
    return ADMISSION in groups and scheme.NODE not in kinds_read(others)


def verbs_by_written_kind(groups: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Return the verbs with which the controllers of `groups` write objects, by kind.

    `groups` must be a subset of REMOTE_GROUPS. STATUS, FINALIZERS and BINDING stand for writes to these
    subresources.
    """
    verbs_by_kind: dict[str, dict[str, None]] = {}
    for group in groups:
        for kind, verbs in _VERBS_USED[group].items():
            verbs_by_kind.setdefault(kind, {}).update(dict.fromkeys(verbs))
    return {kind: tuple(verbs) for kind, verbs in verbs_by_kind.items()}


def _is_selected(group: str, group_items: Sequence[str]) -> bool:
    for item in group_items:
        if item in {group, f"-{group}"}:
            return item == group
    return "*" in group_items
