"""Plans that restart Workloads so that a waiting one fits."""

import json
from itertools import combinations
from pathlib import Path

import pytest

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.api.views.topology import TopologyDomain
from batchyard.base.instant import SECOND
from batchyard.base.primitives import draw_integer
from batchyard.cli.app import app
from batchyard.explain.defragmentation import (
    MovableWorkload,
    NotDefragmentableError,
    StoredTopologies,
    find_waiting,
    plan_defragmentation,
    plan_document,
    plan_for_waiting,
    read_topologies,
)
from batchyard.sim.simulate import Simulation, SimulationOptions, read_scenario
from batchyard.topology.assigner import PodSetTopologyRequest, TopologyFailure, assign_domains
from batchyard.topology.state import TopologyState, TopologyUsage, usage_of
from racks import place, racks, request, state


def run(topology: TopologyState, name: str, pods: PodSetTopologyRequest, cost: int) -> MovableWorkload | None:
    """Place a Workload, count its usage, and return it; None if it does not fit."""
    found = assign_domains(topology, [pods])
    if isinstance(found, TopologyFailure):
        return None
    usage = usage_of(["tas"], found["main"], pods.template)
    topology.add_usage(usage)
    return MovableWorkload(name, [pods], usage, cost)


def pinned(topology: TopologyState, name: str, host: str, count: int, cost: int) -> MovableWorkload:
    """Return a running Workload with pods on one host."""
    pods = request(count, unconstrained=True)
    found = assign_domains(topology, [request(1, unconstrained=True)])
    assert not isinstance(found, TopologyFailure)
    (usage,) = usage_of(["tas"], found["main"], pods.template)
    moved: TopologyUsage = (usage._replace(domains=(TopologyDomain((host,), count),)),)
    topology.add_usage(moved)
    return MovableWorkload(name, [pods], moved, cost)


def test_cheapest_workload_is_restarted_in_another_rack() -> None:
    topology = state(*racks(b1r1h1=4, b1r2h1=4, b1r3h1=4))
    cheap = pinned(topology, "cheap", "b1r1h1", 1, cost=5)
    dear = pinned(topology, "dear", "b1r2h1", 1, cost=9)
    full = pinned(topology, "full", "b1r3h1", 3, cost=7)
    plan = plan_defragmentation(topology, [request(4, required="rack")], [full, dear, cheap])
    assert plan is not None
    assert plan_document(plan, "team/big") == {
        "workload": "team/big",
        "domains": ["b1r1h1"],
        "cost": 5,
        "cheapest": True,
        "restarts": [{"workload": "cheap", "cost": 5, "from": ["b1r1h1"], "to": ["b1r3h1"]}],
    }


def test_restarted_workloads_must_fit_again() -> None:
    topology = state(*racks(b1r1h1=4, b1r2h1=4))
    first, second = pinned(topology, "a", "b1r1h1", 3, cost=1), pinned(topology, "b", "b1r2h1", 3, cost=1)
    assert plan_defragmentation(topology, [request(4, required="rack")], [first, second]) is None


def test_nothing_is_restarted_if_the_workload_fits() -> None:
    topology = state(*racks(b1r1h1=4))
    movable = pinned(topology, "a", "b1r1h1", 1, cost=0)
    plan = plan_defragmentation(topology, [request(3, required="rack")], [movable])
    assert plan is not None
    assert not plan.moves


def test_search_that_gives_up_returns_the_greedy_plan() -> None:
    topology = state(*racks(b1r1h1=4, b1r2h1=4, b1r3h1=4))
    movables = [pinned(topology, name, f"b1r{i}h1", 1, cost=i) for i, name in enumerate("abc", 1)]
    plan = plan_defragmentation(topology, [request(4, required="rack")], movables, sets_max=0)
    assert plan is not None
    assert not plan.is_cheapest


@pytest.mark.parametrize("seed", range(40))
def test_no_set_of_restarts_is_cheaper(seed: int) -> None:
    def draw(stop: int, *names: object) -> int:
        return draw_integer(seed, *map(str, names)) % stop

    topology = state(*racks(**{f"b{i % 2}r{i % 4}h{i}": 2 + draw(4, "cpu", i) for i in range(8)}))
    fields = ({"required": "rack"}, {"preferred": "rack"}, {"unconstrained": True}, {"required": "block"})
    drawn = [
        run(topology, f"w{i}", request(1 + draw(4, "pods", i), **fields[draw(4, "field", i)]), draw(9, "cost", i))
        for i in range(7)
    ]
    movables = [each for each in drawn if each is not None]
    waiting = [request(3 + draw(8, "count"), **fields[draw(2, "waiting") * 3])]
    before = [place(topology, request(n, required="rack")) for n in range(1, 9)]
    plan = plan_defragmentation(topology, waiting, movables)
    assert [place(topology, request(n, required="rack")) for n in range(1, 9)] == before
    assert (None if plan is None else plan.cost) == lowest_cost(topology, waiting, movables)
    assert plan is None or cost_of(topology, waiting, [each.workload for each in plan.moves]) == plan.cost


