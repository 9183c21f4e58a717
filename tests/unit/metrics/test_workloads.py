"""In simulated runs, Workload metrics match the event log and the statuses of the queues."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import make
import yard
from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Key, Obj, controller_reference, key_of, with_metadata, with_path
from batchyard.base.instant import parse_duration
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.metrics.exposition import UNTRACKED_VALUE
from batchyard.metrics.queues import QueueMetrics
from batchyard.metrics.workloads import WorkloadMetrics
from batchyard.scheduling.controller import Scheduler
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.kueue_configuration import CustomMetricLabel
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload import evictions, lifecycle
from batchyard.scheduling.workload.controller import WorkloadLifecycle
from batchyard.sim.event_log import Record
from batchyard.sim.scenario import make_scenario
from batchyard.sim.world import World
from stage import Stage
from unit.metrics.scrape import samples

GAUGES = ("kueue_cohort_info", "kueue_cohort_subtree_quota", "kueue_cohort_subtree_admitted_active_workloads")
EXAMPLES = Path(__file__).parents[3] / "examples"


class MetricsRun(NamedTuple):
    """A simulated run at one instant."""

    world: World
    records: list[Record]
    #: The samples by family and labels.
    reported: dict[str, dict[tuple[str, ...], float]]

    def total(self, name: str) -> float:
        """The sum of a family's figures."""
        return sum(self.reported.get(name, {}).values())


def play(name: str, until: str, *, fair_sharing: bool = False) -> MetricsRun:
    """Runs an example, watched from its start."""
    records: list[Record] = []
    files = sorted((EXAMPLES / name).rglob("*.yaml"))
    manifests = read_manifests((path.name, path.read_text("utf-8")) for path in files)
    world = World(make_scenario(manifests), sink=records.append)
    index = world.platform.index
    workloads = WorkloadMetrics(index, world.client, world.kernel.now, "standalone")

    def watch(events: Sequence[WatchEvent]) -> None:
        for event in events:
            workloads.observe(event)

    world.client.subscribe(watch)
    world.run_until(parse_duration(until))
    world.flush_batched_writes()
    queues = QueueMetrics(index, workloads, world.client, "standalone", fair_sharing=fair_sharing)
    return MetricsRun(world, records, samples([*workloads.texts(), *queues.texts()]))


MOMENTS = [
    ("preemption", "40s"),
    ("preemption", "1h"),
    ("hierarchy", "70s"),
    ("cohort-borrowing", "50s"),
    ("dws", "1h"),
]


@pytest.fixture(scope="module", params=MOMENTS, ids=str)
def metrics_run(request: pytest.FixtureRequest) -> MetricsRun:
    return play(*request.param)


def test_counters_match_event_log(metrics_run: MetricsRun) -> None:
    log = Counter("Evicted" if record["event"] == "Preempted" else record["event"] for record in metrics_run.records)
    of = {"quota_reserved": "QuotaReserved", "admitted": "Admitted", "finished": "Finished", "evicted": "Evicted"}
    for name, event in of.items():
        for prefix in ("kueue", "kueue_local_queue"):
            assert metrics_run.total(f"{prefix}_{name}_workloads_total") == log[event], name


def test_duration_histograms_count_every_counted_workload(metrics_run: MetricsRun) -> None:
    for count, measured in (
        ("quota_reserved_workloads_total", "quota_reserved_wait_time_seconds_count"),
        ("admitted_workloads_total", "admission_wait_time_seconds_count"),
        ("finished_workloads_total", "execution_time_seconds_count"),
    ):
        assert metrics_run.total(f"kueue_{count}") == metrics_run.total(f"kueue_{measured}")


def test_queue_gauges_match_queue_status(metrics_run: MetricsRun) -> None:
    for kind, prefix in ((scheme.CLUSTER_QUEUE, "kueue_"), (scheme.LOCAL_QUEUE, "kueue_local_queue_")):
        for obj in metrics_run.world.client.list(kind):
            status, key = obj["status"], names(obj)
            waiting = [
                n
                for labels, n in metrics_run.reported[f"{prefix}pending_workloads"].items()
                if labels[: len(key)] == key
            ]
            assert sum(waiting) == status["pendingWorkloads"]
            for name, field in (("reserving", "reservingWorkloads"), ("admitted", "admittedWorkloads")):
                assert metrics_run.reported[f"{prefix}{name}_active_workloads"][*key, "standalone"] == status[field]


