"""JSON merge patches. Source: RFC 7396."""

from collections.abc import Mapping
from typing import Any


def merged(value: Any, patch: Any) -> Any:
    """A value after a JSON merge patch: objects are merged, null removes, all else replaces."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(value) if isinstance(value, Mapping) else {}
    for field, wanted in patch.items():
        if wanted is None:
            result.pop(field, None)
        else:
            result[field] = merged(result.get(field), wanted)
    return result
