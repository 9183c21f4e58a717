"""Placement with Hotswap evicts whole Workloads for gangs of higher priority and reserves the freed nodes."""

from collections.abc import Mapping, Sequence

import make
from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, find_condition, is_true, key_of, with_metadata, with_status
from batchyard.interfaces.client import EventType, UpdateStatus, WatchEvent
from batchyard.placement.controller import PlacementController
from batchyard.scheduling.workload.evictions import release_after_eviction
from stage import Stage, condition_state
from unit.placement.hotswap_make import HIGH, LOW, leader, running, running_since, slice_of, worker
from unit.placement.placement_make import HOST, member, node, pod

HOLDING = [make.condition("QuotaReserved"), make.condition("Admitted")]


def of_job(obj: Obj, owner: str) -> Obj:
    """A pod of a Job."""
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": owner, "uid": f"uid-{owner}", "controller": True}
    return with_metadata(obj, ownerReferences=[reference])


def job(name: str, pods: int = 4, annotations: Mapping[str, str] | None = None) -> Obj:
    return make.job(name, queue=None, parallelism=pods, completions=pods, annotations=annotations)


def workload(name: str) -> Obj:
    return make.workload(name, conditions=HOLDING)


def jobset(name: str, *pools: str, since: float = 0, priority: int = LOW) -> list[Obj]:
    """A running JobSet with a Job on each of these slices: its Workload, its Jobs and their pods."""
    objs = [workload(f"jobset-{name}")]
    for number, pool in enumerate(pools):
        objs.append(job(f"{name}-{number}"))
        pods = running(name, number, pool, priority)
        objs += [of_job(with_status(each, running_since(since)), f"{name}-{number}") for each in pods]
    return objs


def pending_jobset(name: str = "high", jobs: int = 1, priority: int = HIGH, pods: int = 4) -> list[Obj]:
    """A JobSet with pending leaders."""
    objs = [workload(f"jobset-{name}")]
    for number in range(jobs):
        objs += [job(f"{name}-{number}", pods), of_job(leader(name, number, priority), f"{name}-{number}")]
    return objs


def hotswap_stage(*objects: Obj, pools: str = "ab", hotswap: bool = True) -> Stage:
    stage = Stage(PlacementController(hotswap=hotswap))
    stage.put(*[each for pool in pools for each in slice_of(pool)], *objects)
    return stage


def names(stage: Stage) -> list[str]:
    return [obj["metadata"]["name"] for obj in stage.client.list(scheme.POD)]


def place(stage: Stage, name: str) -> str:
    """The node of a pod, or its nominated node in brackets, or ''."""
    obj = stage.get(scheme.POD, name)
    nominated = (obj.get("status") or {}).get("nominatedNodeName")
    return obj["spec"].get("nodeName") or (f"({nominated})" if nominated else "")


def evicted_workloads(stage: Stage) -> list[str]:
    """The evicted Workloads."""
    return [obj["metadata"]["name"].removeprefix("jobset-") for obj in stage.workloads() if is_true(obj, "Evicted")]


def finish_and_delete(stage: Stage, *pods: str) -> None:
    """Finish pods and delete them."""
    for name in pods:
        stage.put(with_status(stage.get(scheme.POD, name), {"phase": "Succeeded"}))
        stage.delete(scheme.POD, name)


def pods_of(name: str, number: int = 0) -> list[str]:
    return [f"{name}-{number}-{index}" for index in range(4)]


def test_hotswap_evicts_whole_workload_and_deletes_no_pods() -> None:
    stage = hotswap_stage(*jobset("low", "a", "b", since=-600), *pending_jobset())
    assert evicted_workloads(stage) == ["low"]
    reported = (
        "Preempted to accommodate a workload (UID: uid-jobset-high, JobUID: UNKNOWN) due to Hotswap: team/jobset-high"
        " needs the nodes of team/jobset-low, whose 8 pods lose 80m of work since their last checkpoints"
    )
    assert condition_state(stage.workload("jobset-low"), "Evicted") == ("True", "Preempted", reported)
    assert condition_state(stage.workload("jobset-low"), "Preempted") == ("True", "Hotswap", reported)
    assert names(stage) == ["high-0-0", *pods_of("low", 0), *pods_of("low", 1)]
    assert place(stage, "high-0-0") == "(a-0)"
    assert not any("deletionTimestamp" in obj["metadata"] for obj in stage.client.list(scheme.POD))


