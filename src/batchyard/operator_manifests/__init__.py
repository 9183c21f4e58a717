"""The operator's installation manifests, as pure functions of the settings.

manifests(Settings(...))    all objects, in the order in which they are applied
parts(Settings(...))        the same, by the file of a kustomization that they are in
"""

from collections.abc import Mapping, Sequence

from batchyard.api.meta import Obj
from batchyard.operator_manifests.deployment import InstallSettings, Scraping, deployment, labelled, network, webhooks
from batchyard.operator_manifests.rights import definitions, rights

__all__ = ["InstallSettings", "Scraping", "manifests", "parts"]


def manifests(settings: InstallSettings) -> list[Obj]:
    """All objects, in the order in which they are applied."""
    return [obj for objects in parts(settings).values() for obj in objects]


def parts(settings: InstallSettings) -> Mapping[str, Sequence[Obj]]:
    """The objects by the name of their file; files without objects are left out."""
    found = {
        "namespace": [labelled({"apiVersion": "v1", "kind": "Namespace"}, settings, settings.namespace)],
        "definitions": definitions(settings),
        "rights": rights(settings),
        "network": network(settings),
        "deployment": deployment(settings),
        "webhooks": webhooks(settings),
    }
    return {name: objects for name, objects in found.items() if objects}
