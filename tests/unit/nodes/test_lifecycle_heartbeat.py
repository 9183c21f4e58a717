"""The heartbeats of nodes."""

import pytest

import make
from batchyard.nodes import health
from unit.nodes.node_make import lease, node


def test_a_new_lease_beats_and_goes_with_its_node() -> None:
    new = health.new_lease(node(), make.NOW)
    assert health.is_beating(new)
    assert health.is_lease_of(new, node())
    assert (new["metadata"]["namespace"], new["spec"]["holderIdentity"]) == ("kube-node-lease", "node")


@pytest.mark.parametrize(("lost", "last"), [(0, 0), (9.9, 0), (10, 10), (47, 40)])
def test_the_last_beat_is_the_last_one_that_was_due(lost: float, last: float) -> None:
    stopped = health.stopped(lease(), make.at(lost))
    assert stopped["spec"]["renewTime"] == make.micro_stamp(last)
    assert health.lost_at(node(), stopped) == make.at(last + 50)


def test_a_lease_that_resumes_counts_its_beats_anew() -> None:
    resumed = health.resumed(health.stopped(lease(), make.at(47)), make.at(63))
    assert health.is_beating(resumed)
    assert health.stopped(resumed, make.at(80))["spec"]["renewTime"] == make.micro_stamp(73)


def test_a_node_is_heard_of_while_its_own_lease_beats() -> None:
    assert health.lost_at(node(), lease()) is None
    assert health.lost_at(node(), None) is None
    assert health.lost_at(node(), lease(renewed=make.NOW, owner_uid="an earlier one")) is None


def test_a_node_that_never_spoke_has_a_minute() -> None:
    assert health.lost_at(node(ready=""), lease()) == make.at(60)
