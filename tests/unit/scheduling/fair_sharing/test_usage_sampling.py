"""Samples of the usage of LocalQueues: when they are taken, what the status says, and what a restart keeps."""

from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Key, Obj
from batchyard.base.instant import HOUR, SECOND
from batchyard.scheduling.cycle import CYCLES_UNCHECKED
from batchyard.sim.faults import WriteFaults
from batchyard.sim.scenario import InvalidScenario, make_scenario
from batchyard.sim.world import World

QUEUES = """
apiVersion: sim.batchyard.dev/v1alpha1
kind: Scenario
metadata: {name: afs}
spec:
  HORIZON
  admissionFairSharing: {usageHalfLifeTime: HALF, usageSamplingInterval: 10s}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: f}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: cq}
spec:
  namespaceSelector: {}
  queueingStrategy: StrictFIFO
  admissionScope: {admissionMode: UsageBasedAdmissionFairSharing}
  resourceGroups: [{coveredResources: [cpu], flavors: [{name: f, resources: [{name: cpu, nominalQuota: 4}]}]}]
"""
LOCAL_QUEUE = """
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: NAME, namespace: team}
spec: {clusterQueue: cq}
"""
WORKLOAD = """
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Workload
metadata:
  name: NAME
  namespace: team
  annotations: {batchyard.dev/runtime: RUNTIME, batchyard.dev/submit-at: SUBMIT}
spec:
  queueName: QUEUE
  podSets:
  - name: main
    count: 1
    template: {spec: {restartPolicy: Never, containers: [{name: c, image: i, resources: {requests: {cpu: CPU}}}]}}
"""


def wl(name: str, cpu: int, submit: str, runtime: str) -> str:
    """A Workload of the LocalQueue with the first letter of its name."""
    text = WORKLOAD.replace("NAME", name).replace("QUEUE", name[0]).replace("CPU", str(cpu))
    return text.replace("SUBMIT", submit).replace("RUNTIME", runtime)


def world_of(*workloads: str, half_life: str = "10s", horizon: str = "horizon: 1h", **options: Any) -> World:
    """A world with the LocalQueues a and b, and these Workloads."""
    queues = QUEUES.replace("HALF", half_life).replace("HORIZON", horizon)
    text = queues + LOCAL_QUEUE.replace("NAME", "a") + LOCAL_QUEUE.replace("NAME", "b") + "".join(workloads)
    return World(make_scenario(read_manifests([("f", text)])), **options)


def status(world: World, name: str = "a") -> Obj:
    """Return the admission fair sharing status of a LocalQueue."""
    obj = world.client.get(Key(scheme.LOCAL_QUEUE, "team", name))
    assert obj is not None
    assert obj["status"]["fairSharing"]["weightedShare"] == 0
    result: Obj = obj["status"]["fairSharing"]["admissionFairSharingStatus"]
    return result


def test_new_local_queue_has_status_without_usage() -> None:
    world = world_of()
    world.run_until(0)
    assert status(world) == {"consumedResources": {"cpu": "0"}, "lastUpdate": "2026-01-01T00:00:00Z"}


def test_usage_is_sampled_in_each_interval() -> None:
    world = world_of(wl("a1", 4, "0s", "1h"))
    for seconds, cpu in ((1, "2"), (9, "2"), (10, "3"), (20, "3500m")):
        world.run_until(seconds * SECOND)
        assert status(world)["consumedResources"] == {"cpu": cpu}


def test_sample_follows_one_interval_after_settlement() -> None:
    world = world_of(wl("a1", 4, "5s", "1h"))
    for seconds, updates in ((6, ("05", "00")), (14, ("05", "10")), (15, ("15", "10")), (20, ("15", "20"))):
        world.run_until(seconds * SECOND)
        assert tuple(status(world, name)["lastUpdate"][-3:-1] for name in "ab") == updates


def test_half_life_of_zero_resets_usage_at_each_sample() -> None:
    world = world_of(wl("a1", 4, "5s", "1h"), half_life="0s")
    world.run_until(15 * SECOND)
    assert status(world) == {"consumedResources": {}, "lastUpdate": "2026-01-01T00:00:15Z"}


def test_stopped_local_queue_is_not_sampled() -> None:
    world = world_of(wl("a1", 4, "0s", "1h"))
    world.run_until(5 * SECOND)
    obj = world.client.get(Key(scheme.LOCAL_QUEUE, "team", "a"))
    assert obj is not None
    world.apply({**obj, "spec": {**obj["spec"], "stopPolicy": "Hold"}})
    world.run_until(60 * SECOND)
    assert status(world)["lastUpdate"] == "2026-01-01T00:00:00Z"


