"""What placement writes may meet a conflict: then it is written again, whatever it was."""

import make
from batchyard.api.meta import Key, Obj, find_condition
from batchyard.client.local import LocalClient
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.controller_runtime.runner import Runner
from batchyard.interfaces.client import Create
from batchyard.placement.controller import PlacementController
from batchyard.sim.faults.faults import FaultyClient, WriteFaults
from batchyard.store.memory import Store


def pod(name: str) -> Obj:
    """A pod that waits for a node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": make.metadata(name),
        "spec": make.pod_template()["spec"],
        "status": {"phase": "Pending"},
    }


def test_a_pod_is_told_why_it_waits_though_the_first_word_of_it_met_a_conflict() -> None:
    kernel, trouble = VirtualEventLoop(make.NOW), WriteFaults()
    client = LocalClient(Store(), kernel)
    Runner(kernel, FaultyClient(client, trouble), [PlacementController()], lambda *_: None)
    trouble.conflicts = 0.5
    names = [f"p{number}" for number in range(5)]
    for name in names:
        client.submit([Create(pod(name))], lambda _: None)
    kernel.run()
    for name in names:
        found = client.get(Key("Pod", "team", name))
        assert found is not None
        reported = find_condition(found["status"], "PodScheduled")
        assert reported is not None
        assert reported["reason"] == "Unschedulable"
