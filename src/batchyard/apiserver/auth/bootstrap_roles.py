"""Bootstrap roles and bindings, limited to the kinds that this server serves.

Sources: Kubernetes's plugin/pkg/auth/authorizer/rbac/bootstrappolicy, Kueue's config/components/rbac.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api.meta import Obj
from batchyard.apiserver.auth.authentication import AUTHENTICATED, MASTERS, MONITORING, UNAUTHENTICATED
from batchyard.apiserver.auth.rbac import GROUP, RbacRule
from batchyard.apiserver.subresources.forecasts import ETA

_READ: Final = ("get", "list", "watch")
_WRITE: Final = ("create", "delete", "deletecollection", "patch", "update")
_EDIT: Final = ("create", "delete", "get", "list", "patch", "update", "watch")
_KUEUE: Final = "kueue.x-k8s.io"
_VISIBILITY: Final = "visibility.kueue.x-k8s.io"
_AGGREGATE: Final = "rbac.authorization.k8s.io/aggregate-to-"
_BATCH: Final = "rbac.kueue.x-k8s.io/batch-"
_HEALTH: Final = ("/healthz", "/livez", "/readyz", "/version", "/version/")
_MONITORED: Final = (
    *("/healthz", "/healthz/*", "/livez", "/livez/*", "/readyz", "/readyz/*"),
    *("/metrics", "/metrics/slis"),
)

#: Rules of Kubernetes' own roles.
_RULES: Final[Mapping[str, tuple[RbacRule, ...]]] = {
    "cluster-admin": (RbacRule(("*",), ("*",), ("*",)), RbacRule(("*",), urls=("*",))),
    "system:discovery": (
        RbacRule(("get",), urls=("/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*", *_HEALTH)),
    ),
    "system:public-info-viewer": (RbacRule(("get",), urls=_HEALTH),),
    "system:monitoring": (RbacRule(("get",), urls=_MONITORED),),
    "system:basic-user": (
        RbacRule(("create",), ("authorization.k8s.io",), ("selfsubjectaccessreviews", "selfsubjectrulesreviews")),
        RbacRule(("create",), ("authentication.k8s.io",), ("selfsubjectreviews",)),
    ),
    "system:auth-delegator": (
        RbacRule(("create",), ("authentication.k8s.io",), ("tokenreviews",)),
        RbacRule(("create",), ("authorization.k8s.io",), ("subjectaccessreviews",)),
    ),
    "system:aggregate-to-admin": (
        RbacRule(("create",), ("authorization.k8s.io",), ("localsubjectaccessreviews",)),
        RbacRule((*_WRITE, *_READ), (GROUP,), ("rolebindings", "roles")),
    ),
    "system:aggregate-to-edit": (
        RbacRule(
            _READ,
            ("",),
            ("pods/attach", "pods/exec", "pods/portforward", "pods/proxy", "secrets", "services/proxy"),
        ),
        RbacRule(("impersonate",), ("",), ("serviceaccounts",)),
        RbacRule(_WRITE, ("",), ("pods", "pods/attach", "pods/exec", "pods/portforward", "pods/proxy")),
        RbacRule(("create",), ("",), ("pods/eviction",)),
        RbacRule(
            _WRITE,
            ("",),
            ("configmaps", "events", "persistentvolumeclaims", "secrets", "serviceaccounts", "services"),
        ),
        RbacRule(("create",), ("",), ("serviceaccounts/token",)),
        RbacRule(_WRITE, ("apps",), ("deployments", "deployments/scale", "replicasets", "replicasets/scale")),
        RbacRule(_WRITE, ("apps",), ("daemonsets", "statefulsets", "statefulsets/scale")),
        RbacRule(_WRITE, ("networking.k8s.io",), ("ingresses", "networkpolicies")),
        RbacRule(_WRITE, ("",), ("replicationcontrollers",)),
        RbacRule(_WRITE, ("batch",), ("cronjobs", "jobs")),
        RbacRule(_WRITE, ("policy",), ("poddisruptionbudgets",)),
        RbacRule((*_WRITE, *_READ), ("coordination.k8s.io",), ("leases",)),
    ),
    "system:aggregated-metrics-reader": (RbacRule(_READ, ("metrics.k8s.io",), ("pods", "nodes")),),
    "system:aggregate-to-view": (
        RbacRule(
            _READ,
            ("",),
            ("configmaps", "endpoints", "persistentvolumeclaims", "pods", "serviceaccounts", "services"),
        ),
        RbacRule(_READ, ("",), ("persistentvolumeclaims/status", "services/status")),
        RbacRule(
            _READ,
            ("",),
            ("bindings", "events", "limitranges", "namespaces/status", "pods/log", "pods/status", "resourcequotas"),
        ),
        RbacRule(_READ, ("",), ("namespaces", "resourcequotas/status")),
        RbacRule(("get",), ("",), ("pods/why",)),
        RbacRule(("get",), ("batch",), ("jobs/why",)),
        RbacRule(
            _READ,
            ("apps",),
            ("deployments", "deployments/scale", "deployments/status", "replicasets", "replicasets/scale"),
        ),
        RbacRule(
            _READ,
            ("apps",),
            ("replicasets/status", "statefulsets", "statefulsets/scale", "statefulsets/status"),
        ),
        RbacRule(_READ, ("apps",), ("daemonsets", "daemonsets/status")),
        RbacRule(_READ, ("discovery.k8s.io",), ("endpointslices",)),
        RbacRule(_READ, ("networking.k8s.io",), ("ingresses", "ingresses/status", "networkpolicies")),
        RbacRule(_READ, ("",), ("replicationcontrollers", "replicationcontrollers/status")),
        RbacRule(_READ, ("batch",), ("cronjobs", "cronjobs/status", "jobs", "jobs/status")),
        RbacRule(_READ, ("policy",), ("poddisruptionbudgets", "poddisruptionbudgets/status")),
        RbacRule(_READ, ("batchyard.dev",), ("decisions",)),
    ),
}
#: The roles into which a role is aggregated by its labels.
_LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    "edit": ("admin",),
    "view": ("edit",),
    "system:aggregate-to-admin": ("admin",),
    "system:aggregate-to-edit": ("edit",),
    "system:aggregate-to-view": ("view",),
    "system:aggregated-metrics-reader": ("view", "edit", "admin"),
}
_BOUND: Final[Mapping[str, tuple[str, ...]]] = {
    "cluster-admin": (MASTERS,),
    "system:basic-user": (AUTHENTICATED,),
    "system:discovery": (AUTHENTICATED,),
    "system:monitoring": (MONITORING,),
    "system:public-info-viewer": (AUTHENTICATED, UNAUTHENTICATED),
}
#: Kinds of Kueue and its jobs: group, plural, whether it has a status, the roles that may read it.
_QUEUED: Final = (
    (_KUEUE, "clusterqueues", True, ("batch-admin", "admin")),
    (_KUEUE, "cohorts", False, ("batch-admin", "admin")),
    (_KUEUE, "resourceflavors", False, ("batch-admin", "admin")),
    (_KUEUE, "topologies", False, ("batch-admin", "admin")),
    (_KUEUE, "localqueues", True, ("batch-admin", "batch-user", "view", "admin", "edit")),
    (_KUEUE, "workloads", True, ("batch-admin", "batch-user", "view", "admin", "edit")),
    ("batch", "jobs", True, ("batch-admin", "batch-user", "view", "admin", "edit")),
    ("jobset.x-k8s.io", "jobsets", True, ("batch-admin", "batch-user", "view", "admin", "edit")),
)
#: The kinds with a start forecast; readers of the kind may read it.
_FORECAST: Final = ((_KUEUE, "workloads"), ("batch", "jobs"), ("jobset.x-k8s.io", "jobsets"))
#: Cost resources, readable by the users of a namespace; budgets are written by administrators only.
_COSTS: Final = ("cost.batchyard.dev", ("budgets", "costrecords"))
#: The kinds with a `why` subresource.
_EXPLAINED: Final = ("clusterqueues", "workloads", "jobs", "jobsets")
_SINGULAR: Final = {"topologies": "topology"}


def bootstrap_roles() -> Iterator[Obj]:
    """Yield all bootstrap roles and bindings."""
    for name, rules in _RULES.items():
        yield _role(name, rules, _aggregated(_LABELS.get(name, ())))
    for name in ("admin", "edit", "view"):
        yield _aggregate(name, f"{_AGGREGATE}{name}", _aggregated(_LABELS.get(name, ())))
    for name, groups in _BOUND.items():
        yield _binding(name, groups)
    yield from _kueue_roles()
    group, plurals = _COSTS
    readers = _aggregated(("batch-admin", "batch-user", "view", "admin", "edit"))
    yield _role("batchyard-cost-viewer-role", (RbacRule(_READ, (group,), plurals),), readers)
    yield _role(
        "batchyard-budget-editor-role", (RbacRule(_EDIT, (group,), ("budgets",)),), _aggregated(("batch-admin",))
    )


def _kueue_roles() -> Iterator[Obj]:
    for who in ("admin", "user"):
        yield _aggregate(f"kueue-batch-{who}-role", f"{_BATCH}{who}", {})
    for group, plural, has_status, readers in _QUEUED:
        name = _SINGULAR.get(plural, plural[:-1])
        status = (RbacRule(("get",), (group,), (f"{plural}/status",)),) if has_status else ()
        why = (RbacRule(("get",), (group,), (f"{plural}/why",)),) if plural in _EXPLAINED else ()
        editors = ("batch-admin", "batch-user") if group != _KUEUE else ("batch-admin",)
        kinds = (("editor", _EDIT, editors), ("viewer", _READ, readers))
        for role, verbs, into in kinds:
            labels = {"rbac.kueue.x-k8s.io/role": f"{name}-{role}", **_aggregated(into)}
            yield _role(f"kueue-{name}-{role}-role", (RbacRule(verbs, (group,), (plural,)), *status, *why), labels)
    for short, plural in (("cq", "clusterqueues"), ("lq", "localqueues")):
        into = ("batch-admin", "view", "admin", "edit", *(("batch-user",) if short == "lq" else ()))
        rule = RbacRule(_READ, (_VISIBILITY,), (f"{plural}/pendingworkloads",))
        labels = {"rbac.kueue.x-k8s.io/role": f"pending-workloads-{short}-viewer", **_aggregated(into)}
        yield _role(f"kueue-pending-workloads-{short}-viewer-role", (rule,), labels)
    readers = ("batch-admin", "batch-user", "view", "admin", "edit")
    forecasts = [RbacRule(("get",), (group,), (f"{plural}/{ETA}",)) for group, plural in _FORECAST]
    yield _role("batchyard-eta-viewer", forecasts, _aggregated(readers))


def _aggregated(into: Sequence[str]) -> dict[str, str]:
    """Return the aggregation labels for the given roles; the `batch-` roles of Kueue use its label prefix."""
    labels = (f"rbac.kueue.x-k8s.io/{who}" if who.startswith("batch-") else f"{_AGGREGATE}{who}" for who in into)
    return dict.fromkeys(labels, "true")


def _role(name: str, rules: Sequence[RbacRule], labels: Mapping[str, str]) -> Obj:
    return {**_rbac_object("ClusterRole", name, labels), "rules": [rule.reported() for rule in rules]}


def _aggregate(name: str, label: str, labels: Mapping[str, str]) -> Obj:
    """Return a role that aggregates all roles with a label."""
    selectors = [{"matchLabels": {label: "true"}}]
    return {
        **_rbac_object("ClusterRole", name, labels),
        "aggregationRule": {"clusterRoleSelectors": selectors},
        "rules": [],
    }


def _binding(role: str, groups: Sequence[str]) -> Obj:
    subjects = [{"kind": "Group", "apiGroup": GROUP, "name": group} for group in groups]
    role_ref = {"apiGroup": GROUP, "kind": "ClusterRole", "name": role}
    return {**_rbac_object("ClusterRoleBinding", role, {}), "subjects": subjects, "roleRef": role_ref}


def _rbac_object(kind: str, name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return an object with a name; Kubernetes' own bootstrap roles also get the bootstrapping label."""
    if not name.startswith(("kueue-", "batchyard-")):
        labels = {"kubernetes.io/bootstrapping": "rbac-defaults", **labels}
    return {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": {"name": name, "labels": dict(labels)}}
