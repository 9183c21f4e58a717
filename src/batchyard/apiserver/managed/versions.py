"""What the objects of a resource look like in each of its versions, for comparing them there."""

from batchyard.api.meta import Obj
from batchyard.apiserver.managed.claims import Versions
from batchyard.apiserver.resources import Resource
from batchyard.apiserver.shapes import Shape


def versions_of(resource: Resource, namespace: str) -> Versions:
    """The objects of a resource in all its versions."""
    info, strategy = resource.info, resource.strategy

    def shape(api_version: str) -> Shape:
        return resource.shape(info.version_of(api_version) or info.storage_version)

    def convert(obj: Obj, api_version: str) -> Obj:
        found = strategy.decode(obj, namespace).obj if info.version_of(api_version) else None
        return obj if found is None else strategy.show(found, api_version)

    return Versions(shape, convert, lambda api_version: bool(info.version_of(api_version)))
