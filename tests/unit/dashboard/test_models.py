"""Dashboard models agree with the objects and the scheduler."""

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest

from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Key
from batchyard.base.instant import SECOND
from batchyard.dashboard.data_source import FullAccess
from batchyard.dashboard.history import PlatformHistory
from batchyard.dashboard.models.queues import past_usage
from batchyard.dashboard.static_report import VIEWS, DashboardViews, PlatformTime
from batchyard.interfaces.client import Delete, UpdateStatus, Write
from batchyard.sim.scenario import make_scenario
from batchyard.sim.world import World
from racks import rack_nodes, rack_queues, rack_workload
from unit.dashboard.simulated_dashboard import Model, Team, dashboard


def test_overview_queue_counts_equal_cluster_queue_status() -> None:
    lines = {line["name"]: line for line in dashboard().model("overview")["queues"]}
    objects = dashboard().guide.objects(scheme.CLUSTER_QUEUE)
    assert len(lines) == len(objects) > 0
    for obj in objects:
        status, line = obj["status"], lines[obj["metadata"]["name"]]
        figures = (status["pendingWorkloads"], status["reservingWorkloads"], status["admittedWorkloads"])
        assert (line["pending"], line["reserving"], line["admitted"]) == figures


def test_overview_lists_pending_reasons_and_counts_running_workloads() -> None:
    model = dashboard().model("overview")
    assert model["waitingCount"] == sum(line["pending"] for line in model["queues"]) > 0
    assert model["runningCount"] == sum(line["reserving"] for line in model["queues"]) > 0
    assert all("insufficient" in row["why"] for row in model["waiting"] if row["why"])
    assert any(row["why"] for row in model["waiting"])
    assert {row["state"] for row in model["running"]} == {"Admitted"}


def test_overview_cluster_totals_equal_sum_over_nodes() -> None:
    cluster = dashboard().model("overview")["cluster"]
    pools = dashboard().model("nodes")["pools"]
    assert cluster["nodes"]["all"] == sum(len(pool["nodes"]) for pool in pools)
    gpus = next(line for line in cluster["resources"] if line["resource"] == "nvidia.com/gpu")
    of_nodes = [line for pool in pools for node in pool["nodes"] for line in node["usage"]]
    used = sum(int(line["used"]) for line in of_nodes if line["resource"] == "nvidia.com/gpu")
    assert int(gpus["used"]) == used > 0


def branches(tree: Model) -> list[Model]:
    return [tree, *(below for child in tree["children"] for below in branches(child))]


def test_cohort_tree_sums_admitted_workloads_of_children() -> None:
    trees = dashboard().model("cohorts")["trees"]
    assert {tree["name"] for tree in trees} == {"team-a-b", "team-c-d"}
    for tree in trees:
        for node in branches(tree):
            assert not node["children"] or node["admitted"] == sum(child["admitted"] for child in node["children"])


def test_queue_model_order_equals_visibility_api_order() -> None:
    for name in dashboard().index.snapshot.queues:
        model = dashboard().model("queue", {"name": name})
        turns = [f"{row['namespace']}/{row['name']}" for row in model["line"]]
        assert turns == [view.key for view in dashboard().index.pending_in(name) or ()]
        assert [row["position"] for row in model["line"]] == list(range(1, len(turns) + 1))


def test_queue_series_ends_with_current_counts() -> None:
    for name in dashboard().index.snapshot.queues:
        model = dashboard().model("queue", {"name": name})
        if model["series"] is not None:
            assert model["series"]["pending"][-1] == model["pending"]
            assert model["series"]["running"][-1] == model["reserving"]


@pytest.mark.parametrize("asked", [{}, {"namespace": "team-a"}, {"queue": "cq-team-a-hp"}, {"text": "B-HIGH"}])
def test_workloads_are_filtered_and_counted_by_state(asked: dict[str, str]) -> None:
    whole = dashboard().model("workloads", asked)
    assert whole["count"] == len(whole["rows"]) == sum(whole["states"].values()) > 0
    for row in whole["rows"]:
        assert asked.get("namespace", row["namespace"]) == row["namespace"]
        assert asked.get("queue", row["clusterQueue"]) == row["clusterQueue"]
        assert asked.get("text", "").lower() in row["name"]
    for state, count in whole["states"].items():
        assert dashboard().model("workloads", {**asked, "state": state})["count"] == count


