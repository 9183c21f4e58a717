"""What pods mean for a node that is to go."""

from typing import Any

import pytest

import make
from batchyard.autoscaler.scale_down import Drain, drain_of
from unit.controllers.scaling_make import pod

SAFE = "cluster-autoscaler.kubernetes.io/safe-to-evict"
DAEMON = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Drain.MOVES),
        ({"owners": []}, Drain.BLOCKS),
        ({"owners": [], "annotations": {SAFE: "true"}}, Drain.MOVES),
        ({"annotations": {SAFE: "false"}}, Drain.BLOCKS),
        ({"namespace": "kube-system"}, Drain.BLOCKS),
        ({"namespace": "kube-system", "owners": [], "annotations": {SAFE: "on-completion"}}, Drain.WAITS),
        ({"namespace": "kube-system", "owners": [DAEMON]}, Drain.STAYS),
        ({"annotations": {"kubernetes.io/config.mirror": "x"}}, Drain.STAYS),
    ],
)
def test_a_pod_moves_stays_or_blocks(fields: dict[str, Any], expected: Drain) -> None:
    assert drain_of(pod("p", **fields), make.NOW) is expected


def test_a_pod_that_does_not_stop_counts_no_more() -> None:
    stopping = pod("p")
    stopping["metadata"] = {**stopping["metadata"], "deletionTimestamp": make.stamp(30)}
    assert drain_of(stopping, make.at(90)) is Drain.MOVES
    assert drain_of(stopping, make.at(91)) is Drain.STAYS