def test_sample_that_changes_the_order_unblocks_a_strict_queue() -> None:
    """The head of b never fits. At 11 s, the sample of a makes a the LocalQueue with less usage."""
    world = world_of(wl("b1", 1, "0s", "1h"), wl("a1", 2, "1s", "2s"), wl("b2", 4, "2s", "1h"), wl("a2", 2, "4s", "1h"))
    world.run_until(HOUR)
    assert admissions(world) == [("00:00", "b1"), ("00:01", "a1"), ("00:11", "a2")]


def admissions(world: World) -> list[tuple[str, str]]:
    """Return the minute and second of the reservation, and the name, of each Workload with quota or finished."""
    workloads = [obj for obj in world.objects(scheme.WORKLOAD) if "admission" in obj["status"]]
    times = [obj["status"]["conditions"][0]["lastTransitionTime"][-6:-1] for obj in workloads]
    return sorted(zip(times, [obj["metadata"]["name"] for obj in workloads], strict=True))


def test_why_names_usages_of_local_queues() -> None:
    world = world_of(wl("b1", 1, "0s", "1h"), wl("a1", 2, "1s", "2s"), wl("b2", 4, "2s", "1h"), wl("a2", 2, "4s", "1h"))
    world.run_until(8 * SECOND)
    document = world.platform.explainer.why(Key(scheme.WORKLOAD, "team", "a2"), world.kernel.now())
    assert document is not None
    assert "team/b2 is ahead of it (admission fair sharing: the usage of its LocalQueue is 0.5," in document["summary"]
    assert document["line"] | {"ahead": None} == {
        "position": 2,
        "of": 2,
        "ahead": None,
        "strategy": "StrictFIFO, LocalQueues with less usage first (0.5 before 1.134)",
    }


def test_run_without_horizon_ends_when_no_workload_holds_quota() -> None:
    world = world_of(wl("a1", 4, "5s", "30s"), wl("b1", 8, "7s", "1h"), horizon="")
    world.run_until(None)
    assert world.now() < 60 * SECOND


def test_samples_omitted_while_idle_are_taken_at_the_next_change() -> None:
    workloads = wl("a1", 3, "5s", "30s"), wl("a2", 3, "500s", "1s"), wl("b1", 4, "501s", "1s")
    ends, goes_on = world_of(*workloads, horizon=""), world_of(*workloads)
    for world in (ends, goes_on):
        world.run_until(506 * SECOND)
    assert status(ends) == status(goes_on)
    assert status(ends)["consumedResources"] != {"cpu": "0"}


def test_restart_keeps_usage() -> None:
    world = world_of(wl("a1", 4, "0s", "1h"), write_faults=WriteFaults())
    world.run_until(11 * SECOND)
    world.crash()
    world.run_until(12 * SECOND)
    ledger = world.platform.index.workload_cache.usage_ledger
    assert ledger is not None
    assert (ledger.usage_of("team/a"), ledger.usage_of("team/b")) == (3, 0)


def test_preemption_loop_ends_when_usage_of_victims_grows() -> None:
    """The victim comes first again after each preemption, until its penalties exceed the usage of the preemptor."""
    preemption = "preemption: {withinClusterQueue: LowerPriority}\n  resourceGroups"
    text = QUEUES.replace("StrictFIFO", "BestEffortFIFO").replace("resourceGroups", preemption)
    text = text.replace("HALF", "60s").replace("HORIZON", "horizon: 1h") + LOCAL_QUEUE.replace("NAME", "a")
    text += LOCAL_QUEUE.replace("NAME", "b").replace("cq}", "cq, fairSharing: {weight: 20m}}")
    urgent = wl("b2", 4, "30s", "1h").replace("queueName", "priority: 9\n  queueName")
    text += wl("b1", 4, "0s", "20s") + wl("a1", 4, "25s", "1h") + urgent
    world = World(make_scenario(read_manifests([("f", text)])))
    world.run_until(31 * SECOND)
    assert (world.loops, admissions(world)) == ([], [("00:00", "b1"), ("00:30", "b2")])
    assert world.waits.preemptions > 2 * CYCLES_UNCHECKED


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ("-1", "spec.admissionFairSharing.resourceWeights[cpu]: Invalid value: -1: must be greater than or equal to 0"),
        ("'1'", "write a number such as 2 or 0.5"),
    ],
)
def test_invalid_weight_in_scenario_is_reported(weight: str, message: str) -> None:
    text = QUEUES.replace("HALF", "1s").replace("HORIZON", "horizon: 1h")
    text = text.replace("10s}", f"10s, resourceWeights: {{cpu: {weight}}}}}")
    with pytest.raises(InvalidScenario) as raised:
        make_scenario(read_manifests([("f", text)]))
    assert message in str(raised.value)
