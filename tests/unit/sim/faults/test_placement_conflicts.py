"""Placement retries every write that fails with a conflict."""

import make
from batchyard.api.meta import Key, Obj, find_condition
from batchyard.client.local import LocalClient
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.controller_runtime.runner import Runner
from batchyard.interfaces.client import Create
from batchyard.placement.controller import PlacementController
from batchyard.sim.faults import FaultyClient, WriteFaults
from batchyard.store.memory import Store


def pod(name: str) -> Obj:
    """A pending pod without a node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": make.metadata(name),
        "spec": make.pod_template()["spec"],
        "status": {"phase": "Pending"},
    }


def test_unschedulable_condition_is_retried_after_write_conflict() -> None:
    kernel, trouble = VirtualEventLoop(make.NOW), WriteFaults()
    client = LocalClient(Store(), kernel)
    Runner(kernel, FaultyClient(client, trouble), [PlacementController()], lambda *_: None)
    trouble.conflict_rate = 0.5
    names = [f"p{number}" for number in range(5)]
    for name in names:
        client.submit([Create(pod(name))], lambda _: None)
    kernel.run()
    for name in names:
        result = client.get(Key("Pod", "team", name))
        assert result is not None
        reported = find_condition(result["status"], "PodScheduled")
        assert reported is not None
        assert reported["reason"] == "Unschedulable"
