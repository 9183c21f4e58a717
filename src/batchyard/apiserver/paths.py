"""What a path of the API means: a group's version, a resource, a namespace, a name, a subresource.

Source: k8s.io/apiserver, pkg/endpoints/request/requestinfo.go.
"""

from collections.abc import Sequence
from typing import NamedTuple

from batchyard.api.scheme import ServedKind
from batchyard.apiserver.resources import Answer, Resource, Resources


class ResourcePath(NamedTuple):
    """The path of a resource, or of one object of it, or of a part of that."""

    resource: Resource
    version: str
    namespace: str
    name: str
    subresource: str
    #: The version asked for, as objects say it.
    api_version: str

    @property
    def info(self) -> ServedKind:
        """The kind of the objects there."""
        return self.resource.info

    @property
    def answer(self) -> Answer | None:
        """Who answers here, where that is not the registry."""
        return self.resource.answers.get(self.subresource)


def resource_at(resources: Resources, path: str) -> ResourcePath | None:
    """What resource a path names; None if it names none."""
    parts = path.strip("/").split("/")
    if not all(parts):
        return None
    if parts[0] == "api" and len(parts) > 2:
        return _within(resources, ("", parts[1]), parts[2:])
    if parts[0] == "apis" and len(parts) > 3:
        return _within(resources, (parts[1], parts[2]), parts[3:])
    return None


def part_at(path: str) -> str:
    """The part of an object that a path names by where it stands, whether there is one or not; '' if it names none."""
    parts = path.strip("/").split("/")
    begin = {"api": 2, "apis": 3}.get(parts[0])
    if begin is None or len(parts) <= begin:
        return ""
    _, within = _namespace_in(parts[begin:], is_core=begin == 2)
    return within[2] if len(within) == 3 else ""


def _namespace_in(parts: Sequence[str], *, is_core: bool) -> tuple[str, Sequence[str]]:
    """The namespace that the rest of a path begins with, '' if there is none, and what follows."""
    if parts[0] == "namespaces" and len(parts) > 2 and not (is_core and parts[2] in {"status", "finalize"}):
        return parts[1], parts[2:]
    return "", parts


def _within(resources: Resources, of: tuple[str, str], parts: Sequence[str]) -> ResourcePath | None:
    """What the rest of a path names in a group's version."""
    group, version = of
    namespace, parts = _namespace_in(parts, is_core=not group)
    found = resources.find(group, version, parts[0])
    if found is None or (namespace and not found.info.namespaced):
        return None
    name, subresource = [*parts[1:], "", ""][:2]
    answer = found.answers.get(subresource)
    if len(parts) > 3 and (answer is None or not answer.takes_path):
        return None
    api_version = f"{group}/{version}" if group else version
    return ResourcePath(found, version, namespace, name, subresource, api_version)
