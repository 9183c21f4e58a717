"""How the API server says that it refuses a new object."""

from batchyard.api.meta import Obj
from batchyard.api.scheme import find_kind


def forbidden(obj: Obj, *, is_named: bool = True) -> str:
    """How all refusals of a new object begin; it may have no name yet.

    What changes objects comes before those that ask for a name are named (`is_named`), what only checks them after.
    """
    metadata = obj["metadata"]
    info = find_kind(obj["apiVersion"], obj["kind"])
    plural = info.plural if info else f"{obj['kind'].lower()}s"  # of kinds that users define only they know it
    group = obj["apiVersion"].rpartition("/")[0]
    resource = f"{plural}.{group}" if group else plural
    name, prefix = metadata.get("name"), metadata.get("generateName")
    return f'{resource} "{(name or prefix if is_named else prefix or name) or "Unknown"}" is forbidden'