def names(obj: Any) -> tuple[str, ...]:
    metadata = obj["metadata"]
    return (metadata["name"], *([metadata["namespace"]] if "namespace" in metadata else []))


def test_unadmitted_and_finished_gauges_cover_all_other_workloads(metrics_run: MetricsRun) -> None:
    workloads = metrics_run.world.client.list(scheme.WORKLOAD)
    admitted = metrics_run.total("kueue_admitted_active_workloads")
    unadmitted, finished = (
        metrics_run.total("kueue_unadmitted_workloads"),
        metrics_run.total("kueue_finished_workloads"),
    )
    assert unadmitted + finished + admitted == len(workloads)
    assert unadmitted == metrics_run.total("kueue_local_queue_unadmitted_workloads")
    assert finished == metrics_run.total("kueue_local_queue_finished_workloads")


def test_cohort_reservations_equal_sum_of_queue_reservations(metrics_run: MetricsRun) -> None:
    below = metrics_run.reported.get("kueue_cohort_subtree_resource_reservations", {})
    info = metrics_run.reported["kueue_cluster_queue_info"]
    root_of = {labels[0]: labels[2] for labels in info}
    held: Counter[tuple[str, ...]] = Counter()
    for (_, queue, flavor, resource, _), amount in metrics_run.reported[
        "kueue_cluster_queue_resource_reservation"
    ].items():
        if root_of[queue] and amount:
            held[root_of[queue], flavor, resource, "standalone"] += amount  # type: ignore[assignment]
    roots = set(root_of.values())
    assert {labels: amount for labels, amount in below.items() if labels[0] in roots} == held


def test_eviction_metrics_have_reason_and_cause_labels() -> None:
    reported = play("preemption", "1h").reported
    reasons = {labels[1:3] for labels in reported["kueue_evicted_workloads_total"]}
    assert reasons == {("Preempted", "")}
    assert sum(reported["kueue_evicted_workloads_once_total"].values()) == 3
    assert set(reported["kueue_workload_eviction_latency_seconds_count"].values()) <= {1.0, 2.0, 3.0}


def test_eviction_metric_has_underlying_cause_label() -> None:
    world = play("first-steps", "1h").world
    figures = WorkloadMetrics(world.platform.index, world.client, world.kernel.now, "standalone")
    old = make.workload(status={"admission": make.admission("cq")}, conditions=[make.condition("QuotaReserved")])
    new = evictions.evict(old, reason="PodsReadyTimeout", message="slow", now=make.NOW, cause="WaitForStart")
    figures.observe(WatchEvent(EventType.MODIFIED, key_of(new), new, old, 2))
    reported = samples(figures.texts())
    for name in ("evicted_workloads_total", "evicted_workloads_once_total"):
        assert reported[f"kueue_{name}"] == {("cq", "PodsReadyTimeout", "WaitForStart", "", "standalone"): 1}, name


def test_deleted_cohort_has_no_gauges_until_its_queue_changes() -> None:
    world = play("hierarchy", "70s").world
    index = world.platform.index
    workloads = WorkloadMetrics(index, world.client, world.kernel.now, "standalone")
    queues = QueueMetrics(index, workloads, world.client, "standalone", fair_sharing=False)
    deep = next(each for each in index.snapshot.queues.values() if len(each.node.path) > 2)
    cohort, key = deep.node.path[-2].name, Key(scheme.COHORT, "", deep.node.path[-2].name)

    def cohorts() -> set[str]:
        return {labels[0] for name in GAUGES for labels in samples(queues.texts())[name]}

    assert cohort in cohorts()
    queues.observe(WatchEvent(EventType.DELETED, key, {}, {}, 1))
    assert cohort not in cohorts()
    assert cohorts()
    queues.observe(WatchEvent(EventType.MODIFIED, Key(scheme.CLUSTER_QUEUE, "", deep.name), {}, {}, 2))
    assert cohort in cohorts()


