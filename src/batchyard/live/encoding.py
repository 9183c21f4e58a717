"""Objects as JSON, encoded once for all that are sent them: the answer to a write, and every watch.

An object that is shown twice is the very same value, since nobody changes one; so it is known by its identity.
"""

from typing import Any, Final

import msgspec

#: So many objects are remembered: few answers and watches are further apart than one transaction.
_REMEMBERED_MAX: Final = 512
#: Longer texts are not kept.
_LENGTH_MAX: Final = 64 * 1024
_encode: Final = msgspec.json.Encoder().encode
_known: Final[dict[int, tuple[Any, bytes]]] = {}


def shared(shown: Any) -> bytes:
    """A value as JSON; it is never changed again."""
    known = _known.get(id(shown))
    if known is not None and known[0] is shown:
        return known[1]
    text = _encode(shown)
    if len(text) <= _LENGTH_MAX:
        if len(_known) >= _REMEMBERED_MAX:
            _known.clear()
        _known[id(shown)] = shown, text  # with the value, so that no other has its identity
    return text
