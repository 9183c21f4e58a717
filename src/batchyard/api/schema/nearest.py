"""The name somebody meant: the known one that differs least from what was written."""

from collections.abc import Iterable
from typing import Final

LOOSE_SHARE: Final = 0.5
STRICT_SHARE: Final = 0.2


def nearest(written: str, known: Iterable[str], share: float = 0.34) -> str | None:
    """The known name with the fewest edits, if these are no more than a share of the longer name (or one); else None.

    Case, `-` and `_` count for nothing; of equally near names, the first counts. With a share of a half or more, a
    name that the other one starts with (`queue`, `queueingStrategy`) is just near enough.
    """
    plain, best, fewest = _plain(written), None, 1 << 30
    if not plain or len(plain) > 100:
        return None
    for name in known:
        other = _plain(name)
        longer = max(len(plain), len(other))
        edits = edit_distance(plain, other)
        if share >= LOOSE_SHARE and min(len(plain), len(other)) >= 4 and _starts_alike(plain, other):
            edits = min(edits, int(longer * share))
        if edits < fewest and (edits <= longer * share or (edits == 1 and longer >= 3)):
            best, fewest = name, edits
    return best


def edit_distance(one: str, other: str) -> int:
    """How many characters to insert, delete, replace or swap with their neighbour to get from one to the other."""
    before_last: list[int] = []
    last = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        row = [i]
        for j, b in enumerate(other, 1):
            edits = min(last[j] + 1, row[-1] + 1, last[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                edits = min(edits, before_last[j - 2] + 1)
            row.append(edits)
        before_last, last = last, row
    return last[-1]


def _starts_alike(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
