"""Privilege escalation prevention: users can grant only permissions that they hold.

Sources: Kubernetes's pkg/registry/rbac/{role,clusterrole,rolebinding,clusterrolebinding}/policybased.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.apiserver.auth.authentication import MASTERS, UserInfo
from batchyard.apiserver.auth.authorization import Attributes, refused_resource
from batchyard.apiserver.auth.rbac import GROUP, RbacAuthorizer, RbacRule, role_key, rules_of, uncovered
from batchyard.apiserver.request import StatusError
from batchyard.apiserver.resources import WriteGuard

_RESOURCES: Final = {
    scheme.ROLE: "roles",
    scheme.CLUSTER_ROLE: "clusterroles",
    scheme.ROLE_BINDING: "rolebindings",
    scheme.CLUSTER_ROLE_BINDING: "clusterrolebindings",
}


class Escalation:
    """The escalation checks for writes of roles and bindings."""

    def __init__(self, rbac: RbacAuthorizer) -> None:
        self._rbac = rbac

    def guards(self) -> Mapping[str, WriteGuard]:
        """Return the guards by kind of role or binding."""
        roles, bindings = (scheme.ROLE, scheme.CLUSTER_ROLE), (scheme.ROLE_BINDING, scheme.CLUSTER_ROLE_BINDING)
        return dict.fromkeys(roles, self._check_role) | dict.fromkeys(bindings, self._check_binding)

    def _check_role(self, user: UserInfo, new: Obj, old: Obj | None) -> None:
        """Reject a role with rules that its writer does not hold, unless the user may `escalate`.

        Unchanged rules are checked too, because a new label can aggregate them into other roles. A role with an
        aggregation rule requires all permissions, since it can gather any rule.
        """
        if _changes_only_lifecycle(new, old):
            return
        resource, metadata = _RESOURCES[f"{new['kind']}.{GROUP}"], new["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata.get("name", "")
        if self._may(user, "escalate", resource, namespace, name):
            return
        wanted = rules_of(new)
        if new.get("aggregationRule") or (old or {}).get("aggregationRule"):
            wanted = (*wanted, RbacRule(("*",), ("*",), ("*",)), RbacRule(("*",), urls=("*",)))
        self._check_held(user, new, wanted)

    def _check_binding(self, user: UserInfo, new: Obj, old: Obj | None) -> None:
        """Reject a binding to a role with rules that its writer does not hold, unless the user may `bind` the role."""
        if _changes_only_lifecycle(new, old):
            return
        role, namespace = role_key(new), new["metadata"].get("namespace", "")
        resource = _RESOURCES[role.kind]
        if self._may(user, "bind", resource, namespace, role.name):
            return
        rules = self._rbac.rules_of(role)
        if rules is None:
            details = {"name": role.name, "group": GROUP, "kind": resource}
            raise StatusError(404, "NotFound", f'{resource}.{GROUP} "{role.name}" not found', details)
        self._check_held(user, new, rules)

    def _may(self, user: UserInfo, verb: str, resource: str, namespace: str, name: str) -> bool:
        if MASTERS in user.groups:
            return True
        return self._rbac.decide(Attributes(user, verb, GROUP, resource, "", namespace, name)).allowed

    def _check_held(self, user: UserInfo, new: Obj, wanted: Sequence[RbacRule]) -> None:
        metadata = new["metadata"]
        missing = uncovered(wanted, self._rbac.rules_for(user, metadata.get("namespace", "")))
        if not missing:
            return
        groups = " ".join(map(json.dumps, user.groups))
        message = f'user "{user.name}" (groups=[{groups}]) is attempting to grant RBAC permissions not currently held:'
        why = "\n".join([message, *sorted(map(str, missing))])
        raise refused_resource(GROUP, _RESOURCES[f"{new['kind']}.{GROUP}"], metadata.get("name", ""), why)


def _changes_only_lifecycle(new: Obj, old: Obj | None) -> bool:
    """Report whether a change affects only owner references and finalizers, which grant no permission."""
    return old is not None and _without_ends(new) == _without_ends(old)


def _without_ends(obj: Obj) -> Obj:
    left_out = ("ownerReferences", "finalizers", "managedFields", "resourceVersion")
    return {**obj, "metadata": {name: value for name, value in obj["metadata"].items() if name not in left_out}}
