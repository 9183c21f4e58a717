"""The text of `batchyard status`."""

from typing import Any

import pytest

from batchyard.cli.commands.status import format_status

COUNTS = {"Pod": 12, "ClusterRole.rbac.authorization.k8s.io": 36, "Event": 1294, "Job.batch": 7, "Node": 5, "Lease": 1}


def report(counts: dict[str, int]) -> dict[str, Any]:
    names = ("url", "pid", "kubeconfig", "health", "version", "uptimeSeconds", "started", "time", "revision", "sync")
    nodes, workloads = {"ready": 1, "all": 1}, {"pending": 0, "admitted": 0, "all": 0}
    amounts = {"speed": 1, "journalBytes": 0}
    return {**dict.fromkeys(names, "x"), **amounts, "nodes": nodes, "workloads": workloads, "objects": counts}


@pytest.mark.parametrize(
    ("counts", "is_wide", "expected"),
    [
        (COUNTS, False, "1,355 in all: 1,294 Event, 36 ClusterRole, 12 Pod, 7 Job and 2 more kinds (all: -o wide)"),
        (dict(list(COUNTS.items())[:3]), False, "1,342 in all: 1,294 Event, 36 ClusterRole, 12 Pod"),
        ({}, False, "none"),
    ],
)
def test_objects_are_counted_with_the_largest_kinds(counts: dict[str, int], is_wide: bool, expected: str) -> None:
    lines = format_status(report(counts), is_wide=is_wide).splitlines()
    assert next(line for line in lines if line.startswith("objects")).removeprefix("objects").strip() == expected


def test_wide_status_has_all_kinds_with_their_groups() -> None:
    text = format_status(report(COUNTS), is_wide=True)
    assert all(f"{count:,} {kind}" in text for kind, count in COUNTS.items())
