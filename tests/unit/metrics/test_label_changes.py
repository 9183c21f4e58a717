"""Custom labels of metrics when labels of queues and Cohorts change. Source: Kueue's pkg/controller/core."""

from collections.abc import Mapping
from typing import Any

import pytest

import make
import yard
from batchyard.api import scheme
from batchyard.api.manifests import Manifests
from batchyard.api.meta import Obj, key_of, parse_selector, with_metadata
from batchyard.api.views.workload import workload_view
from batchyard.metrics.exposition import COHORT_COUNTER, CREATION_LATENCY, UNTRACKED_VALUE, KeptLabels
from batchyard.scheduling.cycle import Cycle
from batchyard.scheduling.decisions import Head
from batchyard.scheduling.kueue_configuration import CustomMetricLabel, MetricsSettings
from batchyard.server.metrics import ObservedPlatform, ServerMetrics
from batchyard.sim.scenario import make_scenario
from batchyard.sim.world import World
from object_edits import with_edits
from unit.metrics.scrape import samples

#: One label for each kind of queues and Cohorts, from their label `team`.
LABELS = tuple(CustomMetricLabel("custom_team", kind, "team") for kind in ("ClusterQueue", "LocalQueue", "Cohort"))
BY_TEAM = MetricsSettings(custom_labels=LABELS)
SELECTED = MetricsSettings(local_queue_selector=parse_selector({"matchLabels": {"team": "blue"}}))
QUEUE_TOTAL, LOCAL_TOTAL = "kueue_admitted_workloads_total", "kueue_local_queue_admitted_workloads_total"
ROLE = "standalone"


def labeled(obj: Obj, team: str) -> Obj:
    return with_metadata(obj, labels={"team": team})


class MeteredWorld:
    """A simulated world of one Cohort and one queue, with the metrics of a server."""

    def __init__(self, settings: MetricsSettings = BY_TEAM) -> None:
        self.world = World(make_scenario(Manifests()))
        self.metrics = ServerMetrics()
        platform, client, now = self.world.platform, self.world.client, self.world.kernel.now
        self.metrics.begin(ObservedPlatform(platform, client, now, False, settings), ())
        self.put(make.namespace(), make.flavor("spot"), labeled(yard.cohort("co"), "blue"))
        self.put(labeled(yard.queue("cq", 9, cohort="co"), "blue"), labeled(make.local_queue(), "blue"))

    def put(self, *objects: Obj) -> None:
        for obj in objects:
            self.world.apply(obj)
            self.settle()

    def settle(self) -> None:
        self.world.kernel.run(self.world.kernel.now())

    def relabel(self, kind: str, name: str, team: str, namespace: str = "") -> None:
        (obj,) = [each for each in self.world.objects(kind) if each["metadata"]["name"] == name]
        self.put(with_edits(obj, {"metadata.labels": {"team": team}}))

    def samples(self) -> Mapping[str, Mapping[tuple[str, ...], float]]:
        return samples(text for group, texts in self.metrics.sources() if group == "kueue" for text in texts())


def test_counter_of_cohort_keeps_the_labels_of_the_time_of_the_count() -> None:
    metered = MeteredWorld()
    metered.put(make.workload("a"))
    metered.relabel(scheme.COHORT, "co", "red")
    assert metered.samples()[COHORT_COUNTER] == {("co", "", "blue", ROLE): 1}
    metered.put(make.workload("b"))
    assert metered.samples()[COHORT_COUNTER] == {("co", "", "blue", ROLE): 1, ("co", "", "red", ROLE): 1}
    assert list(metered.samples()["kueue_cohort_info"]) == [("co", "", "co", ROLE, "red")]


