"""APIServices: which group and version is served by whom. Here it is always this server, and nobody else can be named.

Source: k8s.io/kube-aggregator, pkg/registry/apiservice and pkg/controllers/autoregister.
"""

from collections.abc import Callable, Sequence
from typing import Final

from batchyard.api import scheme
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Key, Obj
from batchyard.api.tables import cells
from batchyard.api.tables.cells import Column
from batchyard.api.whole_seconds import metadata_in_whole_seconds
from batchyard.apiserver.derived import Derived, derived
from batchyard.apiserver.discovery import versions_by_group
from batchyard.apiserver.objects import Found
from batchyard.apiserver.resources import Resource
from batchyard.apiserver.unstored import unstored_kind
from batchyard.base.instant import Instant

_GROUP: Final = "apiregistration.k8s.io"
_KIND: Final = "APIService"
_LABELS: Final = {"kube-aggregator.kubernetes.io/automanaged": "onstart"}
_AVAILABLE: Final = {
    "type": "Available",
    "status": "True",
    "reason": "Local",
    "message": "Local APIServices are always available",
}
#: As Kubernetes ranks its core group, and others one after the other below.
_PRIORITY: Final = 18000
_VERSION_PRIORITY: Final = 15


class ApiServices:
    """See the module."""

    def __init__(self, objects: Found, served: Callable[[], Sequence[Resource]]) -> None:
        self._objects = objects
        self._served = served

    def resource(self, now: Callable[[], Instant]) -> Resource:
        """All of them, as a resource."""
        info = unstored_kind(_GROUP, "v1", _KIND, "apiservices", "apiservice", namespaced=False)
        table = (
            (Column("Name"), cells.name),
            (Column("Service"), lambda _obj, _now: "Local"),
            (Column("Available"), _available),
            (Column("Age"), cells.age),
        )
        return derived(Derived(info, table), info, self, now)

    def found(self, _namespace: str) -> Sequence[Obj]:
        """One for each version of each group, sorted by name."""
        groups = versions_by_group(self._served())
        places = [(group, version, rank) for rank, group in enumerate(groups) for version in groups[group]]
        told = [self._told(group, version, rank, groups[group]) for group, version, rank in places]
        return sorted(told, key=lambda obj: str(obj["metadata"]["name"]))

    def one(self, namespace: str, name: str) -> Obj | None:
        """The one of that name."""
        return next((obj for obj in self.found(namespace) if obj["metadata"]["name"] == name), None)

    def _told(self, group: str, version: str, rank: int, versions: Sequence[str]) -> Obj:
        system = self._objects.get(Key(scheme.NAMESPACE, "", "kube-system"))
        begun = None if system is None else metadata_in_whole_seconds(system["metadata"])
        born = {} if begun is None else {"creationTimestamp": begun["creationTimestamp"]}
        since = {"lastTransitionTime": born["creationTimestamp"]} if born else {}
        spec = {"groupPriorityMinimum": _PRIORITY - rank, "version": version}
        spec["versionPriority"] = _VERSION_PRIORITY - versions.index(version)
        return {
            "kind": _KIND,
            "apiVersion": f"{_GROUP}/v1",
            "metadata": {"name": f"{version}.{group}", "labels": _LABELS, **born},
            "spec": {**spec, **({"group": group} if group else {})},
            "status": {"conditions": [{**_AVAILABLE, **since}]},
        }


def _available(obj: Obj, _now: Instant) -> str:
    return str((find_condition(obj, "Available") or {}).get("status", "Unknown"))