def lowest_cost(
    topology: TopologyState, waiting: list[PodSetTopologyRequest], movables: list[MovableWorkload]
) -> int | None:
    """Try all sets of restarts."""
    sets = [list(chosen) for size in range(len(movables) + 1) for chosen in combinations(movables, size)]
    costs = [cost for chosen in sets if (cost := cost_of(topology, waiting, chosen)) is not None]
    return min(costs, default=None)


def cost_of(topology: TopologyState, waiting: list[PodSetTopologyRequest], chosen: list[MovableWorkload]) -> int | None:
    """Return the cost of restarting these Workloads; None if one of them, or the waiting one, does not fit."""
    added: list[TopologyUsage] = []
    for each in chosen:
        topology.add_usage(each.usage, -1)
    fits = True
    for requests in (waiting, *(each.requests for each in chosen)):
        found = assign_domains(topology, requests)
        if isinstance(found, TopologyFailure):
            fits = False
            break
        added.append(usage_of(["tas"], found["main"], requests[0].template))
        topology.add_usage(added[-1])
    for usage in added:
        topology.add_usage(usage, -1)
    for each in chosen:
        topology.add_usage(each.usage)
    return sum(each.cost for each in chosen) if fits else None


# Plans for stored objects.

_OBJECTS = """
kind: Topology
apiVersion: kueue.x-k8s.io/v1beta2
metadata: {name: racks}
spec: {levels: [{nodeLabel: rack}, {nodeLabel: kubernetes.io/hostname}]}
---
kind: ResourceFlavor
apiVersion: kueue.x-k8s.io/v1beta2
metadata: {name: tas}
spec: {topologyName: racks, nodeLabels: {pool: tas}}
---
kind: ClusterQueue
apiVersion: kueue.x-k8s.io/v1beta2
metadata: {name: cq}
spec:
  namespaceSelector: {}
  resourceGroups: [{coveredResources: [cpu], flavors: [{name: tas, resources: [{name: cpu, nominalQuota: 100}]}]}]
---
kind: LocalQueue
apiVersion: kueue.x-k8s.io/v1beta2
metadata: {name: lq, namespace: default}
spec: {clusterQueue: cq}
"""
_NODE = """
---
kind: Node
apiVersion: v1
metadata: {name: NAME, labels: {pool: tas, rack: NAME, kubernetes.io/hostname: NAME}}
status: {allocatable: {cpu: "4", pods: "9"}, conditions: [{type: Ready, status: "True"}]}
"""
_WORKLOAD = """
---
kind: Workload
apiVersion: kueue.x-k8s.io/v1beta2
metadata:
  name: NAME
  namespace: default
  annotations: {batchyard.dev/runtime: RUNTIMEs, batchyard.dev/submit-at: ATs, batchyard.dev/checkpoint-every: 7s}
spec:
  queueName: lq
  podSets:
  - name: main
    count: 1
    topologyRequest: {required: rack}
    template: {spec: {restartPolicy: Never, containers: [{name: c, resources: {requests: {cpu: "CPU"}}}]}}
"""


Run = tuple[str, int, int, int]
#: Workloads that leave half of two nodes free: their names, submit times, CPUs and run times.
FRAGMENTED: tuple[Run, ...] = (
    *(("first", 0, 2, 99), ("short-1", 1, 2, 4), ("second", 2, 2, 99), ("short-2", 3, 2, 2)),
    *(("full", 4, 4, 99), ("big", 6, 4, 9)),
)


def world_text(*workloads: Run) -> str:
    """Return manifests of three nodes, their queue and Workloads."""
    nodes = [_NODE.replace("NAME", name) for name in ("n1", "n2", "n3")]
    texts = [
        _WORKLOAD.replace("NAME", name).replace("ATs", f"{t}s").replace("CPU", str(cpus)).replace("RUNTIME", str(run))
        for name, t, cpus, run in workloads
    ]
    return _OBJECTS + "".join(nodes) + "".join(texts)


def stored(*workloads: Run, at: int) -> tuple[str, dict[str, object]]:
    """Simulate Workloads on three nodes, and return the name of the waiting one and the plan's document."""
    waiting, plan = plan_for_waiting(topologies_at(world_text(*workloads), at), "", only_checkpointed=True)
    return waiting.key, plan_document(plan, waiting.key)


