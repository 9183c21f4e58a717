"""The limit derived from the messages of kube-scheduler and the autoscaler about unschedulable Pods."""

import pytest

from batchyard.explain.admitted import limit_among_nodes

SELECTED = "node(s) didn't match Pod's node affinity/selector"
TAINTED = "node(s) had untolerated taint {spot: true}"
FULL = "pod didn't trigger scale-up: 1 max node group size reached"


@pytest.mark.parametrize(
    ("scheduler", "autoscaler", "is_selected", "limit"),
    [
        (f"3 {SELECTED}, 2 node(s) didn't match pod anti-affinity rules", FULL, True, "topology"),
        ("2 Insufficient cpu, 1 node(s) didn't match pod topology spread constraints", "", True, "topology"),
        (f"2 Insufficient cpu, 3 {SELECTED}, 1 {TAINTED}", "", True, "nodeCapacity"),
        (f"6 {SELECTED}", FULL, False, "nodeCapacity"),
        (f"3 {SELECTED}, 1 {TAINTED}", "", True, "taint"),
        (f"3 {SELECTED}, 1 {TAINTED}", "", False, "affinity"),
        ("", "", False, "nodeCapacity"),
    ],
)
def test_limit_among_nodes_returns_filter_failed_by_nearest_nodes(
    scheduler: str, autoscaler: str, is_selected: bool, limit: str
) -> None:
    assert limit_among_nodes(scheduler, autoscaler, is_selected=is_selected) == limit
