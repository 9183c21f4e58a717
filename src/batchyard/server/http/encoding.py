"""JSON encoding of objects, cached: the response to a write and all watches share one encoding.

Objects are immutable, and an object that is shown twice is the same value. The cache is therefore keyed by identity.
Long lists are encoded in pieces.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from batchyard.apiserver.content_negotiation import ShownItems

#: Maximum cached objects: the response and the watches of an object are rarely further apart than one transaction.
_REMEMBERED_MAX: Final = 512
#: Maximum length of a cached text.
_LENGTH_MAX: Final = 64 * 1024
#: The size in bytes of a piece of a long response, and the maximum number of list items in a piece.
PIECE: Final = 256 * 1024
_ITEMS_MAX: Final = 1_000
_encode: Final = msgspec.json.Encoder().encode
_known: Final[dict[int, tuple[Any, bytes]]] = {}


def shared(shown: Any) -> bytes:
    """Encode a value that is never changed again, and cache the result."""
    known = _known.get(id(shown))
    if known is not None and known[0] is shown:
        return known[1]
    text = _encode(shown)
    if len(text) <= _LENGTH_MAX:
        if len(_known) >= _REMEMBERED_MAX:
            _known.clear()
        _known[id(shown)] = shown, text  # keeps the value alive, so that its id is not reused
    return text


def pieces(body: Mapping[str, Any]) -> Iterator[bytes]:
    """Encode a value as JSON with a final newline, in pieces. List items are converted and encoded lazily.

    A piece has about PIECE bytes, or more if a single item is larger.
    """
    name, items = next(((name, value) for name, value in body.items() if isinstance(value, ShownItems)), ("", ()))
    about = _encode({field: value for field, value in body.items() if field != name})
    if not name:
        yield about + b"\n"
        return
    begun = b"" if about == b"{}" else b","
    parts = [about[:-1] + begun + b'"%b":[' % name.encode()]
    length, is_first = len(parts[0]), True
    for item in items:
        text = _encode(item)
        parts.append(text if is_first else b"," + text)
        is_first, length = False, length + len(text)
        if length >= PIECE or len(parts) > _ITEMS_MAX:
            yield b"".join(parts)
            parts, length = [], 0
    yield b"".join([*parts, b"]}\n"])
