"""A checker of linearizability for objects with optimistic concurrency, and of the order of revisions and events.

The search is that of Wing and Gong with memoization (Lowe), one key at a time: a history is linearizable if the history
of each key is. Each write has its own value, so that a precondition on a revision is one on a value.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

#: The return of an operation that has no known response.
NEVER: Final = 1 << 60
#: Outcomes.
OK, EXISTS, MISSING, CONFLICT, UNKNOWN = "ok", "exists", "missing", "conflict", "unknown"


class Operation(NamedTuple):
    """An operation on one key, between two instants of one clock."""

    key: str
    #: `create`, `update`, `delete` or `get`.
    action: str
    invoked_at: int
    returned_at: int
    outcome: str
    #: The value that a write stores, or a get returned; '' if it returned none.
    value: str = ""
    #: The value that an update or a delete requires; '' if it requires none.
    expected: str = ""
    #: The revision in the response; 0 if it is unknown.
    revision: int = 0


class SeenEvent(NamedTuple):
    """An event of a watch: a key with its new value, '' if it was deleted."""

    revision: int
    key: str
    value: str


class SeenList(NamedTuple):
    """The response to a list: its revision, and the values by key."""

    revision: int
    values: Mapping[str, str]


def next_states(state: str, operation: Operation) -> Iterator[str]:
    """Yield the states that an operation with its outcome can leave; '' is the state of a missing object."""
    action, outcome, expected = operation.action, operation.outcome, operation.expected
    matches = state == expected if expected else state != ""
    if outcome == EXISTS:
        is_possible, new_state = state != "", state
    elif outcome == MISSING:
        is_possible, new_state = state == "", state
    elif outcome == CONFLICT:
        is_possible, new_state = state != "" and not matches, state
    elif action == "get":
        is_possible, new_state = state == operation.value, state
    elif action == "create":
        is_possible, new_state = state == "", operation.value
    else:
        is_possible, new_state = state != "" and matches, "" if action == "delete" else operation.value
    if is_possible:
        yield new_state


def is_linearizable(operations: Sequence[Operation], state: str = "") -> bool:
    """Return whether the operations of one key have a legal order in which none precedes one that returned before."""
    required = sum(1 << index for index, each in enumerate(operations) if each.outcome != UNKNOWN)
    stack, seen = [(0, state)], {(0, state)}
    while stack:
        done, current = stack.pop()
        if done & required == required:
            return True
        open_indices = [index for index in range(len(operations)) if not done >> index & 1]
        first_return = min(operations[index].returned_at for index in open_indices)
        for index in open_indices:
            if operations[index].invoked_at > first_return:
                continue
            for new_state in next_states(current, operations[index]):
                node = done | 1 << index, new_state
                if node not in seen:
                    seen.add(node)
                    stack.append(node)
    return False


def history_faults(operations: Sequence[Operation]) -> list[str]:
    """Return the keys whose operations are not linearizable, with their operations, and revisions out of order."""
    by_key: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        by_key[operation.key].append(operation)
    faults = []
    for key, key_operations in by_key.items():
        if not is_linearizable(key_operations):
            lines = "\n  ".join(map(str, sorted(key_operations, key=lambda each: each.invoked_at)))
            faults.append(f"{key} is not linearizable:\n  {lines}")
    return faults + list(_revision_faults(operations))


def _revision_faults(operations: Sequence[Operation]) -> Iterator[str]:
    """Yield writes whose revision does not exceed that of a write that returned before."""
    writes = [each for each in operations if each.action != "get" and each.outcome == OK and each.revision]
    returned = sorted(writes, key=lambda each: each.returned_at)
    times, highest = [each.returned_at for each in returned], [0]
    for each in returned:
        highest.append(max(highest[-1], each.revision))
    for write in writes:
        before = highest[bisect_right(times, write.invoked_at)]
        if write.returned_at != NEVER and before >= write.revision:
            yield f"{write} has no later revision than {before}, which was returned before"
    if len({each.revision for each in writes}) != len(writes):
        yield "two writes have the same revision"


def event_faults(
    events: Sequence[SeenEvent], operations: Sequence[Operation], lists: Sequence[SeenList]
) -> Iterator[str]:
    """Yield differences between the events of a watch, the acknowledged writes, and the lists."""
    revisions = [event.revision for event in events]
    if revisions != sorted(set(revisions)):
        yield f"the watch repeated or reordered events: {revisions}"
    by_revision = {event.revision: event for event in events}
    for each in operations:
        if each.outcome == OK and each.revision and each.action != "get":
            event, value = by_revision.get(each.revision), "" if each.action == "delete" else each.value
            if event is None or (event.key, event.value) != (each.key, value):
                yield f"the watch reported {event} for {each}"
    written = {each.value for each in operations if each.action in {"create", "update"}}
    for event in events:
        if event.value and event.value not in written:
            yield f"the watch reported {event}, which no client wrote"
    for seen_list in lists:
        values: dict[str, str] = {}
        for event in events[: bisect_right(revisions, seen_list.revision)]:
            values[event.key] = event.value
        expected = {key: value for key, value in values.items() if value}
        if dict(seen_list.values) != expected:
            yield f"{seen_list} differs from the events up to its revision: {expected}"
