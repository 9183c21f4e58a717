"""Authorization of requests: their attributes, RBAC decisions, rules of roles, and the bootstrap roles.

Source: k8s.io/apiserver, pkg/authorization.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of
from batchyard.apiserver.request import (
    AUTHENTICATED_GROUP,
    MASTERS_GROUP,
    MONITORING_GROUP,
    UNAUTHENTICATED_GROUP,
    ApiRequest,
    StatusError,
    UserInfo,
    service_account_username,
)
from batchyard.apiserver.resources import ResourcePath
from batchyard.apiserver.selection import selected_name
from batchyard.interfaces.client import EventType, ObjectReader, WatchEvent

#: The subresource of forecasts.
ETA_SUBRESOURCE: Final = "eta"


_VERBS: Final = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class RequestAttributes(NamedTuple):
    """The attributes of a request to authorize: user, verb, and a resource or a non-resource path."""

    user: UserInfo
    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""


class AuthorizationDecision(NamedTuple):
    """An authorization decision: whether a request is allowed, with a reason or ''."""

    allowed: bool
    reason: str = ""


class Authorizer(Protocol):
    """Decides whether a user may perform a request."""

    def decide(self, attributes: RequestAttributes) -> AuthorizationDecision:
        """Decide whether a request with these attributes is allowed."""


def attributes_of(request: ApiRequest, path: ResourcePath | None) -> RequestAttributes:
    """Return the authorization attributes of a request; `path` is None for a non-resource request."""
    if path is None:
        return RequestAttributes(request.user, verb_of(request, path), path=request.path)
    served_kind, verb = path.served_kind, verb_of(request, path)
    is_namespace = served_kind.plural == "namespaces" and not served_kind.group
    namespace = path.name if is_namespace else path.namespace  # readers of a namespace may read its Namespace object
    name = path.name
    if not name and verb in {"list", "watch"}:
        name = selected_name(request)
    return RequestAttributes(
        request.user, verb, served_kind.group, served_kind.plural, path.subresource, namespace, name
    )


def forbidden_error(attributes: RequestAttributes, reason: str = "") -> StatusError:
    """Return the 403 error of a denied request, in Kubernetes' wording."""
    message = f'User "{attributes.user.name}" cannot {attributes.verb}'
    if not attributes.resource:
        return StatusError(403, "Forbidden", f'forbidden: {message} path "{attributes.path}"')
    subresource_suffix = f"/{attributes.subresource}" if attributes.subresource else ""
    scope = f'in the namespace "{attributes.namespace}"' if attributes.namespace else "at the cluster scope"
    message += f' resource "{attributes.resource}{subresource_suffix}" in API group "{attributes.group}" {scope}'
    message += f": {reason}" if reason else ""
    return forbidden_resource_error(attributes.group, attributes.resource, attributes.name, message)


def forbidden_resource_error(group: str, resource: str, name: str, reason: str) -> StatusError:
    """Return a 403 error about a resource or one of its objects."""
    resource_name = f"{resource}.{group}" if group else resource
    details = {field: value for field, value in (("name", name), ("group", group), ("kind", resource)) if value}
    object_name = f'{resource_name} "{name}"' if name else resource_name
    return StatusError(403, "Forbidden", f"{object_name} is forbidden: {reason}", details)


def verb_of(request: ApiRequest, path: ResourcePath | None) -> str:
    """Return the Kubernetes verb of a request, such as `list` or `deletecollection`.

    If `path` is None (a non-resource request), return the HTTP method in lowercase.
    """
    if path is None:
        return request.method.lower()
    return verb_of_segments(request, has_name=bool(path.name))


def verb_of_segments(request: ApiRequest, *, has_name: bool) -> str:
    """Return the Kubernetes verb of a request for a resource, or with `has_name` for one of its objects."""
    verb = _VERBS.get(request.method, "")
    if verb == "get" and not has_name:
        return "watch" if request.has_flag("watch") else "list"
    return "deletecollection" if verb == "delete" and not has_name else verb


