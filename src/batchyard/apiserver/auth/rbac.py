"""Role-based access control: decisions from Roles and their bindings.

The index over the stored objects is updated by every change. A decision reads only the bindings of the user and its
groups. Source: Kubernetes's plugin/pkg/auth/authorizer/rbac and pkg/registry/rbac/validation.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of
from batchyard.apiserver.auth.authentication import MASTERS, UserInfo, account_name
from batchyard.apiserver.auth.authorization import Attributes, Decision
from batchyard.apiserver.objects import ApiObjectReader
from batchyard.interfaces.client import EventType, WatchEvent

# --- rules ---
#
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

    def __init__(self, objects: ApiObjectReader) -> None:
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
