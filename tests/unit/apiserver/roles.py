"""Roles and bindings for tests."""

from typing import Any

GROUP = "rbac.authorization.k8s.io"


def rule(verbs: str, resources: str, groups: str = "", names: str = "") -> dict[str, Any]:
    """A rule; each text contains words separated by spaces, and `core` means the group without a name."""
    stated = {"verbs": verbs.split(), "resources": resources.split()}
    stated["apiGroups"] = ["" if group == "core" else group for group in (groups or "core").split()]
    return stated | ({"resourceNames": names.split()} if names else {})


def role(name: str, *rules: dict[str, Any], namespace: str = "", **fields: Any) -> dict[str, Any]:
    """A Role if a namespace is given, else a ClusterRole."""
    kind = "Role" if namespace else "ClusterRole"
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **fields.pop("metadata", {})}
    return {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": metadata, "rules": list(rules), **fields}


def binding(name: str, to: str, subject: dict[str, Any], namespace: str = "") -> dict[str, Any]:
    """A binding of `Role/name` or `ClusterRole/name`; a RoleBinding if a namespace is given."""
    kind = "RoleBinding" if namespace else "ClusterRoleBinding"
    role_kind, _, role_name = to.partition("/")
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": kind,
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "roleRef": {"apiGroup": GROUP, "kind": role_kind, "name": role_name},
        "subjects": [subject],
    }


def user(name: str) -> dict[str, Any]:
    """A user as a subject."""
    return {"kind": "User", "apiGroup": GROUP, "name": name}


def group(name: str) -> dict[str, Any]:
    """A group as a subject."""
    return {"kind": "Group", "apiGroup": GROUP, "name": name}


def account(name: str, namespace: str = "") -> dict[str, Any]:
    """A ServiceAccount as a subject."""
    return {"kind": "ServiceAccount", "name": name, **({"namespace": namespace} if namespace else {})}
