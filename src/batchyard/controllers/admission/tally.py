"""How many Workloads reserve quota in a queue, how many are admitted, and how much they use."""

from dataclasses import dataclass, field

from batchyard.core.queue import Admitted


@dataclass(slots=True)
class Count:
    """One queue's figures; amounts by flavor-resource id."""

    reserving: int = 0
    admitted: int = 0
    reserved_usage: dict[int, int] = field(default_factory=dict)
    admitted_usage: dict[int, int] = field(default_factory=dict)


class Tally:
    """Figures by queue name."""

    def __init__(self) -> None:
        self._counts: dict[str, Count] = {}

    def get(self, queue: str) -> Count:
        """A queue's figures."""
        return self._counts.get(queue) or Count()

    def add(self, queue: str, held: Admitted) -> None:
        """Count a Workload."""
        count = self._counts.get(queue)
        if count is None:
            count = self._counts[queue] = Count()
        self._change(count, held, 1)

    def remove(self, queue: str, held: Admitted) -> None:
        """Count a Workload no more."""
        count = self._counts.get(queue)
        if count is not None:
            self._change(count, held, -1)

    def forget(self, queue: str) -> None:
        """Forget a queue."""
        self._counts.pop(queue, None)

    @staticmethod
    def _change(count: Count, held: Admitted, sign: int) -> None:
        count.reserving += sign
        tables = [count.reserved_usage]
        if held.is_admitted:
            count.admitted += sign
            tables.append(count.admitted_usage)
        for fr, amount in held.usage:
            for table in tables:
                table[fr] = table.get(fr, 0) + sign * amount