def test_cohort_without_object_drops_counters_when_last_queue_leaves() -> None:
    index = SchedulerCache()
    stage = Stage(Scheduler(index, SchedulingPolicy()), WorkloadLifecycle())
    figures = WorkloadMetrics(index, stage.client, stage.kernel.now, "standalone")

    def watch(events: Sequence[WatchEvent]) -> None:
        for event in events:
            figures.observe(event)

    stage.client.subscribe(watch)
    stage.put(make.namespace(), make.flavor("spot"), yard.queue("cq", 4, cohort="all"), make.local_queue("lq"))
    stage.put(make.workload())
    name = "kueue_cohort_subtree_admitted_workloads_total"
    assert samples(figures.texts())[name] == {("all", "", "standalone"): 1}
    stage.put(yard.queue("cq", 4, cohort="other"))
    assert name not in samples(figures.texts())


def test_admission_wait_time_sum_includes_long_waits() -> None:
    reported = play("preemption", "1h").reported
    waits = reported["kueue_admission_wait_time_seconds_sum"]
    assert sum(waits.values()) > 60
    assert reported["kueue_execution_time_seconds_sum"] != waits


def test_weighted_share_is_reported_only_with_fair_sharing() -> None:
    metrics_run = play("fair-sharing", "3m", fair_sharing=True)
    shares = {labels[0]: share for labels, share in metrics_run.reported["kueue_cluster_queue_weighted_share"].items()}
    assert set(shares) == {"alpha-queue", "beta-queue", "gamma-queue"}
    assert max(shares.values()) > 0
    assert "kueue_cluster_queue_weighted_share" not in play("fair-sharing", "3m").reported


def test_recalled_workloads_are_not_counted_as_events() -> None:
    world = play("first-steps", "1h").world
    figures = WorkloadMetrics(world.platform.index, world.client, world.kernel.now, "standalone")
    for obj in world.client.list(scheme.WORKLOAD):
        figures.observe_existing(WatchEvent(EventType.ADDED, key_of(obj), obj, None, 1))
    assert "".join(figures.texts()) == ""
    assert sum(figures.finished_counts.values()) == 3


def test_removal_of_a_scheduling_gate_is_measured_from_the_admission() -> None:
    stage = Stage()
    figures = WorkloadMetrics(SchedulerCache(), stage.client, stage.kernel.now, "standalone")

    def watch(events: Sequence[WatchEvent]) -> None:
        for event in events:
            figures.observe(event)

    stage.client.subscribe(watch)
    names = ("kueue.x-k8s.io/topology", "kueue.x-k8s.io/elastic-job", "other")
    metadata = make.metadata("p", annotations={"kueue.x-k8s.io/workload": "wl"})
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    stage.put({**pod, "spec": {"schedulingGates": [{"name": name} for name in names]}})
    stage.put(
        make.workload(status={"admission": make.admission("cq")}, conditions=[make.condition("Admitted", since=-4)])
    )
    stage.put({**pod, "spec": {"schedulingGates": [{"name": names[1]}]}})
    name = "kueue_pod_scheduling_gate_removal_seconds"
    assert samples(figures.texts())[f"{name}_sum"] == {(names[0], "cq", "false", "standalone"): 4}
    stage.put({**pod, "spec": {}})
    assert set(samples(figures.texts())[f"{name}_sum"]) == {(each, "cq", "false", "standalone") for each in names[:2]}


