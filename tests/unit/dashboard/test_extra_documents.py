"""The documents that a Workload's page requests from its server, beside its model."""

from urllib.parse import parse_qsl, urlsplit

from batchyard.api import scheme
from batchyard.dashboard.data_source import EVENTS, PENDING, WHY
from batchyard.dashboard.static_report import DashboardViews, PlatformTime
from unit.dashboard.simulated_dashboard import ALL, SimulatedDashboard, Team, dashboard


def views_of(shared: SimulatedDashboard) -> DashboardViews:
    return DashboardViews(shared.reader, shared.index, shared.history, PlatformTime(shared.guide.world.kernel.now, 0))


def test_platform_answers_why_and_eta_of_pending_workload_and_shows_events() -> None:
    rows = dashboard().model("workloads", {"state": PENDING})["rows"]
    row = next(each for each in rows if each["owner"])
    query = {"namespace": row["namespace"], "name": row["name"]}
    model = dashboard().model("workload", query)
    path = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{row['namespace']}/workloads/{row['name']}"
    assert model["answers"] == {"why": f"{path}/why", "eta": f"{path}/eta"}
    assert "events" in model


def test_server_without_events_and_forecasts_names_path_of_events() -> None:
    row = dashboard().model("workloads", {"state": PENDING})["rows"][0]
    query = {"namespace": row["namespace"], "name": row["name"]}
    views = views_of(dashboard())
    views.extra_documents = (WHY, EVENTS)
    model = views.model("workload", query, ALL)
    assert model is not None
    assert "events" not in model
    assert list(model["answers"]) == ["why", "events"]
    obj = next(each for each in dashboard().reader.list(scheme.WORKLOAD) if each["metadata"]["name"] == row["name"])
    owners = [owner["uid"] for owner in obj["metadata"].get("ownerReferences", [])]
    uids = [("uid", uid) for uid in [obj["metadata"]["uid"], *owners]]
    parts = urlsplit(model["answers"]["events"])
    assert (parts.path, parse_qsl(parts.query)) == (
        "/apis/ui.batchyard.dev/v1alpha1/events",
        [("namespace", row["namespace"]), *uids],
    )
    without_events = Team(also=(scheme.WORKLOAD,))
    model = views.model("workload", query, without_events)
    assert model is not None
    assert list(model["answers"]) == ["why"]
