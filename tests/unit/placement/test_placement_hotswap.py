"""Placement with Hotswap: whole Workloads leave for gangs of higher priority, and nobody takes their room between."""

from collections.abc import Mapping, Sequence

import make
from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, find_condition, is_true, key_of, with_metadata, with_status
from batchyard.interfaces.client import EventType, UpdateStatus, WatchEvent
from batchyard.placement.controller import PlacementController
from batchyard.scheduling.workload.lifecycle import release_after_eviction
from stage import Stage, stated
from unit.placement.hotswap_make import HIGH, LOW, leader, running, slice_of, started, worker
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
    """A JobSet that runs, a Job on each of these slices: its Workload, its Jobs and their pods."""
    objs = [workload(f"jobset-{name}")]
    for number, pool in enumerate(pools):
        objs.append(job(f"{name}-{number}"))
        pods = running(name, number, pool, priority)
        objs += [of_job(with_status(each, started(since)), f"{name}-{number}") for each in pods]
    return objs


def waiting(name: str = "high", jobs: int = 1, priority: int = HIGH, pods: int = 4) -> list[Obj]:
    """A JobSet whose leaders wait."""
    objs = [workload(f"jobset-{name}")]
    for number in range(jobs):
        objs += [job(f"{name}-{number}", pods), of_job(leader(name, number, priority), f"{name}-{number}")]
    return objs


def staged(*objects: Obj, pools: str = "ab", hotswap: bool = True) -> Stage:
    stage = Stage(PlacementController(hotswap=hotswap))
    stage.put(*[each for pool in pools for each in slice_of(pool)], *objects)
    return stage


def names(stage: Stage) -> list[str]:
    return [obj["metadata"]["name"] for obj in stage.client.list(scheme.POD)]


def place(stage: Stage, name: str) -> str:
    """The node of a pod; in brackets that on which room is held for it; '' for neither."""
    obj = stage.get(scheme.POD, name)
    nominated = (obj.get("status") or {}).get("nominatedNodeName")
    return obj["spec"].get("nodeName") or (f"({nominated})" if nominated else "")


def evicted(stage: Stage) -> list[str]:
    """The Workloads that were evicted."""
    return [obj["metadata"]["name"].removeprefix("jobset-") for obj in stage.workloads() if is_true(obj, "Evicted")]


def leave(stage: Stage, *pods: str) -> None:
    """Pods are stopped, and gone at once."""
    for name in pods:
        stage.put(with_status(stage.get(scheme.POD, name), {"phase": "Succeeded"}))
        stage.delete(scheme.POD, name)


def pods_of(name: str, number: int = 0) -> list[str]:
    return [f"{name}-{number}-{index}" for index in range(4)]


def test_a_workload_is_preempted_as_a_whole_and_its_pods_are_left_to_its_job() -> None:
    stage = staged(*jobset("low", "a", "b", since=-600), *waiting())
    assert evicted(stage) == ["low"]
    reported = (
        "Preempted to accommodate a workload (UID: uid-jobset-high, JobUID: UNKNOWN) due to Hotswap: team/jobset-high"
        " needs the nodes of team/jobset-low, whose 8 pods lose 80m of work since their last checkpoints"
    )
    assert stated(stage.workload("jobset-low"), "Evicted") == ("True", "Preempted", reported)
    assert stated(stage.workload("jobset-low"), "Preempted") == ("True", "Hotswap", reported)
    assert names(stage) == ["high-0-0", *pods_of("low", 0), *pods_of("low", 1)]
    assert place(stage, "high-0-0") == "(a-0)"
    assert not any("deletionTimestamp" in obj["metadata"] for obj in stage.client.list(scheme.POD))


def test_both_sides_are_told() -> None:
    stage = staged(*jobset("low", "a", "b"), *waiting())
    reported = [(str(e.regarding), e.reason) for e in stage.events if e.regarding.kind == scheme.WORKLOAD]
    assert reported == [
        ("team/jobset-low", "EvictedDueToPreempted"),
        ("team/jobset-low", "Preempted"),
        ("team/jobset-high", "PreemptedWorkload"),
    ]


def test_the_gang_goes_there_when_the_last_one_has_left() -> None:
    stage = staged(*jobset("low", "a", "b"), *waiting())
    leave(stage, *pods_of("low", 0)[:3])
    assert place(stage, "high-0-0") == "(a-0)"
    leave(stage, "low-0-3")
    assert place(stage, "high-0-0") == "a-0"


def test_the_gang_goes_elsewhere_if_there_is_room_sooner() -> None:
    stage = staged(*jobset("low", "a", "b"), *waiting())
    leave(stage, *pods_of("low", 1))
    assert place(stage, "high-0-0") == "b-0"


def test_nobody_takes_the_room_before_the_leader_or_his_followers_do() -> None:
    stage = staged(*jobset("low", "a"), pod("other", priority=LOW, cpu="4"), *waiting(), pools="a")
    for name in pods_of("low"):
        leave(stage, name)
        assert place(stage, "other") == ""
    assert place(stage, "high-0-0") == "a-0"
    followers = [of_job(worker("high", 0, i, HIGH), "high-0") for i in range(1, 4)]
    stage.put(*followers[:2])
    assert place(stage, "other") == ""
    stage.put(followers[2])
    assert sorted(place(stage, name) for name in pods_of("high")) == ["a-0", "a-1", "a-2", "a-3"]
    assert place(stage, "other") == ""


