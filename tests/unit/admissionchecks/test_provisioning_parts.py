"""Names of requests, and the pod sets in them."""

from collections.abc import Mapping
from typing import Any

import pytest

import make
from batchyard.admissionchecks.requests import (
    ProvisioningConfig,
    attempt_of,
    groups_needing_capacity,
    request_name,
    template_name,
)
from batchyard.base.instant import SECOND


def config_with(policy: str = "", *resources: str) -> ProvisioningConfig:
    return ProvisioningConfig("c", {}, resources, 3, SECOND, SECOND, policy, ())


def pod_set_groups(
    config: ProvisioningConfig, counts: Mapping[str, int], *pod_sets: dict[str, Any]
) -> list[tuple[list[str], int]]:
    """The groups of pod sets, each with its pods."""
    admission = {"podSetAssignments": [{"name": name, "count": count} for name, count in counts.items()]}
    wl = make.workload(pod_sets=pod_sets, status={"admission": admission})
    return [(group.member_names, group.count) for group in groups_needing_capacity(wl, config)]


def test_request_name_contains_workload_check_and_attempt() -> None:
    assert request_name("wl", "check-1", 2) == "wl-check-1-2"
    assert template_name("wl-check-1-2", "main") == "ppt-wl-check-1-2-main"
    assert attempt_of("wl-check-1-2", "wl", "check-1") == 2
    for other in ("wl-check-12", "wl-check-1-x", "wl-check-2-1", "wl2-check-1-1"):
        assert attempt_of(other, "wl", "check-1") is None


def test_long_request_name_is_truncated_and_keeps_attempt() -> None:
    name = request_name("w" * 240, "check", 12)
    assert (len(name), name.startswith("w" * 240 + "-check-")) == (253, True)
    assert name != request_name("w" * 240, "check", 13)
    assert attempt_of(name, "w" * 240, "check") == 12
    assert attempt_of(name, "w" * 240, "chock") is None


def test_pod_sets_without_pods_need_no_capacity() -> None:
    pod_sets = [make.pod_set("a", 2), make.pod_set("b", 0), make.pod_set("c", 3), make.pod_set("d", 1)]
    assert pod_set_groups(config_with(), {"a": 1, "b": 0, "c": 0}, *pod_sets) == [(["a"], 1)]


@pytest.mark.parametrize("part", ["requests", "limits"])
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_pod_sets_need_capacity_if_they_request_managed_resource(part: str, kind: str) -> None:
    plain = make.pod_set("plain")
    container = {"name": "g", "resources": {part: {"gpu": "1"}}}
    spec = {**make.pod_template()["spec"], kind: [container]}
    asks = {"name": "asks", "count": 1, "template": {"spec": spec}}
    assert pod_set_groups(config_with("", "tpu", "gpu"), {"plain": 1, "asks": 1}, plain, asks) == [(["asks"], 1)]


def pod_set(name: str, labels: Mapping[str, str] | None = None, cpu: Any = "1", **spec: Any) -> dict[str, Any]:
    return {"name": name, "count": 1, "template": make.pod_template({"cpu": cpu}, labels, **spec)}


@pytest.mark.parametrize(
    ("policy", "groups"),
    [
        ("", [["a"], ["b"], ["c"], ["d"]]),
        ("IdenticalPodTemplates", [["a", "b"], ["c"], ["d"]]),
        ("IdenticalWorkloadSchedulingRequirements", [["a", "b", "c"], ["d"]]),
    ],
)
def test_merge_policy_groups_pod_sets(policy: str, groups: list[list[str]]) -> None:
    chosen = pod_set("d", nodeSelector={"x": "y"})
    pod_sets = [pod_set("a"), pod_set("b"), pod_set("c", {"role": "x"}, "1000m", priorityClassName="p"), chosen]
    result = pod_set_groups(config_with(policy), dict.fromkeys("abcd", 1), *pod_sets)
    assert [members for members, _ in result] == groups
