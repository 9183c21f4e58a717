"""Discovery documents of groups, versions and resources.

Sources: k8s.io/apiserver, pkg/endpoints/discovery; k8s.io/api/apidiscovery/v2.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchyard.api.custom_kinds import version_priority
from batchyard.api.scheme import ServedKind
from batchyard.apiserver.auth.security import HEALTH
from batchyard.apiserver.resources import EndpointHandlers, Resource, Resources

VERBS: Final = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
AGGREGATED: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
#: The Kubernetes version of this API. Empty fields are unknown, but clients require them.
VERSION: Final = {
    "major": "1",
    "minor": "32",
    "gitVersion": "v1.32.0+batchyard",
    "platform": "linux/amd64",
    **dict.fromkeys(("gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler"), ""),
}
_VERBS_OF_ONE: Final = [verb for verb in VERBS if verb != "deletecollection"]
_PART_VERBS: Final = ["get", "patch", "update"]
#: Kubernetes' own groups come first, in its order, which determines that of `kubectl get all`.
_FIRST_GROUPS: Final = (
    "",
    "apps",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
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


class Discovery:
    """The discovery documents, rebuilt when the served resources change."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._edition = -1
        self._documents: dict[str, Mapping[str, Any]] = {}

    def document(self, path: str, *, is_aggregated: bool) -> Mapping[str, Any] | None:
        """Return the document at `/`, `/version`, `/api`, `/apis` or below; None if there is none."""
        if self._edition != self._resources.edition:
            self._edition = self._resources.edition
            self._documents = _documents(self._resources.all())
        place = path.strip("/")
        return self._documents.get(f"{place}?aggregated" if is_aggregated else place)


def _documents(resources: Sequence[Resource]) -> dict[str, Mapping[str, Any]]:
    groups = versions_by_group(resources)
    named = [_group(name, versions) for name, versions in groups.items() if name]
    documents: dict[str, Mapping[str, Any]] = {
        "version": VERSION,
        "api": {"kind": "APIVersions", "versions": groups.get("", []), "serverAddressByClientCIDRs": []},
        "apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": named},
        "api?aggregated": _aggregated(resources, {"": groups.get("", [])}),
        "apis?aggregated": _aggregated(resources, {name: groups[name] for name in groups if name}),
    }
    for name, versions in groups.items():
        if name:
            documents[f"apis/{name}"] = {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)}
        for version in versions:
            place = f"apis/{name}/{version}" if name else f"api/{version}"
            documents[place] = _list(name, version, _within(resources, name, version))
    places = {place.partition("?")[0] for place in documents} | {*HEALTH, "openapi/v2", "openapi/v3"}
    return {**documents, "": {"paths": [f"/{place}" for place in sorted(places)]}}


def versions_by_group(resources: Sequence[Resource]) -> dict[str, list[str]]:
    """Return the versions of each group, the preferred one first."""
    groups: dict[str, dict[str, None]] = {}
    for info in (resource.info for resource in resources):
        groups.setdefault(info.group, {}).update(dict.fromkeys(info.versions))
    return {name: sorted(groups[name], key=version_priority, reverse=True) for name in sorted(groups, key=_place)}


def _place(group: str) -> tuple[int, str]:
    return _FIRST_GROUPS.index(group) if group in _FIRST_GROUPS else len(_FIRST_GROUPS), group


def _within(resources: Sequence[Resource], group: str, version: str) -> list[Resource]:
    found = [each for each in resources if each.info.group == group and version in each.info.versions]
    return sorted(found, key=lambda each: each.info.plural)


def _group(name: str, of: Sequence[str]) -> dict[str, Any]:
    versions = [{"groupVersion": f"{name}/{version}", "version": version} for version in of]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _list(group: str, version: str, resources: Sequence[Resource]) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    for resource in resources:
        info = resource.info
        named = {"namespaced": info.namespaced, "kind": info.kind}
        short = _other_names(info)
        found.append({"name": info.plural, "singularName": info.singular, **named, "verbs": _verbs(resource), **short})
        found += [
            {"name": f"{info.plural}/{part}", "singularName": "", **named, "verbs": _PART_VERBS}
            for part in resource.subresources
        ]
        found += [
            {
                "name": f"{info.plural}/{part}",
                "singularName": "",
                "namespaced": info.namespaced,
                **_other_place(answer, group, version),
                "kind": answer.kind,
                "verbs": answer.verbs,
            }
            for part, answer in resource.answers.items()
            if part
        ]
    group_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": found}


def _other_place(answer: EndpointHandlers, group: str, version: str) -> dict[str, str]:
    """Return group and version of an answer's kind, if they differ from those of the resource."""
    is_same = (answer.group, answer.version) == (group, version)
    return {} if is_same else {"group": answer.group, "version": answer.version}


def _aggregated(resources: Sequence[Resource], groups: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the aggregated discovery document of some groups."""
    items = [
        {
            "metadata": {"name": name} if name else {},
            "versions": [
                {
                    "version": version,
                    "resources": [_discovery_entry(each, version) for each in _within(resources, name, version)],
                    "freshness": "Current",
                }
                for version in versions
            ],
        }
        for name, versions in groups.items()
    ]
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


def _discovery_entry(resource: Resource, version: str) -> dict[str, Any]:
    """Return a resource as in aggregated discovery."""
    info = resource.info
    kind = {"group": info.group, "version": version, "kind": info.kind}
    reported: dict[str, Any] = {
        "resource": info.plural,
        "responseKind": kind,
        "scope": "Namespaced" if info.namespaced else "Cluster",
        "singularResource": info.singular,
        "verbs": _verbs(resource),
        **_other_names(info),
    }
    parts = [{"subresource": part, "responseKind": kind, "verbs": _PART_VERBS} for part in resource.subresources]
    parts += [
        {
            "subresource": part,
            "responseKind": {"group": answer.group, "version": answer.version, "kind": answer.kind},
            "verbs": answer.verbs,
        }
        for part, answer in resource.answers.items()
        if part
    ]
    return {**reported, "subresources": parts} if parts else reported


def _verbs(resource: Resource) -> list[str]:
    """Return the verbs of a resource."""
    answer = resource.answers.get("")
    if answer is None:
        return VERBS if resource.deletes_together else _VERBS_OF_ONE
    return [*answer.verbs, *(["list"] if "get" in answer.verbs else [])]


def _other_names(info: ServedKind) -> dict[str, list[str]]:
    """Return the short names and categories of a kind."""
    names = {"shortNames": list(info.short_names), "categories": list(info.categories)}
    return {field: found for field, found in names.items() if found}
