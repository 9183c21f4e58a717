"""A node that was never ready is shown as booting for a while after its registration, not as broken."""

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.base.instant import MINUTE, SECOND
from batchyard.dashboard.data_source import FullAccess, NamespaceAccess, ViewInputs, WorkloadListCache
from batchyard.dashboard.models.nodes import nodes_document
from batchyard.store.memory import Store
from unit.dashboard.simulated_dashboard import dashboard
from unit.dashboard.test_workload_list import StoreReader


def registered(*conditions: Obj) -> Obj:
    status = {"allocatable": {"cpu": "8"}, "conditions": list(conditions)}
    return {"apiVersion": "v1", "kind": "Node", "metadata": make.metadata("n", None), "spec": {}, "status": status}


@pytest.mark.parametrize(
    ("node", "age", "state"),
    [
        (registered(), 60, "booting"),
        (registered(make.condition("Ready", False, since=0)), 60, "booting"),
        (registered(make.condition("Ready", False, since=30)), 60, "notReady"),
        (registered(make.condition("Ready", True, since=30)), 60, "ready"),
        (registered(make.condition("Ready", False, since=0)), 15 * MINUTE // SECOND, "notReady"),
    ],
)
def test_state_of_node_depends_on_its_first_readiness(node: Obj, age: int, state: str) -> None:
    reader = StoreReader()
    reader.store = Store()
    reader.store.put(Key(scheme.NODE, "", "n"), node)
    known = dashboard()
    now = make.NOW + age * SECOND
    inputs = ViewInputs(reader, known.index, known.history, WorkloadListCache(), now)
    (pool,) = nodes_document(inputs, NamespaceAccess(FullAccess()), {})["pools"]
    assert [each["state"] for each in pool["nodes"]] == [state]
