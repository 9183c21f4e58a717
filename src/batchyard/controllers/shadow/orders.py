"""In which orders changes are taken: as they came, as they were stored, all changes before decisions."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from batchyard.api import scheme
from batchyard.base.instant import Duration, Instant
from batchyard.controllers.shadow.observed import changes_of
from batchyard.ports.client import WatchEvent


class Call(NamedTuple):
    """What came, and when."""

    events: Sequence[WatchEvent]
    now: Instant


class Order(NamedTuple):
    """An order other than that in which changes came."""

    #: Within which time they are taken together.
    within: Duration
    #: Whether all changes go before decisions.
    shows_first: bool
    #: Whether those of queues go before those of Workloads, whose watch is another.
    queues_first: bool
    #: Whether they are taken in the order of their revisions instead, all before the next decision together.
    by_revision: bool = False


def orders_of(settle: Duration) -> Sequence[Order]:
    """The orders that are tried: what came further apart than the time `settle` is not taken together."""
    shorter = (settle // 10, settle // 100, 0)
    return (
        Order(0, True, False, by_revision=True),
        *(Order(within, True, False) for within in (*shorter, settle)),
        *(Order(within, False, True) for within in (settle, settle // 10)),
        Order(settle, True, True),
        Order(settle // 10, False, False),
    )


def ordered(calls: Sequence[Call], order: Order) -> Iterator[Sequence[Call]]:
    """Changes in an order; those that are taken together are together."""
    if order.by_revision:
        yield from by_revision(calls)
        return
    for together in _together(calls, order.within):
        yield _queues_first(together) if order.queues_first else together


def _together(calls: Sequence[Call], within: Duration) -> Iterator[Sequence[Call]]:
    """Calls that follow each other within a time."""
    found: list[Call] = []
    for call in calls:
        if found and call.now - found[0].now > within:
            yield found
            found = []
        found.append(call)
    if found:
        yield found


def _queues_first(calls: Sequence[Call]) -> Sequence[Call]:
    in_order = sorted(_single(calls), key=lambda call: call.events[0].key.kind == scheme.WORKLOAD)
    return [*in_order, Call((), calls[-1].now)]


def by_revision(calls: Sequence[Call]) -> Iterator[Sequence[Call]]:
    """Changes in the order in which they were stored; those that follow a decision begin anew.

    No API promises that revisions of several kinds tell their order, but where one store keeps all of them, they do.
    """
    found: list[Call] = []
    now: Instant = 0
    is_decided = False
    for (event,), came in sorted(_single(calls), key=lambda call: call.events[0].revision):
        now = max(now, came)
        decides = any(change.decision is not None for change in changes_of(event))
        if is_decided and not decides:
            yield found
            found = []
        is_decided = decides
        found.append(Call([event], now))
    if found:
        yield found


def within_reach(calls: Sequence[Call], within: Duration) -> Iterator[Sequence[Call]]:
    """Changes in the order in which they were stored, those together that came within a time."""
    in_order: list[Call] = []
    for call in sorted(_single(calls), key=lambda call: call.events[0].revision):
        in_order.append(call._replace(now=max(call.now, in_order[-1].now) if in_order else call.now))
    return _together(in_order, within)


def _single(calls: Sequence[Call]) -> Sequence[Call]:
    return [Call([event], call.now) for call in calls for event in call.events]
