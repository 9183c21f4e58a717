"""Defaults of Kueue's own kinds. Source: Kueue's ClusterQueue and ResourceFlavor webhooks."""

from typing import Final

from batchyard.api.meta import Obj, with_metadata

IN_USE: Final = "kueue.x-k8s.io/resource-in-use"


def in_use(obj: Obj) -> Obj:
    """The object kept from vanishing while something uses it."""
    finalizers = obj["metadata"].get("finalizers") or []
    return obj if IN_USE in finalizers else with_metadata(obj, finalizers=[*finalizers, IN_USE])
