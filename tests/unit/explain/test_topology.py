"""How topology domains limit a pending Workload, which changes would help, and where admitted pods are."""

from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Key
from batchyard.apiserver.json_patch import apply_json_patch
from batchyard.apiserver.patch import apply_merge_patch
from batchyard.base.instant import SECOND
from batchyard.interfaces.client import Delete
from batchyard.sim.scenario import make_scenario
from batchyard.sim.world import World
from racks import rack_nodes, rack_queues, rack_workload

FOUR_RACKS = rack_nodes(*(f"b{block}r{rack}h{host}" for block in (1, 2) for rack in (1, 2) for host in (1, 2)))
FULL_RACKS = FOUR_RACKS + "".join(
    rack_workload(f"run-{number}", count, at=number + 1) for number, count in enumerate((5, 5, 6, 6))
)


def explain(manifests: str, name: str = "asked", may_read: Any = None, gone: str = "") -> dict[str, Any]:
    """The answer about a Workload, 20 seconds after the start, perhaps without a node that is gone by then."""
    read = read_manifests([("objects.yaml", manifests)])
    assert [*map(str, read.faults)] == []
    world = World(make_scenario(read))
    world.run_until(20 * SECOND)
    if gone:
        world.client.submit([Delete(Key(scheme.NODE, "", gone))], lambda _: None)
        world.run_until(21 * SECOND)
    key = Key(scheme.WORKLOAD, "team", name)
    now = world.kernel.now()
    document = (
        world.platform.explainer.why(key, now) if may_read is None else world.platform.explainer.why(key, now, may_read)
    )
    assert document is not None
    return document


def texts(document: dict[str, Any]) -> list[str]:
    return [change["text"] for change in document["changes"]]


def test_binding_level_and_domain_are_named() -> None:
    document = explain(rack_queues() + FULL_RACKS + rack_workload("asked", 5, at=9))
    assert document["binding"]["limit"] == "topology"
    assert document["binding"]["where"] == {"kind": "Topology", "name": "racks"}
    assert document["binding"]["message"] == (
        "5 pods need one domain of level rack in Topology racks, and b1/r1 has room for 3"
    )


def test_free_pods_are_counted_at_each_level() -> None:
    (part,) = explain(rack_queues() + FULL_RACKS + rack_workload("asked", 5, at=9))["topology"]
    numbers = ("domains", "fitting", "fittingIdle", "free", "idle", "total")
    assert [[level[name] for name in numbers] for level in part["levels"]] == [
        [2, 1, 2, 6, 16, 10],
        [4, 0, 4, 3, 8, 10],
        [8, 0, 0, 3, 4, 10],
    ]
    assert [level.get("binds") for level in part["levels"]] == [None, True, None]


def test_domains_whose_nodes_are_gone_are_neither_counted_nor_named() -> None:
    nodes = rack_nodes("b1r1h1") + rack_nodes("b1r2h1", cpu=0)
    document = explain(rack_queues() + nodes + rack_workload("asked", 5, at=9), gone="b1r1h1")
    (part,) = document["topology"]
    assert part["domain"] == "b1/r2"
    assert [(level["domains"], level["largest"]) for level in part["levels"]] == [
        (1, "b1"),
        (1, "b1/r2"),
        (1, "b1/r2/b1r2h1"),
    ]


def test_occupants_of_the_best_domain_are_listed() -> None:
    (part,) = explain(rack_queues() + FULL_RACKS + rack_workload("asked", 5, at=9))["topology"]
    assert part["domain"] == "b1/r1"
    assert [(each["workload"], each["pods"], each["frees"]) for each in part["occupants"]] == [("team/run-0", 5, 5)]


def test_smallest_changes_are_verified_by_the_assigner() -> None:
    document = explain(rack_queues() + FULL_RACKS + rack_workload("asked", 5, at=9))
    assert texts(document) == [
        "require level block instead of rack",
        "prefer level rack instead of requiring it",
        "add 1 node like b1r1h1 to rack b1/r1",
        "request 3 pods instead of 5",
        "end or suspend team/run-0",
    ]


