"""Discovery documents of the API: groups, versions and resources."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

from batchyard.api.custom_kinds import version_priority
from batchyard.api.scheme import ServedKind
from batchyard.apiserver.auth.security import HEALTH_ENDPOINTS
from batchyard.apiserver.resources import EndpointHandlers, Resource, Resources

VERBS: Final = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
AGGREGATED: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
#: The Kubernetes version of this API. Empty fields are unknown, but clients require them.
VERSION: Final = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.0+batchyard",
    "platform": "linux/amd64",
    **dict.fromkeys(("gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler"), ""),
}
ResourceLists: TypeAlias = Mapping[tuple[str, str], Mapping[str, Any]]
"""The APIResourceLists of aggregated APIs, by group and version."""
_SINGLE_OBJECT_VERBS: Final = [verb for verb in VERBS if verb != "deletecollection"]
_SUBRESOURCE_VERBS: Final = ["get", "patch", "update"]
#: The groups that come first, in the order of Kubernetes, which determines that of `kubectl get all`.
_FIRST_GROUPS: Final = (
    "",
    "apps",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
    "discovery.k8s.io",
)


class AggregatedResources(Protocol):
    """The resources of the servers of aggregated APIs; `edition` changes with them."""

    edition: int
    resource_lists: dict[tuple[str, str], Mapping[str, Any]]


class Discovery:
    """The API discovery documents, rebuilt when the served resources change."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._edition = (-1, 0)
        #: The APIs of other servers; None if there are none.
        self.aggregated_apis: AggregatedResources | None = None
        self._documents_by_path: dict[str, Mapping[str, Any]] = {}

    def document(self, path: str, *, is_aggregated: bool) -> Mapping[str, Any] | None:
        """Return the discovery document of a path: `/`, `/version`, `/api`, `/apis` or below; None if unknown.

        Aggregated documents exist only for `/api` and `/apis`.
        """
        apis = self.aggregated_apis
        edition = (self._resources.edition, 0 if apis is None else apis.edition)
        if self._edition != edition:
            self._edition = edition
            aggregated_lists = {} if apis is None else apis.resource_lists
            self._documents_by_path = _build_documents(self._resources.all(), aggregated_lists)
        path_key = path.strip("/")
        return self._documents_by_path.get(f"{path_key}?aggregated" if is_aggregated else path_key)


def _build_documents(resources: Sequence[Resource], aggregated_lists: ResourceLists) -> dict[str, Mapping[str, Any]]:
    groups = versions_by_group(resources)
    own_groups = dict(groups)
    for group, version in aggregated_lists:
        groups[group] = sorted({*groups.get(group, ()), version}, key=version_priority, reverse=True)
    group_documents = [_group_document(name, versions) for name, versions in groups.items() if name]
    documents: dict[str, Mapping[str, Any]] = {
        "version": VERSION,
        "api": {"kind": "APIVersions", "versions": groups.get("", []), "serverAddressByClientCIDRs": []},
        "apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": group_documents},
        "api?aggregated": _aggregated_document(resources, {"": groups.get("", [])}, {}),
        "apis?aggregated": _aggregated_document(
            resources, {name: groups[name] for name in groups if name}, aggregated_lists
        ),
    }
    for name, versions in groups.items():
        if name:
            documents[f"apis/{name}"] = {"kind": "APIGroup", "apiVersion": "v1", **_group_document(name, versions)}
        for version in own_groups.get(name, ()):
            path = f"apis/{name}/{version}" if name else f"api/{version}"
            documents[path] = _resource_list(name, version, _resources_in(resources, name, version))
    paths = {path.partition("?")[0] for path in documents} | {*HEALTH_ENDPOINTS, "openapi/v2", "openapi/v3"}
    return {**documents, "": {"paths": [f"/{path}" for path in sorted(paths)]}}


def versions_by_group(resources: Sequence[Resource]) -> dict[str, list[str]]:
    """Return the versions of each group, the preferred one first.

    The core group and other groups of Kubernetes come first, in its order; the rest follows by name.
    """
    groups: dict[str, dict[str, None]] = {}
    for served_kind in (resource.served_kind for resource in resources):
        groups.setdefault(served_kind.group, {}).update(dict.fromkeys(served_kind.versions))
    return {name: sorted(groups[name], key=version_priority, reverse=True) for name in sorted(groups, key=_group_order)}


def _group_order(group: str) -> tuple[int, str]:
    return _FIRST_GROUPS.index(group) if group in _FIRST_GROUPS else len(_FIRST_GROUPS), group


def _resources_in(resources: Sequence[Resource], group: str, version: str) -> list[Resource]:
    matching_resources = [
        each for each in resources if each.served_kind.group == group and version in each.served_kind.versions
    ]
    return sorted(matching_resources, key=lambda each: each.served_kind.plural)