def test_hotswap_reports_events_on_preemptor_and_victim() -> None:
    stage = hotswap_stage(*jobset("low", "a", "b"), *pending_jobset())
    reported = [(str(e.regarding), e.reason) for e in stage.events if e.regarding.kind == scheme.WORKLOAD]
    assert reported == [
        ("team/jobset-low", "EvictedDueToPreempted"),
        ("team/jobset-low", "Preempted"),
        ("team/jobset-high", "PreemptedWorkload"),
    ]


def test_hotswap_binds_leader_after_last_victim_pod_is_gone() -> None:
    stage = hotswap_stage(*jobset("low", "a", "b"), *pending_jobset())
    finish_and_delete(stage, *pods_of("low", 0)[:3])
    assert place(stage, "high-0-0") == "(a-0)"
    finish_and_delete(stage, "low-0-3")
    assert place(stage, "high-0-0") == "a-0"


def test_hotswap_binds_leader_to_domain_freed_first() -> None:
    stage = hotswap_stage(*jobset("low", "a", "b"), *pending_jobset())
    finish_and_delete(stage, *pods_of("low", 1))
    assert place(stage, "high-0-0") == "b-0"


def test_hotswap_reserves_domain_for_leader_and_followers() -> None:
    stage = hotswap_stage(*jobset("low", "a"), pod("other", priority=LOW, cpu="4"), *pending_jobset(), pools="a")
    for name in pods_of("low"):
        finish_and_delete(stage, name)
        assert place(stage, "other") == ""
    assert place(stage, "high-0-0") == "a-0"
    followers = [of_job(worker("high", 0, i, HIGH), "high-0") for i in range(1, 4)]
    stage.put(*followers[:2])
    assert place(stage, "other") == ""
    stage.put(followers[2])
    assert sorted(place(stage, name) for name in pods_of("high")) == ["a-0", "a-1", "a-2", "a-3"]
    assert place(stage, "other") == ""


def test_hotswap_releases_domain_of_deleted_leader() -> None:
    stage = hotswap_stage(*jobset("low", "a"), *pending_jobset(), pod("other", priority=LOW, cpu="4"), pools="a")
    finish_and_delete(stage, *pods_of("low")[1:])
    assert place(stage, "other") == ""
    stage.delete(scheme.POD, "high-0-0")
    assert place(stage, "other") == "a-1"


def test_hotswap_preempted_workload_waits_for_new_domain() -> None:
    stage = hotswap_stage(*jobset("low", "a", "b"), *pending_jobset())
    finish_and_delete(stage, *pods_of("low", 0), *pods_of("low", 1))
    stage.put(release_after_eviction(stage.workload("jobset-low"), make.NOW))
    back = pending_jobset("low", 2, LOW)
    stage.put(with_status(stage.workload("jobset-low"), back[0]["status"]), *[back[2], back[4]])
    assert [place(stage, f"low-{number}-0") for number in range(2)] == ["", ""]
    assert evicted_workloads(stage) == []
    stage.put(*slice_of("c"))
    assert [place(stage, f"low-{number}-0") for number in range(2)] == ["b-0", "c-0"]


def test_hotswap_does_not_evict_workload_twice() -> None:
    stage = hotswap_stage(*jobset("low", "a", "b"), *pending_jobset())
    before = stage.workload("jobset-low")
    stage.put(node("new", cpu="1"), with_metadata(stage.get(scheme.NODE, "a-1", ""), annotations={"x": "y"}))
    stage.put(*slice_of("d", hosts=3))
    assert place(stage, "high-0-0") == "(a-0)"
    assert stage.workload("jobset-low") is before


def test_hotswap_evicts_workload_with_least_work_since_checkpoint() -> None:
    saving = jobset("saving", "a", since=-420)
    saving[1] = job("saving-0", annotations={well_known.CHECKPOINT_EVERY: "5m"})
    stage = hotswap_stage(*saving, *jobset("late", "b", since=-180), *pending_jobset())
    assert evicted_workloads(stage) == ["saving"]


def test_hotswap_does_not_evict_workload_of_equal_priority() -> None:
    stage = hotswap_stage(*jobset("equal", "a", "b", priority=HIGH), *pending_jobset())
    assert evicted_workloads(stage) == []
    reported = find_condition(stage.get(scheme.POD, "high-0-0"), "PodScheduled")
    assert reported is not None
    assert reported["message"].endswith(" 8 No preemption victims found for incoming pod.")


def test_hotswap_does_not_evict_finished_or_missing_workload() -> None:
    over = jobset("over", "a")
    over[0] = make.workload("jobset-over", conditions=[*HOLDING, make.condition("Finished")])
    stage = hotswap_stage(*over, *jobset("unknown", "b")[1:], *pending_jobset())
    assert place(stage, "high-0-0") == ""