def test_nodes_are_added_until_the_pods_fit() -> None:
    document = explain(rack_queues() + FULL_RACKS + rack_workload("asked", 15, at=9))
    assert "add 3 nodes like b1r1h1 to rack b1/r1" in texts(document)


def test_pods_are_removed_in_whole_slices() -> None:
    request = "{required: rack, podSetSliceRequiredTopology: kubernetes.io/hostname, podSetSliceSize: 2}"
    document = explain(rack_queues() + FULL_RACKS + rack_workload("asked", 6, request, at=9))
    assert "request 2 pods instead of 6" in texts(document)
    assert document["binding"]["message"].startswith("6 pods in slices of 2 at level kubernetes.io/hostname need one")


def test_layers_of_slices_are_named() -> None:
    layers = "[{topology: rack, size: 4}, {topology: kubernetes.io/hostname, size: 2}]"
    request = f"{{required: block, podsetSliceRequiredTopologyConstraints: {layers}}}"
    document = explain(rack_queues() + FULL_RACKS + rack_workload("asked", 64, request, at=9))
    start = "64 pods in slices of 4 at level rack, of 2 at level kubernetes.io/hostname need one domain of level block"
    assert document["binding"]["message"].startswith(start)
    (part,) = document["topology"]
    assert part["sliceLayers"] == [{"level": "rack", "size": 4}, {"level": "kubernetes.io/hostname", "size": 2}]


def test_idle_room_is_named_if_the_domain_is_always_too_small() -> None:
    document = explain(rack_queues() + FOUR_RACKS + rack_workload("asked", 9, at=9))
    assert document["binding"]["message"].endswith("; even without other Workloads, it would have room for 8")


def test_domain_with_the_most_room_is_named_if_it_is_always_too_small() -> None:
    nodes = rack_nodes("b1r1h1", "b1r2h1", "b1r2h2")
    running = rack_workload("run", 6, at=1)
    document = explain(rack_queues() + nodes + running + rack_workload("asked", 5, at=9))
    assert document["binding"]["message"] == (
        "5 pods need one domain of level rack in Topology racks, and b1/r1 has the most room, for 4 (4 without other "
        "Workloads); b1/r2 has room for 2"
    )


def test_nodes_that_the_node_selector_excludes_have_no_occupants() -> None:
    asked = rack_workload("asked", 2, "{unconstrained: true}", at=9)
    asked = asked.replace("restartPolicy: Never", "restartPolicy: Never, nodeSelector: {rack: r9}")
    document = explain(rack_queues() + FULL_RACKS + asked)
    assert document["binding"]["message"].endswith("; excluded of 8 nodes: nodeSelector: 8")
    (part,) = document["topology"]
    assert "occupants" not in part


def test_occupants_are_protected_by_a_minimal_run_time() -> None:
    queues = rack_queues().replace(
        "  namespaceSelector: {}", "  namespaceSelector: {}\n  preemption: {withinClusterQueue: LowerPriority}"
    )
    queues = queues.replace("metadata: {name: cq}\nspec:\n", "metadata: {name: cq, ANNOTATED}\nspec:\n")
    queues = queues.replace("ANNOTATED", "annotations: {batchyard.dev/preempt-min-runtime: 20m}")
    (part,) = explain(queues + FULL_RACKS + rack_workload("asked", 5, at=9, priority=1))["topology"]
    text = "protected until 2026-01-01T00:20:01Z (batchyard.dev/preempt-min-runtime: 20m)"
    assert [each["stays"] for each in part["occupants"]] == [text]


def test_all_domains_together_limit_pods_without_required_level() -> None:
    document = explain(rack_queues() + FULL_RACKS + rack_workload("asked", 11, "{unconstrained: true}", at=9))
    assert document["binding"]["message"] == (
        "11 pods need domains of Topology racks, and all domains together have room for 10"
    )
    assert texts(document)[:2] == ["add 1 node like b1r1h1 to Topology racks", "request 10 pods instead of 11"]


def test_end_of_workload_in_another_cohort_tree_requires_a_new_evaluation() -> None:
    # The end of a Workload wakes only its own cohort tree, as in Kueue.
    nodes = rack_nodes("b1r1h1", "b1r1h2")
    other = rack_workload("other", 6, queue="more")
    document = explain(rack_queues("cq", "more") + nodes + other + rack_workload("asked", 5, at=9))
    assert "submit it again after the end of team/other" in texts(document)


