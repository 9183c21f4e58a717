"""Defaults of Kueue's own kinds. Source: Kueue's ClusterQueue and ResourceFlavor webhooks."""

from batchyard.api import well_known
from batchyard.api.meta import Obj, group_kind, with_finalizer
from batchyard.api.schema import settle
from batchyard.api.scheme import kind_info


def in_use(obj: Obj) -> Obj:
    """The object kept from vanishing while something uses it; one that is to go is let go by whoever kept it."""
    if "deletionTimestamp" in obj["metadata"]:
        return obj
    return with_finalizer(obj, well_known.RESOURCE_IN_USE)


def specified(obj: Obj) -> Obj:
    """The object with a spec, which may be left out; with the defaults of its fields, if none of them must be said."""
    if "spec" in obj:
        return obj
    info, empty = kind_info(group_kind(obj)), {**obj, "spec": {}}
    return settle(info, info.storage_version, empty).obj or empty


def cluster_queue(obj: Obj) -> Obj:
    """A ClusterQueue with a spec, kept from vanishing while something uses it."""
    return in_use(specified(obj))
