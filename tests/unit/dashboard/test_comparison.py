"""What a shadow found out is on its page alone, for whoever sees all Workloads."""

from collections.abc import Iterator

import pytest

from batchyard.dashboard.history import SchedulerDivergence, ShadowComparison
from batchyard.dashboard.models.rows import LINES_MAX
from unit.dashboard.shown import ALL, Team, shown


@pytest.fixture
def workload() -> Iterator[str]:
    """One of which something is told, and of another one more than fits."""
    world = shown()
    found = ShadowComparison(lambda: 7, lambda: LINES_MAX + 2)
    key = next(iter(world.history.lives.values())).key
    for of in (*["team-b/other"] * (LINES_MAX + 1), key):
        found.partings.appendleft(SchedulerDivergence(2, 1, "Victims", of, "this one, not that", "", ["kubectl get"]))
    world.history.comparison = found
    yield key
    world.history.comparison = None


def test_the_overview_has_the_latest_and_how_many_there_are(workload: str) -> None:
    reported = shown().model("overview")["comparison"]
    assert (reported["agreed"], reported["parted"], len(reported["partings"])) == (7, LINES_MAX + 2, LINES_MAX)
    assert reported["partings"][0]["workload"] == workload


def test_a_workload_has_what_is_about_it(workload: str) -> None:
    namespace, name = workload.split("/")
    reported = shown().model("workload", {"namespace": namespace, "name": name})["comparison"]
    assert [each["workload"] for each in reported["partings"]] == [workload]


@pytest.mark.usefixtures("workload")
def test_who_does_not_see_all_workloads_is_told_nothing_for_partings_name_several() -> None:
    assert "comparison" not in shown().model("overview", sight=Team("team-a"))


def test_a_platform_of_ours_has_none() -> None:
    assert "comparison" not in shown().model("overview", sight=ALL)
