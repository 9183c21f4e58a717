"""The account of an operator with its installed permissions, and its audited requests."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from batchyard.operator_manifests import InstallSettings, manifests_by_file
from e2e_platform.platform_process import kubectl

#: Permission for the clock of an accelerated platform, which the operator reads.
_CLOCK = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: clock}}
rules: [{{nonResourceURLs: [/batchyard/status], verbs: [get]}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: clock}}
subjects: [{{kind: ServiceAccount, name: {name}, namespace: {namespace}}}]
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: clock}}
"""


def install_account(owner: Path, folder: Path, settings: InstallSettings) -> Path:
    """Install the account and its permissions as the owner; return the kubeconfig of the account."""
    result = manifests_by_file(settings)
    clock = yaml.safe_load_all(_CLOCK.format(name=settings.name, namespace=settings.namespace))
    objects = [*result["namespace"], *result["rights"], *clock]
    kubectl(owner, "apply", "-f", "-", sent="\n".join(map(json.dumps, objects)))
    token = kubectl(owner, "create", "token", settings.name, "-n", settings.namespace, "--duration=24h").strip()
    config = yaml.safe_load(owner.read_text("utf-8"))
    config["users"] = [{"name": "operator", "user": {"token": token}}]
    for context in config["contexts"]:
        context["context"] |= {"user": "operator", "namespace": settings.namespace}
    path = folder / "operator.kubeconfig"
    path.write_text(yaml.safe_dump(config), "utf-8")
    return path


def audited_requests(audit_log: Path, settings: InstallSettings) -> Iterator[Mapping[str, Any]]:
    """All answered requests of the account."""
    account = f"system:serviceaccount:{settings.namespace}:{settings.name}"
    for line in audit_log.read_text("utf-8").splitlines():
        event = json.loads(line)
        if event["user"]["username"] == account:
            yield event


def used_permissions(audit_log: Path, settings: InstallSettings) -> set[tuple[str, str, str]]:
    """The used permissions: group, resource with its subresource, verb."""
    result = set()
    for event in audited_requests(audit_log, settings):
        about = event.get("objectRef") or {}
        if about.get("resource"):
            part = f"/{about['subresource']}" if about.get("subresource") else ""
            result.add((about.get("apiGroup") or "", f"{about['resource']}{part}", event["verb"]))
    return result


def forbidden_requests(audit_log: Path, settings: InstallSettings) -> list[str]:
    """The forbidden requests of the account."""
    return [
        f"{event['verb']} {event['requestURI']}"
        for event in audited_requests(audit_log, settings)
        if (event.get("responseStatus") or {}).get("code") in {401, 403}
    ]
