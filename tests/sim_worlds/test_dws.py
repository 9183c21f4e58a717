"""GPUs from the Dynamic Workload Scheduler: requests, pools that grow from zero, and a wait of three days."""

import re
from collections.abc import Callable
from functools import cache

import pytest

from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.base.instant import HOUR, SECOND
from batchyard.sim.scenario import Scenario, make_scenario
from batchyard.sim.world import World
from sim_worlds.world_history import (
    EXAMPLES,
    SHARED,
    ConditionChange,
    WorldHistory,
    example,
    objects,
    read_valid_manifests,
    skip_without_manifests,
    with_later_objects,
)

OURS = EXAMPLES / "dws"
THEIRS = SHARED / "dws"
DAY = 24 * 3600
JOBS = ("sample-job", "sample-job-a100")

STOCKOUT = """
apiVersion: sim.batchyard.dev/v1alpha1
kind: Scenario
metadata: {name: no-h100}
spec:
  faults: [{at: 0s, stockout: {machine: a3-highgpu-8g, for: 72h}}]
"""


@cache
def example_history() -> WorldHistory:
    """Return the history of the example."""
    return WorldHistory(example("dws"))


@cache
def article_history() -> WorldHistory:
    """Return the history of the article's unchanged Jobs, in our cluster and queue."""
    scenario = make_scenario(read_valid_manifests(OURS / "cluster.yaml", OURS / "platform.yaml"))
    jobs = [objects(THEIRS / f"{name}.yaml") for name in JOBS]
    return WorldHistory(with_later_objects(scenario, (600, jobs[0]), (3600, jobs[1])))


def history_of(whose: str) -> WorldHistory:
    """Return a history by its name."""
    return example_history() if whose == "ours" else article_history()


both = pytest.mark.parametrize("whose", ["ours", pytest.param("theirs", marks=skip_without_manifests("dws"))])


def request(history: WorldHistory, job: str) -> list[ConditionChange]:
    """Return the conditions of the ProvisioningRequest of a Job."""
    pattern = re.compile(rf"job-{job}-[0-9a-f]{{5}}-dws-prov-1")
    (name,) = [name for name in history.names(scheme.PROVISIONING_REQUEST) if pattern.fullmatch(name)]
    return history.conditions(scheme.PROVISIONING_REQUEST, name)


def with_stockout() -> Scenario:
    """Return the example with a stockout of three days instead of a cloud without such machines."""
    cluster, _, _ = (OURS / "cluster.yaml").read_text("utf-8").partition("  # The zone has no machine")
    others = [(name, (OURS / name).read_text("utf-8")) for name in ("platform.yaml", "jobs.yaml")]
    return make_scenario(read_manifests([("cluster.yaml", cluster), ("scenario.yaml", STOCKOUT), *others]))


@both
@pytest.mark.parametrize("job", JOBS)
def test_request_is_accepted_and_provisioned_before_admission_of_job(whose: str, job: str) -> None:
    history = history_of(whose)
    reported = request(history, job)
    assert [(each.type, each.status) for each in reported] == [
        ("Accepted", "False"),
        ("Accepted", "True"),
        ("Provisioned", "True"),
    ]
    assert history.happened("Admitted", job) == [reported[-1].at]


@both
@pytest.mark.parametrize("pool", ["dws-t4-nodepool", "dws-a100-nodepool"])
def test_pool_grows_to_one_node_and_shrinks_to_zero(whose: str, pool: str) -> None:
    assert history_of(whose).sizes(pool) == [0, 1, 0]


@both
@pytest.mark.parametrize("job", JOBS)
def test_job_takes_about_five_minutes_in_total(whose: str, job: str) -> None:
    history = history_of(whose)
    (created,), (finished,) = (history.happened(event, job) for event in ("Created", "Finished"))
    assert 240 < finished - created < 420
    ((begin, end),) = history.together(job, 1)
    assert (round(end - begin), end) == (120, finished)


@both
def test_requests_are_deleted_with_their_jobs(whose: str) -> None:
    assert list(history_of(whose).world.objects(scheme.PROVISIONING_REQUEST)) == []
    assert list(history_of(whose).world.objects(scheme.RESIZE_REQUEST)) == []


@pytest.mark.parametrize(
    "played", [example_history, lambda: WorldHistory(with_stockout())], ids=["capacity", "stockout"]
)
def test_job_without_capacity_starts_after_three_days(played: Callable[[], WorldHistory]) -> None:
    history = played()
    waiting, provisioned = request(history, "sample-job-h100")[-2:]
    assert waiting == ConditionChange(70, "Provisioned", "False", "ResourcePoolExhausted")
    assert (provisioned.type, provisioned.status) == ("Provisioned", "True")
    assert 3 * DAY < provisioned.at < 3 * DAY + 900
    assert history.happened("Admitted", "sample-job-h100") == [provisioned.at]
    assert history.sizes("dws-h100-nodepool") == [0, 1, 0]
    assert len(history.happened("Finished", "sample-job-h100")) == 1


@both
def test_world_ends_after_last_machine_is_deleted(whose: str) -> None:
    assert history_of(whose).world.now() < 4 * DAY * SECOND


def test_waiting_job_causes_no_writes() -> None:
    world = World(example("dws"))
    world.run_until(2 * HOUR)
    revision = world.store.revision
    world.run_until(71 * HOUR)
    assert world.store.revision == revision


@skip_without_manifests("dws")
@skip_without_manifests("refarch")
def test_job_with_resources_uncovered_by_queue_stays_pending() -> None:
    kueue = (SHARED / "refarch" / "dws" / "kueue-dws-config.yaml").read_text("utf-8").replace("team-a", "default")
    cluster = (OURS / "cluster.yaml").read_text("utf-8")
    scenario = make_scenario(read_manifests([("cluster.yaml", cluster), ("kueue.yaml", kueue)]))
    history = WorldHistory(with_later_objects(scenario, (60, objects(THEIRS / "sample-job.yaml"))))
    (workload,) = history.world.objects(scheme.WORKLOAD)
    reported = {each["type"]: each["message"] for each in workload["status"]["conditions"]}
    assert "unavailable in ClusterQueue" in reported["QuotaReserved"]
    assert history.sizes("dws-t4-nodepool") == [0]
