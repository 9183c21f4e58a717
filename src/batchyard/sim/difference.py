"""The difference between two runs with the same start: as a summary, as rows, and as a document for programs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.times import format_time
from batchyard.base.instant import Instant, seconds
from batchyard.sim.result import Result
from batchyard.sim.whatif import Comparison, WorkloadTimeline

API_VERSION: Final = "batchyard.dev/v1alpha1"
#: Decimal places of seconds in documents: microseconds, as instants.
_DIGITS: Final = 6


@dataclass(frozen=True, slots=True)
class WorkloadDifference:
    """A Workload that differs between the runs; None for a run in which it does not exist."""

    name: str
    queue: str
    without: WorkloadTimeline | None
    changed: WorkloadTimeline | None

    @property
    def sooner(self) -> float | None:
        """Return how many seconds earlier it starts with the change; None unless it starts in both runs."""
        before = None if self.without is None else self.without.starts
        after = None if self.changed is None else self.changed.starts
        return None if before is None or after is None else before - after

    @property
    def effect(self) -> str:
        """Return the effect of the change on it, in a word or two."""
        old, new = self.without, self.changed
        if old is None:
            return "new"
        if new is None or (old.is_there and not new.is_there):
            return "gone"
        if old.starts is None and new.starts is not None:
            return "starts"
        if old.starts is not None and new.starts is None:
            return "does not start"
        if new.preemptions != old.preemptions:
            return "preempted" if new.preemptions > old.preemptions else "not preempted"
        if self.sooner:
            return "sooner" if self.sooner > 0 else "later"
        return "other end"


@dataclass(frozen=True, slots=True)
class QueueDifference:
    """The mean wait of the Workloads of a LocalQueue from the start on, in seconds, and how many are pending."""

    name: str
    waited_without: float
    waited_changed: float
    pending_without: int
    pending_changed: int


@dataclass(frozen=True, slots=True)
class Difference:
    """The differences between two runs: Workloads, queues and costs. `began` and `seconds` give the time span."""

    began: Instant
    seconds: float
    workloads: Sequence[WorkloadDifference]
    queues: Sequence[QueueDifference]
    comparison: Comparison

    @property
    def summary(self) -> str:
        """Return the difference in one line."""
        effects: dict[str, int] = {}
        for row in self.workloads:
            effects[row.effect] = effects.get(row.effect, 0) + 1
        preemptions = _preempted(self.workloads)
        parts = [f"{effects[effect]} {words}" for effect, words in _WORDS if effect in effects]
        parts += [f"{abs(preemptions)} {'more' if preemptions > 0 else 'fewer'} preemptions"] if preemptions else []
        cents = [_cents(course.result) for course in (self.comparison.changed, self.comparison.without)]
        if cents[0] != cents[1]:
            parts.append(f"{_dollars(cents[0] - cents[1])} for machines")
        return ", ".join(parts) or "nothing changes for any Workload"


_WORDS: Final = (
    ("new", "new"),
    ("gone", "gone"),
    ("starts", "start that would not"),
    ("does not start", "do not start that would"),
    ("preempted", "preempted that would not be"),
    ("not preempted", "not preempted that would be"),
    ("sooner", "start sooner"),
    ("later", "start later"),
    ("other end", "end at another time"),
)


def difference_of(comparison: Comparison, began: Instant) -> Difference:
    """Compute the difference; `began` is the instant at which both runs began."""
    old, new = comparison.without, comparison.changed
    rows = []
    for name in sorted({**old.stories, **new.stories}):
        stories = old.stories.get(name), new.stories.get(name)
        if stories[0] != stories[1]:
            queue = next((story.queue for story in stories if story is not None and story.queue), "")
            rows.append(WorkloadDifference(name, queue, *stories))
    lasts = max(seconds(course.result.now - began) for course in (old, new))
    return Difference(began, lasts, rows, _queue_rows(comparison, lasts), comparison)


def document_of(difference: Difference) -> dict[str, Any]:
    """Return the difference as a document for programs."""
    old, new = difference.comparison.without.result, difference.comparison.changed.result
    return {
        "apiVersion": API_VERSION,
        "kind": "Comparison",
        "time": format_time(difference.began),
        "seconds": round(difference.seconds, _DIGITS),
        "summary": difference.summary,
        "workloads": [_workload(row) for row in difference.workloads],
        "queues": [_queue(row) for row in difference.queues],
        "nodes": {"without": _nodes(old), "changed": _nodes(new)},
        "costs": {"currency": "USD", "without": _amount(_cents(old)), "changed": _amount(_cents(new))},
        "refused": list(map(str, difference.comparison.refused)),
    }


def machine_hours(result: Result) -> float:
    """Return the billed machine hours."""
    return 0.0 if result.costs is None else sum(line.machine_hours for line in result.costs.by_pool)


def _cents(result: Result) -> int:
    return 0 if result.costs is None else result.costs.cents


def _amount(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02}"


def _dollars(cents: int) -> str:
    return f"{'+' if cents > 0 else '-'}${_amount(abs(cents))}"


def _preempted(rows: Sequence[WorkloadDifference]) -> int:
    """Return how many more preemptions occur with the change."""
    return sum(_preemptions(row.changed) - _preemptions(row.without) for row in rows)


def _preemptions(story: WorkloadTimeline | None) -> int:
    return 0 if story is None else story.preemptions


def _queue_rows(comparison: Comparison, lasts: float) -> list[QueueDifference]:
    """Return the queues whose waits differ between the runs."""
    old, new = (dict(_waits(course.stories, lasts)) for course in (comparison.without, comparison.changed))
    no_waits = (0.0, 0)
    rows = []
    for name in sorted({**old, **new}):
        before, after = old.get(name, no_waits), new.get(name, no_waits)
        if before != after:
            rows.append(QueueDifference(name, before[0], after[0], before[1], after[1]))
    return rows


def _waits(stories: Mapping[str, WorkloadTimeline], lasts: float) -> Iterator[tuple[str, tuple[float, int]]]:
    """Yield the mean wait and the number of pending Workloads by queue."""
    by_queue: dict[str, list[WorkloadTimeline]] = {}
    for story in stories.values():
        if story.queue and story.is_there:
            by_queue.setdefault(story.queue, []).append(story)
    for queue, found in by_queue.items():
        waited = [(lasts if each.starts is None else each.starts) - each.since for each in found]
        late = [each for each in waited if each > 0]
        yield queue, (sum(late) / len(found), sum(each.starts is None for each in found))


def _workload(row: WorkloadDifference) -> dict[str, Any]:
    document: dict[str, Any] = {"name": row.name, "queue": row.queue, "effect": row.effect}
    for side, story in (("without", row.without), ("changed", row.changed)):
        if story is not None:
            document[side] = _story(story)
    return document if row.sooner is None else {**document, "startsSooner": round(row.sooner, _DIGITS)}


def _story(story: WorkloadTimeline) -> dict[str, Any]:
    times = {"startsAfter": story.starts, "endsAfter": story.ends}
    document: dict[str, Any] = {name: round(time, _DIGITS) for name, time in times.items() if time is not None}
    by = {"preemptedBy": story.by} if story.by else {}
    return {**document, "preemptions": story.preemptions, **by}


def _queue(row: QueueDifference) -> dict[str, Any]:
    return {
        "queue": row.name,
        "without": {"waitSeconds": round(row.waited_without, _DIGITS), "pending": row.pending_without},
        "changed": {"waitSeconds": round(row.waited_changed, _DIGITS), "pending": row.pending_changed},
    }


def _nodes(result: Result) -> dict[str, Any]:
    return {"atEnd": len(result.objects[scheme.NODE]), "machineHours": round(machine_hours(result), _DIGITS)}
