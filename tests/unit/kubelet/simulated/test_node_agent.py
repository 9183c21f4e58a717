"""What kubelets say of their nodes."""

import make
from batchyard.api import scheme
from batchyard.api.meta import with_metadata
from batchyard.kubelet.simulated.pod_status import NodeAgents
from stage import Stage, stated
from unit.kubelet.simulated.kubelet_make import pass_time
from unit.nodes.node_make import instance, lease, node


def started(*objects: make.Obj) -> Stage:
    stage = Stage(NodeAgents())
    stage.put(*objects)
    return stage


def renewed(stage: Stage) -> str | None:
    found: str | None = stage.get(scheme.LEASE, "node", "kube-node-lease")["spec"].get("renewTime")
    return found


def readiness(stage: Stage) -> tuple[str, str, str]:
    return stated(stage.get(scheme.NODE, "node", ""), "Ready")


def test_a_node_that_registers_gets_its_lease_which_goes_with_it() -> None:
    stage = started(node())
    assert renewed(stage) is None
    stage.delete(scheme.NODE, "node", "")
    assert stage.client.list(scheme.LEASE) == []


def test_a_node_without_a_machine_is_ready_as_soon_as_it_is_there() -> None:
    stage = started(node(ready=""))
    assert readiness(stage) == ("True", "KubeletReady", "kubelet is posting ready status")


def test_the_cloud_says_when_the_node_of_its_machine_is_ready() -> None:
    stage = started(instance(), node(ready="False"))
    assert readiness(stage)[0] == "False"
    stage.put(instance(phase="Booting"))
    assert readiness(stage)[0] == "False"


def test_a_lost_machine_leaves_the_time_of_its_last_beat() -> None:
    stage = started(instance(), node())
    pass_time(stage, 47)
    stage.put(instance(phase="Crashed", since=47))
    assert renewed(stage) == make.micro_stamp(40)
    assert readiness(stage)[0] == "True"


def test_a_machine_that_is_lost_before_its_lease_was_there_had_no_beat_after_that() -> None:
    stage = started(instance(phase="Crashed"), node())
    assert renewed(stage) == make.micro_stamp()


def test_a_machine_that_is_back_beats_and_posts_what_was_unknown() -> None:
    stage = started(instance(phase="Crashed"), node(ready="Unknown"))
    stage.put(instance(phase="Booting"))
    assert (renewed(stage), readiness(stage)[0]) == (make.micro_stamp(), "Unknown")
    stage.put(instance())
    assert renewed(stage) is None
    assert readiness(stage) == ("True", "KubeletReady", "kubelet is posting ready status")
    assert stage.reasons() == ["NodeReady"]


def test_on_notice_the_node_is_not_ready_any_more() -> None:
    stage = started(instance(), node())
    stage.put(instance(phase="Stopping", stop_at=30))
    assert readiness(stage) == ("False", "KubeletNotReady", "node is shutting down")
    (event,) = stage.events
    assert event.message == "Node node status is now: NodeNotReady"


def test_a_node_whose_machine_is_given_back_is_not_ready_any_more() -> None:
    stage = started(with_metadata(instance(), finalizers=["cloud.batchyard.dev/instance"]), node())
    stage.delete(scheme.INSTANCE, "node", "")
    assert readiness(stage) == ("False", "KubeletNotReady", "node is shutting down")


def test_a_node_of_the_same_name_gets_a_lease_of_its_own() -> None:
    stage = started(lease(owner_uid="earlier"), with_metadata(node(), uid="later"))
    stage.delete(scheme.LEASE, "node", "kube-node-lease")
    owners = stage.get(scheme.LEASE, "node", "kube-node-lease")["metadata"]["ownerReferences"]
    assert [owner["uid"] for owner in owners] == ["later"]


def test_leases_of_others_are_not_looked_at() -> None:
    stage = started(with_metadata(lease("leader"), namespace="kube-system"))
    stage.delete(scheme.LEASE, "leader", "kube-system")
    assert stage.runner.reconciles == 0


def test_an_agent_that_has_nothing_to_say_is_quiet() -> None:
    stage = started(instance(), node())
    before = stage.get(scheme.NODE, "node", "")
    stage.put(with_metadata(before, labels={"a": "b"}))
    pass_time(stage, 3600)
    assert stage.get(scheme.NODE, "node", "")["status"] == before["status"]
    assert stage.runner.reconciles == 1
