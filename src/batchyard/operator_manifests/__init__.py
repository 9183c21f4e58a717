"""The operator's installation manifests, as pure functions of the settings.

manifests(InstallSettings(...))            all objects, in the order in which they are applied
manifests_by_file(InstallSettings(...))    the same objects, by kustomization file
"""

from collections.abc import Mapping, Sequence

from batchyard.api.meta import Obj
from batchyard.operator_manifests.deployment import (
    InstallSettings,
    Scraping,
    deployment_objects,
    network_objects,
    webhooks,
    with_labels,
)
from batchyard.operator_manifests.rights import crd_objects, rbac_objects

__all__ = ["InstallSettings", "Scraping", "manifests", "manifests_by_file"]


def manifests(settings: InstallSettings) -> list[Obj]:
    """Return all objects that install the operator, in the order in which they are applied."""
    return [obj for objects in manifests_by_file(settings).values() for obj in objects]


def manifests_by_file(settings: InstallSettings) -> Mapping[str, Sequence[Obj]]:
    """Return the objects that install the operator, by the name of their file without `.yaml`, such as `webhooks`.

    Files without objects are omitted.
    """
    objects_by_file = {
        "namespace": [with_labels({"apiVersion": "v1", "kind": "Namespace"}, settings, settings.namespace)],
        "definitions": crd_objects(settings),
        "rights": rbac_objects(settings),
        "network": network_objects(settings),
        "deployment": deployment_objects(settings),
        "webhooks": webhooks(settings),
    }
    return {name: objects for name, objects in objects_by_file.items() if objects}