# Rules of roles: what a rule allows, and which rules other rules cover.
#
# Sources: Kubernetes's pkg/apis/rbac/v1/evaluation_helpers.go, k8s.io/component-helpers, auth/rbac/validation.


ALL: Final = "*"


class RbacRule(NamedTuple):
    """A rule of a role: verbs on resources or on non-resource URLs."""

    verbs: tuple[str, ...]
    groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()

    def allows(self, attributes: RequestAttributes) -> bool:
        """Return whether the rule allows a request."""
        if not _matches_any(self.verbs, attributes.verb):
            return False
        if not attributes.resource:
            return any(_url_covers(url, attributes.path) for url in self.urls)
        subresource = attributes.subresource
        resource_name = f"{attributes.resource}/{subresource}" if subresource else attributes.resource
        return (
            _matches_any(self.groups, attributes.group)
            and (
                _matches_any(self.resources, resource_name)
                or (bool(subresource) and f"*/{subresource}" in self.resources)
            )
            and (not self.names or attributes.name in self.names)
        )

    def to_json(self) -> Mapping[str, Any]:
        """Return the rule in the JSON form of the API."""
        fields_by_name = {"verbs": self.verbs, "apiGroups": self.groups, "resources": self.resources}
        fields_by_name |= {"resourceNames": self.names, "nonResourceURLs": self.urls}
        return {field: list(values) for field, values in fields_by_name.items() if values}

    def __str__(self) -> str:
        """Format the rule as Kubernetes does in the message of a denied request."""
        values_by_name = {"APIGroups": self.groups, "Resources": self.resources, "NonResourceURLs": self.urls}
        values_by_name |= {"ResourceNames": self.names, "Verbs": self.verbs}
        fields = (f"{name}:[{' '.join(map(json.dumps, values))}]" for name, values in values_by_name.items() if values)
        return f"{{{', '.join(fields)}}}"


def rules_of(role: Obj) -> tuple[RbacRule, ...]:
    """Return the rules of a Role or ClusterRole."""
    field_names = ("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs")
    return tuple(RbacRule(*(tuple(rule.get(field) or ()) for field in field_names)) for rule in role.get("rules") or ())


def missing_rules(required_rules: Iterable[RbacRule], granted_rules: Sequence[RbacRule]) -> list[RbacRule]:
    """Return the required permissions that the granted rules do not include.

    Each returned rule has the missing verbs of one resource, of one object name, or of one URL.
    """
    single_rules = (single_rule for rule in required_rules for single_rule in _split_rule(rule))
    lacking_rules = [rule for rule in single_rules if not any(_covers(each, rule) for each in granted_rules)]
    merged_rules: dict[tuple[tuple[str, ...], ...], RbacRule] = {}
    for rule in lacking_rules:
        merged_rule = merged_rules.get(rule[1:])
        merged_rules[rule[1:]] = rule if merged_rule is None else rule._replace(verbs=(*merged_rule.verbs, *rule.verbs))
    return list(merged_rules.values())


def _split_rule(rule: RbacRule) -> Iterator[RbacRule]:
    for verb in rule.verbs:
        for group in rule.groups:
            for resource in rule.resources:
                for name in rule.names or (None,):
                    yield RbacRule((verb,), (group,), (resource,), () if name is None else (name,))
        for url in rule.urls:
            yield RbacRule((verb,), urls=(url,))


def _covers(rule: RbacRule, single_rule: RbacRule) -> bool:
    if not _matches_any(rule.verbs, single_rule.verbs[0]):
        return False
    if single_rule.urls:
        return any(_url_covers(url, single_rule.urls[0]) for url in rule.urls)
    resource = single_rule.resources[0]
    _, has_subresource, subresource = resource.partition("/")
    return (
        _matches_any(rule.groups, single_rule.groups[0])
        and (_matches_any(rule.resources, resource) or (bool(has_subresource) and f"*/{subresource}" in rule.resources))
        and (not rule.names or (bool(single_rule.names) and single_rule.names[0] in rule.names))
    )


