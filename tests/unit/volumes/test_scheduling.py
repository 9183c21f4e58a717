"""Pods with claims get nodes that suit their volumes, and wait for claims that are not bound."""

from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.api.validation.core import storage_class_errors
from batchyard.api.views.pods import PodView
from batchyard.kubelet.simulated.kubelet import SimulatedKubelets
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.controller import PlacementController
from batchyard.volumes.controller import VolumeController
from batchyard.volumes.scheduling import ClaimFilter
from stage import Stage
from unit.placement.placement_make import HOST, node
from unit.volumes.test_controller import claim, pod, storage_class, volume

CLAIM, POD, VOLUME = scheme.PERSISTENT_VOLUME_CLAIM, scheme.POD, scheme.PERSISTENT_VOLUME
NO_HELP = " preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."


class SchedulingWorld(Stage):
    """Two nodes, the scheduler, and the controller of volumes."""

    def __init__(self) -> None:
        super().__init__(VolumeController(with_nodes=True, has_folders=False), self._create_placement())
        self.put(node("n-1"), node("n-2"), storage_class("later"))
        self.put(storage_class("static", provisioner="kubernetes.io/no-provisioner"))

    def _create_placement(self) -> PlacementController:
        return PlacementController(volume_filter=self._create_filter)

    def _create_filter(self, view: PodView, nodes: ClusterSnapshot) -> ClaimFilter:
        return ClaimFilter(view, nodes, self.client)

    def node_of(self, name: str = "p") -> str:
        return str(self.get(POD, name)["spec"].get("nodeName") or "")

    def message(self, name: str = "p") -> str:
        (condition,) = (c for c in self.get(POD, name)["status"]["conditions"] if c["type"] == "PodScheduled")
        return str(condition.get("message"))


def local_volume(name: str, host: str, **spec: Any) -> Obj:
    terms = [{"matchExpressions": [{"key": HOST, "operator": "In", "values": [host]}]}]
    affinity = {"required": {"nodeSelectorTerms": terms}}
    return volume(name, storageClassName="static", nodeAffinity=affinity, **spec)


def waiting(name: str = "p", **spec: Any) -> Obj:
    unbound = pod(name, node="")
    return {**unbound, "spec": {**unbound["spec"], **spec}}


def test_pod_waits_for_a_claim_that_binds_at_once() -> None:
    world = SchedulingWorld()
    world.put(waiting())
    assert world.message() == f'0/2 nodes are available: persistentvolumeclaim "data" not found.{NO_HELP}'
    world.put(claim(storageClassName=""))
    unbound = "pod has unbound immediate PersistentVolumeClaims"
    assert world.message() == f"0/2 nodes are available: {unbound}.{NO_HELP}"
    world.put(volume("v"))
    assert world.node_of() == "n-1"


def test_pod_follows_the_only_volume_of_its_claim() -> None:
    world = SchedulingWorld()
    world.put(local_volume("v", "n-2"), claim(storageClassName="static"), waiting())
    assert (world.node_of(), world.get(CLAIM, "data")["spec"]["volumeName"]) == ("n-2", "v")


def test_bound_volume_keeps_later_pods_on_its_node() -> None:
    world = SchedulingWorld()
    world.put(claim(storageClassName="later"), waiting("first", nodeSelector={HOST: "n-2"}))
    assert world.get(CLAIM, "data")["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] == "n-2"
    world.delete(POD, "first")
    world.put(waiting("second"))
    assert world.node_of("second") == "n-2"
    world.put(waiting("third", nodeSelector={HOST: "n-1"}))
    assert "1 node(s) didn't match PersistentVolume's node affinity" in world.message("third")


def test_claims_do_not_share_the_only_volume() -> None:
    world = SchedulingWorld()
    world.put(local_volume("v", "n-2"), claim(storageClassName="static"), claim("other", storageClassName="static"))
    other = waiting("q", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "other"}}])
    world.put(waiting(), other)
    assert (world.node_of(), world.node_of("q")) == ("n-2", "")
    assert "2 node(s) didn't find available persistent volumes to bind" in world.message("q")
    world.put(local_volume("late", "n-1"))
    assert world.node_of("q") == "n-1"


def test_topologies_of_a_class_limit_its_nodes() -> None:
    world = SchedulingWorld()
    terms = [{"matchLabelExpressions": [{"key": HOST, "values": ["n-2"]}]}]
    world.put(storage_class("zonal", allowedTopologies=terms), claim(storageClassName="zonal"), waiting())
    assert world.node_of() == "n-2"


def test_topology_term_without_expressions_selects_no_node() -> None:
    world = SchedulingWorld()
    world.put(storage_class("none", allowedTopologies=[{}]), claim(storageClassName="none"), waiting())
    assert world.node_of() == ""


def test_topology_terms_of_a_class_are_validated() -> None:
    expressions = [{"key": HOST, "values": ["a", "a"]}, {"key": HOST, "values": []}, {"key": "-", "values": ["a"]}]
    invalid = storage_class("zonal", allowedTopologies=[{"matchLabelExpressions": expressions}])
    path = "allowedTopologies.matchLabelExpressions"
    expected = [f"{path}[0].values[1]", f"{path}[1].values", f"{path}[1].key", f"{path}[2].key"]
    assert [error.path for error in storage_class_errors(invalid)] == expected


def test_claim_of_one_pod_has_one_pod() -> None:
    world = SchedulingWorld()
    world.put(claim(storageClassName="later", accessModes=["ReadWriteOncePod"]), waiting("first"))
    world.put(waiting("second"))
    reason = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
    assert world.message("second").startswith(f"0/2 nodes are available: 2 {reason}. preemption:")
    world.put({**world.get(POD, "first"), "status": {"phase": "Succeeded"}})
    assert world.node_of("second") == "n-1"


def test_pod_of_higher_priority_takes_over_the_claim() -> None:
    world = SchedulingWorld()
    world.put(claim(storageClassName="later", accessModes=["ReadWriteOncePod"]), waiting("first"))
    world.put(waiting("second", priority=10))
    assert "deletionTimestamp" in world.get(POD, "first")["metadata"]
    world.put({**world.get(POD, "first"), "status": {"phase": "Failed"}})
    assert world.node_of("second") == "n-1"


@pytest.mark.parametrize("lost", [True, False])
def test_unusable_claims_are_reported(lost: bool) -> None:
    world = SchedulingWorld()
    if lost:
        annotations = {"pv.kubernetes.io/bind-completed": "yes"}
        bound = claim(storageClassName="later", volumeName="gone")
        world.put({**bound, "metadata": {**bound["metadata"], "annotations": annotations}}, waiting())
        problem = 'persistentvolumeclaim "data" bound to non-existent persistentvolume "gone"'
    else:
        world.put(claim(storageClassName="later"), waiting("user"))
        world.delete(CLAIM, "data")
        world.put(waiting())
        problem = 'persistentvolumeclaim "data" is being deleted'
    assert world.message() == f"0/2 nodes are available: {problem}.{NO_HELP}"


def test_simulated_pod_starts_when_its_claim_is_bound() -> None:
    stage = Stage(SimulatedKubelets(with_nodes=False, awaits_volumes=True))
    stage.put(pod(node=""))
    assert [event.reason for event in stage.events] == ["FailedMount"]
    stage.put({**claim(), "status": {"phase": "Pending"}})
    assert (stage.get(POD, "p")["status"]["phase"], len(stage.events)) == ("Pending", 1)
    stage.put({**claim(), "status": {"phase": "Bound"}})
    assert stage.get(POD, "p")["status"]["phase"] == "Running"
