"""Replay of streams that a shadow recorded beside upstream Kueue on a Kubernetes API server: no divergence.

`kueue_streams.tar.xz` contains a file for each run: each line has the time of a watch event (milliseconds), its type,
and the object without fields that are irrelevant to scheduling. Jobs of several priorities arrived in bursts at queues
of one cohort tree, were preempted, deleted and finished, while quotas, stop policies and priorities changed, on an
overloaded machine.
The runs named `fair` use fair sharing: one level of cohorts, two with weights, several resource groups with an
admission check.
"""

import json
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from batchyard.api.meta import Key, Obj, key_of
from batchyard.base.instant import MILLISECOND, MINUTE, Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.shadow.controller import TreeFollowers
from batchyard.shadow.findings import Divergence, DivergenceType
from batchyard.shadow.state import ShadowSettings

ARCHIVE = Path(__file__).parent / "kueue_streams.tar.xz"
#: The decisions of each run.
DECIDED = {
    "fair-32": {"admission": 36, "preemption": 6, "eviction": 2},
    "fair-101": {"admission": 29, "preemption": 10, "eviction": 1},
    "fair-105": {"admission": 61, "preemption": 27, "eviction": 2},
    "kueue-3": {"admission": 48, "preemption": 6, "eviction": 1},
    "kueue-6": {"admission": 41, "preemption": 7},
    "kueue-8": {"admission": 29, "preemption": 9, "eviction": 1},
    "kueue-9": {"admission": 22, "preemption": 2, "eviction": 5},
}


@cache
def streams() -> dict[str, str]:
    with tarfile.open(ARCHIVE) as archive:
        files = {member.name: archive.extractfile(member) for member in archive.getmembers()}
        return {name.removesuffix(".jsonl"): file.read().decode() for name, file in files.items() if file is not None}


def events_of(text: str) -> Iterator[tuple[Instant, bool, WatchEvent]]:
    """Yield the time of each event, whether it is initial, and the event."""
    known: dict[Key, Obj] = {}
    for line in text.splitlines():
        at, how, obj = json.loads(line)
        key, revision = key_of(obj), int(obj["metadata"]["resourceVersion"])
        old = known.get(key)
        kind = EventType.DELETED if how == "DELETED" else EventType.ADDED if old is None else EventType.MODIFIED
        if kind is EventType.DELETED:
            known.pop(key, None)
        else:
            known[key] = obj
        yield at * MILLISECOND, how == "LISTED", WatchEvent(kind, key, obj, old, revision)


def follow(text: str, *, fair: bool = False) -> tuple[TreeFollowers, list[Divergence]]:
    """Return followers that observed the whole stream, and their reports."""
    reported: list[Divergence] = []
    follower = TreeFollowers(SchedulingPolicy(fair_sharing=fair), ShadowSettings(), reported.append, lambda _: True)
    came = list(events_of(text))
    follower.reset([event for _, is_first, event in came if is_first], came[0][0])
    for at, is_first, event in came:
        if not is_first:
            observe_until(follower, at)
            follower.observe([event], at)
    observe_until(follower, came[-1][0] + MINUTE)
    return follower, reported


def observe_until(follower: TreeFollowers, end: Instant) -> None:
    while (look := follower.next_check_at()) is not None and look <= end:
        follower.observe((), look)


@pytest.mark.parametrize("name", DECIDED)
def test_shadow_predicts_all_kueue_decisions(name: str) -> None:
    follower, reported = follow(streams()[name], fair=name.startswith("fair"))
    assert reported == []
    assert follower.counts.agreements == DECIDED[name]


def test_shadow_detects_different_quota() -> None:
    beginning = "".join(streams()["kueue-9"].splitlines(keepends=True)[:100])
    follower, reported = follow(beginning.replace('"nominalQuota":"', '"nominalQuota":"1'))
    assert follower.counts.divergences
    assert {finding.divergence_type for finding in reported} & {
        DivergenceType.NOT_ADMITTED,
        DivergenceType.NOT_PREEMPTED,
        DivergenceType.FLAVORS,
    }
