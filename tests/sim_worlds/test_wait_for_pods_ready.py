"""Workloads whose pods do not become ready in time, since their machines take too long. Times are seconds."""

from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Key
from batchyard.base.instant import HOUR, SECOND
from batchyard.sim.event_log import Record
from batchyard.sim.faults.faults import WriteFaults
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
    """The cluster with these Jobs."""
    found = read_manifests([("w.yaml", "---".join([QUEUE, CLUSTER.replace("WAITS", waits), *jobs]))])
    assert [*map(str, found.faults)] == []
    return make_scenario(found)


def happened(waits: str, *jobs: str) -> list[tuple[Any, ...]]:
    """What was told of Workloads: when, what, of which Job, and why."""
    records: list[Record] = []
    played = World(scenario(waits, *jobs), sink=records.append)
    played.run_until(HOUR)
    assert played.refused == []
    reported = [record for record in records if record["event"] in {"QuotaReserved", "Evicted", "Finished"}]
    return [(r["time"], r["event"], r["workload"].split("-")[1], r.get("reason", "")) for r in reported]


def test_who_is_not_ready_in_time_is_evicted_and_tries_again() -> None:
    strategy = "{backoffBaseSeconds: 60, backoffMaxSeconds: 120}"
    reported = happened(f"{{timeout: 5m, requeuingStrategy: {strategy}}}", job("wide", 2))
    assert reported[:3] == [
        (0, "QuotaReserved", "wide", ""),
        (300, "Evicted", "wide", "PodsReadyTimeout"),
        (360, "QuotaReserved", "wide", ""),
    ]
    assert [what for _, what, *_ in reported[3:]] == ["Finished"]


def test_who_is_never_ready_in_time_is_given_up() -> None:
    strategy = "{backoffBaseSeconds: 10, backoffLimitCount: 1}"
    assert happened(f"{{timeout: 1m, requeuingStrategy: {strategy}}}", job("wide", 2)) == [
        (0, "QuotaReserved", "wide", ""),
        (60, "Evicted", "wide", "PodsReadyTimeout"),
        (70, "QuotaReserved", "wide", ""),
        (130, "Evicted", "wide", "DeactivatedDueToRequeuingLimitExceeded"),
    ]


@pytest.mark.parametrize(("waits", "blocks"), [("{blockAdmission: true}", True), ("{}", False)])
def test_nobody_is_admitted_while_somebody_is_not_ready_if_that_blocks_admission(waits: str, blocks: bool) -> None:
    reported = happened(waits, job("wide", 2), job("small", 1, "1s").replace("cpu: 2", "cpu: 0"))
    admitted = {job: at for at, what, job, _ in reported if what == "QuotaReserved"}
    assert (admitted["wide"], admitted["small"] > 360) == (0, blocks)
    assert [job for _, what, job, _ in reported if what == "Finished"] == (
        ["wide", "small"] if blocks else ["small", "wide"]
    )


def overtaken() -> list[str]:
    """A wide Job that is not ready for six minutes, one that waits for it, and one of high priority that comes then."""
    low, high = (job(name, 1, at).replace("cpu: 2", "cpu: 0") for name, at in (("low", "5s"), ("high", "10s")))
    return [job("wide", 2), low, high.replace("restartPolicy", "priorityClassName: high, restartPolicy")]


def test_who_waits_for_pods_is_admitted_before_whoever_comes_meanwhile() -> None:
    reported = happened("{blockAdmission: true}", *overtaken())
    admitted = {job: at for at, what, job, _ in reported if what == "QuotaReserved"}
    assert list(admitted) == ["wide", "low", "high"]
    assert 360 < admitted["low"] < admitted["high"]


def test_who_waits_for_pods_is_admitted_first_though_the_platform_crashes_meanwhile() -> None:
    records: list[Record] = []
    played = World(scenario("{blockAdmission: true}", *overtaken()), sink=records.append, trouble=WriteFaults())
    played.run_until(60 * SECOND)
    played.crash()
    played.run_until(HOUR)
    assert [r["workload"].split("-")[1] for r in records if r["event"] == "QuotaReserved"] == ["wide", "low", "high"]


def why(seconds: int, waits: str, name: str, *jobs: str) -> tuple[str, str]:
    """What a Job is said to wait for at a moment: the limit, and what is said of it."""
    played = World(scenario(waits, *jobs))
    played.run_until(seconds * SECOND)
    played.settle()
    found = played.platform.explainer.why(Key(scheme.JOB, "team", name), played.kernel.now())
    assert found is not None
    return found["binding"]["limit"], found["binding"]["message"]


def test_who_asks_why_is_told_until_when_it_is_held_back() -> None:
    waits = "{timeout: 5m, requeuingStrategy: {backoffBaseSeconds: 60, backoffMaxSeconds: 120}}"
    limit, reported = why(330, waits, "wide", job("wide", 2))
    assert (limit, reported) == ("backoff", "it was requeued with backoff until 2026-01-01T00:06:00Z")


def test_who_asks_why_is_told_of_the_gate() -> None:
    waits = "{timeout: 30m, blockAdmission: true}"
    small = job("next", 1, "10s").replace("cpu: 2", "cpu: 0")
    limit, reported = why(60, waits, "next", job("wide", 2), small)
    assert (limit, reported) == ("podsReady", "waiting for all admitted workloads to be in PodsReady condition")


def test_who_comes_meanwhile_is_told_who_is_admitted_before_it() -> None:
    limit, reported = why(60, "{timeout: 30m, blockAdmission: true}", "high", *overtaken())
    assert (limit, reported.startswith("it would fit, and team/job-low-")) == ("podsReady", True)
    assert reported.endswith(" is admitted before it, once all admitted workloads are ready")
