"""The effect of pods on the drain of their node."""

from typing import Any

import pytest

import make
from batchyard.autoscaler.controller import PodDrainability, pod_drainability
from unit.autoscaler.scaling_make import pod

SAFE = "cluster-autoscaler.kubernetes.io/safe-to-evict"
DAEMON = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, PodDrainability.MOVES),
        ({"owners": []}, PodDrainability.BLOCKS),
        ({"owners": [], "annotations": {SAFE: "true"}}, PodDrainability.MOVES),
        ({"annotations": {SAFE: "false"}}, PodDrainability.BLOCKS),
        ({"namespace": "kube-system"}, PodDrainability.BLOCKS),
        ({"namespace": "kube-system", "owners": [], "annotations": {SAFE: "on-completion"}}, PodDrainability.WAITS),
        ({"namespace": "kube-system", "owners": [DAEMON]}, PodDrainability.STAYS),
        ({"annotations": {"kubernetes.io/config.mirror": "x"}}, PodDrainability.STAYS),
    ],
)
def test_drain_of_classifies_pods(fields: dict[str, Any], expected: PodDrainability) -> None:
    assert pod_drainability(pod("p", **fields), make.NOW) is expected


def test_drain_of_ignores_pod_terminating_for_too_long() -> None:
    stopping = pod("p")
    stopping["metadata"] = {**stopping["metadata"], "deletionTimestamp": make.stamp(30)}
    assert pod_drainability(stopping, make.at(90)) is PodDrainability.MOVES
    assert pod_drainability(stopping, make.at(91)) is PodDrainability.STAYS
