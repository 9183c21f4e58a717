"""What an object becomes when a user applies its manifest once more, as `kubectl apply` works it out.

Only what changed since the manifest was applied before is written: what it says anew, and what it says no more. All
else stays as it is stored, so that what the platform wrote in between is kept. Where no manifest was applied before,
everything that this one says is written, and nothing removed.
"""

from collections.abc import Mapping
from typing import Any

from batchyard.api.meta import Obj


def merged(stored: Obj, last: Obj, new: Obj) -> dict[str, Any]:
    """The stored object with the changes from the last manifest to the new one.

    Mappings are merged by key; lists are replaced as a whole, also those that kubectl merges by the names of items.
    Unlike kubectl, it leaves a field alone that was changed since but is in both manifests the same: manifests are
    complete here, and most of their fields are defaults that no user wrote.
    """
    kept = {field: value for field, value in stored.items() if field in new or field not in last}
    for field, value in new.items():
        before, now = last.get(field), kept.get(field)
        if field in last and before == value:
            continue
        kept[field] = merged(_mapping(now), _mapping(before), value) if isinstance(value, Mapping) else value
    return kept


def _mapping(value: object) -> Obj:
    """The value if it has fields; else no fields."""
    return value if isinstance(value, Mapping) else {}