def test_workloads_of_other_cohort_trees_keep_their_domains_in_simulations() -> None:
    nodes = rack_nodes("b1r1h1", "b1r1h2")
    other = rack_workload("other", 6, queue="more")
    document = explain(rack_queues("cq", "more") + nodes + other + rack_workload("asked", 5, at=9))
    assert "request 2 pods instead of 5" in texts(document)


def test_hidden_occupants_have_no_name() -> None:
    manifests = rack_queues() + FULL_RACKS + rack_workload("asked", 5, at=9)
    (part,) = explain(manifests, may_read=lambda _: False)["topology"]
    assert part["occupants"][0]["workload"] == "a Workload of another namespace"


@pytest.mark.parametrize("priority", [0, 1])
def test_preemption_is_simulated_with_topologies(priority: int) -> None:
    queues = rack_queues().replace(
        "  namespaceSelector: {}", "  namespaceSelector: {}\n  preemption: {withinClusterQueue: LowerPriority}"
    )
    manifests = queues + FULL_RACKS + rack_workload("asked", 5, at=9, priority=priority)
    if priority:
        assert explain(manifests)["state"] == "Running"
        assert explain(manifests, "run-3")["state"] == "Evicted"
    else:
        assert "raise its priority from 0 to 1" in texts(explain(manifests))


def test_level_that_no_flavor_has_is_the_limit() -> None:
    document = explain(rack_queues() + FOUR_RACKS + rack_workload("asked", 1, "{required: zone}", at=9))
    assert document["binding"]["limit"] == "topology"
    assert document["binding"]["message"] == (
        'Flavor "tas" does not contain the requested level; level zone requested, but Topology racks has'
        " block, rack, kubernetes.io/hostname"
    )
    assert document["podSets"][0]["flavors"][0]["verdict"] == "topology"


def test_placement_of_admitted_pods_is_given_by_level() -> None:
    (part,) = explain(rack_queues() + FULL_RACKS, "run-2")["topology"]
    assert [(level["level"], level["domains"]) for level in part["levels"]] == [
        ("block", [{"domain": "b2", "pods": 6}]),
        ("rack", [{"domain": "b2/r1", "pods": 6}]),
        ("kubernetes.io/hostname", [{"domain": "b2/r1/b2r1h1", "pods": 4}, {"domain": "b2/r1/b2r1h2", "pods": 2}]),
    ]


JOB = """
---
apiVersion: batch/v1
kind: Job
metadata:
  name: asked
  namespace: team
  labels: {kueue.x-k8s.io/queue-name: cq}
  annotations: {batchyard.dev/submit-at: 9s}
spec:
  parallelism: 5
  completions: 5
  template:
    metadata: {annotations: {kueue.x-k8s.io/podset-required-topology: rack}}
    spec: {restartPolicy: Never, containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]}
"""


@pytest.mark.parametrize("number", range(2))
def test_patches_of_a_looser_request_admit_the_job(number: int) -> None:
    world = World(make_scenario(read_manifests([("objects.yaml", rack_queues() + FULL_RACKS + JOB)])))
    world.run_until(20 * SECOND)
    document = world.platform.explainer.why(Key(scheme.JOB, "team", "asked"), world.kernel.now())
    assert document is not None
    change = document["changes"][number]
    assert change["kind"] == "topology"
    for patch in change["apply"]:
        key = Key(scheme.JOB if patch["kind"] == "Job" else scheme.WORKLOAD, patch["namespace"], patch["name"])
        obj = world.client.get(key)
        assert obj is not None
        changed = apply_json_patch(obj, patch["patch"]) if patch["type"] == "json" else None
        world.apply(changed or apply_merge_patch(obj, patch["patch"]))
    world.run_until(30 * SECOND)
    document = world.platform.explainer.why(Key(scheme.JOB, "team", "asked"), world.kernel.now())
    assert document is not None
    assert document["state"] in {"Admitted", "Running"}
    assert [part["pods"] for part in document["topology"]] == [5]