def test_leader_is_bound_only_to_domain_with_room_for_whole_job() -> None:
    stage = hotswap_stage(pod("small", nodeName="a-3", priority=HIGH), *pending_jobset())
    assert place(stage, "high-0-0") == "b-0"


def test_existing_followers_get_no_placeholders() -> None:
    follower = of_job(worker("high", 0, 1, HIGH, nodeName="b-0"), "high-0")
    stage = hotswap_stage(
        follower, *jobset("low", "a"), pod("s", nodeName="b-1", priority=HIGH, cpu="4"), *pending_jobset(pods=3)
    )
    assert place(stage, "high-0-0") == "b-2"


def test_succeeded_followers_get_no_placeholders() -> None:
    objects = pending_jobset()
    objects[1] = {**objects[1], "status": {"succeeded": 3}}
    full = [pod(f"f{i}", nodeName=f"a-{i}", priority=HIGH, cpu="4") for i in range(3)]
    stage = hotswap_stage(*full, *objects, pools="a")
    assert place(stage, "high-0-0") == "a-3"


def test_leader_whose_job_is_gone_is_placed_without_followers() -> None:
    full = [pod(f"f{i}", nodeName=f"a-{i}", priority=HIGH, cpu="4") for i in range(3)]
    objects = pending_jobset()
    stage = hotswap_stage(*full, objects[0], objects[2], pools="a")
    assert place(stage, "high-0-0") == "a-3"


def test_job_without_completions_gets_placeholders_for_its_parallelism() -> None:
    objects = pending_jobset()
    objects[1] = {**objects[1], "spec": {**objects[1]["spec"], "completions": None}}
    stage = hotswap_stage(pod("small", nodeName="a-3", priority=HIGH), *objects)
    assert place(stage, "high-0-0") == "b-0"


def test_hotswap_evicts_workload_for_pod_without_workload() -> None:
    stage = hotswap_stage(*jobset("low", "a"), pod("high", cpu="4", priority=HIGH), pools="a")
    assert place(stage, "high") == "(a-0)"
    message = condition_state(stage.workload("jobset-low"), "Evicted")[2]
    assert message.startswith(
        "Preempted to accommodate a workload (UID: uid-high, JobUID: UNKNOWN) due to Hotswap: team/high needs "
    )
    reported = [event.regarding for event in stage.events if event.reason == "PreemptedWorkload"]
    assert reported == [Key(scheme.POD, "team", "high")]


def test_hotswap_preempts_pods_without_workload_individually() -> None:
    small = [pod(f"s{i}", nodeName=f"a-{i}", priority=LOW) for i in range(2)]
    stage = hotswap_stage(*small, *pending_jobset(pods=3), pools="a")
    gone = [obj["metadata"]["name"] for obj in stage.client.list(scheme.POD) if "deletionTimestamp" in obj["metadata"]]
    assert gone == ["s0"]
    assert condition_state(stage.get(scheme.POD, "s0"), "DisruptionTarget")[1] == "PreemptionByScheduler"


def test_hotswap_selects_victims_of_single_pod_like_kube_scheduler() -> None:
    old = with_status(pod("old", cpu="4", nodeName="n0", priority=LOW), running_since(0))
    new = with_status(pod("new", cpu="4", nodeName="n1", priority=LOW + 1), running_since(900))
    stage = hotswap_stage(node("n0"), node("n1"), old, new, pod("high", cpu="4", priority=HIGH), pools="")
    assert place(stage, "high") == "(n0)"


def test_hotswap_reports_preemption_failure_like_kube_scheduler() -> None:
    low, mid = pod("low", nodeName="n0", priority=LOW), pod("mid", cpu="3", nodeName="n0", priority=HIGH)
    never = pod("never", cpu="4", priority=HIGH, preemptionPolicy="Never")
    stage = hotswap_stage(node("n0"), low, mid, pod("high", cpu="4", priority=HIGH), never, pools="")
    reported = [
        condition_state(stage.get(scheme.POD, name), "PodScheduled")[2].partition("preemption: ")[2]
        for name in ("high", "never")
    ]
    assert reported == ["0/1 nodes are available: 1 Insufficient cpu.", "not eligible due to preemptionPolicy=Never."]


