"""YAML and search show only what the viewer may list."""

import yaml

from batchyard.api import scheme
from batchyard.dashboard.data_source import FullAccess
from batchyard.dashboard.models.objects import RESULTS_MAX
from unit.dashboard.simulated_dashboard import Model, Team, dashboard


def first_workload(namespace: str) -> dict[str, str]:
    metadata = dashboard().reader.list(scheme.WORKLOAD, namespace)[0]["metadata"]
    return {"kind": "Workload", "namespace": namespace, "name": metadata["name"]}


def titles(model: Model, kind: str) -> list[str]:
    return ["/".join(result["path"]) for result in model["results"] if result["kind"] == kind]


def test_yaml_is_the_object_without_managed_fields() -> None:
    query = first_workload("team-a")
    model = dashboard().model("yaml", query)
    shown, stored = yaml.safe_load(model["yaml"]), dashboard().reader.list(scheme.WORKLOAD, "team-a")[0]
    metadata = {field: value for field, value in stored["metadata"].items() if field != "managedFields"}
    assert shown == {**stored, "metadata": metadata}
    assert model["command"] == f"kubectl get workloads.kueue.x-k8s.io/{query['name']} -n team-a -o yaml"
    assert yaml.safe_load(dashboard().model("yaml", {**query, "managed": "true"})["yaml"]) == stored


def test_yaml_of_hidden_missing_or_other_kinds_is_not_found() -> None:
    query, pages = first_workload("team-a"), dashboard().pages
    assert pages.model("yaml", query, Team("team-a")) is not None
    assert pages.model("yaml", query, Team("team-b")) is None
    assert pages.model("yaml", {**query, "name": "none"}, FullAccess()) is None
    assert pages.model("yaml", {"kind": "Secret", "namespace": "team-a", "name": "s"}, FullAccess()) is None
    assert pages.model("yaml", {"kind": "ClusterQueue", "name": "cq-team-a-hp"}, Team("team-a")) is None


def test_search_finds_workloads_queues_and_nodes() -> None:
    model = dashboard().model("search", {"text": "TEAM-A"})
    assert titles(model, "ClusterQueue") == ["cq-team-a-hp"] or "cq-team-a-hp" in titles(model, "ClusterQueue")
    assert 0 < len(titles(model, "Workload")) <= RESULTS_MAX
    node = dashboard().reader.list(scheme.NODE)[0]["metadata"]["name"]
    assert titles(dashboard().model("search", {"text": node}), "Node") == [node]
    assert dashboard().model("search", {"text": " "})["results"] == []


def test_search_shows_only_what_the_viewer_may_list() -> None:
    model = dashboard().model("search", {"text": "team"}, Team("team-a"))
    assert {result["path"][0] for result in model["results"]} == {"team-a"}
    assert {result["kind"] for result in model["results"]} == {"Workload", "LocalQueue"}
    assert dashboard().model("search", {"text": "team"}, Team())["results"] == []
