"""A shadow keeps a bounded number of deleted Workloads."""

from batchyard.api.meta import key_of, with_metadata
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.shadow.state import ShadowSettings, ShadowState
from yard import workload

_MANY = 3000


def test_shadow_state_keeps_at_most_1000_deleted_workloads() -> None:
    known = ShadowState(SchedulingPolicy(), ShadowSettings())
    for number in range(_MANY):
        created = with_metadata(workload(f"w{number}"), uid=f"u{number}")
        key = key_of(created)
        events = [WatchEvent(kind, key, created, None, number) for kind in (EventType.ADDED, EventType.DELETED)]
        known.reset(events, number)
    assert known.workload_count == 1000
