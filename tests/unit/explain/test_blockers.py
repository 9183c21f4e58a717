"""Workloads on the nodes that unplaced pods select."""

from batchyard.api import well_known
from batchyard.api.meta import key_of, with_metadata
from batchyard.client.local import LocalClient
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.explain.blockers import occupants_of
from batchyard.store.memory import Store
from unit.nodes.node_make import node, pod
from yard import SchedulerBench, workload


def test_occupant_is_workload_in_annotation_of_pod() -> None:
    store = Store()
    for obj in (node(), with_metadata(pod("placed"), annotations={well_known.WORKLOAD: "job-a"})):
        store.put(key_of(obj), obj)
    client = LocalClient(store, VirtualEventLoop(0))
    (occupant,) = occupants_of(workload(), [pod("asked", node="")], SchedulerBench().snapshot, client)
    assert occupant.key == "team/job-a"
