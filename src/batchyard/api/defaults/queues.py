"""Defaults of Kueue's own kinds. Source: Kueue's ClusterQueue and ResourceFlavor webhooks."""

from batchyard.api import well_known
from batchyard.api.meta import Obj, group_kind, with_finalizer
from batchyard.api.schema import with_defaults as with_schema_defaults
from batchyard.api.scheme import kind_info


def in_use(obj: Obj) -> Obj:
    """The object kept from vanishing while something uses it."""
    return with_finalizer(obj, well_known.RESOURCE_IN_USE)


def specified(obj: Obj) -> Obj:
    """The object with a spec, which may be left out where nothing in it must be said."""
    return obj if "spec" in obj else with_schema_defaults(kind_info(group_kind(obj)), {**obj, "spec": {}})
