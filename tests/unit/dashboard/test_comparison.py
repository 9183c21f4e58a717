"""The comparison of a shadow scheduler, shown only to viewers with access to all Workloads."""

from collections.abc import Iterator

import pytest

from batchyard.dashboard.history import SchedulerDivergence, ShadowComparison
from batchyard.dashboard.models.rows import DIVERGENCES_SHOWN_MAX
from unit.dashboard.simulated_dashboard import ALL, Team, dashboard


@pytest.fixture
def workload() -> Iterator[str]:
    """Yield a Workload with one divergence; another Workload has one divergence more than fits."""
    world = dashboard()
    result = ShadowComparison(lambda: 7, lambda: DIVERGENCES_SHOWN_MAX + 2)
    key = next(iter(world.history.workload_histories.values())).key
    for of in (*["team-b/other"] * (DIVERGENCES_SHOWN_MAX + 1), key):
        result.recent_divergences.appendleft(
            SchedulerDivergence(2, 1, "Victims", of, "this one, not that", "", ["kubectl get"])
        )
    world.history.comparison = result
    yield key
    world.history.comparison = None


def test_overview_lists_latest_divergences_and_their_count(workload: str) -> None:
    reported = dashboard().model("overview")["comparison"]
    assert (reported["agreed"], reported["parted"], len(reported["partings"])) == (
        7,
        DIVERGENCES_SHOWN_MAX + 2,
        DIVERGENCES_SHOWN_MAX,
    )
    assert reported["partings"][0]["workload"] == workload


def test_workload_model_lists_its_own_divergences(workload: str) -> None:
    namespace, name = workload.split("/")
    reported = dashboard().model("workload", {"namespace": namespace, "name": name})["comparison"]
    assert [each["workload"] for each in reported["partings"]] == [workload]


@pytest.mark.usefixtures("workload")
def test_comparison_is_hidden_from_viewer_without_access_to_all_workloads() -> None:
    assert "comparison" not in dashboard().model("overview", access=Team("team-a"))


def test_overview_without_shadow_has_no_comparison() -> None:
    assert "comparison" not in dashboard().model("overview", access=ALL)