@pytest.mark.parametrize(
    ("kind", "name", "restarted", "kept"),
    [(scheme.CLUSTER_QUEUE, "cq", QUEUE_TOTAL, LOCAL_TOTAL), (scheme.LOCAL_QUEUE, "lq", LOCAL_TOTAL, QUEUE_TOTAL)],
)
def test_changed_labels_of_a_queue_restart_its_counters(kind: str, name: str, restarted: str, kept: str) -> None:
    metered = MeteredWorld()
    metered.put(make.workload("a"), make.workload("b"))
    metered.relabel(kind, name, "red")
    assert restarted not in metered.samples()
    metered.put(make.workload("c"))
    assert {labels[-1]: n for labels, n in metered.samples()[restarted].items()} == {"red": 1}
    assert {labels[-1]: n for labels, n in metered.samples()[kept].items()} == {"blue": 3}


def preempting_cycle(metrics: ServerMetrics) -> None:
    """Count a scheduling cycle in which a Workload of queue `a` preempts one."""
    bench = yard.SchedulerBench(yard.queue("a", 4, preemption=yard.preemption(within="LowerPriority")))
    bench.hold("low", 4, "a", priority=-1)
    cycle = Cycle(bench.snapshot, bench.policy, bench.namespaces, 1)
    metrics.cycles.end(cycle, cycle.run([Head(workload_view(yard.head("a1", 4)), "a")]))


def test_changed_labels_of_a_cluster_queue_restart_its_counters_of_cycles() -> None:
    metered, counted = MeteredWorld(), "kueue_preempted_workloads_total"
    metered.put(labeled(yard.queue("a", 4), "blue"))
    preempting_cycle(metered.metrics)
    assert metered.samples()[counted] == {("a", "InClusterQueue", ROLE, "blue"): 1}
    metered.relabel(scheme.CLUSTER_QUEUE, "cq", "red")
    assert counted in metered.samples()
    metered.relabel(scheme.CLUSTER_QUEUE, "a", "red")
    assert counted not in metered.samples()


def test_change_of_another_label_keeps_the_counters() -> None:
    metered = MeteredWorld()
    metered.put(make.workload("a"))
    queue = with_metadata(make.local_queue(), labels={"team": "blue", "other": "x"})
    metered.put(queue, with_metadata(yard.queue("cq", 9, cohort="co"), labels={"team": "blue", "other": "x"}))
    assert sum(metered.samples()[LOCAL_TOTAL].values()) == sum(metered.samples()[QUEUE_TOTAL].values()) == 1


def test_local_queue_that_is_selected_again_restarts_its_counters() -> None:
    metered = MeteredWorld(SELECTED)
    metered.put(make.workload("a"))
    metered.relabel(scheme.LOCAL_QUEUE, "lq", "red")
    metered.put(make.workload("b"))
    assert LOCAL_TOTAL not in metered.samples()
    metered.relabel(scheme.LOCAL_QUEUE, "lq", "blue")
    assert LOCAL_TOTAL not in metered.samples()
    metered.put(make.workload("c"))
    assert metered.samples()[LOCAL_TOTAL] == {("lq", "team", "", ROLE): 1}


def test_creation_latency_has_the_labels_of_the_local_queue() -> None:
    metered = MeteredWorld()
    metered.put(make.job())
    metered.relabel(scheme.LOCAL_QUEUE, "lq", "red")
    metered.put(make.job("other"))
    counts = metered.samples()[f"{CREATION_LATENCY}_count"]
    assert counts == {("Job", "blue", ROLE): 1, ("Job", "red", ROLE): 1}


def test_deleted_cohort_loses_its_counters() -> None:
    metered = MeteredWorld()
    metered.put(make.workload("a"))
    (cohort,) = metered.world.objects(scheme.COHORT)
    metered.put(yard.queue("cq", 9))
    metered.world.delete(key_of(cohort))
    metered.settle()
    assert COHORT_COUNTER not in metered.samples()


def test_number_of_kept_values_is_limited() -> None:
    kept = KeptLabels(LABELS, "Cohort")

    def count(team: int | str) -> Any:
        return kept.values_of("co", lambda: labeled(yard.cohort("co"), str(team)))

    assert [count(team) for team in range(1000)] == [(str(team),) for team in range(1000)]
    assert count("another") == (UNTRACKED_VALUE,)
    assert count(7) == ("7",)
    kept.forget("co")
    assert count("another") == ("another",)