@pytest.mark.parametrize("is_group", [False, True])
def test_removal_of_admission_gate_is_measured_for_pods_and_groups(is_group: bool) -> None:
    stage = Stage()
    figures = WorkloadMetrics(SchedulerCache(), stage.client, stage.kernel.now, "standalone")

    def observe_all(events: Sequence[WatchEvent]) -> None:
        for event in events:
            figures.observe(event)

    stage.client.subscribe(observe_all)
    metadata = make.metadata("p", labels={"kueue.x-k8s.io/pod-group-name": "wl"} if is_group else None)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    names = ("kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology")
    stage.put({**pod, "spec": {"schedulingGates": [{"name": name} for name in names]}})
    workload = make.workload(
        status={"admission": make.admission("cq")}, conditions=[make.condition("Admitted", since=-3)]
    )
    stage.put(workload if is_group else with_metadata(workload, ownerReferences=[controller_reference(pod)]))
    stage.put({**pod, "spec": {}})
    name = "kueue_pod_scheduling_gate_removal_seconds_sum"
    labels = (names[0], "cq", "true" if is_group else "false", "standalone")
    assert samples(figures.texts())[name] == {labels: 3}


# Custom labels of Workloads. Source: kueue/pkg/metrics/custom_labels.go and its users in pkg/cache.

CUSTOM_LABELS = (
    CustomMetricLabel("custom_team", "Workload", "team", tracked_values=("blue", "red")),
    CustomMetricLabel("custom_center", "Workload", "cost/center", is_annotation=True, tracked_values=("c", "")),
    CustomMetricLabel("custom_queue", "ClusterQueue", "team"),
)
UNTRACKED, ROLE = UNTRACKED_VALUE, "standalone"
ADMITTED, PENDING = "kueue_admitted_active_workloads", "kueue_pending_workloads"
LOCAL = "kueue_local_queue_"


class LabeledMetrics:
    """The metrics of a stage with a ClusterQueue of two CPUs, with custom labels of Workloads."""

    def __init__(self) -> None:
        index = SchedulerCache()
        self.stage = stage = Stage(Scheduler(index, SchedulingPolicy()), WorkloadLifecycle())
        self.workloads = WorkloadMetrics(index, stage.client, stage.kernel.now, ROLE, CUSTOM_LABELS)
        self.queues = QueueMetrics(index, self.workloads, stage.client, ROLE, fair_sharing=False)
        stage.client.subscribe(self.observe)
        stage.put(make.namespace(), make.flavor("spot"), yard.queue("cq", 2), make.local_queue("lq"))

    def observe(self, events: Sequence[WatchEvent]) -> None:
        for event in events:
            self.workloads.observe(event)

    def submit(self, name: str, team: str | None = None, center: str | None = None) -> None:
        obj = make.workload(name, annotations={"cost/center": center} if center is not None else None)
        self.stage.put(with_metadata(obj, labels={"team": team}) if team is not None else obj)

    def finish(self, name: str) -> None:
        obj = self.stage.workload(name)
        self.stage.put(lifecycle.finish(obj, "Succeeded", "done", self.stage.kernel.now()))

    def samples(self) -> dict[str, dict[tuple[str, ...], float]]:
        return samples([*self.workloads.texts(), *self.queues.texts()])


def test_custom_labels_of_workloads_split_five_metrics() -> None:
    labeled = LabeledMetrics()
    assert PENDING not in labeled.samples()
    labeled.submit("a", "blue", "c")
    labeled.submit("b", "green", "d")
    labeled.submit("c", "red")
    reported = labeled.samples()
    blue, untracked = ("blue", "c", ROLE), (UNTRACKED, UNTRACKED, ROLE)
    assert reported[PENDING] == {("cq", "inadmissible", "red", "", ROLE): 1}
    assert reported[ADMITTED] == {("cq", *blue): 1, ("cq", *untracked): 1}
    for name in ("admitted_active_workloads", "admitted_workloads_total", "admission_wait_time_seconds_count"):
        queue = ("lq", "team") if "active" in name else ("lq", "team", "")
        assert reported[LOCAL + name] == {(*queue, *blue): 1, (*queue, *untracked): 1}, name
    assert reported["kueue_admitted_workloads_total"] == {("cq", "", ROLE): 2}
    assert set(reported[f"{LOCAL}pending_workloads"]) == {("lq", "team", s, ROLE) for s in ("active", "inadmissible")}


def test_missing_labels_of_workloads_are_empty_or_untracked() -> None:
    labeled = LabeledMetrics()
    labeled.submit("a")
    assert labeled.samples()[ADMITTED] == {("cq", UNTRACKED, "", ROLE): 1}