def test_workloads_list_is_paginated_with_maximum_limit() -> None:
    whole = dashboard().model("workloads")["rows"]
    parts = [dashboard().model("workloads", {"offset": str(n), "limit": "5"})["rows"] for n in range(0, len(whole), 5)]
    assert [row for part in parts for row in part] == whole
    assert dashboard().model("workloads", {"limit": "1000000"})["limit"] == 500


def preemption_models() -> tuple[Model, Model]:
    """Return the models of a preempted Workload and of its preemptor."""
    lives = dashboard().history.workload_histories
    mark, life = next((mark, life) for life in lives.values() for mark in life.marks if mark.event == "preempted")
    victim, by = life.key.split("/"), lives[mark.preemptor_uid].key.split("/")
    reported = [
        dashboard().model("workload", {"namespace": namespace, "name": name}) for namespace, name in (victim, by)
    ]
    return reported[0], reported[1]


def test_workload_life_names_preemptor_and_victim() -> None:
    victim, preemptor = preemption_models()
    mark = next(mark for mark in victim["life"] if mark["what"] == "preempted")
    assert mark["by"] == f"{preemptor['namespace']}/{preemptor['name']}"
    assert f"{victim['namespace']}/{victim['name']}" in [mark.get("workload") for mark in preemptor["life"]]
    order = [mark["what"] for mark in victim["life"]]
    assert order[:4] == ["created", "quotaReserved", "admitted", "preempted"]
    assert [mark["at"] for mark in victim["life"]] == sorted(mark["at"] for mark in victim["life"])


def test_workload_model_lists_pods_with_their_nodes() -> None:
    row = dashboard().model("overview")["running"][0]
    model = dashboard().model("workload", {"namespace": row["namespace"], "name": row["name"]})
    assert len(model["podLines"]) == model["podsCount"] == model["pods"]
    for pod in model["podLines"]:
        if pod["node"]:
            names = [each["name"] for each in dashboard().model("node", {"name": pod["node"]})["pods"]]
            assert pod["name"] in names


@pytest.mark.parametrize("by", ["flavor", "node"])
def test_timeline_bars_in_row_do_not_overlap(by: str) -> None:
    model = dashboard().model("timeline", {"by": by, "last": "all"})
    assert model["by"] == by
    assert model["preemptions"]
    bars = 0
    for lane in model["lanes"]:
        for row in range(lane["rows"]):
            spans = sorted((bar[0], bar[1] or model["to"]) for bar in lane["bars"] if bar[2] == row)
            bars += len(spans)
            assert spans
            assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert bars >= len(model["workloads"]) > 0


def test_missing_object_or_view_has_no_model() -> None:
    for view in ("queue", "node", "workload", "nothing"):
        assert dashboard().pages.model(view, {"name": "none", "namespace": "none"}, FullAccess()) is None


def test_every_model_is_json_serializable() -> None:
    for view in VIEWS:
        model = dashboard().pages.model(view, {"name": "cq-team-a-hp"}, FullAccess())
        assert json.loads(json.dumps(model)) == model


def test_local_queue_row_has_past_usage() -> None:
    consumed = {"cpu": "3171572875n", "memory": "4294967296123456789n", "pods": "0"}
    fair_sharing = {"weightedShare": 0, "admissionFairSharingStatus": {"consumedResources": consumed}}
    assert past_usage(fair_sharing) == {"pastUsage": "3.17 cpu, 4.0 GiB memory, 0 pods"}
    assert past_usage({}) == {}


