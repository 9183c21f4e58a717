"""The checker of linearizability finds planted violations, and accepts histories of a correct register."""

import pytest

from fuzz.linearizability import (
    CONFLICT,
    EXISTS,
    MISSING,
    NEVER,
    OK,
    UNKNOWN,
    Operation,
    SeenEvent,
    SeenList,
    event_faults,
    history_faults,
    is_linearizable,
    next_states,
)
from fuzz.seeded_random import SeededRandom

CREATED = Operation("k", "create", 0, 1, OK, "a", revision=5)


def get(invoked_at: int, returned_at: int, value: str) -> Operation:
    return Operation("k", "get", invoked_at, returned_at, OK if value else MISSING, value)


VIOLATIONS = {
    "lost write": [CREATED, get(2, 3, "")],
    "stale read": [CREATED, Operation("k", "update", 2, 3, OK, "b", "a"), get(4, 5, "a")],
    "read goes back": [CREATED, Operation("k", "update", 2, NEVER, UNKNOWN, "b", "a"), get(4, 5, "b"), get(6, 7, "a")],
    "both creates succeed": [CREATED, Operation("k", "create", 0, 4, OK, "b")],
    "both updates succeed": [
        CREATED,
        Operation("k", "update", 2, 5, OK, "b", "a"),
        Operation("k", "update", 2, 5, OK, "c", "a"),
    ],
    "deleted object is back": [CREATED, Operation("k", "delete", 2, 3, OK), get(4, 5, "a")],
    "value of a rejected update": [CREATED, Operation("k", "update", 2, 3, CONFLICT, "b", "x"), get(4, 5, "b")],
    "conflict without a cause": [CREATED, Operation("k", "update", 2, 3, CONFLICT, "b", "a")],
    "exists without a cause": [Operation("k", "create", 0, 1, EXISTS, "b")],
    "revisions go back": [CREATED, Operation("k", "update", 2, 3, OK, "b", "a", revision=4)],
    "write of the old primary": [CREATED, Operation("k", "update", 2, 9, OK, "b", "a"), get(3, 4, "b"), get(5, 6, "a")],
}
LEGAL = {
    "unknown write is applied late": [
        CREATED,
        Operation("k", "update", 2, NEVER, UNKNOWN, "b", "a"),
        get(4, 5, "a"),
        get(6, 7, "b"),
    ],
    "unknown write is never applied": [CREATED, Operation("k", "delete", 2, NEVER, UNKNOWN), get(4, 5, "a")],
    "concurrent reads differ": [CREATED, Operation("k", "update", 2, 9, OK, "b", "a"), get(3, 8, "b"), get(3, 8, "a")],
    "delete and create again": [
        CREATED,
        Operation("k", "delete", 2, 3, OK),
        Operation("k", "create", 4, 5, OK, "b"),
        get(6, 7, "b"),
    ],
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_planted_violation_is_found(name: str) -> None:
    assert history_faults(VIOLATIONS[name])


@pytest.mark.parametrize("name", LEGAL)
def test_legal_history_is_accepted(name: str) -> None:
    assert history_faults(LEGAL[name]) == []


def sequential_history(seed: int, count: int) -> list[Operation]:
    """Operations whose effects happen in order, at even instants, and whose intervals overlap around these."""
    draw, state, operations = SeededRandom("register", seed), "", list[Operation]()
    for number in range(count):
        at, width = 10 * number, draw.below(25)
        action = draw.one_of(("create", "update", "delete", "get"))
        expected = draw.one_of((state, f"v{draw.below(count)}")) if action in {"update", "delete"} else ""
        value = f"v{number}" if action in {"create", "update"} else state if action == "get" else ""
        for outcome in (OK, EXISTS if action == "create" else MISSING, MISSING, CONFLICT):
            drawn = Operation("k", action, at - width, at + draw.below(25), outcome, value, expected)
            if states := list(next_states(state, drawn)):
                state = states[0]
                operations.append(drawn)
                break
    return operations


@pytest.mark.parametrize("seed", range(30))
def test_concurrent_history_of_a_register_is_accepted_and_a_changed_one_is_not(seed: int) -> None:
    operations = sequential_history(seed, 60)
    assert is_linearizable(operations)
    last = max(each.returned_at for each in operations)
    assert not is_linearizable([*operations, get(last + 1, last + 2, "never written")])


EVENTS = [SeenEvent(5, "k", "a"), SeenEvent(6, "k", "b"), SeenEvent(7, "k", "")]
WRITES = [CREATED, Operation("k", "update", 2, 3, OK, "b", "a", 6)]


def test_events_and_lists_that_match_the_writes_have_no_faults() -> None:
    lists = [SeenList(4, {}), SeenList(6, {"k": "b"}), SeenList(9, {})]
    assert list(event_faults(EVENTS, WRITES, lists)) == []


@pytest.mark.parametrize(
    ("events", "lists"),
    [
        (EVENTS[1:], []),
        ([*EVENTS, EVENTS[2]], []),
        ([EVENTS[1], EVENTS[0]], []),
        ([EVENTS[0], SeenEvent(6, "k", "c")], []),
        (EVENTS, [SeenList(5, {"k": "b"})]),
        (EVENTS, [SeenList(7, {"k": "b"})]),
    ],
)
def test_lost_repeated_or_changed_events_are_found(events: list[SeenEvent], lists: list[SeenList]) -> None:
    assert list(event_faults(events, WRITES, lists))
