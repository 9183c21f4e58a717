"""Changes that a model was not shown yet, in the order in which they came; each object's own stay in theirs."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.base.instant import Instant
from batchyard.controllers.shadow.observed import Change, Preempted


@dataclass(slots=True, eq=False)
class Item:
    """A change that the model was not shown yet."""

    change: Change
    came: Instant

    @property
    def key(self) -> Key:
        """The object that changed."""
        return self.change.event.key


class Backlog:
    """See the module. Changes go by the number of their arrival."""

    def __init__(self) -> None:
        self.items: dict[int, Item] = {}
        #: Those by which something was decided.
        self.decided: dict[int, None] = {}
        self._arrived = 0
        self._by_key: dict[Key, deque[int]] = {}

    def add(self, change: Change, now: Instant) -> None:
        """One more has come."""
        self._arrived += 1
        self.items[self._arrived] = Item(change, now)
        self._by_key.setdefault(change.event.key, deque()).append(self._arrived)
        if change.decision is not None:
            self.decided[self._arrived] = None

    @property
    def undecided(self) -> int:
        """How many decisions there are that are not compared yet."""
        return sum(item.change.decision is not None or item.change.is_unseen for item in self.items.values())

    def take(self, number: int) -> Item:
        """One is shown now."""
        item = self.items.pop(number)
        self.decided.pop(number, None)
        numbers = self._by_key[item.key]
        numbers.remove(number)
        if not numbers:
            del self._by_key[item.key]
        return item

    def front(self, workload: str) -> int | None:
        """The first change of a Workload that bears on decisions, if something was decided by it; else None."""
        number = self._front(Key(scheme.WORKLOAD, *workload.split("/", 1)))
        return number if number in self.decided else None

    def is_front(self, number: int) -> bool:
        """Whether it is the first of its object that bears on decisions."""
        return self._front(self.items[number].key) == number

    def before(self, number: int) -> list[int]:
        """Those of the same object that came before."""
        return [each for each in self._by_key[self.items[number].key] if each < number]

    def _front(self, key: Key) -> int | None:
        numbers = self._by_key.get(key, ())
        return next((number for number in numbers if not self.items[number].change.is_idle), None)

    def fronts(self) -> Iterator[int]:
        """Those by which something was decided that are the first of their objects."""
        return (number for number in list(self.decided) if self.is_front(number))

    def evictions_for(self, uid: str) -> dict[int, Preempted]:
        """Who was evicted for the Workload of that uid."""
        found: dict[int, Preempted] = {}
        for number in self.fronts():
            preempted = self.items[number].change.decision
            if isinstance(preempted, Preempted) and preempted.by == uid:
                found[number] = preempted
        return found
