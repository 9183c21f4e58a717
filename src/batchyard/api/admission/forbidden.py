"""How the API server says that it refuses a new object."""

from batchyard.api.meta import Obj
from batchyard.api.scheme import find_kind


def forbidden(obj: Obj) -> str:
    """How all refusals of a new object begin; it may have no name yet."""
    metadata = obj["metadata"]
    info = find_kind(obj["apiVersion"], obj["kind"])
    plural = info.plural if info else f"{obj['kind'].lower()}s"  # of kinds that users define only they know it
    group = obj["apiVersion"].rpartition("/")[0]
    resource = f"{plural}.{group}" if group else plural
    return f'{resource} "{metadata.get("name") or metadata.get("generateName") or "Unknown"}" is forbidden'