def test_count_of_admitted_workloads_stays_at_zero_until_queue_is_deleted() -> None:
    labeled = LabeledMetrics()
    labeled.submit("a", "blue", "c")
    labeled.submit("b", "red", "c")
    labeled.finish("a")
    blue, red = (("cq", team, "c", ROLE) for team in ("blue", "red"))
    assert labeled.samples()[ADMITTED] == {blue: 0, red: 1}
    labeled.observe([WatchEvent(EventType.DELETED, Key(scheme.CLUSTER_QUEUE, "", "cq"), {}, {}, 1)])
    assert labeled.samples()[ADMITTED] == {red: 1}
    assert len(labeled.samples()[f"{LOCAL}admitted_active_workloads"]) == 2
    labeled.observe([WatchEvent(EventType.DELETED, Key(scheme.LOCAL_QUEUE, "team", "lq"), {}, {}, 1)])
    reported = labeled.samples()
    assert len(reported[f"{LOCAL}admitted_active_workloads"]) == 1
    assert f"{LOCAL}admitted_workloads_total" not in reported


def test_changed_label_moves_admitted_workload_to_another_series() -> None:
    labeled = LabeledMetrics()
    labeled.submit("a", "blue", "c")
    labeled.stage.put(with_metadata(labeled.stage.workload("a"), labels={"team": "red"}))
    assert labeled.samples()[ADMITTED] == {("cq", "blue", "c", ROLE): 0, ("cq", "red", "c", ROLE): 1}
    labeled.stage.delete(scheme.WORKLOAD, "a")
    assert set(labeled.samples()[ADMITTED].values()) == {0}


def test_pending_series_without_workloads_are_removed() -> None:
    labeled = LabeledMetrics()
    for name in ("a", "b", "c"):
        labeled.submit(name, "blue", "c")
    assert labeled.samples()[PENDING] == {("cq", "inadmissible", "blue", "c", ROLE): 1}
    labeled.finish("a")
    labeled.stage.run(2)
    assert PENDING not in labeled.samples()


def test_workloads_in_line_are_inadmissible_while_their_queue_is_stopped() -> None:
    labeled = LabeledMetrics()
    queue = with_path(yard.queue("cq", 2), ("spec", "queueingStrategy"), "StrictFIFO")
    labeled.stage.put(queue)
    for name in ("a", "b", "c"):
        labeled.submit(name, "red", "c")
    assert labeled.samples()[PENDING] == {("cq", "active", "red", "c", ROLE): 1}
    labeled.stage.put(with_path(queue, ("spec", "stopPolicy"), "Hold"))
    assert labeled.samples()[PENDING] == {("cq", "inadmissible", "red", "c", ROLE): 1}


def test_recovery_time_counts_from_the_loss_of_ready_pods() -> None:
    """The first time until the pods were ready is another metric."""
    index = SchedulerCache()
    figures = WorkloadMetrics(index, Stage().client, lambda: make.NOW, "standalone")
    admitted = [make.condition("QuotaReserved"), make.condition("Admitted")]
    status = {"admission": make.admission("cq")}

    def with_pods_ready(is_ready: bool, reason: str, at: int) -> Obj:
        condition = {**make.condition("PodsReady", is_ready, reason=reason), "lastTransitionTime": make.stamp(at)}
        return make.workload(status=status, conditions=[*admitted, condition])

    lost, recovered = with_pods_ready(False, "WaitForRecovery", 10), with_pods_ready(True, "Recovered", 70)
    for old, new in (
        (with_pods_ready(False, "WaitForStart", 0), with_pods_ready(True, "Started", 5)),
        (lost, recovered),
    ):
        figures.observe(WatchEvent(EventType.MODIFIED, key_of(new), new, old, 2))
    reported = samples(figures.texts())
    assert reported["kueue_workload_recovery_wait_time_seconds_sum"] == {("cq", "standalone"): 60}
    assert reported["kueue_local_queue_workload_recovery_wait_time_seconds_sum"] == {("lq", "team", "standalone"): 60}
    assert list(reported["kueue_ready_wait_time_seconds_count"].values()) == [1]