def test_cost_is_the_work_since_the_last_checkpoint() -> None:
    name, document = stored(*FRAGMENTED, at=10)
    assert name == "default/big"
    assert document["domains"] == ["n2"]
    # The Workload `second` has run for 8 s, has 2 CPUs, and saved its work after 7 s.
    assert document["restarts"] == [{"workload": "default/second", "cost": 2, "from": ["n2"], "to": ["n1"]}]


def test_workload_that_fits_cannot_be_defragmented() -> None:
    topologies = read_topologies({}, 0)
    with pytest.raises(NotDefragmentableError, match="no Workload waits"):
        find_waiting(topologies, "")
    with pytest.raises(NotDefragmentableError, match="Workload default/a not found; pending Workloads: none"):
        find_waiting(topologies, "default/a")


def test_command_prints_the_plan_and_exits_with_1_if_nothing_waits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "world.yaml"
    path.write_text(world_text(*FRAGMENTED), "utf-8")
    app(["defrag", str(path), "--at", "10s", "--output", "json"], standalone_mode=False)
    document = json.loads(capsys.readouterr().out)
    assert document["admittedInSimulation"]
    assert [each["workload"] for each in document["restarts"]] == ["default/second"]
    changed = {each["name"]: each["changed"] for each in document["simulation"]["workloads"]}
    assert (changed["default/big"]["endsAfter"], changed["default/second"]["endsAfter"]) == (9, 120 + 99)
    with pytest.raises(SystemExit) as ended:
        app(["defrag", str(path), "--at", "1s"], standalone_mode=False)
    assert ended.value.code == 1
    assert "no Workload waits for topology domains" in capsys.readouterr().err


def topologies_at(text: str, at: int) -> StoredTopologies:
    """Simulate manifests until a second, and return their topologies."""
    simulation = Simulation(read_scenario([text])[0], SimulationOptions(until=at * SECOND))
    simulation.world.run_until(at * SECOND)
    world_state = simulation.world.state()
    return read_topologies(world_state.objects, world_state.at)


def test_plan_uses_a_later_flavor_of_the_queue() -> None:
    flavor = "---\nkind: ResourceFlavor\napiVersion: kueue.x-k8s.io/v1beta2\nmetadata: {name: small}\n"
    flavor += "spec: {topologyName: racks, nodeLabels: {pool: small}}"
    text = world_text(*FRAGMENTED).replace(
        "flavors: [", "flavors: [{name: small, resources: [{name: cpu, nominalQuota: 100}]}, "
    )
    small_node = _NODE.replace("NAME", "n4").replace("pool: tas", "pool: small").replace('cpu: "4"', 'cpu: "1"')
    waiting, plan = plan_for_waiting(topologies_at(text + flavor + small_node, 10), "", only_checkpointed=True)
    assert waiting.key == "default/big"
    assert plan_document(plan, "")["domains"] == ["n2"]


def test_workload_without_quota_is_not_planned_for() -> None:
    text = world_text(*FRAGMENTED, ("large", 5, 90, 9))
    text = text.replace("nominalQuota: 100", "nominalQuota: 20")
    assert [each.view.key for each in find_waiting(topologies_at(text, 10), "")] == ["default/big"]


def test_workload_without_a_plan_does_not_hide_the_next() -> None:
    topologies = topologies_at(world_text(*FRAGMENTED, ("large", 5, 90, 9)), 10)
    assert [each.view.key for each in find_waiting(topologies, "")] == ["default/large", "default/big"]
    assert plan_for_waiting(topologies, "", only_checkpointed=True)[0].key == "default/big"
    with pytest.raises(NotDefragmentableError, match="no restarts of 3 Workloads make room for default/large"):
        plan_for_waiting(topologies, "large", only_checkpointed=True)


def test_name_of_a_job_selects_its_workload() -> None:
    topologies = topologies_at(world_text(*FRAGMENTED), 10)
    key = Key(scheme.WORKLOAD, "default", "big")
    owner = {"kind": "Job", "apiVersion": "batch/v1", "name": "training", "uid": "1", "controller": True}
    big = topologies.objects[key]
    named = {**topologies.objects, key: {**big, "metadata": {**big["metadata"], "ownerReferences": [owner]}}}
    topologies.objects = named
    for name in ("job/training", "training", "default/training", "big", "default/big"):
        assert [each.view.key for each in find_waiting(topologies, name)] == ["default/big"]
    with pytest.raises(NotDefragmentableError, match="Workload bog not found; pending Workloads: default/big"):
        find_waiting(topologies, "bog")
    with pytest.raises(NotDefragmentableError, match="first does not wait"):
        find_waiting(topologies, "first")


def test_help_names_the_length_of_the_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    app(["defrag", "--help"], standalone_mode=False)
    help_text = capsys.readouterr().out
    assert "10 minutes" in " ".join(help_text.split())
    assert "a day" not in help_text
