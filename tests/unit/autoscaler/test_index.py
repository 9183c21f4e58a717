"""The autoscaler's index follows pods that are nominated to a node, and Namespaces that are deleted."""

import make
from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.autoscaler.controller import Autoscaler
from batchyard.autoscaler.index import ScalingIndex
from batchyard.cloud.cluster_objects import initial_objects
from stage import Stage
from unit.autoscaler.scaling_make import cluster, pod, pool


def scanned_index() -> tuple[ScalingIndex, Stage]:
    """The index of an autoscaler that has scanned its cluster once."""
    index = ScalingIndex()
    stage = Stage(Autoscaler(index))
    stage.put(*initial_objects(cluster([pool()])))
    stage.run(10)
    return index, stage


def unschedulable(**status: str) -> Obj:
    """A pending pod that fits no node."""
    condition = make.condition("PodScheduled", False, reason="Unschedulable", message="0/0 nodes are available")
    return {**pod("p"), "status": {"phase": "Pending", "conditions": [condition], **status}}


def test_pod_is_pending_unless_it_is_nominated_to_a_node() -> None:
    index, stage = scanned_index()
    stage.put(unschedulable())
    assert (list(index.pending_pods), index.nodes.nominated_node_of("uid-p")) == (["uid-p"], "")
    stage.put(unschedulable(nominatedNodeName="n"))
    assert (list(index.pending_pods), index.nodes.nominated_node_of("uid-p")) == ([], "n")
    stage.put(unschedulable())
    assert (list(index.pending_pods), index.nodes.nominated_node_of("uid-p")) == (["uid-p"], "")


def test_deleted_namespace_is_forgotten() -> None:
    index, stage = scanned_index()
    stage.put(make.namespace("team", batch="yes"))
    assert index.nodes.namespaces["team"]["batch"] == "yes"
    stage.delete(scheme.NAMESPACE, "team", "")
    assert index.nodes.namespaces == {}
