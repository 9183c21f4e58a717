"""What a path of the API means: a group's version, a resource, a namespace, a name, a subresource.

Source: k8s.io/apiserver, pkg/endpoints/request/requestinfo.go.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from batchyard.api.scheme import KINDS, SCENARIO, ServedKind

#: The kinds that are resources: a Scenario is a file.
SERVED: Final[tuple[ServedKind, ...]] = tuple(info for info in KINDS if info.constant != SCENARIO)
_BY_PLURAL: Final[Mapping[tuple[str, str, str], ServedKind]] = {
    (info.group, version, info.plural): info for info in SERVED for version in info.versions
}


class ResourcePath(NamedTuple):
    """The path of a resource, or of one object of it, or of a part of that."""

    info: ServedKind
    version: str
    namespace: str
    name: str
    subresource: str

    @property
    def resource(self) -> str:
        """The resource as messages name it: `jobs.batch`, or `pods` in the core group."""
        return f"{self.info.plural}.{self.info.group}" if self.info.group else self.info.plural

    @property
    def api_version(self) -> str:
        """The version asked for, as objects say it."""
        return self.info.api_version_for(self.version)


def resource_at(path: str) -> ResourcePath | None:
    """What resource a path names; None if it names none."""
    parts = path.strip("/").split("/")
    if not all(parts):
        return None
    if parts[0] == "api" and len(parts) > 2:
        return _within("", parts[1], parts[2:])
    if parts[0] == "apis" and len(parts) > 3:
        return _within(parts[1], parts[2], parts[3:])
    return None


def _within(group: str, version: str, parts: Sequence[str]) -> ResourcePath | None:
    """What the rest of a path names in a group's version."""
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 2 and (group or parts[2] not in {"status", "finalize"}):
        namespace, parts = parts[1], parts[2:]
    info = _BY_PLURAL.get((group, version, parts[0]))
    if info is None or len(parts) > 3 or (namespace and not info.namespaced):
        return None
    name, subresource = [*parts[1:], "", ""][:2]
    return ResourcePath(info, version, namespace, name, subresource)
