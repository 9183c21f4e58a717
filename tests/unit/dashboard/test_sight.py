"""Nobody sees more on the page than the API would list for him."""

import json

import pytest

from batchyard.api import scheme
from batchyard.dashboard.static_report import VIEWS
from unit.dashboard.shown import Team, shown

OTHERS = ("team-b", "team-c", "team-d")


@pytest.mark.parametrize("view", list(VIEWS))
def test_a_team_reads_no_name_of_another(view: str) -> None:
    for query in ({}, {"name": "cq-team-b-hp"}, {"namespace": "team-b"}, {"text": "team"}, {"by": "node"}):
        reported = json.dumps(shown().pages.model(view, query, Team("team-a")))
        assert not [other for other in OTHERS if other in reported]


def test_it_sees_all_of_its_own() -> None:
    model = shown().model("overview", sight=Team("team-a"))
    assert {line["namespace"] for line in model["localQueues"]} == {"team-a"}
    own = shown().reader.list(scheme.WORKLOAD, "team-a")
    assert shown().model("workloads", sight=Team("team-a"))["count"] == len(own) > 0
    assert "cluster" not in model
    assert "queues" not in model


def test_of_a_queue_that_it_may_see_others_are_but_places() -> None:
    sight = Team("team-a", also=(scheme.CLUSTER_QUEUE,))
    model = shown().model("queue", {"name": "cq-team-b-hp"}, sight)
    assert model["line"] == [{"position": n + 1, "hidden": True} for n in range(model["pending"])] != []
    assert (model["running"], model["localQueues"]) == ([], [])
    assert model["hiddenRunning"] == model["reserving"] > 0


def test_a_workload_of_others_is_as_if_it_were_not_there() -> None:
    row = next(row for row in shown().model("workloads")["rows"] if row["namespace"] == "team-b")
    query = {"namespace": row["namespace"], "name": row["name"]}
    assert shown().pages.model("workload", query, Team("team-b")) is not None
    assert shown().pages.model("workload", query, Team("team-a")) is None


def test_who_preempted_it_is_not_named_to_those_who_may_not_see_him() -> None:
    lives = shown().history.lives.values()
    pairs = [(life, shown().history.lives[mark.by]) for life in lives for mark in life.marks if mark.by]
    victim, by = next((life, by) for life, by in pairs if life.namespace != by.namespace)
    query = dict(zip(("namespace", "name"), victim.key.split("/"), strict=True))
    reported = shown().model("workload", query, Team(victim.namespace))
    assert {mark["by"] for mark in reported["life"] if mark["what"] == "preempted"} == {""}
    assert by.key not in json.dumps(reported["life"])
