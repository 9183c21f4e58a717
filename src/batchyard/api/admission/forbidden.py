"""How the API server says that it refuses a new object."""

from batchyard.api.meta import Obj, group_kind
from batchyard.api.scheme import kind_info


def forbidden(obj: Obj) -> str:
    """How all refusals of a new object begin; it may have no name yet."""
    info, metadata = kind_info(group_kind(obj)), obj["metadata"]
    resource = f"{info.plural}.{info.group}" if info.group else info.plural
    return f'{resource} "{metadata.get("name") or metadata.get("generateName") or "Unknown"}" is forbidden'
