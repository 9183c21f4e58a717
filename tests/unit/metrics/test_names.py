"""Names, kinds, labels and buckets are those of Kueue; the documentation lists every served metric."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from batchyard.metrics.definitions import GROUPS, metric
from batchyard.metrics.registry import HISTOGRAM

#: From Kueue's metrics reference: name, kind, labels. All but one also have the label `replica_role`.
UPSTREAM = [line.split() for line in (Path(__file__).parent / "kueue.txt").read_text("utf-8").splitlines()]
DOC = (Path(__file__).parents[3] / "docs" / "reference" / "metrics.md").read_text("utf-8")
NOT_SERVED = DOC.partition("## Metrics not served\n")[2].partition("\n## ")[0]
#: The number of buckets (1, 2.5, 5, 10 and so on), from Kueue's pkg/metrics/metrics.go.
SIXTEEN = (
    "kueue_admission_wait_time_seconds",
    "kueue_execution_time_seconds",
    "kueue_local_queue_execution_time_seconds",
)
OTHERS = {
    "kueue_admission_attempt_duration_seconds": 11,
    "kueue_workload_creation_latency_seconds": 11,
    "kueue_pod_scheduling_gate_removal_seconds": 11,
}


def test_served_kueue_metrics_match_upstream_kinds_and_labels() -> None:
    served = {found.name: (found.kind, found.labels) for found in GROUPS["kueue"]}
    upstream = {name: (kind, (*labels.split(","), "replica_role")) for name, kind, labels in UPSTREAM}
    upstream["kueue_build_info"] = (upstream["kueue_build_info"][0], upstream["kueue_build_info"][1][:-1])
    assert served == {name: reported for name, reported in upstream.items() if f"`{name}`" not in NOT_SERVED}


def test_documentation_lists_every_kueue_metric_not_served() -> None:
    missing = {name for name, _, _ in UPSTREAM} - {found.name for found in GROUPS["kueue"]}
    assert missing == {name for name in re.findall(r"`(\w+)`", NOT_SERVED) if "kueue_" in name}


@pytest.mark.parametrize("name", [found.name for found in GROUPS["kueue"] if found.kind == HISTOGRAM])
def test_histogram_buckets_match_upstream(name: str) -> None:
    bounds = metric(name).buckets
    if name in OTHERS:
        assert len(bounds) == OTHERS[name]
        assert bounds[0] in {0.005, 0.01}
        return
    assert len(bounds) == (16 if name in SIXTEEN else 14)
    assert bounds[:4] == (1, 2.5, 5, 10)
    assert all(after == 2 * before for before, after in pairwise(bounds[1:]))


@pytest.mark.parametrize("group", GROUPS)
def test_documentation_lists_every_metric_of_group(group: str) -> None:
    part = DOC.partition(f"### `{group}`\n")[2].partition("\n### ")[0].partition("\n## ")[0]
    reported = [line for line in part.splitlines() if line.startswith("| `")]
    assert reported == [f"| `{m.name}` | {m.kind} | {', '.join(m.labels)} | {m.help} |" for m in GROUPS[group]]


def test_metric_names_are_unique() -> None:
    names = [found.name for group in GROUPS.values() for found in group]
    assert len(set(names)) == len(names)
