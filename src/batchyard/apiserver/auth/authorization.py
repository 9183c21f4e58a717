"""Authorization: the attributes of a request, and the decision. Source: k8s.io/apiserver, pkg/authorization."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of
from batchyard.apiserver.request import (
    AUTHENTICATED,
    MASTERS,
    MONITORING,
    UNAUTHENTICATED,
    ApiRequest,
    StatusError,
    UserInfo,
    account_name,
)
from batchyard.apiserver.resources import ResourcePath
from batchyard.apiserver.selection import name_selected
from batchyard.interfaces.client import EventType, ObjectReader, WatchEvent

#: The subresource of forecasts.
ETA: Final = "eta"


_VERBS: Final = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Attributes(NamedTuple):
    """The attributes of a request to authorize: user, verb, and a resource or a non-resource path."""

    user: UserInfo
    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""


class Decision(NamedTuple):
    """Whether a request is allowed, with a reason or ''."""

    allowed: bool
    reason: str = ""


class Authorizer(Protocol):
    """Decides whether a user may perform a request."""

    def decide(self, attributes: Attributes) -> Decision:
        """Decide whether a request is allowed."""


def attributes_of(request: ApiRequest, path: ResourcePath | None) -> Attributes:
    """Return the attributes of a request."""
    if path is None:
        return Attributes(request.user, verb_of(request, path), path=request.path)
    info, verb = path.info, verb_of(request, path)
    is_namespace = info.plural == "namespaces" and not info.group
    namespace = path.name if is_namespace else path.namespace  # as readers of a namespace may read its object
    name = path.name
    if not name and verb in {"list", "watch"}:
        name = name_selected(request)
    return Attributes(request.user, verb, info.group, info.plural, path.subresource, namespace, name)


def forbidden(attributes: Attributes, reason: str = "") -> StatusError:
    """Return the 403 error of a denied request, in Kubernetes' wording."""
    message = f'User "{attributes.user.name}" cannot {attributes.verb}'
    if not attributes.resource:
        return StatusError(403, "Forbidden", f'forbidden: {message} path "{attributes.path}"')
    part = f"/{attributes.subresource}" if attributes.subresource else ""
    where = f'in the namespace "{attributes.namespace}"' if attributes.namespace else "at the cluster scope"
    message += f' resource "{attributes.resource}{part}" in API group "{attributes.group}" {where}'
    return refused_resource(
        attributes.group, attributes.resource, attributes.name, f"{message}{reason and f': {reason}'}"
    )


def refused_resource(group: str, resource: str, name: str, why: str) -> StatusError:
    """Return a 403 error about a resource or one of its objects."""
    title = f"{resource}.{group}" if group else resource
    details = {field: value for field, value in (("name", name), ("group", group), ("kind", resource)) if value}
    named = f'{title} "{name}"' if name else title
    return StatusError(403, "Forbidden", f"{named} is forbidden: {why}", details)


def verb_of(request: ApiRequest, path: ResourcePath | None) -> str:
    """Return the verb of a request."""
    if path is None:
        return request.method.lower()
    verb = _VERBS.get(request.method, "")
    if verb == "get" and not path.name:
        return "watch" if request.flag("watch") else "list"
    return "deletecollection" if verb == "delete" and not path.name else verb


# --- rules ---
#
# Rules of roles: what a rule allows, and which rules other rules cover.
#
# Sources: Kubernetes's pkg/apis/rbac/v1/evaluation_helpers.go, k8s.io/component-helpers, auth/rbac/validation.


ALL: Final = "*"


# --- rbac ---
#
# Role-based access control: decisions from Roles and their bindings.
#
# The index over the stored objects is updated by every change. A decision reads only the bindings of the user and its
# groups. Source: Kubernetes's plugin/pkg/auth/authorizer/rbac and pkg/registry/rbac/validation.


