"""Small platforms at an instant, for tests of forecasts: one queue with a CPU quota in namespace `team`."""

from collections.abc import Mapping
from typing import Any

from batchyard.api.meta import Obj, with_metadata
from batchyard.base.instant import SECOND
from batchyard.sim.random_worlds import scenario_of
from batchyard.sim.state import State
from batchyard.sim.world import World

API = "kueue.x-k8s.io/v1beta2"


def queue(cpus: int, **spec: Any) -> list[dict[str, Any]]:
    """A ClusterQueue `cq` with its flavor and its LocalQueue `lq`."""
    flavors = [{"name": "f", "resources": [{"name": "cpu", "nominalQuota": cpus}]}]
    groups = [{"coveredResources": ["cpu"], "flavors": flavors}]
    return [
        {"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": "f"}},
        {
            "apiVersion": API,
            "kind": "ClusterQueue",
            "metadata": {"name": "cq"},
            "spec": {"namespaceSelector": {}, "resourceGroups": groups, **spec},
        },
        {
            "apiVersion": API,
            "kind": "LocalQueue",
            "metadata": {"name": "lq", "namespace": "team"},
            "spec": {"clusterQueue": "cq"},
        },
    ]


def workload(name: str, runs: float | None = None, at: float = 0, *, cpus: int = 1, **spec: Any) -> dict[str, Any]:
    """A Workload created after `at` seconds that runs for `runs` seconds, None for no runtime annotation."""
    runtime = {} if runs is None else {"batchyard.dev/runtime": f"{runs}s"}
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpus}}}
    pod_set = {"name": "main", "count": 1, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}
    return {
        "apiVersion": API,
        "kind": "Workload",
        "metadata": {
            "name": name,
            "namespace": "team",
            "annotations": {"batchyard.dev/submit-at": f"{at}s", **runtime},
        },
        "spec": {"queueName": "lq", "podSets": [pod_set], **spec},
    }


def state(objects: list[dict[str, Any]], at: float) -> State:
    """The state after this many seconds."""
    world = World(scenario_of(objects))
    world.run_until(round(at * SECOND))
    return world.state()


def without_runtimes(found: State) -> State:
    """A state in which no Workload has a runtime annotation."""
    objects: Mapping[Any, Obj] = {
        key: with_metadata(obj, annotations=None) if obj["kind"] == "Workload" else obj
        for key, obj in found.objects.items()
    }
    return State(found.at, found.revision, objects)
