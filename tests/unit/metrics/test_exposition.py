"""A scrape is written part by part."""

from collections.abc import Callable, Iterator

import pytest

import make
from batchyard.api.kueue_configuration import read_configuration
from batchyard.metrics.exposition import (
    UNTRACKED_VALUE,
    Exposition,
    MetricGroup,
    MetricSelection,
    Scrape,
    selected_groups,
)
from batchyard.scheduling.kueue_configuration import parse_kueue_settings
from stage import Stage

LARGE = "x" * 100_000


def texts(*parts: str) -> Callable[[], Iterator[str]]:
    return lambda: iter(parts)


def test_exposition_joins_small_texts_and_keeps_pauses() -> None:
    exposition = Exposition([("kueue", texts("a", "", "b")), ("gpus", texts(LARGE, LARGE, "c"))])
    assert list(exposition.text_chunks()) == ["", f"ab{LARGE}{LARGE}", "c"]


def test_exposition_filters_by_group_and_rejects_unknown_group() -> None:
    exposition = Exposition([("kueue", texts("a")), ("gpus", texts("b")), ("kueue", texts("c"))])
    assert "".join(exposition.text_chunks(["kueue"])) == "ac"
    with pytest.raises(ValueError, match="not nodes"):
        exposition.text_chunks(["kueue", "nodes"])


def test_groups_in_returns_every_collect_parameter() -> None:
    stated = [("collect[]", "kueue"), ("other", "x"), ("collect[]", "gpus")]
    assert selected_groups({"collect[]": "kueue", "other": "x"}, stated) == ["kueue", "gpus"]
    assert selected_groups({}, []) == []


def test_scrape_yields_to_event_loop_between_parts() -> None:
    waiting: list[Callable[[], None]] = []
    scrape = Scrape(iter(["a", "", "b"]), waiting.append)
    received: list[object] = []
    scrape.on_new_data = lambda: received.extend(scrape.take_buffered_data())
    received.extend(scrape.take_buffered_data())
    assert (received, list(scrape.take_buffered_data())) == ([b"a"], [])
    while waiting:
        waiting.pop(0)()
    assert (received, scrape.is_over) == ([b"a", b"b"], True)


def test_ended_scrape_returns_no_more_parts() -> None:
    scrape = Scrape(iter(["a", "b"]), lambda _then: None)
    scrape.end()
    assert (scrape.is_over, list(scrape.take_buffered_data())) == (True, [])


# The section `metrics` of Kueue's Configuration.

SCRAPE = """\
# HELP kueue_pending_workloads Pending
kueue_pending_workloads{cluster_queue="cq",status="active",replica_role="standalone"} 1
# HELP kueue_cluster_queue_nominal_quota Quota
kueue_cluster_queue_nominal_quota{cohort="",cluster_queue="cq",flavor="f",resource="cpu",replica_role="r"} 4
# HELP kueue_local_queue_pending_workloads Pending
kueue_local_queue_pending_workloads{name="lq",namespace="team",status="active",replica_role="r"} 1
kueue_local_queue_pending_workloads{name="other",namespace="team",status="active",replica_role="r"} 2
kueue_admission_wait_time_seconds_bucket{cluster_queue="cq",replica_role="r",le="1"} 0
# HELP kueue_cohort_info Cohorts
kueue_cohort_info{cohort="co",parent_cohort="",root_cohort="co",replica_role="r"} 1
# HELP kueue_cluster_queue_info Queues
kueue_cluster_queue_info{cluster_queue="cq",parent_cohort="",root_cohort="",replica_role="r"} 1
"""


def selected(*lines: str, scrape: str = SCRAPE) -> list[str]:
    """Return the lines of a scrape after selection by a Configuration with these lines."""
    head = "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n"
    settings = parse_kueue_settings(read_configuration("k", head + "\n".join(lines))).metrics
    stage = Stage()
    queue = make.local_queue("lq")
    queue["metadata"]["labels"] = {"team": "blue"}
    cluster_queue = make.cluster_queue("cq")
    cluster_queue["metadata"]["annotations"] = {"cost/center": 'a"b'}
    stage.put(queue, make.local_queue("other"), cluster_queue)
    return "".join(MetricSelection(settings, stage.client).select(iter(["", scrape]))).splitlines()


def names(lines: list[str]) -> set[str]:
    return {line.split("{")[0].removeprefix("kueue_") for line in lines if not line.startswith("#")}


ALL_NAMES = names(SCRAPE.splitlines())
COHORT, QUOTA, LOCAL = "cohort_info", "cluster_queue_nominal_quota", "local_queue_pending_workloads"


@pytest.mark.parametrize(
    ("line", "omitted"),
    [
        ("metrics: {bindAddress: ':1'}", set()),
        ("metrics: {enableClusterQueueResources: false}", {QUOTA}),
        ("metrics: {localQueueMetrics: {enable: false}}", {LOCAL}),
        ("metrics: {localQueueMetrics: {enable: true}}", set()),
        ("featureGates: {LocalQueueMetrics: false}", {LOCAL}),
        ("featureGates: {MetricsForCohorts: false}", {COHORT, "cluster_queue_info"}),
    ],
)
def test_configuration_selects_metrics(line: str, omitted: set[str]) -> None:
    lines = selected(line)
    assert names(lines) == ALL_NAMES - omitted
    assert not [each for each in lines if each.startswith("# HELP") and each.split()[2][6:] in omitted]


def test_selector_selects_local_queues() -> None:
    selector = "{enable: true, localQueueSelector: {matchLabels: {team: blue}}}"
    lines = [line for line in selected(f"metrics: {{localQueueMetrics: {selector}}}") if "local_queue_p" in line]
    assert [line.split(",")[0].split("=")[1] for line in lines if "{" in line] == ['"lq"']


def test_custom_labels_come_from_objects_of_series() -> None:
    labels = (
        "[{name: team, sourceKind: LocalQueue}, {name: center, sourceAnnotationKey: cost/center},"
        " {name: tier, sourceKind: LocalQueue, sourceLabelKey: team, trackedValues: [red]}]"
    )
    configured = f"metrics: {{customLabels: {labels}}}"
    lines = selected(configured, "featureGates: {CustomMetricLabels: true}")
    assert next(line for line in lines if 'name="lq"' in line).endswith(
        f'replica_role="r",custom_team="blue",custom_tier="{UNTRACKED_VALUE}"}} 1'
    )
    (bucket,) = [line for line in lines if "_bucket" in line]
    assert bucket.endswith(r'replica_role="r",custom_center="a\"b",le="1"} 0')
    assert next(line for line in lines if 'name="other"' in line).count('custom_team=""') == 1
    assert selected(configured) == SCRAPE.splitlines()


def test_custom_labels_of_queue_follow_those_of_workloads() -> None:
    gate = "featureGates: {CustomMetricLabels: true}"
    labels = "[{name: a, sourceKind: Workload, trackedValues: [x]}, {name: team, sourceKind: LocalQueue}]"
    group = MetricGroup(["kueue_local_queue_admitted_workloads_total"], "r", workload_labels=("custom_a",))
    group.add("kueue_local_queue_admitted_workloads_total", ("lq", "team", "", "x"))
    lines = selected(f"metrics: {{customLabels: {labels}}}", gate, scrape="".join(group.texts()))
    expected = 'name="lq",namespace="team",priority_class="",custom_a="x",replica_role="r",custom_team="blue"'
    assert lines[-1] == f"kueue_local_queue_admitted_workloads_total{{{expected}}} 1"