def _matches_any(values: Sequence[str], value: str) -> bool:
    return ALL in values or value in values


def _url_covers(url: str, path: str) -> bool:
    return url == path or (url.endswith(ALL) and path.startswith(url.rstrip(ALL)))


# Role-based access control: decisions from Roles and their bindings.
#
# The index over the stored objects is updated by every change. A decision reads only the bindings of the user and its
# groups. Source: Kubernetes's plugin/pkg/auth/authorizer/rbac and pkg/registry/rbac/validation.


GROUP: Final = "rbac.authorization.k8s.io"
_ROLE_KINDS: Final = (scheme.ROLE, scheme.CLUSTER_ROLE)
_BINDING_KINDS: Final = (scheme.ROLE_BINDING, scheme.CLUSTER_ROLE_BINDING)


class _Grant(NamedTuple):
    role: Key
    description: str


class RbacAuthorizer:
    """Authorizes requests by RBAC, from an index of rules by role, and of granted roles by namespace and subject."""

    def __init__(self, objects: ObjectReader) -> None:
        self._rules: dict[Key, tuple[RbacRule, ...]] = {}
        #: By namespace ('': cluster-wide) and subject: the grants by binding.
        self._grants: dict[tuple[str, str], dict[Key, _Grant]] = {}
        for kind in (*_ROLE_KINDS, *_BINDING_KINDS):
            for obj in objects.list(kind):
                self._add_to_index(key_of(obj), obj)

    def observe(self, watch_event: WatchEvent) -> None:
        """Update the index with a change of a role or binding."""
        if watch_event.key.kind not in _ROLE_KINDS and watch_event.key.kind not in _BINDING_KINDS:
            return
        if watch_event.old is not None:
            self._remove_from_index(watch_event.key, watch_event.old)
        if watch_event.type is not EventType.DELETED:
            self._add_to_index(watch_event.key, watch_event.obj)

    def decide(self, attributes: RequestAttributes) -> AuthorizationDecision:
        """Decide whether RBAC allows a request. If a binding allows the request, the reason names the binding.

        Requests of `system:masters` are allowed without a binding.
        """
        if MASTERS_GROUP in attributes.user.groups:
            return AuthorizationDecision(True)
        for grant in self._grants_for(attributes.user, attributes.namespace):
            if any(rule.allows(attributes) for rule in self._rules.get(grant.role, ())):
                return AuthorizationDecision(True, f"RBAC: allowed by {grant.description}")
        return AuthorizationDecision(False)

    def rules_for(self, user: UserInfo, namespace: str) -> list[RbacRule]:
        """Return all rules that bindings grant to a user cluster-wide and in a namespace; for '' only cluster-wide."""
        return [rule for grant in self._grants_for(user, namespace) for rule in self._rules.get(grant.role, ())]

    def rules_of(self, role: Key) -> Sequence[RbacRule] | None:
        """Return the rules of a Role or ClusterRole; None if the role does not exist."""
        return self._rules.get(role)

    def _grants_for(self, user: UserInfo, namespace: str) -> Iterator[_Grant]:
        subjects = [f"User {user.name}", *(f"Group {group}" for group in user.groups)]
        for scope in ("", namespace) if namespace else ("",):
            for subject in subjects:
                yield from self._grants.get((scope, subject), {}).values()

    def _add_to_index(self, key: Key, obj: Obj) -> None:
        if key.kind in _ROLE_KINDS:
            self._rules[key] = rules_of(obj)
            return
        role = role_key(obj)
        for subject in obj.get("subjects") or ():
            subject_key = _subject_key(subject, key.namespace)
            if subject_key:
                grant = _Grant(role, _describe_binding(key, role, subject))
                self._grants.setdefault((key.namespace, subject_key), {})[key] = grant

    def _remove_from_index(self, key: Key, old: Obj) -> None:
        if key.kind in _ROLE_KINDS:
            self._rules.pop(key, None)
            return
        for subject in old.get("subjects") or ():
            grants_key = (key.namespace, _subject_key(subject, key.namespace))
            grants = self._grants.get(grants_key, {})
            grants.pop(key, None)
            if not grants:
                self._grants.pop(grants_key, None)


