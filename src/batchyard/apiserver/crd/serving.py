"""Serving of custom kinds: the served resources follow the stored definitions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from batchyard.api.custom_kinds import DEFINITION, is_leaving, is_served, kind_of
from batchyard.api.meta import Obj
from batchyard.apiserver.crd.strategy import CustomStrategy
from batchyard.apiserver.objects import ApiObjectStore
from batchyard.apiserver.resources import Resource, Resources
from batchyard.apiserver.subresources.scale import with_scale
from batchyard.base.instant import Instant
from batchyard.interfaces.client import WatchEvent


class CustomObjectStore(ApiObjectStore, Protocol):
    """Access to the stored objects."""

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return all objects of a kind, sorted by namespace and name."""


class CustomResources:
    """Serves the kinds of all established definitions, and follows their changes."""

    def __init__(self, objects: CustomObjectStore, resources: Resources, now: Callable[[], Instant]) -> None:
        self._objects = objects
        self._now = now
        self._resources = resources
        self._served: Mapping[tuple[Any, ...], Resource] = {}
        self._refresh()

    def observe(self, event: WatchEvent) -> None:
        """Refresh the served kinds after a change of a definition."""
        if event.key.kind == DEFINITION:
            self._refresh()

    def _refresh(self) -> None:
        definitions = [each for each in self._objects.list(DEFINITION) if is_served(each) and _serves_a_version(each)]
        served = {
            key: self._served.get(key) or _resource(each, self._objects, self._now)
            for each in definitions
            for key in [_key_of(each)]
        }
        if served.keys() != self._served.keys():
            self._resources.serve_also(served.values())
        self._served = served


def _serves_a_version(definition: Obj) -> bool:
    """Report whether any version is served; without one the kind has no path and no discovery entry."""
    return any(version["served"] for version in definition["spec"]["versions"])


def _key_of(definition: Obj) -> tuple[Any, ...]:
    """Return what identifies the resource of a definition; a change requires a new resource."""
    metadata = definition["metadata"]
    return metadata["uid"], metadata.get("generation"), is_leaving(definition)


def _resource(definition: Obj, objects: ApiObjectStore, now: Callable[[], Instant]) -> Resource:
    """Return the resource of a definition."""
    info, versions = kind_of(definition), definition["spec"]["versions"]
    strategy = CustomStrategy(info, versions, is_leaving=is_leaving(definition))
    parts = ("status",) if info.has_status else ()
    scales = [(each.get("subresources") or {}).get("scale") for each in versions]
    scale = next(filter(None, scales), None)
    resource = Resource(info, strategy, parts, shape=strategy.shape, drops_unknown=True)
    return resource if scale is None else with_scale(resource, objects, scale, now)
