"""What is served: the documents by which clients find groups, versions and resources.

Sources: k8s.io/apiserver, pkg/endpoints/discovery; k8s.io/api/apidiscovery/v2.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from batchyard.api.scheme import ServedKind
from batchyard.apiserver.paths import SERVED

VERBS: Final = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_STATUS_VERBS: Final = ["get", "patch", "update"]
AGGREGATED: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
#: The version of Kubernetes whose API this is.
VERSION: Final = {"major": "1", "minor": "32", "gitVersion": "v1.32.0+batchyard", "platform": "linux/amd64"}


@cache
def document(path: str) -> Mapping[str, Any] | None:
    """The discovery document at a path; None if there is none."""
    match path.strip("/").split("/"):
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["apis"]:
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name) for name in _groups() if name]}
        case ["apis", group] if group in _groups():
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group)}
        case ["api", version] if version in _groups()[""]:
            return _resources("", version)
        case ["apis", group, version] if version in _groups().get(group, ()):
            return _resources(group, version)
        case ["version"]:
            return VERSION
    return None


@cache
def aggregated(path: str) -> Mapping[str, Any]:
    """All groups below `/api` or `/apis` with all their resources in one document."""
    names = [""] if path.strip("/") == "api" else [name for name in _groups() if name]
    items = [
        {
            "metadata": {"name": name} if name else {},
            "versions": [
                {"version": version, "resources": _aggregated_resources(name, version), "freshness": "Current"}
                for version in _groups()[name]
            ],
        }
        for name in names
    ]
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


@cache
def _groups() -> Mapping[str, list[str]]:
    """The versions of each group, the preferred one first."""
    groups: dict[str, dict[str, None]] = {}
    for info in SERVED:
        versions = [info.storage_version, *reversed(info.versions)]
        groups.setdefault(info.group, {}).update(dict.fromkeys(versions))
    return {name: list(versions) for name, versions in groups.items()}


def _group(name: str) -> dict[str, Any]:
    versions = [{"groupVersion": f"{name}/{version}", "version": version} for version in _groups()[name]]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _resources(group: str, version: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    for info in _kinds(group, version):
        named = {"namespaced": info.namespaced, "kind": info.kind}
        short = {"shortNames": list(info.short_names)} if info.short_names else {}
        found.append({"name": info.plural, "singularName": info.singular, **named, "verbs": VERBS, **short})
        if info.has_status:
            found.append({"name": f"{info.plural}/status", "singularName": "", **named, "verbs": _STATUS_VERBS})
    group_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": found}


def _aggregated_resources(group: str, version: str) -> list[dict[str, Any]]:
    return [
        {
            "resource": info.plural,
            "responseKind": {"group": group, "version": version, "kind": info.kind},
            "scope": "Namespaced" if info.namespaced else "Cluster",
            "singularResource": info.singular,
            "verbs": VERBS,
            **({"shortNames": list(info.short_names)} if info.short_names else {}),
            **({"subresources": [_aggregated_status(info, version)]} if info.has_status else {}),
        }
        for info in _kinds(group, version)
    ]


def _aggregated_status(info: ServedKind, version: str) -> dict[str, Any]:
    kind = {"group": info.group, "version": version, "kind": info.kind}
    return {"subresource": "status", "responseKind": kind, "verbs": _STATUS_VERBS}


def _kinds(group: str, version: str) -> list[ServedKind]:
    return [info for info in SERVED if info.group == group and version in info.versions]
