"""Workloads whose pods are not ready in time, since their machines boot too slowly. Times are seconds."""

from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Key
from batchyard.base.instant import HOUR, SECOND
from batchyard.sim.event_log import Record
from batchyard.sim.faults import WriteFaults
from batchyard.sim.scenario import Scenario, make_scenario
from batchyard.sim.world import World
from sim_worlds.test_checkpoints import QUEUE

#: There is a machine for one pod; the next takes six minutes to boot.
CLUSTER = """
apiVersion: cloud.batchyard.dev/v1alpha1
kind: Cluster
metadata: {name: c}
spec:
  zones: [z]
  times:
    podStart: {min: 1s, typical: 1s, max: 1s}
    boot: {min: 6m, typical: 6m, max: 6m}
  nodePools: [{name: p, machineType: n1-standard-4, nodeCount: 1, autoscaling: {min: 0, max: 2}}]
---
apiVersion: sim.batchyard.dev/v1alpha1
kind: Scenario
metadata: {name: s}
spec: {waitForPodsReady: WAITS}
"""
JOB = """
apiVersion: batch/v1
kind: Job
metadata:
  name: NAME
  namespace: team
  labels: {kueue.x-k8s.io/queue-name: lq}
  annotations: {batchyard.dev/runtime: 60s, batchyard.dev/submit-at: AT}
spec:
  parallelism: PODS
  completions: PODS
  template: {spec: {restartPolicy: Never, containers: [{name: c, image: i, resources: {requests: {cpu: 2}}}]}}
"""


def job(name: str, pods: int, at: str = "0s") -> str:
    return JOB.replace("NAME", name).replace("PODS", str(pods)).replace("AT", at)


def scenario(waits: str, *jobs: str) -> Scenario:
    """Return a scenario of the cluster with these Jobs."""
    result = read_manifests([("w.yaml", "---".join([QUEUE, CLUSTER.replace("WAITS", waits), *jobs]))])
    assert [*map(str, result.faults)] == []
    return make_scenario(result)


def workload_events(waits: str, *jobs: str) -> list[tuple[Any, ...]]:
    """Return the events of Workloads: time, event, Job and reason."""
    records: list[Record] = []
    played = World(scenario(waits, *jobs), sink=records.append)
    played.run_until(HOUR)
    assert played.rejected_writes == []
    reported = [record for record in records if record["event"] in {"QuotaReserved", "Evicted", "Finished"}]
    return [(r["time"], r["event"], r["workload"].split("-")[1], r.get("reason", "")) for r in reported]


def test_workload_not_ready_in_time_is_evicted_and_requeued() -> None:
    strategy = "{backoffBaseSeconds: 60, backoffMaxSeconds: 120}"
    reported = workload_events(f"{{timeout: 5m, requeuingStrategy: {strategy}}}", job("wide", 2))
    assert reported[:3] == [
        (0, "QuotaReserved", "wide", ""),
        (300, "Evicted", "wide", "PodsReadyTimeout"),
        (360, "QuotaReserved", "wide", ""),
    ]
    assert [what for _, what, *_ in reported[3:]] == ["Finished"]


def test_workload_never_ready_in_time_is_deactivated() -> None:
    strategy = "{backoffBaseSeconds: 10, backoffLimitCount: 1}"
    assert workload_events(f"{{timeout: 1m, requeuingStrategy: {strategy}}}", job("wide", 2)) == [
        (0, "QuotaReserved", "wide", ""),
        (60, "Evicted", "wide", "PodsReadyTimeout"),
        (70, "QuotaReserved", "wide", ""),
        (130, "Evicted", "wide", "DeactivatedDueToRequeuingLimitExceeded"),
    ]


@pytest.mark.parametrize(("waits", "blocks"), [("{blockAdmission: true}", True), ("{}", False)])
def test_block_admission_delays_admission_until_pods_are_ready(waits: str, blocks: bool) -> None:
    reported = workload_events(waits, job("wide", 2), job("small", 1, "1s").replace("cpu: 2", "cpu: 0"))
    admitted = {job: at for at, what, job, _ in reported if what == "QuotaReserved"}
    assert (admitted["wide"], admitted["small"] > 360) == (0, blocks)
    assert [job for _, what, job, _ in reported if what == "Finished"] == (
        ["wide", "small"] if blocks else ["small", "wide"]
    )


def overtaking_jobs() -> list[str]:
    """Return a Job that is not ready for 6 min, one that waits for it, and a later one of high priority."""
    low, high = (job(name, 1, at).replace("cpu: 2", "cpu: 0") for name, at in (("low", "5s"), ("high", "10s")))
    return [job("wide", 2), low, high.replace("restartPolicy", "priorityClassName: high, restartPolicy")]


def test_workload_waiting_for_pods_ready_is_admitted_before_later_ones() -> None:
    reported = workload_events("{blockAdmission: true}", *overtaking_jobs())
    admitted = {job: at for at, what, job, _ in reported if what == "QuotaReserved"}
    assert list(admitted) == ["wide", "low", "high"]
    assert 360 < admitted["low"] < admitted["high"]


def test_workload_order_survives_crash_while_admission_is_blocked() -> None:
    records: list[Record] = []
    played = World(
        scenario("{blockAdmission: true}", *overtaking_jobs()), sink=records.append, write_faults=WriteFaults()
    )
    played.run_until(60 * SECOND)
    played.crash()
    played.run_until(HOUR)
    assert [r["workload"].split("-")[1] for r in records if r["event"] == "QuotaReserved"] == ["wide", "low", "high"]


def pending_explanation(seconds: int, waits: str, name: str, *jobs: str) -> tuple[str, str]:
    """Return the limit and the message of the explanation of a pending Job at an instant."""
    played = World(scenario(waits, *jobs))
    played.run_until(seconds * SECOND)
    played.flush_batched_writes()
    result = played.platform.explainer.why(Key(scheme.JOB, "team", name), played.kernel.now())
    assert result is not None
    return result["binding"]["limit"], result["binding"]["message"]


def test_why_reports_end_of_requeue_backoff() -> None:
    waits = "{timeout: 5m, requeuingStrategy: {backoffBaseSeconds: 60, backoffMaxSeconds: 120}}"
    limit, reported = pending_explanation(330, waits, "wide", job("wide", 2))
    assert (limit, reported) == ("backoff", "it was requeued with backoff until 2026-01-01T00:06:00Z")


def test_why_reports_pods_ready_gate() -> None:
    waits = "{timeout: 30m, blockAdmission: true}"
    small = job("next", 1, "10s").replace("cpu: 2", "cpu: 0")
    limit, reported = pending_explanation(60, waits, "next", job("wide", 2), small)
    assert limit == "podsReady"
    assert reported.startswith("waiting for all admitted workloads to be in PodsReady condition: team/job-wide-")


def test_why_reports_workload_ahead_at_pods_ready_gate() -> None:
    limit, reported = pending_explanation(60, "{timeout: 30m, blockAdmission: true}", "high", *overtaking_jobs())
    assert (limit, reported.startswith("it would fit, and team/job-low-")) == ("podsReady", True)
    assert reported.endswith(" is admitted before it, once all admitted workloads are ready")
