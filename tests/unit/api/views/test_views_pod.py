"""Requests and scheduling constraints of a pod template."""

from typing import Any

import pytest

from batchyard.api.meta import Obj
from batchyard.api.views.node import (
    Taint,
    Toleration,
    parse_pod_template,
    parse_taint,
    parse_toleration,
    resource_order,
    sort_requests,
)


def container(requests: Obj | None = None, limits: Obj | None = None, **fields: Any) -> Obj:
    resources = {k: v for k, v in (("requests", requests), ("limits", limits)) if v is not None}
    return {"name": "c", "resources": resources, **fields}


def requests_of(**spec: Any) -> dict[str, int]:
    return dict(parse_pod_template(spec).requests)


def test_pod_requests_sum_over_containers() -> None:
    spec = [container({"cpu": "500m", "memory": "1Gi"}), container({"cpu": 1})]
    assert requests_of(containers=spec) == {"cpu": 1500, "memory": 1 << 30}


def test_limit_is_used_as_missing_request() -> None:
    spec = [container({"cpu": 1}, {"cpu": 2, "memory": "1Ki"}), container(None, {"cpu": 3})]
    assert requests_of(containers=spec) == {"cpu": 4000, "memory": 1024}


def test_pod_requests_cover_largest_init_container() -> None:
    init = [container({"cpu": 3}), container({"cpu": 1, "memory": "9"})]
    assert requests_of(initContainers=init, containers=[container({"cpu": 2})]) == {"cpu": 3000, "memory": 9}


def test_sidecar_requests_add_to_all_later_containers() -> None:
    init = [
        container({"cpu": 4}),
        container({"cpu": 1}, restartPolicy="Always"),
        container({"cpu": 2}),
        container({"cpu": 1}, restartPolicy="Always"),
    ]
    assert requests_of(initContainers=init, containers=[container({"cpu": 1})]) == {"cpu": 4000}
    assert requests_of(initContainers=init, containers=[container({"cpu": 3})]) == {"cpu": 5000}


def test_pod_level_resources_replace_container_sum() -> None:
    spec = [container({"cpu": 1, "memory": 5, "hugepages-2Mi": 1, "gpu": 2})]
    own = {"requests": {"cpu": 3, "hugepages-2Mi": 4, "gpu": 9}}
    expected = {"cpu": 3000, "memory": 5, "hugepages-2Mi": 4, "gpu": 2}
    assert requests_of(containers=spec, resources=own) == expected


def test_overhead_is_added_to_pod_requests() -> None:
    result = requests_of(containers=[container({"cpu": 1})], overhead={"cpu": "100m", "memory": "1"})
    assert result == {"cpu": 1100, "memory": 1}


@pytest.mark.parametrize(
    ("resource", "text", "amount"),
    [
        ("cpu", "1m", 1),
        ("cpu", "100u", 1),
        ("memory", "100m", 1),
        ("memory", "1500m", 2),
        ("gpu", "2", 2),
        ("cpu", 0, 0),
    ],
)
def test_request_amounts_are_rounded_up(resource: str, text: Any, amount: int) -> None:
    assert requests_of(containers=[container({resource: text})]) == {resource: amount}


def test_pod_without_requests_has_empty_requests() -> None:
    assert parse_pod_template({}) == parse_pod_template({"containers": [container()]})
    assert parse_pod_template({}).requests == ()


def test_resources_are_sorted_by_resource_order() -> None:
    names = ["cpu", "memory", "pods", "nvidia.com/gpu", "ephemeral-storage"]
    assert sort_requests(dict.fromkeys(names, 1)) == tuple((name, 1) for name in sorted(names, key=resource_order))
    assert resource_order("cpu")[1] == "cpu"


def test_node_selector_affinity_and_tolerations_are_read() -> None:
    expression = {"key": "zone", "operator": "In", "values": ["a"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}, {}]}
    spec = {
        "nodeSelector": {"b": "2", "a": "1"},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        "tolerations": [{"operator": "Exists"}],
    }
    view = parse_pod_template(spec)
    assert view.node_selector == (("a", "1"), ("b", "2"))
    assert view.affinity == ((("zone", "In", ("a",)),), ())
    assert view.tolerations == (Toleration("", "Exists", "", ""),)
    assert parse_pod_template({}).affinity is None


def test_requests_above_limits_are_reported_with_location() -> None:
    above, fine = container({"cpu": 2, "memory": 1}, {"cpu": 1}), container({"cpu": 1}, {"cpu": 1})
    spec = {"initContainers": [fine, above], "containers": [above, fine], "resources": above["resources"]}
    result = (("initContainers[1]", ("cpu",)), ("containers[0]", ("cpu",)), ("resources", ("cpu",)))
    assert parse_pod_template(spec).over_limit == result


@pytest.mark.parametrize(
    ("fields", "tolerated"),
    [
        ({"key": "a", "value": "1", "effect": "NoSchedule"}, True),
        ({"key": "a", "operator": "Equal", "value": "2"}, False),
        ({"key": "a", "operator": "Exists", "value": ""}, True),
        ({"operator": "Exists"}, True),
        ({"key": "b", "operator": "Exists"}, False),
        ({"key": "a", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "a", "operator": "Sometimes", "value": "1"}, False),
    ],
)
def test_toleration_matches_taint(fields: Obj, *, tolerated: bool) -> None:
    assert (
        parse_toleration(fields).tolerates(parse_taint({"key": "a", "value": "1", "effect": "NoSchedule"})) is tolerated
    )


def test_taint_prints_in_upstream_format() -> None:
    assert str(parse_taint({"key": "a", "effect": "NoExecute"})) == "{a  NoExecute <nil>}"
    assert parse_taint({"key": "a"}) == Taint("a", "", "")
