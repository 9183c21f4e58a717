"""Encoding of response bodies."""

import json
from typing import Any

import pytest

from batchyard.apiserver.serialization import ConvertedItems
from batchyard.server.http.dispatcher import PIECE_SIZE, encode_in_pieces


def pieces_of(items: list[Any], **fields: Any) -> list[bytes]:
    return list(encode_in_pieces({**fields, "items": ConvertedItems(items, lambda item: item)}))


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 2000, 2500])
def test_each_piece_has_at_most_a_thousand_items(count: int) -> None:
    pieces = pieces_of([7] * count, kind="List")
    assert json.loads(b"".join(pieces)) == {"kind": "List", "items": [7] * count}
    assert [piece.count(b"7") for piece in pieces] == [*[1000] * (count // 1000), count % 1000]
    assert pieces[-1].endswith(b"\n")


def test_long_items_are_encoded_in_pieces_of_limited_size() -> None:
    items = ["x" * (PIECE_SIZE // 2)] * 5
    pieces = pieces_of(items)
    assert json.loads(b"".join(pieces)) == {"items": items}
    assert [piece.count(b"x") // len(items[0]) for piece in pieces] == [2, 2, 1]
