"""Elastic Jobs are scaled while they run: slices are created, edited and finished, and pods wait for their quota."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

import make
from batchyard.admission_plugins.job_annotations import gate_elastic_job
from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, controller_reference, with_metadata, with_path
from batchyard.api.views.workload import workload_view
from batchyard.interfaces.client import Update
from batchyard.jobframework import slices
from batchyard.jobframework.reconciler import JobReconciler
from batchyard.jobframework.workloads import workload_name
from batchyard.jobs.job.integration import JobIntegration
from batchyard.scheduling.decisions import DEFAULT_RULES
from batchyard.scheduling.workload import evictions, lifecycle
from batchyard.scheduling.workload.node_failures import assigned_nodes
from batchyard.sim.invariants.checker import attach_invariants
from batchyard.sim.invariants.quota import ElasticPodsAreGranted
from batchyard.sim.random_worlds import scenario_of
from batchyard.sim.world import World
from stage import Stage, condition_state
from yard import queue

ELASTIC = {well_known.ELASTIC_JOB: "true"}
SECOND = 1_000_000


def elastic_job(parallelism: int = 2, **fields: Any) -> Obj:
    obj = make.job(**{"parallelism": parallelism, "completions": 20, **fields})
    return with_metadata(obj, annotations=ELASTIC, generation=1)


def job_stage(parallelism: int = 2, *, elastic_jobs: bool = True) -> Stage:
    stage = Stage(JobReconciler(JobIntegration(), rules=replace(DEFAULT_RULES, elastic_jobs=elastic_jobs)))
    stage.put(make.flavor(), elastic_job(parallelism))
    return stage


def newest(stage: Stage) -> Obj:
    return slices.slice_order(stage.workloads())[-1]


def admit(stage: Stage, workload: Obj) -> None:
    count = workload["spec"]["podSets"][0]["count"]
    stage.put(lifecycle.reserve_quota(workload, make.admission(main=count), stage.kernel.now(), admitted=True))


def scale(stage: Stage, parallelism: int) -> None:
    job = stage.get(scheme.JOB, "job")
    stage.put(with_path(job, ("spec", "parallelism"), parallelism))


def counts(stage: Stage) -> list[int]:
    """The pod counts of the unfinished slices, oldest first."""
    unfinished = [each for each in stage.workloads() if not lifecycle.is_finished(each)]
    return [each["spec"]["podSets"][0]["count"] for each in slices.slice_order(unfinished)]


def running_stage(parallelism: int = 2) -> Stage:
    stage = job_stage(parallelism)
    admit(stage, stage.only_workload())
    return stage


def finished_reasons(stage: Stage) -> list[str]:
    finished = [each for each in slices.slice_order(stage.workloads()) if lifecycle.is_finished(each)]
    return [condition_state(each, lifecycle.FINISHED)[1] for each in finished]


def test_first_slice_carries_the_annotations_and_the_generation() -> None:
    workload = job_stage().only_workload()
    name = workload_name("Job", "batch", "job", "uid-job", "1")
    assert workload["metadata"]["name"] == name
    assert workload["metadata"]["annotations"] == {**ELASTIC, well_known.SLICE_NAME: name}


def test_slice_without_quota_is_edited_in_place() -> None:
    stage = job_stage()
    scale(stage, 5)
    assert counts(stage) == [5]


def test_running_job_that_shrinks_keeps_its_slice() -> None:
    stage = running_stage(4)
    scale(stage, 1)
    assert counts(stage) == [1]
    assert stage.get(scheme.JOB, "job")["spec"]["suspend"] is False


def test_running_job_that_grows_gets_a_replacement_and_is_not_suspended() -> None:
    stage = running_stage()
    first = stage.only_workload()["metadata"]["name"]
    scale(stage, 5)
    replacement = newest(stage)
    assert counts(stage) == [2, 5]
    assert annotation(replacement, well_known.REPLACEMENT_FOR) == f"team/{first}"
    assert annotation(replacement, well_known.SLICE_NAME) == first
    assert stage.get(scheme.JOB, "job")["spec"]["suspend"] is False


def test_replacement_keeps_the_templates_of_the_first_slice() -> None:
    stage = running_stage()
    scale(stage, 5)
    templates = [each["spec"]["podSets"][0]["template"] for each in stage.workloads()]
    assert templates[0] == templates[1]


def test_pending_replacement_follows_every_change_of_the_job() -> None:
    """Scaling up, down and up again while the replacement waits creates no further slice (kueue#13117)."""
    stage = running_stage()
    for parallelism in (5, 3, 7):
        scale(stage, parallelism)
        assert counts(stage) == [2, parallelism]


def test_old_slice_is_kept_until_the_replacement_has_quota() -> None:
    """Finishing it earlier would take the job's quota (kueue#9015)."""
    stage = running_stage()
    scale(stage, 5)
    assert finished_reasons(stage) == []
    admit(stage, newest(stage))
    assert finished_reasons(stage) == []  # the scheduler finishes it
    stage.run(10)  # unless the scheduler has restarted
    assert (counts(stage), finished_reasons(stage)) == ([5], ["WorkloadSliceReplaced"])


def test_other_slices_are_finished_as_out_of_sync() -> None:
    stage = running_stage()
    scale(stage, 5)
    extra = with_metadata(newest(stage), name="extra", uid="uid-extra", resourceVersion=None)
    stage.put(with_metadata(extra, annotations=ELASTIC))
    assert finished_reasons(stage) == ["OutOfSync"]
    assert counts(stage) == [2, 5]


def test_restarted_reconciler_creates_no_duplicate_slice() -> None:
    """kueue#11553."""
    stage = running_stage()
    scale(stage, 5)
    stage.replace_controllers(JobReconciler(JobIntegration()))
    assert counts(stage) == [2, 5]


def test_slices_of_one_second_are_ordered_by_replacement() -> None:
    """kueue#12931."""
    old = make.workload("z")
    new = with_metadata(make.workload("a"), annotations={well_known.REPLACEMENT_FOR: "team/z"})
    assert [each["metadata"]["name"] for each in slices.slice_order([new, old])] == ["z", "a"]


def test_replacement_of_another_namespace_is_ignored() -> None:
    stage = running_stage()
    other = with_metadata(newest(stage), name="b", uid="uid-b", resourceVersion=None)
    foreign_name = stage.only_workload()["metadata"]["name"]
    other = with_metadata(other, annotations={**ELASTIC, well_known.REPLACEMENT_FOR: f"other/{foreign_name}"})
    roles = slices.assign_roles(slices.slice_order([stage.only_workload(), {**other, "status": {}}]))
    assert roles.selected is roles.reserved


def test_reclaimable_pods_never_exceed_the_shrunk_slice() -> None:
    """kueue#12670, #13044, #13070."""
    stage = running_stage(6)
    job = stage.get(scheme.JOB, "job")
    stage.put({**with_path(job, ("spec", "completions"), 6), "status": {"succeeded": 4, "active": 2, "ready": 2}})
    assert stage.only_workload()["status"]["reclaimablePods"] == [{"name": "main", "count": 4}]
    scale(stage, 2)
    workload = stage.only_workload()
    assert workload["spec"]["podSets"][0]["count"] == 2
    assert [each["count"] for each in workload["status"].get("reclaimablePods", ())] in ([], [2])


def test_evicted_slice_suspends_the_job_before_its_replacement_goes_on() -> None:
    stage = running_stage()
    scale(stage, 5)
    old = slices.slice_order(stage.workloads())[0]
    stage.put(evictions.evict(old, reason="Preempted", message="make room", now=stage.kernel.now()))
    assert stage.get(scheme.JOB, "job")["spec"]["suspend"] is True
    assert (counts(stage), finished_reasons(stage)) == ([5], ["WorkloadSliceReplaced"])


def test_gate_off_stops_the_scaled_job() -> None:
    stage = job_stage(elastic_jobs=False)
    admit(stage, stage.only_workload())
    scale(stage, 5)
    assert stage.get(scheme.JOB, "job")["spec"]["suspend"] is True


# Scheduling gates of pods.


def gated_pod(name: str, index: int | None = None, *, gated: bool = True, phase: str = "Pending") -> Obj:
    annotations = {} if index is None else {well_known.COMPLETION_INDEX: str(index)}
    gates = [{"name": well_known.ELASTIC_JOB}, {"name": "other"}] if gated else []
    labels = {well_known.POD_SET: "main"}
    metadata = make.metadata(name, labels=labels, annotations=annotations)
    return {"metadata": metadata, "spec": {"schedulingGates": gates}, "status": {"phase": phase}}


def ungated(pods: Sequence[Obj], count: int, **status: Any) -> list[str]:
    workload = {**make.workload("wl", pod_sets=[make.pod_set(count=count)]), "status": status}
    return [pod["metadata"]["name"] for pod in slices.ungated_pods(pods, workload)]


def test_lowest_completion_indexes_are_ungated_first() -> None:
    assert ungated([gated_pod("a", 10), gated_pod("b", 9), gated_pod("c", 2)], 2) == ["c", "b"]


def test_names_order_pods_without_completion_index() -> None:
    assert ungated([gated_pod("b"), gated_pod("a"), gated_pod("c")], 2) == ["a", "b"]


def test_pods_without_gate_count_until_they_end() -> None:
    """More pods than quota must never be ungated (kueue#11977, #12045)."""
    running, ended = gated_pod("r", gated=False), gated_pod("e", gated=False, phase="Succeeded")
    assert ungated([running, ended, gated_pod("a"), gated_pod("b")], 2) == ["a"]


def test_ungated_pod_keeps_other_gates_and_gets_updates_of_checks() -> None:
    update = {"name": "main", "nodeSelector": {"zone": "a"}, "annotations": {well_known.PROVISIONING_CLASS: "x"}}
    checks = [{"name": "c", "state": "Ready", "podSetUpdates": [update]}]
    workload = {**make.workload("wl"), "status": {"admissionChecks": checks}}
    (pod,) = slices.ungated_pods([gated_pod("a")], workload)
    assert pod["spec"] == {"schedulingGates": [{"name": "other"}], "nodeSelector": {"zone": "a"}}
    assert pod["metadata"]["annotations"] == {well_known.PROVISIONING_CLASS: "x"}


def test_pod_that_conflicts_with_a_check_stays_gated() -> None:
    update = {"name": "main", "nodeSelector": {"zone": "a"}}
    pod = with_path(gated_pod("a"), ("spec", "nodeSelector"), {"zone": "b"})
    assert ungated([pod], 1, admissionChecks=[{"name": "c", "state": "Ready", "podSetUpdates": [update]}]) == []


def unowned_pod(name: str, slice_name: str) -> Obj:
    """A gated pod of a slice that no job owns."""
    annotations = {well_known.SLICE_NAME: slice_name, well_known.WORKLOAD: slice_name}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": make.metadata(name), "spec": {}, "status": {}}
    pod["spec"] = {"containers": [{"name": "c", "image": "i"}], "schedulingGates": [{"name": well_known.ELASTIC_JOB}]}
    return with_metadata(pod, annotations=annotations, labels={well_known.POD_SET: "main"})


def ungated_names(stage: Stage, *names: str) -> list[str]:
    return [name for name in names if not slices.has_gate(stage.get(scheme.POD, name))]


def test_pods_without_owner_are_ungated_up_to_the_quota_of_their_slice() -> None:
    stage = job_stage(2)
    first = newest(stage)["metadata"]["name"]
    stage.put(unowned_pod("a", first))
    admit(stage, newest(stage))
    assert ungated_names(stage, "a") == ["a"]
    stage.put(unowned_pod("b", first), unowned_pod("c", first), unowned_pod("d", "other"))
    assert ungated_names(stage, "a", "b", "c", "d") == ["a", "b"]
    stage.delete(scheme.POD, "a")
    assert ungated_names(stage, "b", "c") == ["b", "c"]


def test_pods_of_an_earlier_chain_of_slices_stay_gated() -> None:
    stage = job_stage(2)
    admit(stage, newest(stage))
    name, job = newest(stage)["metadata"]["name"], stage.get(scheme.JOB, "job")
    for pod in (unowned_pod("old", "gone"), unowned_pod("new", name)):
        stage.put(with_metadata(pod, ownerReferences=[controller_reference(job)]))
    assert ungated_names(stage, "old", "new") == ["new"]


# Whole worlds.


def simulated(*sizes: tuple[int, int], quota: int = 6) -> World:
    """A world in which a Job gets each parallelism at a second after the start; all invariants hold."""
    steps = [_sized_job(at, parallelism) for at, parallelism in sizes]
    objects = [make.flavor("spot"), queue("cq", quota), make.local_queue("lq"), *steps]
    world = World(scenario_of([_without_creation_time(obj) for obj in objects]))
    checker = attach_invariants(world)
    world.run_until(sizes[-1][0] * SECOND)
    assert [str(violation) for violation in checker.violations] == []
    return world


def _sized_job(at: int, parallelism: int) -> Obj:
    annotations = {**ELASTIC, well_known.SUBMIT_AT: f"{at}s", "batchyard.dev/runtime": "1000s"}
    return with_metadata(make.job("train", parallelism=parallelism, completions=20), annotations=annotations, uid=None)


def _without_creation_time(obj: Obj) -> dict[str, Any]:
    metadata = {name: value for name, value in obj["metadata"].items() if name != "creationTimestamp"}
    return {**{name: value for name, value in obj.items() if name != "status"}, "metadata": metadata}


def pods_of(world: World) -> Mapping[str, bool]:
    """The pods by uid, and whether they are gated."""
    return {pod["metadata"]["uid"]: slices.has_gate(pod) for pod in world.objects(scheme.POD)}


@pytest.mark.parametrize(("parallelism", "gated"), [(5, 0), (9, 7)])
def test_scaled_job_keeps_its_pods(parallelism: int, gated: int) -> None:
    world = simulated((0, 2), (10, parallelism), (11, parallelism))
    before = pods_of(simulated((0, 2), (9, 2)))
    after = pods_of(world)
    assert before.items() <= after.items()
    assert (len(after), sum(after.values())) == (parallelism, gated)


def test_job_that_shrinks_releases_quota_and_pods() -> None:
    world = simulated((0, 5), (10, 1), (11, 1))
    assert len(pods_of(world)) == 1
    (holder,) = world.platform.index.snapshot.queues["cq"].workloads.values()
    assert [amount for _, amount in holder.usage] == [1000]


def test_why_names_the_slice_with_which_the_job_runs() -> None:
    world = simulated((0, 2), (10, 9), (11, 9))
    explanation = world.platform.explainer.why(Key(scheme.JOB, "team", "train"), world.kernel.now())
    assert explanation is not None
    assert explanation["summary"].startswith("it waits: 7 cpu of flavor spot requested, ")
    assert explanation["summary"].endswith(" runs with 2 pods")


def test_ungated_pod_without_quota_violates_the_invariant() -> None:
    world = simulated((0, 2), (10, 9), (11, 9))
    checker = attach_invariants(world, [ElasticPodsAreGranted])
    gated = next(pod for pod in world.objects(scheme.POD) if slices.has_gate(pod))
    world.client.submit([Update(with_path(gated, ("spec", "schedulingGates"), None))], lambda _: None)
    world.run_until(12 * SECOND)
    checker.finish()
    assert "elastic_pods_are_granted" in [violation.invariant for violation in checker.violations]


def test_scheduler_finishes_the_replaced_slice() -> None:
    world = simulated((0, 2), (10, 5), (11, 5))
    (message,) = [
        condition_state(each, lifecycle.FINISHED)[2]
        for each in world.objects(scheme.WORKLOAD)
        if lifecycle.is_finished(each)
    ]
    assert message.endswith("due to workload slice aggregation")


def test_new_elastic_job_gets_the_scheduling_gate() -> None:
    gated = gate_elastic_job(elastic_job())
    assert gated["spec"]["template"]["spec"]["schedulingGates"] == [{"name": well_known.ELASTIC_JOB}]
    assert gate_elastic_job(gated) is gated


def node(name: str, **annotations: str) -> Obj:
    """A Node with room for one pod."""
    status = {"allocatable": {"cpu": "1", "pods": "9"}, "conditions": [{"type": "Ready", "status": "True"}]}
    labels = {"rack": "r", well_known.HOSTNAME: name, "pool": "tas"}
    metadata = {"name": name, "labels": labels, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": status}


def world_with_nodes(*sizes: tuple[int, int], keeps_domains: bool, ends: Mapping[str, str]) -> World:
    """A world with nine nodes, some of which are deleted, where a Job with topology domains gets each parallelism."""
    topology = make.topology()
    topology["spec"]["levels"].append({"nodeLabel": well_known.HOSTNAME})
    flavor = make.flavor("spot", labels={"pool": "tas"}, topologyName="racks")
    config = {"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration"}
    gates = {well_known.ELASTIC_JOBS_GATE: True, well_known.ELASTIC_TOPOLOGY_GATE: keeps_domains}
    request = {"annotations": {"kueue.x-k8s.io/podset-unconstrained-topology": "true"}}
    jobs = [with_path(_sized_job(*size), ("spec", "template", "metadata"), request) for size in sizes]
    nodes = [node(f"n{i}", **({well_known.DELETE_AT: ends[f"n{i}"]} if f"n{i}" in ends else {})) for i in range(9)]
    objects = [topology, flavor, queue("cq", 9), make.local_queue("lq"), *jobs]
    return World(scenario_of([{**config, "featureGates": gates}, *map(_without_creation_time, objects), *nodes]))


def pods_on_nodes(world: World, until: int) -> dict[str, str]:
    """The phases of all pods, by node, at a second."""
    world.run_until(until * SECOND)
    return {pod["spec"].get("nodeName", ""): pod["status"]["phase"] for pod in world.objects(scheme.POD)}


def current_nodes(world: World) -> list[str]:
    """The nodes in the assignment of the slice that is admitted and not finished."""
    views = [workload_view(each) for each in world.objects(scheme.WORKLOAD)]
    (view,) = [view for view in views if view.admitted and not view.finished]
    return assigned_nodes(view)


@pytest.mark.parametrize("keeps_domains", [False, True])
def test_pods_of_a_job_that_grows_run_in_the_domains_of_its_current_slice(keeps_domains: bool) -> None:
    world = world_with_nodes((0, 1), (20, 3), (40, 4), keeps_domains=keeps_domains, ends={})
    for until, parallelism in ((19, 1), (39, 3), (60, 4)):
        phases = pods_on_nodes(world, until)
        assert list(phases.values()) == ["Running"] * parallelism
        assert not keeps_domains or sorted(phases) == sorted(current_nodes(world))


@pytest.mark.parametrize("keeps_domains", [False, True])
def test_pod_of_a_job_that_has_grown_moves_from_a_deleted_node_to_its_replacement(keeps_domains: bool) -> None:
    lost = "n1"
    world = world_with_nodes((0, 1), (20, 4), keeps_domains=keeps_domains, ends={lost: "40s"})
    assert pods_on_nodes(world, 39)[lost] == "Running"
    phases = pods_on_nodes(world, 60)
    assert list(phases.values()) == ["Running"] * 4
    assert lost not in phases
    assert lost not in current_nodes(world)
    assert not keeps_domains or sorted(phases) == sorted(current_nodes(world))


def test_changed_priority_class_of_a_job_reaches_all_its_slices() -> None:
    stage = Stage(JobReconciler(JobIntegration()))
    stage.put(make.flavor(), *[make.workload_priority_class(name, n) for name, n in (("low", 1), ("high", 100))])
    stage.put(elastic_job(labels={well_known.PRIORITY_CLASS: "low"}))
    admit(stage, stage.only_workload())
    scale(stage, 5)
    job = stage.get(scheme.JOB, "job")
    labels = {**job["metadata"]["labels"], well_known.PRIORITY_CLASS: "high"}
    stage.put(with_metadata(job, labels=labels))
    unfinished = [each for each in stage.workloads() if not lifecycle.is_finished(each)]
    assert [each["spec"]["priority"] for each in unfinished] == [100, 100]