def two_jobs() -> Sequence[Obj]:
    """A Job on two nodes, and a Job of higher priority that needs one node."""
    low = [member(f"low{i}", "low", cpu="4", nodeName=f"a-{i}", priority=LOW) for i in range(2)]
    high = member("high", "high", cpu="4", priority=HIGH)
    return [make.workload("job-low", conditions=HOLDING), make.workload("job-high", conditions=HOLDING), *low, high]


def test_hotswap_evicts_whole_gang_for_single_pod() -> None:
    stage = hotswap_stage(*two_jobs(), pod("full", nodeName="a-2", priority=HIGH, cpu="4"), pools="")
    assert place(stage, "high") == ""
    stage.put(*slice_of("a", hosts=3))
    assert place(stage, "high") == "(a-0)"
    assert condition_state(stage.workload("job-low"), "Preempted")[1] == "Hotswap"


def test_hotswap_keeps_gang_bound_in_same_pass() -> None:
    victim = member("v", "v", cpu="4", nodeName="n0", priority=LOW)
    first = member("a", "a", cpu="4", priority=HIGH + 20, nodeSelector={HOST: "n0"})
    mixed = [member("m0", "m", priority=HIGH + 10), member("m1", "m", priority=LOW)]
    last = member("c", "c", cpu="3", priority=HIGH)
    workloads = [make.workload(f"job-{name}", conditions=HOLDING) for name in "vamc"]
    stage = hotswap_stage(node("n0"), node("n1"), *workloads, victim, first, *mixed, last, pools="")
    assert [place(stage, name) for name in ("a", "m0", "m1", "c")] == ["(n0)", "n1", "n1", ""]
    assert [obj["metadata"]["name"] for obj in stage.workloads() if is_true(obj, "Evicted")] == ["job-v"]


def test_preempted_event_names_gang_pod_of_highest_priority() -> None:
    mixed = [member("a", "m", cpu="4", priority=LOW), member("b", "m", cpu="4", priority=HIGH)]
    victim = pod("v", cpu="4", nodeName="n0", priority=LOW)
    stage = hotswap_stage(node("n0"), node("n1"), make.workload("job-m", conditions=HOLDING), victim, *mixed, pools="")
    assert [place(stage, name) for name in "ab"] == ["(n1)", "(n0)"]
    reported = [event.message for event in stage.events if event.regarding.name == "v" and event.reason == "Preempted"]
    assert reported == ["Preempted by pod uid-b on node n0"]


def test_disabled_hotswap_preempts_pods_individually() -> None:
    stage = hotswap_stage(*two_jobs(), pod("full", nodeName="a-2", priority=HIGH, cpu="4"), pools="", hotswap=False)
    stage.put(*slice_of("a", hosts=3))
    assert place(stage, "high") == "(a-0)"
    assert "deletionTimestamp" in stage.get(scheme.POD, "low0")["metadata"]
    assert find_condition(stage.workload("job-low"), "Preempted") is None


def test_restarted_placement_keeps_hotswap_nominations() -> None:
    stage = hotswap_stage(*jobset("low", "a"), *pending_jobset(), pools="a")
    finish_and_delete(stage, *pods_of("low")[1:])
    kinds = (scheme.NODE, scheme.POD, scheme.JOB, scheme.WORKLOAD)
    objects = [obj for kind in kinds for obj in stage.client.list(kind)]
    later = hotswap_stage(*objects, pod("other", priority=LOW, cpu="4"), pools="")
    assert place(later, "high-0-0") == "(a-0)"
    assert place(later, "other") == ""


class LostEviction:
    """The objects of a stage, except that the eviction of the Workload was never written."""

    def __init__(self, stage: Stage, workload: Obj) -> None:
        self._client = stage.client
        self._workload = workload

    def get(self, key: Key) -> Obj | None:
        return self._workload if key == key_of(self._workload) else self._client.get(key)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        return self._client.list(kind, namespace)

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        return self._client.owned_by(uid, namespace)


def test_hotswap_repeats_eviction_that_was_not_written() -> None:
    stage = hotswap_stage(*jobset("low", "a", "b"), *pending_jobset())
    placement, reader = PlacementController(hotswap=True), LostEviction(stage, workload("jobset-low"))
    for obj in [*stage.client.list(scheme.NODE), *stage.client.list(scheme.POD)]:
        keys = placement.keys_for(WatchEvent(EventType.ADDED, key_of(obj), obj, None, 1), make.NOW)
    (key,) = keys
    for _ in range(2):
        writes = placement.reconcile(key, reader, make.NOW).writes
        assert "Workload" in [write.obj["kind"] for write in writes if isinstance(write, UpdateStatus)]
