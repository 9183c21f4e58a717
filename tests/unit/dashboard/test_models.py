"""What the views show is what the objects and the scheduler say."""

import json
from itertools import pairwise

import pytest

from batchyard.api import scheme
from batchyard.dashboard.data_source import FullAccess
from batchyard.dashboard.static_report import VIEWS
from unit.dashboard.shown import Model, shown


def test_queues_have_the_figures_of_their_objects() -> None:
    lines = {line["name"]: line for line in shown().model("overview")["queues"]}
    objects = shown().guide.objects(scheme.CLUSTER_QUEUE)
    assert len(lines) == len(objects) > 0
    for obj in objects:
        status, line = obj["status"], lines[obj["metadata"]["name"]]
        figures = (status["pendingWorkloads"], status["reservingWorkloads"], status["admittedWorkloads"])
        assert (line["pending"], line["reserving"], line["admitted"]) == figures


def test_what_waits_says_why_and_what_runs_is_counted() -> None:
    model = shown().model("overview")
    assert model["waitingCount"] == sum(line["pending"] for line in model["queues"]) > 0
    assert model["runningCount"] == sum(line["reserving"] for line in model["queues"]) > 0
    assert all("insufficient" in row["why"] for row in model["waiting"] if row["why"])
    assert any(row["why"] for row in model["waiting"])
    assert {row["state"] for row in model["running"]} == {"Admitted"}


def test_the_cluster_is_its_nodes() -> None:
    cluster = shown().model("overview")["cluster"]
    pools = shown().model("nodes")["pools"]
    assert cluster["nodes"]["all"] == sum(len(pool["nodes"]) for pool in pools)
    gpus = next(line for line in cluster["resources"] if line["resource"] == "nvidia.com/gpu")
    of_nodes = [line for pool in pools for node in pool["nodes"] for line in node["usage"]]
    used = sum(int(line["used"]) for line in of_nodes if line["resource"] == "nvidia.com/gpu")
    assert int(gpus["used"]) == used > 0


def branches(tree: Model) -> list[Model]:
    return [tree, *(below for child in tree["children"] for below in branches(child))]


def test_a_tree_counts_at_each_level_what_is_below() -> None:
    trees = shown().model("cohorts")["trees"]
    assert {tree["name"] for tree in trees} == {"team-a-b", "team-c-d"}
    for tree in trees:
        for node in branches(tree):
            assert not node["children"] or node["admitted"] == sum(child["admitted"] for child in node["children"])


def test_the_order_of_a_queue_is_that_of_the_visibility_api() -> None:
    for name in shown().index.snapshot.queues:
        model = shown().model("queue", {"name": name})
        turns = [f"{row['namespace']}/{row['name']}" for row in model["line"]]
        assert turns == [view.key for view in shown().index.pending_in(name) or ()]
        assert [row["position"] for row in model["line"]] == list(range(1, len(turns) + 1))


def test_a_queue_over_time_ends_where_it_is_now() -> None:
    for name in shown().index.snapshot.queues:
        model = shown().model("queue", {"name": name})
        if model["series"] is not None:
            assert model["series"]["pending"][-1] == model["pending"]
            assert model["series"]["running"][-1] == model["reserving"]


@pytest.mark.parametrize("asked", [{}, {"namespace": "team-a"}, {"queue": "cq-team-a-hp"}, {"text": "B-HIGH"}])
def test_workloads_are_filtered_and_counted(asked: dict[str, str]) -> None:
    whole = shown().model("workloads", asked)
    assert whole["count"] == len(whole["rows"]) == sum(whole["states"].values()) > 0
    for row in whole["rows"]:
        assert asked.get("namespace", row["namespace"]) == row["namespace"]
        assert asked.get("queue", row["clusterQueue"]) == row["clusterQueue"]
        assert asked.get("text", "").lower() in row["name"]
    for state, count in whole["states"].items():
        assert shown().model("workloads", {**asked, "state": state})["count"] == count


def test_a_long_list_comes_in_windows() -> None:
    whole = shown().model("workloads")["rows"]
    parts = [shown().model("workloads", {"offset": str(n), "limit": "5"})["rows"] for n in range(0, len(whole), 5)]
    assert [row for part in parts for row in part] == whole
    assert shown().model("workloads", {"limit": "1000000"})["limit"] == 500


def preempted() -> tuple[Model, Model]:
    """One that was preempted, and the one that it made room for."""
    lives = shown().history.lives
    mark, life = next((mark, life) for life in lives.values() for mark in life.marks if mark.what == "preempted")
    victim, by = life.key.split("/"), lives[mark.by].key.split("/")
    reported = [shown().model("workload", {"namespace": namespace, "name": name}) for namespace, name in (victim, by)]
    return reported[0], reported[1]


def test_a_life_tells_who_preempted_whom_on_both_sides() -> None:
    victim, preemptor = preempted()
    mark = next(mark for mark in victim["life"] if mark["what"] == "preempted")
    assert mark["by"] == f"{preemptor['namespace']}/{preemptor['name']}"
    assert f"{victim['namespace']}/{victim['name']}" in [mark.get("workload") for mark in preemptor["life"]]
    order = [mark["what"] for mark in victim["life"]]
    assert order[:4] == ["created", "quotaReserved", "admitted", "preempted"]
    assert [mark["at"] for mark in victim["life"]] == sorted(mark["at"] for mark in victim["life"])


def test_a_workload_shows_its_pods_where_they_are() -> None:
    row = shown().model("overview")["running"][0]
    model = shown().model("workload", {"namespace": row["namespace"], "name": row["name"]})
    assert len(model["podLines"]) == model["podsCount"] == model["pods"]
    for pod in model["podLines"]:
        if pod["node"]:
            names = [each["name"] for each in shown().model("node", {"name": pod["node"]})["pods"]]
            assert pod["name"] in names


@pytest.mark.parametrize("by", ["flavor", "node"])
def test_bars_of_a_row_do_not_overlap(by: str) -> None:
    model = shown().model("timeline", {"by": by, "last": "all"})
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


def test_what_is_not_there_has_no_model() -> None:
    for view in ("queue", "node", "workload", "nothing"):
        assert shown().pages.model(view, {"name": "none", "namespace": "none"}, FullAccess()) is None


def test_every_model_is_json_as_it_is() -> None:
    for view in VIEWS:
        model = shown().pages.model(view, {"name": "cq-team-a-hp"}, FullAccess())
        assert json.loads(json.dumps(model)) == model