def role_key(binding: Obj) -> Key:
    """Return the key of the role that a binding refers to."""
    role = binding["roleRef"]
    if role["kind"] == "Role":
        return Key(scheme.ROLE, binding["metadata"].get("namespace", ""), role["name"])
    return Key(scheme.CLUSTER_ROLE, "", role["name"])


def _subject_key(subject: Mapping[str, Any], namespace: str) -> str:
    kind, name = subject["kind"], subject["name"]
    if kind != "ServiceAccount":
        return f"{kind} {name}"
    account_namespace = subject.get("namespace") or namespace
    return f"User {service_account_username(account_namespace, name)}" if account_namespace else ""


def _describe_binding(binding: Key, role: Key, subject: Mapping[str, Any]) -> str:
    """Describe a binding as Kubernetes does in the reason of a decision, with names before namespaces."""
    suffix = f"/{binding.namespace}" if binding.namespace else ""
    subject_name = subject["name"]
    if subject["kind"] == "ServiceAccount":
        subject_name += f"/{subject.get('namespace') or binding.namespace}"
    kind, role_kind = binding.kind.partition(".")[0], role.kind.partition(".")[0]
    return f'{kind} "{binding.name}{suffix}" of {role_kind} "{role.name}" to {subject["kind"]} "{subject_name}"'


# Bootstrap roles and bindings, limited to the kinds that this server serves.
#
# Sources: Kubernetes's plugin/pkg/auth/authorizer/rbac/bootstrappolicy, Kueue's config/components/rbac.


_READ_VERBS: Final = ("get", "list", "watch")
_WRITE_VERBS: Final = ("create", "delete", "deletecollection", "patch", "update")
_EDIT_VERBS: Final = ("create", "delete", "get", "list", "patch", "update", "watch")
_KUEUE_GROUP: Final = "kueue.x-k8s.io"
_VISIBILITY_GROUP: Final = "visibility.kueue.x-k8s.io"
_AGGREGATE_LABEL_PREFIX: Final = "rbac.authorization.k8s.io/aggregate-to-"
_BATCH_LABEL_PREFIX: Final = "rbac.kueue.x-k8s.io/batch-"
_HEALTH_URLS: Final = ("/healthz", "/livez", "/readyz", "/version", "/version/")
_PROBE_URLS: Final = (
    "/healthz",
    "/healthz/*",
    "/livez",
    "/livez/*",
    "/readyz",
    "/readyz/*",
    "/metrics",
    "/metrics/slis",
)

