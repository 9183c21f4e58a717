"""Objects as JSON, encoded once for all that are sent them: the answer to a write, and every watch.

An object that is shown twice is the very same value, since nobody changes one; so it is known by its identity.
Long lists are encoded piece by piece.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from batchyard.apiserver.content_negotiation import ShownItems

#: So many objects are remembered: few answers and watches are further apart than one transaction.
_REMEMBERED_MAX: Final = 512
#: Longer texts are not kept.
_LENGTH_MAX: Final = 64 * 1024
#: Bytes of a long answer that are encoded and written at once, and items of a list.
PIECE: Final = 256 * 1024
_ITEMS_MAX: Final = 1_000
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


def pieces(body: Mapping[str, Any]) -> Iterator[bytes]:
    """A value as JSON with a newline, in pieces; a list is converted and encoded as the pieces are taken.

    A piece is about as long as PIECE, or as the one item that is longer.
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
