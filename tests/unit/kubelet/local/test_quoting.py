"""Go-style quoting of texts."""

import pytest

from batchyard.kubelet.local.errors import quote_like_go


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ('a"b\\c', '"a\\"b\\\\c"'),
        ("\a\b\f\n\r\t\v", '"\\a\\b\\f\\n\\r\\t\\v"'),
        ("\0\x7f", '"\\x00\\x7f"'),
        ("é 世", '"é 世"'),
        ("\x80\u2028", '"\\u0080\\u2028"'),
        ("\U000e0001", '"\\U000e0001"'),
    ],
)
def test_unprintable_characters_are_escaped(text: str, reported: str) -> None:
    assert quote_like_go(text) == reported
