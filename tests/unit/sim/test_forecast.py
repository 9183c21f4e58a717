"""Forecasts of when Workloads start: certain, likely and unknown."""

from collections.abc import Sequence
from dataclasses import replace
from math import log
from typing import Any

import pytest

import make
import yard
from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Obj, key_of
from batchyard.base.instant import SECOND
from batchyard.scheduling.fair_sharing.admission_fair_sharing import AdmissionFairSharing
from batchyard.sim import forecast
from batchyard.sim.forecast import (
    SAMPLE_SIZE,
    Forecast,
    ForecastAnswers,
    ForecastOptions,
    forecast_workloads,
    sample_forecasts,
)
from batchyard.sim.forecasting.calibration import LEVELS, Calibration, QuantileTracker
from batchyard.sim.forecasting.quota_only_state import pending_order_of, queues_of
from batchyard.sim.forecasting.run_times import EstimateBasis
from batchyard.sim.scenario import make_scenario
from batchyard.sim.state import State
from batchyard.sim.world import World
from racks import rack_nodes, rack_queues, rack_workload
from unit.sim.forks_make import queue, state, without_runtimes, workload

pytestmark = pytest.mark.slow

QUIET = ForecastOptions(expects_arrivals=False)


def forecast_of(found: State, name: str, asked: ForecastOptions = QUIET) -> Forecast:
    return forecast_workloads(found, [f"team/{name}"], asked)[f"team/{name}"]


def test_start_is_certain_when_manifests_give_all_run_times() -> None:
    reported = forecast_of(state([*queue(1), workload("a", 30), workload("b", 30, 1), workload("c", 30, 2)], 10), "c")
    assert (reported.basis, reported.forks, reported.waits) == (EstimateBasis.MANIFEST, 1, [50 * SECOND])


def test_forecast_has_no_quantiles_when_run_time_is_unknown() -> None:
    reported = forecast_of(state([*queue(2), workload("a", cpus=2), workload("b", 5, 1)], 10), "b")
    assert (reported.waits, reported.quantile(0.5), reported.started_fraction, reported.basis) == (
        [],
        None,
        0,
        EstimateBasis.UNKNOWN,
    )
    assert reported.depends_on[0] == "team/a holds 2 cpu and its run time is unknown"
    assert reported.depends_on[1].startswith("it waits because: couldn't assign flavors")


def test_forecast_hides_names_of_unreadable_workloads() -> None:
    result = state([*queue(2), workload("a", cpus=2), workload("b", 5, 1)], 10)
    reported = forecast_of(result, "b", ForecastOptions(may_see=lambda _: False))
    assert reported.depends_on[0] == "a Workload holds 2 cpu and its run time is unknown"


def test_forecast_from_history_gives_interval_and_is_deterministic() -> None:
    ended = [workload(f"w-{n}", 10 * n) for n in range(1, 7)]
    then = without_runtimes(state([*queue(7), *ended, workload("w-9", 200), workload("w-10", 5, 61, cpus=7)], 70))
    reported, again = (forecast_of(then, "w-10") for _ in range(2))
    low, high = reported.quantile(0.1), reported.quantile(0.9)
    assert low is not None
    assert high is not None
    assert 0 < low < high
    assert (reported.basis, reported.forks, reported) == (EstimateBasis.HISTORY, forecast.FORKS_DEFAULT, again)
    assert forecast_of(then, "w-10", ForecastOptions(seed=1, expects_arrivals=False)).waits != reported.waits


def test_running_workload_has_started_and_ended_workload_has_no_forecast() -> None:
    result = state([*queue(1), workload("a", 5), workload("b", 50, 1)], 10)
    assert (forecast_of(result, "b").has_started, forecast_of(result, "b").quantile(0.9)) == (True, 0)
    assert forecast_workloads(result, ["team/a", "team/gone"], QUIET) == {}


def test_quantile_without_forks_is_unknown() -> None:
    started = forecast_of(state([*queue(1), workload("b", 50)], 10), "b")
    assert (started.forks, started.quantile_of_forks(0.5)) == (0, None)
    assert started.log_waits_by_level == (None,) * len(LEVELS)


