"""The dashboard shows each viewer only objects that the API would list for this viewer."""

import json

import pytest

from batchyard.api import scheme
from batchyard.dashboard.static_report import VIEWS
from unit.dashboard.simulated_dashboard import Team, dashboard

OTHERS = ("team-b", "team-c", "team-d")


@pytest.mark.parametrize("view", list(VIEWS))
def test_models_hide_names_of_other_namespaces(view: str) -> None:
    for query in ({}, {"name": "cq-team-b-hp"}, {"namespace": "team-b"}, {"text": "team"}, {"by": "node"}):
        reported = json.dumps(dashboard().pages.model(view, query, Team("team-a")))
        assert not [other for other in OTHERS if other in reported]


def test_team_sees_all_objects_of_its_own_namespace() -> None:
    model = dashboard().model("overview", access=Team("team-a"))
    assert {line["namespace"] for line in model["localQueues"]} == {"team-a"}
    own = dashboard().reader.list(scheme.WORKLOAD, "team-a")
    assert dashboard().model("workloads", access=Team("team-a"))["count"] == len(own) > 0
    assert "cluster" not in model
    assert "queues" not in model


def test_visible_queue_hides_workloads_of_other_namespaces() -> None:
    access = Team("team-a", also=(scheme.CLUSTER_QUEUE,))
    model = dashboard().model("queue", {"name": "cq-team-b-hp"}, access)
    assert model["line"] == [{"position": n + 1, "hidden": True} for n in range(model["pending"])] != []
    assert (model["running"], model["localQueues"]) == ([], [])
    assert model["hiddenRunning"] == model["reserving"] > 0


def test_workload_in_other_namespace_has_no_model() -> None:
    row = next(row for row in dashboard().model("workloads")["rows"] if row["namespace"] == "team-b")
    query = {"namespace": row["namespace"], "name": row["name"]}
    assert dashboard().pages.model("workload", query, Team("team-b")) is not None
    assert dashboard().pages.model("workload", query, Team("team-a")) is None


def test_workload_life_hides_preemptor_in_inaccessible_namespace() -> None:
    lives = dashboard().history.workload_histories.values()
    pairs = [
        (life, dashboard().history.workload_histories[mark.preemptor_uid])
        for life in lives
        for mark in life.marks
        if mark.preemptor_uid
    ]
    victim, by = next((life, by) for life, by in pairs if life.namespace != by.namespace)
    query = dict(zip(("namespace", "name"), victim.key.split("/"), strict=True))
    reported = dashboard().model("workload", query, Team(victim.namespace))
    assert {mark["by"] for mark in reported["life"] if mark["what"] == "preempted"} == {""}
    assert by.key not in json.dumps(reported["life"])