def rack_dashboard(manifests: str, writes: Sequence[Write] = ()) -> DashboardViews:
    """The pages of a simulated cluster with topologies, after 20 seconds and then some writes."""
    world = World(make_scenario(read_manifests([("objects.yaml", manifests)])))
    history = PlatformHistory(world.kernel.now, world.platform.index.cluster_queue_of)
    world.client.subscribe(history.observe)
    world.run_until(20 * SECOND)
    for write in writes:
        world.client.submit([write], lambda _: None)
    world.run_until(21 * SECOND)
    return DashboardViews(world.client, world.platform.index, history, PlatformTime(world.kernel.now, 0))


TOPOLOGY_OF_OTHER = """
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Topology
metadata: {name: other}
spec: {levels: [{nodeLabel: rack}]}
"""
UNLABELED_NODE = """
---
apiVersion: v1
kind: Node
metadata: {name: n}
status: {conditions: [{type: Ready, status: "True"}]}
"""
RACKS = rack_queues() + rack_nodes("b1r1h1", "b1r1h2", "b1r2h1") + rack_workload("one", 3) + rack_workload("two", 3)


def test_topology_model_has_usage_and_free_pods_of_each_domain() -> None:
    flavor = topology_flavor(RACKS)
    (block,) = flavor["tree"]
    assert (flavor["usual"], block["pods"], block["free"]) == ("3 pods of 1 cpu", 6, 6)
    assert [(rack["name"], rack["pods"], rack["free"], rack["share"]) for rack in block["children"]] == [
        ("r1", 3, 5, 0.375),
        ("r2", 3, 1, 0.75),
    ]
    hosts = {host["name"]: host["workloads"] for rack in block["children"] for host in rack["children"]}
    assert hosts["b1r2h1"] == [{"workload": "team/one", "pods": 3}]


def test_topology_model_has_fragmentation_of_each_level() -> None:
    model = rack_dashboard(RACKS).model("topologies", {}, FullAccess())
    assert model is not None
    rows = [
        (row["domains"], row["fitting"], row["largest"], row["fragmentation"]) for row in model["flavors"][0]["levels"]
    ]
    assert rows == [(1, 1, 6, 0.0), (2, 1, 5, 0.5), (3, 1, 4, 0.5)]


def test_topology_model_hides_workloads_of_other_teams() -> None:
    pages = rack_dashboard(RACKS)
    team = Team("other", also=(scheme.NODE,))
    assert "team/one" not in json.dumps(pages.model("topologies", {}, team))
    assert pages.model("topologies", {}, Team("team")) == {"forbidden": "nodes"}


def topology_flavor(manifests: str, writes: Sequence[Write] = ()) -> Model:
    """The only flavor in the topology model."""
    model = rack_dashboard(manifests, writes).model("topologies", {}, FullAccess())
    assert model is not None
    (flavor,) = model["flavors"]
    found: Model = flavor
    return found


def test_topology_model_shows_the_present_nodes_after_changes() -> None:
    gone = Delete(Key(scheme.NODE, "", "b1r1h1"))
    (grown,) = read_manifests([("node.yaml", rack_nodes("b1r2h1", cpu=8))]).objects
    nodes = rack_nodes("b1r1h1") + rack_nodes("b1r2h1", cpu=3)
    flavor = topology_flavor(rack_queues() + nodes + rack_workload("one", 3), [gone, UpdateStatus(grown.obj)])
    (block,) = flavor["tree"]
    assert [(rack["name"], rack["usage"][0]["used"], rack["usage"][0]["capacity"]) for rack in block["children"]] == [
        ("r2", "3", "8")
    ]
    assert ([row["domains"] for row in flavor["levels"]], flavor["hidden"]) == ([1, 1, 1], 0)


def test_topology_model_reports_missing_topology_and_no_nodes() -> None:
    missing = topology_flavor(rack_queues().partition("---")[2] + rack_nodes("b1r1h1") + TOPOLOGY_OF_OTHER)
    assert missing["missing"]
    flavor = topology_flavor(rack_queues() + UNLABELED_NODE)
    assert (flavor["tree"], flavor["usual"]) == ([], "")
