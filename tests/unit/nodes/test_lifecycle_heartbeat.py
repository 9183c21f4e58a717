"""The heartbeats of nodes."""

import pytest

import make
from batchyard.nodes import health
from unit.nodes.node_make import lease, node


def test_new_lease_is_renewed_and_owned_by_its_node() -> None:
    new = health.new_lease(node(), make.NOW)
    assert health.has_heartbeats(new)
    assert health.is_lease_of(new, node())
    assert (new["metadata"]["namespace"], new["spec"]["holderIdentity"]) == ("kube-node-lease", "node")


@pytest.mark.parametrize(("lost", "last"), [(0, 0), (9.9, 0), (10, 10), (47, 40)])
def test_last_renew_time_is_last_heartbeat_due_before_loss(lost: float, last: float) -> None:
    stopped = health.stop_lease_heartbeats(lease(), make.at(lost))
    assert stopped["spec"]["renewTime"] == make.micro_stamp(last)
    assert health.lost_at(node(), stopped) == make.at(last + 50)


def test_resumed_lease_counts_heartbeats_from_resume_time() -> None:
    resumed = health.resume_lease_heartbeats(health.stop_lease_heartbeats(lease(), make.at(47)), make.at(63))
    assert health.has_heartbeats(resumed)
    assert health.stop_lease_heartbeats(resumed, make.at(80))["spec"]["renewTime"] == make.micro_stamp(73)


def test_node_is_not_lost_while_its_own_lease_is_renewed() -> None:
    assert health.lost_at(node(), lease()) is None
    assert health.lost_at(node(), None) is None
    assert health.lost_at(node(), lease(renewed=make.NOW, owner_uid="an earlier one")) is None


def test_node_without_status_is_lost_after_one_minute() -> None:
    assert health.lost_at(node(ready=""), lease()) == make.at(60)
