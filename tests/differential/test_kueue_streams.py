"""What a shadow saw beside the manager of upstream Kueue on Kubernetes' own API server, again: no parting is told.

`kueue_streams.tar.xz` holds a file for each run: on each line when a watch told of an object (milliseconds), how, and
the object, less what nobody decides by. Jobs of several priorities came in bursts to queues of one cohort tree, were
preempted, deleted and finished, while quotas, stop policies and priorities changed, on a machine that was far too busy.
Those named `fair` are of a Kueue that shares fairly: one level of cohorts, two with weights, several resource groups
with an admission check.
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
from batchyard.shadow.controller import Followers
from batchyard.shadow.findings import Divergence, DivergenceType
from batchyard.shadow.state import ShadowSettings

ARCHIVE = Path(__file__).parent / "kueue_streams.tar.xz"
#: By run, what was decided.
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
    """When each came, and whether it was there from the beginning."""
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


def followed(text: str, *, fair: bool = False) -> tuple[Followers, list[Divergence]]:
    """Followers that were shown all of it, and what they told."""
    reported: list[Divergence] = []
    follower = Followers(SchedulingPolicy(fair_sharing=fair), ShadowSettings(), reported.append, lambda _: True)
    came = list(events_of(text))
    follower.recall([event for _, is_first, event in came if is_first], came[0][0])
    for at, is_first, event in came:
        if not is_first:
            look_until(follower, at)
            follower.observe([event], at)
    look_until(follower, came[-1][0] + MINUTE)
    return follower, reported


def look_until(follower: Followers, end: Instant) -> None:
    while (look := follower.next_look()) is not None and look <= end:
        follower.observe((), look)


@pytest.mark.parametrize("name", DECIDED)
def test_all_that_kueue_decided_is_foreseen(name: str) -> None:
    follower, reported = followed(streams()[name], fair=name.startswith("fair"))
    assert reported == []
    assert follower.counts.agreed == DECIDED[name]


def test_quota_that_kueue_never_gave_is_found() -> None:
    beginning = "".join(streams()["kueue-9"].splitlines(keepends=True)[:100])
    follower, reported = followed(beginning.replace('"nominalQuota":"', '"nominalQuota":"1'))
    assert follower.counts.parted
    assert {finding.parting for finding in reported} & {
        DivergenceType.NOT_ADMITTED,
        DivergenceType.NOT_PREEMPTED,
        DivergenceType.FLAVORS,
    }
