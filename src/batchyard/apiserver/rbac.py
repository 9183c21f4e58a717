"""Role-based access control: who may do what, as roles and their bindings say.

An index over the stored objects, kept up by every change: a question looks at the bindings of its user and groups
alone. Source: Kubernetes's plugin/pkg/auth/authorizer/rbac and pkg/registry/rbac/validation.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of
from batchyard.apiserver.authentication import MASTERS, User, account_name
from batchyard.apiserver.authorization import Attributes, Decision
from batchyard.apiserver.objects import Found
from batchyard.apiserver.rules import Rule, rules_of
from batchyard.ports.client import EventType, WatchEvent

GROUP: Final = "rbac.authorization.k8s.io"
_ROLES: Final = (scheme.ROLE, scheme.CLUSTER_ROLE)
_BINDINGS: Final = (scheme.ROLE_BINDING, scheme.CLUSTER_ROLE_BINDING)


class _Grant(NamedTuple):
    """A role that a binding gives, and how that is told."""

    role: Key
    source: str


class Rbac:
    """See the module."""

    def __init__(self, objects: Found) -> None:
        self._rules: dict[Key, tuple[Rule, ...]] = {}
        #: By namespace ('': all of them) and subject: what the bindings there give.
        self._grants: dict[tuple[str, str], dict[Key, _Grant]] = {}
        for kind in (*_ROLES, *_BINDINGS):
            for obj in objects.list(kind):
                self._add(key_of(obj), obj)

    def observe(self, change: WatchEvent) -> None:
        """Take note of a change as it happens."""
        if change.key.kind not in _ROLES and change.key.kind not in _BINDINGS:
            return
        if change.old is not None:
            self._remove(change.key, change.old)
        if change.type is not EventType.DELETED:
            self._add(change.key, change.obj)

    def decide(self, attributes: Attributes) -> Decision:
        """Whether it may be done, and by which binding."""
        if MASTERS in attributes.user.groups:
            return Decision(True)
        for grant in self._granted(attributes.user, attributes.namespace):
            if any(rule.allows(attributes) for rule in self._rules.get(grant.role, ())):
                return Decision(True, f"RBAC: allowed by {grant.source}")
        return Decision(False)

    def rules_for(self, user: User, namespace: str) -> list[Rule]:
        """All rules that hold for a user in a namespace; in '' those that hold everywhere."""
        return [rule for grant in self._granted(user, namespace) for rule in self._rules.get(grant.role, ())]

    def rules_of(self, role: Key) -> Sequence[Rule] | None:
        """The rules of a role; None if there is no such role."""
        return self._rules.get(role)

    def _granted(self, user: User, namespace: str) -> Iterator[_Grant]:
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
    """The role that a binding refers to."""
    role = binding["roleRef"]
    if role["kind"] == "Role":
        return Key(scheme.ROLE, binding["metadata"].get("namespace", ""), role["name"])
    return Key(scheme.CLUSTER_ROLE, "", role["name"])


def _subject(subject: Mapping[str, Any], namespace: str) -> str:
    """A subject as the index has it: ServiceAccounts are users; '' where it can be nobody."""
    kind, name = subject["kind"], subject["name"]
    if kind != "ServiceAccount":
        return f"{kind} {name}"
    of = subject.get("namespace") or namespace
    return f"User {account_name(of, name)}" if of else ""


def _source(binding: Key, role: Key, subject: Mapping[str, Any]) -> str:
    """How a binding is told of; names before namespaces, as Kubernetes has it."""
    where = f"/{binding.namespace}" if binding.namespace else ""
    who = subject["name"]
    if subject["kind"] == "ServiceAccount":
        who += f"/{subject.get('namespace') or binding.namespace}"
    kind, role_kind = binding.kind.partition(".")[0], role.kind.partition(".")[0]
    return f'{kind} "{binding.name}{where}" of {role_kind} "{role.name}" to {subject["kind"]} "{who}"'
