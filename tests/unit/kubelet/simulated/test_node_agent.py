"""The node status and Leases that kubelets write."""

import make
from batchyard.api import scheme
from batchyard.api.meta import with_metadata
from batchyard.kubelet.simulated.pod_status import NodeAgents
from stage import Stage, condition_state
from unit.kubelet.simulated.kubelet_make import pass_time
from unit.nodes.node_make import instance, lease, node


def agent_stage(*objects: make.Obj) -> Stage:
    stage = Stage(NodeAgents())
    stage.put(*objects)
    return stage


def renew_time(stage: Stage) -> str | None:
    result: str | None = stage.get(scheme.LEASE, "node", "kube-node-lease")["spec"].get("renewTime")
    return result


def readiness(stage: Stage) -> tuple[str, str, str]:
    return condition_state(stage.get(scheme.NODE, "node", ""), "Ready")


def test_node_gets_lease_that_is_deleted_with_it() -> None:
    stage = agent_stage(node())
    assert renew_time(stage) is None
    stage.delete(scheme.NODE, "node", "")
    assert stage.client.list(scheme.LEASE) == []


def test_node_without_machine_is_ready_at_once() -> None:
    stage = agent_stage(node(ready=""))
    assert readiness(stage) == ("True", "KubeletReady", "kubelet is posting ready status")


def test_node_with_booting_machine_is_not_made_ready() -> None:
    stage = agent_stage(instance(), node(ready="False"))
    assert readiness(stage)[0] == "False"
    stage.put(instance(phase="Booting"))
    assert readiness(stage)[0] == "False"


def test_crashed_machine_stores_last_renew_time() -> None:
    stage = agent_stage(instance(), node())
    pass_time(stage, 47)
    stage.put(instance(phase="Crashed", since=47))
    assert renew_time(stage) == make.micro_stamp(40)
    assert readiness(stage)[0] == "True"


def test_lease_of_crashed_machine_is_created_with_renew_time() -> None:
    stage = agent_stage(instance(phase="Crashed"), node())
    assert renew_time(stage) == make.micro_stamp()


def test_recovered_machine_resumes_heartbeats_and_conditions() -> None:
    stage = agent_stage(instance(phase="Crashed"), node(ready="Unknown"))
    stage.put(instance(phase="Booting"))
    assert (renew_time(stage), readiness(stage)[0]) == (make.micro_stamp(), "Unknown")
    stage.put(instance())
    assert renew_time(stage) is None
    assert readiness(stage) == ("True", "KubeletReady", "kubelet is posting ready status")
    assert stage.reasons() == ["NodeReady"]


def test_node_is_not_ready_after_stop_notice() -> None:
    stage = agent_stage(instance(), node())
    stage.put(instance(phase="Stopping", stop_at=30))
    assert readiness(stage) == ("False", "KubeletNotReady", "node is shutting down")
    (event,) = stage.events
    assert event.message == "Node node status is now: NodeNotReady"


def test_node_of_deleted_machine_is_not_ready() -> None:
    stage = agent_stage(with_metadata(instance(), finalizers=["cloud.batchyard.dev/instance"]), node())
    stage.delete(scheme.INSTANCE, "node", "")
    assert readiness(stage) == ("False", "KubeletNotReady", "node is shutting down")


def test_recreated_node_gets_its_own_lease() -> None:
    stage = agent_stage(lease(owner_uid="earlier"), with_metadata(node(), uid="later"))
    stage.delete(scheme.LEASE, "node", "kube-node-lease")
    owners = stage.get(scheme.LEASE, "node", "kube-node-lease")["metadata"]["ownerReferences"]
    assert [owner["uid"] for owner in owners] == ["later"]


def test_leases_of_other_namespaces_are_ignored() -> None:
    stage = agent_stage(with_metadata(lease("leader"), namespace="kube-system"))
    stage.delete(scheme.LEASE, "leader", "kube-system")
    assert stage.runner.reconciles == 0


def test_unchanged_node_causes_no_reconciles() -> None:
    stage = agent_stage(instance(), node())
    before = stage.get(scheme.NODE, "node", "")
    stage.put(with_metadata(before, labels={"a": "b"}))
    pass_time(stage, 3600)
    assert stage.get(scheme.NODE, "node", "")["status"] == before["status"]
    assert stage.runner.reconciles == 1
