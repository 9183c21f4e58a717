"""How long records are kept: hours for a week, then their days for three months, then their months for ever."""

from collections.abc import Iterator, Sequence
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of
from batchyard.api.times import format_time, parse_time
from batchyard.base.instant import HOUR, Duration, Instant
from batchyard.core.costs.records import combined, is_open, read, record
from batchyard.ports.client import Create, Delete, Reader, Write

DAY: Final = 24 * HOUR
HOURS_KEPT: Final = 7 * DAY
DAYS_KEPT: Final = 92 * DAY
#: So many records are put together at once.
_AT_ONCE: Final = 20
#: What records of each length become, when, and how the longer ones are called.
_STEPS: Final[Sequence[tuple[str, Duration, str, int]]] = (
    ("hour-", HOURS_KEPT, "day", len("2026-11-22")),
    ("day-", DAYS_KEPT, "month", len("2026-11")),
)


def shortened(reader: Reader, now: Instant) -> list[Write]:
    """What is written so that nothing is kept for longer than it should be."""
    records = [obj for obj in reader.list(scheme.COST_RECORD) if not is_open(obj)]
    writes: list[Write] = []
    for prefix, kept, longer, length in _STEPS:
        groups: dict[tuple[str, str], list[Obj]] = {}
        for obj in records:
            metadata = obj["metadata"]
            if metadata["name"].startswith(prefix) and obj["spec"].get("closed"):
                groups.setdefault((metadata["namespace"], obj["spec"]["from"][:length]), []).append(obj)
        due = [(group, some) for group, some in groups.items() if _end(group[1]) + kept <= now]
        for (namespace, text), some in due[:_AT_ONCE]:
            writes += _put_together(reader, Key(scheme.COST_RECORD, namespace, f"{longer}-{text}"), text, some)
    return writes


def _put_together(reader: Reader, key: Key, text: str, some: Sequence[Obj]) -> Iterator[Write]:
    """First the longer record, and when it is there the shorter ones go."""
    found = reader.get(key)
    if found is not None:
        yield from (Delete(key_of(obj)) for obj in some)
        return
    span = _begin(text), _end(text)
    yield Create(record(key.namespace, key.name, span, span[1], combined([read(obj) for obj in some])))


def _begin(text: str) -> Instant:
    """When a day such as 2026-11-22, or a month such as 2026-11, begins."""
    return parse_time(f"{text}-01T00:00:00Z" if text.count("-") == 1 else f"{text}T00:00:00Z")


def _end(text: str) -> Instant:
    """When it ends."""
    begin = _begin(text)
    if text.count("-") > 1:
        return begin + DAY
    return _begin(format_time(begin + 31 * DAY)[: len("2026-11")])
