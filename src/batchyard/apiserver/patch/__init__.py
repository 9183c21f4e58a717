"""Patches by media type: JSON patch, JSON merge patch, strategic merge patch. Server-side apply is in `apply`."""

from collections.abc import Mapping
from typing import Any, Final

from batchyard.api.meta import Obj
from batchyard.apiserver.merge_schema import MergeSchema
from batchyard.apiserver.patch.json import json_patched
from batchyard.apiserver.patch.strategic import strategically_merged
from batchyard.apiserver.request import StatusError, bad_request

# --- merge ---
#
# JSON merge patch. Source: RFC 7396.


def merged(value: Any, patch: Any) -> Any:
    """Apply a JSON merge patch: objects are merged, null removes, other values replace."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(value) if isinstance(value, Mapping) else {}
    for field, wanted in patch.items():
        if wanted is None:
            result.pop(field, None)
        else:
            result[field] = merged(result.get(field), wanted)
    return result


JSON_PATCH: Final = "application/json-patch+json"
MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"


def patched(obj: Obj, content_type: str, patch: Any, shape: MergeSchema) -> Any:
    """Apply a patch to an object. Raises Refused if it cannot be applied."""
    if content_type == JSON_PATCH:
        return json_patched(obj, patch)
    if not isinstance(patch, Mapping):
        raise bad_request("a merge patch must be an object")
    return merged(obj, patch) if content_type == MERGE else strategically_merged(obj, patch, shape)


def media_types(*, strategic: bool) -> list[str]:
    """Return the media types of patches; strategic merge patches need the merge keys of native kinds."""
    return [JSON_PATCH, MERGE, *([STRATEGIC] if strategic else []), APPLY]


def check_media_type(content_type: str, *, strategic: bool) -> None:
    """Raise Refused if a media type is not that of a supported patch."""
    accepted = media_types(strategic=strategic)
    if content_type not in accepted:
        message = f"accepted media types include: {', '.join(accepted)}"
        raise StatusError(415, "UnsupportedMediaType", f"the body of the request was in an unknown format - {message}")