def test_room_that_is_held_in_vain_is_given_back() -> None:
    stage = staged(*jobset("low", "a"), *waiting(), pod("other", priority=LOW, cpu="4"), pools="a")
    leave(stage, *pods_of("low")[1:])
    assert place(stage, "other") == ""
    stage.delete(scheme.POD, "high-0-0")
    assert place(stage, "other") == "a-1"


def test_a_workload_that_was_preempted_and_is_back_waits_for_its_own_place() -> None:
    stage = staged(*jobset("low", "a", "b"), *waiting())
    leave(stage, *pods_of("low", 0), *pods_of("low", 1))
    stage.put(release_after_eviction(stage.workload("jobset-low"), make.NOW))
    back = waiting("low", 2, LOW)
    stage.put(with_status(stage.workload("jobset-low"), back[0]["status"]), *[back[2], back[4]])
    assert [place(stage, f"low-{number}-0") for number in range(2)] == ["", ""]
    assert evicted(stage) == []
    stage.put(*slice_of("c"))
    assert [place(stage, f"low-{number}-0") for number in range(2)] == ["b-0", "c-0"]


def test_who_is_on_his_way_out_is_not_preempted_again() -> None:
    stage = staged(*jobset("low", "a", "b"), *waiting())
    before = stage.workload("jobset-low")
    stage.put(node("new", cpu="1"), with_metadata(stage.get(scheme.NODE, "a-1", ""), annotations={"x": "y"}))
    stage.put(*slice_of("d", hosts=3))
    assert place(stage, "high-0-0") == "(a-0)"
    assert stage.workload("jobset-low") is before


def test_he_leaves_who_loses_least_since_his_last_checkpoint() -> None:
    saving = jobset("saving", "a", since=-420)
    saving[1] = job("saving-0", annotations={well_known.CHECKPOINT_EVERY: "5m"})
    stage = staged(*saving, *jobset("late", "b", since=-180), *waiting())
    assert evicted(stage) == ["saving"]


def test_equals_are_not_preempted() -> None:
    stage = staged(*jobset("equal", "a", "b", priority=HIGH), *waiting())
    assert evicted(stage) == []
    reported = find_condition(stage.get(scheme.POD, "high-0-0"), "PodScheduled")
    assert reported is not None
    assert reported["message"].endswith(" 8 No preemption victims found for incoming pod.")


def test_a_workload_that_is_over_or_unknown_cannot_leave() -> None:
    over = jobset("over", "a")
    over[0] = make.workload("jobset-over", conditions=[*HOLDING, make.condition("Finished")])
    stage = staged(*over, *jobset("unknown", "b")[1:], *waiting())
    assert place(stage, "high-0-0") == ""


def test_a_leader_goes_only_where_its_whole_job_has_room() -> None:
    stage = staged(pod("small", nodeName="a-3", priority=HIGH), *waiting())
    assert place(stage, "high-0-0") == "b-0"


def test_pods_that_are_there_need_no_stand_ins() -> None:
    follower = of_job(worker("high", 0, 1, HIGH, nodeName="b-0"), "high-0")
    stage = staged(follower, *jobset("low", "a"), pod("s", nodeName="b-1", priority=HIGH, cpu="4"), *waiting(pods=3))
    assert place(stage, "high-0-0") == "b-2"


def test_pods_that_are_done_do_not_come_again() -> None:
    objects = waiting()
    objects[1] = {**objects[1], "status": {"succeeded": 3}}
    full = [pod(f"f{i}", nodeName=f"a-{i}", priority=HIGH, cpu="4") for i in range(3)]
    stage = staged(*full, *objects, pools="a")
    assert place(stage, "high-0-0") == "a-3"


def test_pods_that_belong_to_no_workload_leave_one_by_one() -> None:
    small = [pod(f"s{i}", nodeName=f"a-{i}", priority=LOW) for i in range(2)]
    stage = staged(*small, *waiting(pods=3), pools="a")
    gone = [obj["metadata"]["name"] for obj in stage.client.list(scheme.POD) if "deletionTimestamp" in obj["metadata"]]
    assert gone == ["s0"]
    assert stated(stage.get(scheme.POD, "s0"), "DisruptionTarget")[1] == "PreemptionByScheduler"


def test_single_pods_choose_among_single_pods_as_kube_scheduler_does() -> None:
    old = with_status(pod("old", cpu="4", nodeName="n0", priority=LOW), started(0))
    new = with_status(pod("new", cpu="4", nodeName="n1", priority=LOW + 1), started(900))
    stage = staged(node("n0"), node("n1"), old, new, pod("high", cpu="4", priority=HIGH), pools="")
    assert place(stage, "high") == "(n0)"