#: Rules of Kubernetes' own roles.
_BOOTSTRAP_RULES: Final[Mapping[str, tuple[RbacRule, ...]]] = {
    "cluster-admin": (RbacRule(("*",), ("*",), ("*",)), RbacRule(("*",), urls=("*",))),
    "system:discovery": (
        RbacRule(("get",), urls=("/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*", *_HEALTH_URLS)),
    ),
    "system:public-info-viewer": (RbacRule(("get",), urls=_HEALTH_URLS),),
    "system:monitoring": (RbacRule(("get",), urls=_PROBE_URLS),),
    "system:basic-user": (
        RbacRule(("create",), ("authorization.k8s.io",), ("selfsubjectaccessreviews", "selfsubjectrulesreviews")),
        RbacRule(("create",), ("authentication.k8s.io",), ("selfsubjectreviews",)),
    ),
    "system:auth-delegator": (
        RbacRule(("create",), ("authentication.k8s.io",), ("tokenreviews",)),
        RbacRule(("create",), ("authorization.k8s.io",), ("subjectaccessreviews",)),
    ),
    **{
        f"system:certificates.k8s.io:{signer}-approver": (
            RbacRule(("approve",), ("certificates.k8s.io",), ("signers",), (f"kubernetes.io/{signer}",)),
        )
        for signer in ("kube-apiserver-client", "kube-apiserver-client-kubelet", "kubelet-serving", "legacy-unknown")
    },
    "system:aggregate-to-admin": (
        RbacRule(("create",), ("authorization.k8s.io",), ("localsubjectaccessreviews",)),
        RbacRule((*_WRITE_VERBS, *_READ_VERBS), (GROUP,), ("rolebindings", "roles")),
    ),
    "system:aggregate-to-edit": (
        RbacRule(
            _READ_VERBS,
            ("",),
            ("pods/attach", "pods/exec", "pods/portforward", "pods/proxy", "secrets", "services/proxy"),
        ),
        RbacRule(("impersonate",), ("",), ("serviceaccounts",)),
        RbacRule(_WRITE_VERBS, ("",), ("pods", "pods/attach", "pods/exec", "pods/portforward", "pods/proxy")),
        RbacRule(("create",), ("",), ("pods/eviction",)),
        RbacRule(
            _WRITE_VERBS,
            ("",),
            ("configmaps", "events", "persistentvolumeclaims", "secrets", "serviceaccounts", "services"),
        ),
        RbacRule(("create",), ("",), ("serviceaccounts/token",)),
        RbacRule(_WRITE_VERBS, ("apps",), ("deployments", "deployments/scale", "replicasets", "replicasets/scale")),
        RbacRule(_WRITE_VERBS, ("apps",), ("daemonsets", "statefulsets", "statefulsets/scale")),
        RbacRule(_WRITE_VERBS, ("networking.k8s.io",), ("ingresses", "networkpolicies")),
        RbacRule(_WRITE_VERBS, ("",), ("replicationcontrollers", "replicationcontrollers/scale")),
        RbacRule(_WRITE_VERBS, ("autoscaling",), ("horizontalpodautoscalers",)),
        RbacRule(_WRITE_VERBS, ("batch",), ("cronjobs", "jobs")),
        RbacRule(_WRITE_VERBS, ("policy",), ("poddisruptionbudgets",)),
        RbacRule((*_WRITE_VERBS, *_READ_VERBS), ("coordination.k8s.io",), ("leases",)),
    ),
    "system:aggregated-metrics-reader": (RbacRule(_READ_VERBS, ("metrics.k8s.io",), ("pods", "nodes")),),
    "system:aggregate-to-view": (
        RbacRule(
            _READ_VERBS,
            ("",),
            ("configmaps", "endpoints", "persistentvolumeclaims", "pods", "serviceaccounts", "services"),
        ),
        RbacRule(_READ_VERBS, ("",), ("persistentvolumeclaims/status", "services/status")),
        RbacRule(
            _READ_VERBS,
            ("",),
            ("bindings", "events", "limitranges", "namespaces/status", "pods/log", "pods/status", "resourcequotas"),
        ),
        RbacRule(_READ_VERBS, ("",), ("namespaces", "resourcequotas/status")),
        RbacRule(("get",), ("",), ("pods/why",)),
        RbacRule(("get",), ("batch",), ("jobs/why",)),
        RbacRule(
            _READ_VERBS,
            ("apps",),
            ("deployments", "deployments/scale", "deployments/status", "replicasets", "replicasets/scale"),
        ),
        RbacRule(
            _READ_VERBS, ("apps",), ("replicasets/status", "statefulsets", "statefulsets/scale", "statefulsets/status")
        ),
        RbacRule(_READ_VERBS, ("apps",), ("controllerrevisions", "daemonsets", "daemonsets/status")),
        RbacRule(_READ_VERBS, ("discovery.k8s.io",), ("endpointslices",)),
        RbacRule(_READ_VERBS, ("networking.k8s.io",), ("ingresses", "ingresses/status", "networkpolicies")),
        RbacRule(
            _READ_VERBS,
            ("",),
            ("replicationcontrollers", "replicationcontrollers/scale", "replicationcontrollers/status"),
        ),
        RbacRule(_READ_VERBS, ("autoscaling",), ("horizontalpodautoscalers", "horizontalpodautoscalers/status")),
        RbacRule(_READ_VERBS, ("batch",), ("cronjobs", "cronjobs/status", "jobs", "jobs/status")),
        RbacRule(_READ_VERBS, ("policy",), ("poddisruptionbudgets", "poddisruptionbudgets/status")),
        RbacRule(_READ_VERBS, ("batchyard.dev",), ("decisions",)),
    ),
}
#: The roles into which a role is aggregated by its labels.
_AGGREGATION_TARGETS: Final[Mapping[str, tuple[str, ...]]] = {
    "edit": ("admin",),
    "view": ("edit",),
    "system:aggregate-to-admin": ("admin",),
    "system:aggregate-to-edit": ("edit",),
    "system:aggregate-to-view": ("view",),
    "system:aggregated-metrics-reader": ("view", "edit", "admin"),
}
_BOUND_GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "cluster-admin": (MASTERS_GROUP,),
    "system:basic-user": (AUTHENTICATED_GROUP,),
    "system:discovery": (AUTHENTICATED_GROUP,),
    "system:monitoring": (MONITORING_GROUP,),
    "system:public-info-viewer": (AUTHENTICATED_GROUP, UNAUTHENTICATED_GROUP),
}
#: Kinds of Kueue and its jobs: group, plural, whether it has a status, the roles that may read it.
_KUEUE_RESOURCES: Final = (
    (_KUEUE_GROUP, "clusterqueues", True, ("batch-admin", "admin")),
    (_KUEUE_GROUP, "cohorts", False, ("batch-admin", "admin")),
    (_KUEUE_GROUP, "resourceflavors", False, ("batch-admin", "admin")),
    (_KUEUE_GROUP, "topologies", False, ("batch-admin", "admin")),
    (_KUEUE_GROUP, "localqueues", True, ("batch-admin", "batch-user", "view", "admin", "edit")),
    (_KUEUE_GROUP, "workloads", True, ("batch-admin", "batch-user", "view", "admin", "edit")),
    ("batch", "jobs", True, ("batch-admin", "batch-user", "view", "admin", "edit")),
    ("jobset.x-k8s.io", "jobsets", True, ("batch-admin", "batch-user", "view", "admin", "edit")),
)
#: The kinds with a start forecast; readers of the kind may read it.
_FORECAST_RESOURCES: Final = ((_KUEUE_GROUP, "workloads"), ("batch", "jobs"), ("jobset.x-k8s.io", "jobsets"))
#: Cost resources, readable by the users of a namespace; budgets are written by administrators only.
_COST_RESOURCES: Final = ("cost.batchyard.dev", ("budgets", "costrecords"))
#: The kinds with a `why` subresource.
_EXPLAINED_RESOURCES: Final = ("clusterqueues", "workloads", "jobs", "jobsets")
_IRREGULAR_SINGULARS: Final = {"topologies": "topology"}