def test_expected_arrivals_of_higher_priority_delay_pending_workload() -> None:
    rows = [workload(f"w{n:02}", 10, n, priority=100) for n in range(40)]
    result = state([*queue(1), *rows, workload("low", 10, 0.5)], 39.5)
    alone, among = (
        forecast_of(result, "low"),
        forecast_of(result, "low", ForecastOptions(forks=5, horizon=200 * SECOND)),
    )
    assert alone.started_fraction == 1
    assert among.started_fraction < 1 or min(among.waits) > max(alone.waits)


def test_start_of_workload_far_back_is_extrapolated_from_queue_pace() -> None:
    rows = [workload(f"w{n:04}", 10) for n in range(1700)]
    result = state([*queue(10), *rows], 5)
    last = max(result.objects, key=lambda key: result.objects[key]["metadata"]["uid"] * (key.kind[0] == "W"))
    reported = forecast_of(result, last.name)
    assert reported.waits[0] == (1690 // 10 - 1) * 10 * SECOND + 5 * SECOND
    assert reported.depends_on == [
        "1,689 Workloads are ahead of it: its start is extrapolated from the starts of the first of them"
    ]


def test_forecast_of_suspended_workload_gives_only_its_reason() -> None:
    found = state([*queue(1), workload("a", 30), workload("b", 30, 1, active=False)], 10)
    reported = forecast_of(found, "b")
    assert (reported.waits, reported.depends_on) == ([], ["it waits because: The workload is deactivated"])


def test_forecast_document_omits_unknown_values() -> None:
    result = state([*queue(1), workload("a", 30), workload("b", 30, 1)], 10)
    document = forecast_of(result, "b").document({"kind": "Workload", "namespace": "team", "name": "b"})
    assert document["waitSeconds"] == {"p10": 20, "p50": 20, "p90": 20}
    assert document["startsAt"]["p50"] == "2026-01-01T00:00:30Z"
    unknown = forecast_of(state([*queue(1), workload("a"), workload("b", 30, 1)], 10), "b").document({})
    assert (unknown["startsAt"], unknown["waitSeconds"], unknown["within"]) == ({}, {}, 0)


def uncertain() -> State:
    """A pending Workload whose wait depends on run times from history."""
    ended = [workload(f"w-{n}", 10 * n) for n in range(1, 7)]
    return without_runtimes(state([*queue(7), *ended, workload("w-9", 200), workload("w-10", 5, 61, cpus=7)], 70))


def test_calibration_moves_quantiles_of_forecast() -> None:
    shifts = [log(2) * (level - 0.5) / 0.4 for level in LEVELS]
    learnt = Calibration({"history, many forks": QuantileTracker(tuple(shifts))})
    result = uncertain()
    plain, reported = (
        forecast_of(result, "w-10", ForecastOptions(expects_arrivals=False, calibration=each))
        for each in (None, learnt)
    )
    for share, factor in ((0.1, 0.5), (0.5, 1), (0.9, 2)):
        before, after = plain.quantile(share), reported.quantile(share)
        assert before is not None
        assert after == pytest.approx(factor * (before + SECOND) - SECOND, rel=0.001)
    assert (plain.document({})["isCorrected"], reported.document({})["isCorrected"]) == (False, True)
    assert reported.waits == plain.waits


def test_samples_are_drawn_deterministically_from_pending_workloads() -> None:
    rows = [workload(f"w{n:02}", 100, n) for n in range(12)]
    result = state([*queue(1), *rows], 20)
    drawn = sample_forecasts(result, ForecastOptions(forks=3))
    assert drawn == sample_forecasts(result, ForecastOptions(forks=3))
    assert len({sample.workload for sample in drawn}) == SAMPLE_SIZE
    assert "team/w00" not in {sample.workload for sample in drawn}
    assert all(sample.uid and sample.at == result.at for sample in drawn)


# Admission fair sharing.


def queue_order(cpu_of_a: str, *, is_usage_based: bool = True, half_life: int = 600 * SECOND) -> list[str]:
    """The order of Workloads of the LocalQueues a (with a past usage) and b (without)."""
    scope: dict[str, Any] = (
        {"admissionScope": {"admissionMode": "UsageBasedAdmissionFairSharing"}} if is_usage_based else {}
    )
    usage = {"weightedShare": 0, "admissionFairSharingStatus": {"consumedResources": {"cpu": cpu_of_a}}}
    used = {**make.local_queue("a"), "status": {"fairSharing": usage}}
    heads = [yard.head(name, 4, created=n) for n, name in enumerate(("a1", "a2", "a3", "b1", "b2", "b3"))]
    objects: list[Obj] = [yard.queue("cq", 8, **scope), used, make.local_queue("b"), *heads]
    found = State(make.NOW, 1, {key_of(obj): obj for obj in objects})
    fair_sharing = AdmissionFairSharing(half_life, sampling_interval=600 * SECOND)
    found = replace(found, kueue=replace(found.kueue, admission_fair_sharing=fair_sharing))
    return [view.name for view in pending_order_of(found, queues_of(found)).waiting_by_queue["cq"]]


def test_queue_order_of_forecasts_counts_usage_and_penalties() -> None:
    assert queue_order("0") == ["a1", "b1", "a2", "b2", "a3", "b3"]
    assert queue_order("3") == ["b1", "b2", "a1", "b3", "a2", "a3"]
    assert queue_order("3", half_life=0) == ["b1", "b2", "b3", "a1", "a2", "a3"]
    assert queue_order("3", is_usage_based=False) == ["a1", "a2", "a3", "b1", "b2", "b3"]


def rack_state(manifests: str) -> State:
    world = World(make_scenario(read_manifests([("objects.yaml", manifests)])))
    world.run_until(20 * SECOND)
    return world.state()


def test_forks_run_with_topologies() -> None:
    nodes = rack_nodes("b1r1h1", "b1r1h2", "b1r2h1")
    running = rack_workload("a", 6).replace("10h", "50s")
    manifests = rack_queues() + nodes + running + rack_workload("b", 5, at=2)
    assert forecast_of(rack_state(manifests), "b").waits == [31 * SECOND]


def test_forks_keep_workloads_of_other_cohort_trees_on_the_same_nodes() -> None:
    manifests = rack_queues("cq", "more") + rack_nodes("b1r1h1", "b1r1h2")
    running = rack_workload("a", 6, queue="more")
    found = rack_state(manifests + running + rack_workload("b", 5, at=2))
    assert forecast_of(found, "b").waits == []


def test_forks_subtract_pods_outside_topologies_from_the_nodes() -> None:
    pod = """
---
apiVersion: v1
kind: Pod
metadata: {name: daemon, namespace: team}
spec: {nodeName: b1r1h1, containers: [{name: c, image: i, resources: {requests: {cpu: 2}}}]}
"""
    manifests = rack_queues() + rack_nodes("b1r1h1", "b1r1h2") + pod + rack_workload("b", 7, at=2)
    reported = forecast_of(rack_state(manifests), "b")
    assert (reported.waits, reported.started_fraction) == ([], 0)


def test_server_reads_nodes_and_pods_only_if_a_topology_exists() -> None:
    for topologies, expected in (([], []), ([make.topology()], [scheme.NODE, scheme.POD])):
        read_kinds: list[str] = []

        def list_kind(kind: str, found: Sequence[Obj] = tuple(topologies), seen: list[str] = read_kinds) -> list[Obj]:
            seen.append(kind)
            objects = found if kind == scheme.TOPOLOGY else ()
            return [{**obj, "metadata": {**obj["metadata"], "resourceVersion": "1"}} for obj in objects]

        assert ForecastAnswers().sample_forecasts(list_kind, make.NOW, Calibration()) == []
        assert [kind for kind in read_kinds if kind in {scheme.NODE, scheme.POD}] == expected