def _group_document(name: str, version_names: Sequence[str]) -> dict[str, Any]:
    versions = [{"groupVersion": f"{name}/{version}", "version": version} for version in version_names]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _resource_list(group: str, version: str, resources: Sequence[Resource]) -> dict[str, Any]:
    resource_entries: list[dict[str, Any]] = []
    for resource in resources:
        served_kind = resource.served_kind
        common_fields = {"namespaced": served_kind.namespaced, "kind": served_kind.kind}
        names, name_fields = (
            {"name": served_kind.plural, "singularName": served_kind.singular},
            _short_names_and_categories(served_kind),
        )
        resource_entries.append({**names, **common_fields, "verbs": _supported_verbs(resource), **name_fields})
        resource_entries += [
            {"name": f"{served_kind.plural}/{part}", "singularName": "", **common_fields, "verbs": _SUBRESOURCE_VERBS}
            for part in resource.subresources
            if part not in resource.handlers
        ]
        resource_entries += [
            {
                "name": f"{served_kind.plural}/{part}",
                "singularName": "",
                "namespaced": served_kind.namespaced,
                **_differing_group_version(handlers, group, version),
                "kind": handlers.kind,
                "verbs": handlers.verbs,
            }
            for part, handlers in resource.handlers.items()
            if part
        ]
    group_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resource_entries}


def _differing_group_version(handlers: EndpointHandlers, group: str, version: str) -> dict[str, str]:
    is_same = (handlers.group, handlers.version) == (group, version)
    return {} if is_same else {"group": handlers.group, "version": handlers.version}


def _aggregated_document(
    resources: Sequence[Resource], groups: Mapping[str, Sequence[str]], aggregated_lists: ResourceLists
) -> dict[str, Any]:
    items = [
        {
            "metadata": {"name": name} if name else {},
            "versions": [
                {
                    "version": version,
                    "resources": _aggregated_entries(aggregated_lists[name, version], name, version)
                    if (name, version) in aggregated_lists
                    else [_discovery_entry(each, version) for each in _resources_in(resources, name, version)],
                    "freshness": "Current",
                }
                for version in versions
            ],
        }
        for name, versions in groups.items()
    ]
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


def _aggregated_entries(resource_list: Mapping[str, Any], group: str, version: str) -> list[dict[str, Any]]:
    """Convert the resource list of another server to entries of an aggregated discovery document."""
    entries: dict[str, dict[str, Any]] = {}
    for resource in sorted(resource_list["resources"], key=lambda each: each["name"].count("/")):
        name, _, subresource = resource["name"].partition("/")
        kind = {"group": resource.get("group") or group, "version": resource.get("version") or version}
        kind = {**kind, "kind": resource.get("kind", "")}
        if subresource:
            subresource_entry = {"subresource": subresource, "responseKind": kind, "verbs": resource["verbs"]}
            entries.setdefault(name, {"resource": name}).setdefault("subresources", []).append(subresource_entry)
            continue
        names = {field: resource[field] for field in ("shortNames", "categories") if resource.get(field)}
        entries[name] = {
            "resource": name,
            "responseKind": kind,
            "scope": "Namespaced" if resource.get("namespaced") else "Cluster",
            "singularResource": resource.get("singularName", ""),
            "verbs": resource["verbs"],
            **names,
        }
    return list(entries.values())


def _discovery_entry(resource: Resource, version: str) -> dict[str, Any]:
    served_kind = resource.served_kind
    kind = {"group": served_kind.group, "version": version, "kind": served_kind.kind}
    entry: dict[str, Any] = {
        "resource": served_kind.plural,
        "responseKind": kind,
        "scope": "Namespaced" if served_kind.namespaced else "Cluster",
        "singularResource": served_kind.singular,
        "verbs": _supported_verbs(resource),
        **_short_names_and_categories(served_kind),
    }
    subresource_entries = [
        {"subresource": part, "responseKind": kind, "verbs": _SUBRESOURCE_VERBS}
        for part in resource.subresources
        if part not in resource.handlers
    ]
    subresource_entries += [
        {
            "subresource": part,
            "responseKind": {"group": handlers.group, "version": handlers.version, "kind": handlers.kind},
            "verbs": handlers.verbs,
        }
        for part, handlers in resource.handlers.items()
        if part
    ]
    return {**entry, "subresources": subresource_entries} if subresource_entries else entry


def _supported_verbs(resource: Resource) -> list[str]:
    handlers = resource.handlers.get("")
    if handlers is None:
        return VERBS if resource.supports_deletecollection else _SINGLE_OBJECT_VERBS
    return [*handlers.verbs, *(["list"] if "get" in handlers.verbs else [])]


def _short_names_and_categories(served_kind: ServedKind) -> dict[str, list[str]]:
    names = {"shortNames": list(served_kind.short_names), "categories": list(served_kind.categories)}
    return {field: values for field, values in names.items() if values}