class RbacRule(NamedTuple):
    """A rule of a role: verbs on resources or on non-resource URLs."""

    verbs: tuple[str, ...]
    groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()

    def allows(self, attributes: Attributes) -> bool:
        """Report whether the rule allows a request."""
        if not _holds(self.verbs, attributes.verb):
            return False
        if not attributes.resource:
            return any(_url_covers(url, attributes.path) for url in self.urls)
        part = attributes.subresource
        whole = f"{attributes.resource}/{part}" if part else attributes.resource
        return (
            _holds(self.groups, attributes.group)
            and (_holds(self.resources, whole) or (bool(part) and f"*/{part}" in self.resources))
            and (not self.names or attributes.name in self.names)
        )

    def reported(self) -> Mapping[str, Any]:
        """Return the rule as JSON of the API."""
        reported = {"verbs": self.verbs, "apiGroups": self.groups, "resources": self.resources}
        reported |= {"resourceNames": self.names, "nonResourceURLs": self.urls}
        return {field: list(values) for field, values in reported.items() if values}

    def __str__(self) -> str:
        """Format the rule as in denial messages."""
        reported = {"APIGroups": self.groups, "Resources": self.resources, "NonResourceURLs": self.urls}
        reported |= {"ResourceNames": self.names, "Verbs": self.verbs}
        parts = (f"{name}:[{' '.join(map(json.dumps, values))}]" for name, values in reported.items() if values)
        return f"{{{', '.join(parts)}}}"


def rules_of(role: Obj) -> tuple[RbacRule, ...]:
    """Return the rules of a Role or ClusterRole."""
    fields = ("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs")
    return tuple(RbacRule(*(tuple(rule.get(field) or ()) for field in fields)) for rule in role.get("rules") or ())


def uncovered(wanted: Iterable[RbacRule], held: Sequence[RbacRule]) -> list[RbacRule]:
    """Return what the wanted rules allow and the held rules do not, merged into as few rules as possible."""
    missing = [part for rule in wanted for part in _parts(rule) if not any(_covers(each, part) for each in held)]
    merged: dict[tuple[tuple[str, ...], ...], RbacRule] = {}
    for rule in missing:
        found = merged.get(rule[1:])
        merged[rule[1:]] = rule if found is None else rule._replace(verbs=(*found.verbs, *rule.verbs))
    return list(merged.values())


def _parts(rule: RbacRule) -> Iterator[RbacRule]:
    """Split a rule into rules of a single verb and a single resource, name or URL."""
    for verb in rule.verbs:
        for group in rule.groups:
            for resource in rule.resources:
                for name in rule.names or (None,):
                    yield RbacRule((verb,), (group,), (resource,), () if name is None else (name,))
        for url in rule.urls:
            yield RbacRule((verb,), urls=(url,))


def _covers(rule: RbacRule, part: RbacRule) -> bool:
    """Report whether a rule covers a single-verb, single-resource rule."""
    if not _holds(rule.verbs, part.verbs[0]):
        return False
    if part.urls:
        return any(_url_covers(url, part.urls[0]) for url in rule.urls)
    resource = part.resources[0]
    _, is_part, subresource = resource.partition("/")
    return (
        _holds(rule.groups, part.groups[0])
        and (_holds(rule.resources, resource) or (bool(is_part) and f"*/{subresource}" in rule.resources))
        and (not rule.names or (bool(part.names) and part.names[0] in rule.names))
    )


def _holds(values: Sequence[str], value: str) -> bool:
    return ALL in values or value in values


def _url_covers(url: str, path: str) -> bool:
    return url == path or (url.endswith(ALL) and path.startswith(url.rstrip(ALL)))


GROUP: Final = "rbac.authorization.k8s.io"
_ROLES: Final = (scheme.ROLE, scheme.CLUSTER_ROLE)
_BINDINGS: Final = (scheme.ROLE_BINDING, scheme.CLUSTER_ROLE_BINDING)


class _Grant(NamedTuple):
    """A role that a binding grants, and the description of the binding."""

    role: Key
    source: str


