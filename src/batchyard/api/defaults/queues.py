"""Defaults of Kueue's own kinds. Source: Kueue's ClusterQueue and ResourceFlavor webhooks."""

from batchyard.api import well_known
from batchyard.api.meta import Obj, with_metadata


def in_use(obj: Obj) -> Obj:
    """The object kept from vanishing while something uses it."""
    finalizers = obj["metadata"].get("finalizers") or []
    return (
        obj
        if well_known.RESOURCE_IN_USE in finalizers
        else with_metadata(obj, finalizers=[*finalizers, well_known.RESOURCE_IN_USE])
    )