def test_why_nobody_leaves_is_told_in_the_same_words() -> None:
    low, mid = pod("low", nodeName="n0", priority=LOW), pod("mid", cpu="3", nodeName="n0", priority=HIGH)
    never = pod("never", cpu="4", priority=HIGH, preemptionPolicy="Never")
    stage = staged(node("n0"), low, mid, pod("high", cpu="4", priority=HIGH), never, pools="")
    reported = [
        stated(stage.get(scheme.POD, name), "PodScheduled")[2].partition("preemption: ")[2]
        for name in ("high", "never")
    ]
    assert reported == ["0/1 nodes are available: 1 Insufficient cpu.", "not eligible due to preemptionPolicy=Never."]


def two_jobs() -> Sequence[Obj]:
    """A Job on two nodes, and one of higher priority that needs one."""
    low = [member(f"low{i}", "low", cpu="4", nodeName=f"a-{i}", priority=LOW) for i in range(2)]
    high = member("high", "high", cpu="4", priority=HIGH)
    return [make.workload("job-low", conditions=HOLDING), make.workload("job-high", conditions=HOLDING), *low, high]


def test_gangs_of_jobs_are_preempted_whole_for_a_single_pod_too() -> None:
    stage = staged(*two_jobs(), pod("full", nodeName="a-2", priority=HIGH, cpu="4"), pools="")
    assert place(stage, "high") == ""
    stage.put(*slice_of("a", hosts=3))
    assert place(stage, "high") == "(a-0)"
    assert stated(stage.workload("job-low"), "Preempted")[1] == "Hotswap"


def test_a_gang_that_came_in_the_same_pass_stays() -> None:
    victim = member("v", "v", cpu="4", nodeName="n0", priority=LOW)
    first = member("a", "a", cpu="4", priority=HIGH + 20, nodeSelector={HOST: "n0"})
    mixed = [member("m0", "m", priority=HIGH + 10), member("m1", "m", priority=LOW)]
    last = member("c", "c", cpu="3", priority=HIGH)
    workloads = [make.workload(f"job-{name}", conditions=HOLDING) for name in "vamc"]
    stage = staged(node("n0"), node("n1"), *workloads, victim, first, *mixed, last, pools="")
    assert [place(stage, name) for name in ("a", "m0", "m1", "c")] == ["(n0)", "n1", "n1", ""]
    assert [obj["metadata"]["name"] for obj in stage.workloads() if is_true(obj, "Evicted")] == ["job-v"]


def test_who_leaves_for_a_gang_is_told_of_its_most_important_pod() -> None:
    mixed = [member("a", "m", cpu="4", priority=LOW), member("b", "m", cpu="4", priority=HIGH)]
    victim = pod("v", cpu="4", nodeName="n0", priority=LOW)
    stage = staged(node("n0"), node("n1"), make.workload("job-m", conditions=HOLDING), victim, *mixed, pools="")
    assert [place(stage, name) for name in "ab"] == ["(n1)", "(n0)"]
    reported = [event.message for event in stage.events if event.regarding.name == "v" and event.reason == "Preempted"]
    assert reported == ["Preempted by pod uid-b on node n0"]


def test_without_hotswap_pods_are_preempted_one_by_one() -> None:
    stage = staged(*two_jobs(), pod("full", nodeName="a-2", priority=HIGH, cpu="4"), pools="", hotswap=False)
    stage.put(*slice_of("a", hosts=3))
    assert place(stage, "high") == "(a-0)"
    assert "deletionTimestamp" in stage.get(scheme.POD, "low0")["metadata"]
    assert find_condition(stage.workload("job-low"), "Preempted") is None


def test_after_a_restart_the_room_is_held_as_before() -> None:
    stage = staged(*jobset("low", "a"), *waiting(), pools="a")
    leave(stage, *pods_of("low")[1:])
    kinds = (scheme.NODE, scheme.POD, scheme.JOB, scheme.WORKLOAD)
    objects = [obj for kind in kinds for obj in stage.client.list(kind)]
    later = staged(*objects, pod("other", priority=LOW, cpu="4"), pools="")
    assert place(later, "high-0-0") == "(a-0)"
    assert place(later, "other") == ""


class LostEviction:
    """The objects of a stage, but for the Workload that was evicted: that was never written."""

    def __init__(self, stage: Stage, workload: Obj) -> None:
        self._client = stage.client
        self._workload = workload

    def get(self, key: Key) -> Obj | None:
        return self._workload if key == key_of(self._workload) else self._client.get(key)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        return self._client.list(kind, namespace)

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        return self._client.owned_by(uid, namespace)


def test_an_eviction_that_was_lost_is_made_again() -> None:
    stage = staged(*jobset("low", "a", "b"), *waiting())
    placement, reader = PlacementController(hotswap=True), LostEviction(stage, workload("jobset-low"))
    for obj in [*stage.client.list(scheme.NODE), *stage.client.list(scheme.POD)]:
        keys = placement.keys_for(WatchEvent(EventType.ADDED, key_of(obj), obj, None, 1), make.NOW)
    (key,) = keys
    for _ in range(2):
        writes = placement.reconcile(key, reader, make.NOW).writes
        assert "Workload" in [write.obj["kind"] for write in writes if isinstance(write, UpdateStatus)]