class RbacAuthorizer:
    """The RBAC index: rules by role, and granted roles by namespace and subject."""

    def __init__(self, objects: ObjectReader) -> None:
        self._rules: dict[Key, tuple[RbacRule, ...]] = {}
        #: By namespace ('': cluster-wide) and subject: the grants by binding.
        self._grants: dict[tuple[str, str], dict[Key, _Grant]] = {}
        for kind in (*_ROLES, *_BINDINGS):
            for obj in objects.list(kind):
                self._add(key_of(obj), obj)

    def observe(self, change: WatchEvent) -> None:
        """Update the index with a change."""
        if change.key.kind not in _ROLES and change.key.kind not in _BINDINGS:
            return
        if change.old is not None:
            self._remove(change.key, change.old)
        if change.type is not EventType.DELETED:
            self._add(change.key, change.obj)

    def decide(self, attributes: Attributes) -> Decision:
        """Decide whether a request is allowed, and by which binding."""
        if MASTERS in attributes.user.groups:
            return Decision(True)
        for grant in self._granted(attributes.user, attributes.namespace):
            if any(rule.allows(attributes) for rule in self._rules.get(grant.role, ())):
                return Decision(True, f"RBAC: allowed by {grant.source}")
        return Decision(False)

    def rules_for(self, user: UserInfo, namespace: str) -> list[RbacRule]:
        """Return all rules of a user in a namespace; for '' the cluster-wide rules."""
        return [rule for grant in self._granted(user, namespace) for rule in self._rules.get(grant.role, ())]

    def rules_of(self, role: Key) -> Sequence[RbacRule] | None:
        """Return the rules of a role; None if the role does not exist."""
        return self._rules.get(role)

    def _granted(self, user: UserInfo, namespace: str) -> Iterator[_Grant]:
        subjects = [f"User {user.name}", *(f"Group {group}" for group in user.groups)]
        for where in ("", namespace) if namespace else ("",):
            for subject in subjects:
                yield from self._grants.get((where, subject), {}).values()

    def _add(self, key: Key, obj: Obj) -> None:
        if key.kind in _ROLES:
            self._rules[key] = rules_of(obj)
            return
        role = role_key(obj)
        for subject in obj.get("subjects") or ():
            found = _subject(subject, key.namespace)
            if found:
                grant = _Grant(role, _source(key, role, subject))
                self._grants.setdefault((key.namespace, found), {})[key] = grant

    def _remove(self, key: Key, old: Obj) -> None:
        if key.kind in _ROLES:
            self._rules.pop(key, None)
            return
        for subject in old.get("subjects") or ():
            where = (key.namespace, _subject(subject, key.namespace))
            grants = self._grants.get(where, {})
            grants.pop(key, None)
            if not grants:
                self._grants.pop(where, None)


def role_key(binding: Obj) -> Key:
    """Return the key of the role that a binding refers to."""
    role = binding["roleRef"]
    if role["kind"] == "Role":
        return Key(scheme.ROLE, binding["metadata"].get("namespace", ""), role["name"])
    return Key(scheme.CLUSTER_ROLE, "", role["name"])


def _subject(subject: Mapping[str, Any], namespace: str) -> str:
    """Return a subject as an index key. ServiceAccounts are users; '' if the subject has no namespace."""
    kind, name = subject["kind"], subject["name"]
    if kind != "ServiceAccount":
        return f"{kind} {name}"
    of = subject.get("namespace") or namespace
    return f"User {account_name(of, name)}" if of else ""


def _source(binding: Key, role: Key, subject: Mapping[str, Any]) -> str:
    """Describe a binding in Kubernetes' form, with names before namespaces."""
    where = f"/{binding.namespace}" if binding.namespace else ""
    who = subject["name"]
    if subject["kind"] == "ServiceAccount":
        who += f"/{subject.get('namespace') or binding.namespace}"
    kind, role_kind = binding.kind.partition(".")[0], role.kind.partition(".")[0]
    return f'{kind} "{binding.name}{where}" of {role_kind} "{role.name}" to {subject["kind"]} "{who}"'


# --- bootstrap roles ---
#
# Bootstrap roles and bindings, limited to the kinds that this server serves.
#
# Sources: Kubernetes's plugin/pkg/auth/authorizer/rbac/bootstrappolicy, Kueue's config/components/rbac.


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