def bootstrap_roles() -> Iterator[Obj]:
    """Yield the default roles and bindings (bootstrap policy): those of Kubernetes, of Kueue and of batchyard."""
    for name, rules in _BOOTSTRAP_RULES.items():
        yield _cluster_role(name, rules, _aggregation_labels(_AGGREGATION_TARGETS.get(name, ())))
    for name in ("admin", "edit", "view"):
        labels = _aggregation_labels(_AGGREGATION_TARGETS.get(name, ()))
        yield _aggregating_role(name, f"{_AGGREGATE_LABEL_PREFIX}{name}", labels)
    for name, groups in _BOUND_GROUPS.items():
        yield _cluster_role_binding(name, groups)
    yield from _kueue_roles()
    group, plurals = _COST_RESOURCES
    reader_labels = _aggregation_labels(("batch-admin", "batch-user", "view", "admin", "edit"))
    yield _cluster_role("batchyard-cost-viewer-role", (RbacRule(_READ_VERBS, (group,), plurals),), reader_labels)
    rule = RbacRule(_EDIT_VERBS, (group,), ("budgets",))
    yield _cluster_role("batchyard-budget-editor-role", (rule,), _aggregation_labels(("batch-admin",)))


def _kueue_roles() -> Iterator[Obj]:
    for role_suffix in ("admin", "user"):
        yield _aggregating_role(f"kueue-batch-{role_suffix}-role", f"{_BATCH_LABEL_PREFIX}{role_suffix}", {})
    for group, plural, has_status, reader_roles in _KUEUE_RESOURCES:
        name = _IRREGULAR_SINGULARS.get(plural, plural[:-1])
        status_rules = (RbacRule(("get",), (group,), (f"{plural}/status",)),) if has_status else ()
        why_rules = (RbacRule(("get",), (group,), (f"{plural}/why",)),) if plural in _EXPLAINED_RESOURCES else ()
        editor_roles = ("batch-admin", "batch-user") if group != _KUEUE_GROUP else ("batch-admin",)
        role_variants = (("editor", _EDIT_VERBS, editor_roles), ("viewer", _READ_VERBS, reader_roles))
        for role, verbs, roles in role_variants:
            labels = {"rbac.kueue.x-k8s.io/role": f"{name}-{role}", **_aggregation_labels(roles)}
            yield _cluster_role(
                f"kueue-{name}-{role}-role", (RbacRule(verbs, (group,), (plural,)), *status_rules, *why_rules), labels
            )
    for abbreviation, plural in (("cq", "clusterqueues"), ("lq", "localqueues")):
        roles = ("batch-admin", "view", "admin", "edit", *(("batch-user",) if abbreviation == "lq" else ()))
        rule = RbacRule(_READ_VERBS, (_VISIBILITY_GROUP,), (f"{plural}/pendingworkloads",))
        labels = {"rbac.kueue.x-k8s.io/role": f"pending-workloads-{abbreviation}-viewer", **_aggregation_labels(roles)}
        yield _cluster_role(f"kueue-pending-workloads-{abbreviation}-viewer-role", (rule,), labels)
    reader_roles = ("batch-admin", "batch-user", "view", "admin", "edit")
    rules = [RbacRule(("get",), (group,), (f"{plural}/{ETA_SUBRESOURCE}",)) for group, plural in _FORECAST_RESOURCES]
    yield _cluster_role("batchyard-eta-viewer", rules, _aggregation_labels(reader_roles))


