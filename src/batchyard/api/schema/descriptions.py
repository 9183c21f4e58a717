"""What kinds and fields are, in words, for those who ask: `descriptions.json`, by type and by `Type.field`.

A text of `*.field` is about any field of that name that has none of its own.
"""

import pkgutil
from functools import cache
from typing import Final

import msgspec

_ANY: Final = "*"


def description(type_name: str, field: str = "") -> str:
    """What a type is, or one of its fields; empty where nobody has said."""
    texts = _texts()
    if not field:
        return texts.get(type_name, "")
    return texts.get(f"{type_name}.{field}") or texts.get(f"{_ANY}.{field}", "")


@cache
def _texts() -> dict[str, str]:
    content = pkgutil.get_data(__package__, "descriptions.json")
    assert content is not None, "the package lacks its descriptions"
    return msgspec.json.decode(content, type=dict[str, str])