def _aggregation_labels(aggregating_roles: Sequence[str]) -> dict[str, str]:
    labels = (
        f"rbac.kueue.x-k8s.io/{role}" if role.startswith("batch-") else f"{_AGGREGATE_LABEL_PREFIX}{role}"
        for role in aggregating_roles
    )
    return dict.fromkeys(labels, "true")


def _cluster_role(name: str, rules: Sequence[RbacRule], labels: Mapping[str, str]) -> Obj:
    return {**_rbac_object("ClusterRole", name, labels), "rules": [rule.to_json() for rule in rules]}


def _aggregating_role(name: str, label: str, labels: Mapping[str, str]) -> Obj:
    aggregation = {"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]}
    return {**_rbac_object("ClusterRole", name, labels), "aggregationRule": aggregation, "rules": []}


def _cluster_role_binding(role: str, groups: Sequence[str]) -> Obj:
    subjects = [{"kind": "Group", "apiGroup": GROUP, "name": group} for group in groups]
    role_ref = {"apiGroup": GROUP, "kind": "ClusterRole", "name": role}
    return {**_rbac_object("ClusterRoleBinding", role, {}), "subjects": subjects, "roleRef": role_ref}


def _rbac_object(kind: str, name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    if not name.startswith(("kueue-", "batchyard-")):
        labels = {"kubernetes.io/bootstrapping": "rbac-defaults", **labels}
    return {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": {"name": name, "labels": dict(labels)}}
