"""Changes of the admission plugins to a new Pod."""

from collections.abc import Sequence
from typing import Any

import pytest

import make
from batchyard.admission_plugins.built_in import admit_pod
from batchyard.api.errors import Forbidden
from batchyard.api.meta import Key, Obj, key_of

HIGH = make.priority_class("high", 100)
NEVER = {**make.priority_class("polite", 50), "preemptionPolicy": "Never"}
NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
LOST = [
    {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for key in (NOT_READY, UNREACHABLE)
]


def pod(requests: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """Return a Pod as a Job controller creates it."""
    template = make.pod_template(requests, **spec)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "train-", "namespace": "team"}, **template}


def admitted(obj: Obj, classes: Sequence[Obj] = (HIGH, NEVER), default_class: Obj | None = None) -> dict[str, Any]:
    """Return the spec of the Pod after admission with these PriorityClasses."""
    by_key = {key_of(each): each for each in classes}
    spec: dict[str, Any] = admit_pod(obj, by_key.get, default_class)["spec"]
    return spec


def test_pod_gets_priority_of_its_priority_class() -> None:
    spec = admitted(pod(priorityClassName="high"))
    assert (spec["priority"], spec["preemptionPolicy"]) == (100, "PreemptLowerPriority")


def test_pod_gets_preemption_policy_of_its_priority_class() -> None:
    spec = admitted(pod(priorityClassName="polite"))
    assert (spec["priority"], spec["preemptionPolicy"]) == (50, "Never")


def test_pod_without_priority_class_gets_default_class() -> None:
    spec = admitted(pod(), default_class=NEVER)
    assert (spec["priorityClassName"], spec["priority"], spec["preemptionPolicy"]) == ("polite", 50, "Never")


def test_pod_priority_is_zero_without_default_class() -> None:
    spec = admitted(pod())
    assert (spec["priority"], spec["preemptionPolicy"]) == (0, "PreemptLowerPriority")
    assert "priorityClassName" not in spec


@pytest.mark.parametrize(
    ("name", "value"), [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)]
)
def test_system_priority_classes_are_built_in(name: str, value: int) -> None:
    assert admitted(pod(priorityClassName=name))["priority"] == value


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param({"priorityClassName": "none"}, "no PriorityClass with name none was found", id="missing class"),
        pytest.param(
            {"priorityClassName": "high", "priority": 7},
            "the integer value of priority (7) must not be provided in pod spec; priority admission controller "
            "computed 100 from the given PriorityClass name",
            id="other priority",
        ),
        pytest.param(
            {"priorityClassName": "high", "preemptionPolicy": "Never"},
            "the string value of PreemptionPolicy (Never) must not be provided in pod spec; priority admission "
            "controller computed PreemptLowerPriority from the given PriorityClass name",
            id="other policy",
        ),
    ],
)
def test_pod_that_contradicts_its_priority_class_is_rejected(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(Forbidden) as refusal:
        admitted(pod(**spec))
    assert str(refusal.value) == f'pods "train-" is forbidden: {message}'


def test_pod_with_priority_equal_to_its_class_is_admitted() -> None:
    assert admitted(pod(priorityClassName="high", priority=100))["priority"] == 100


def test_pod_gets_300_second_tolerations_for_lost_node() -> None:
    assert admitted(pod())["tolerations"] == LOST


@pytest.mark.parametrize(
    ("toleration", "added"),
    [
        pytest.param({"key": NOT_READY, "operator": "Exists", "effect": "NoExecute"}, LOST[1:], id="not ready"),
        pytest.param({"key": UNREACHABLE, "operator": "Exists"}, LOST[:1], id="unreachable, any effect"),
        pytest.param({"operator": "Exists"}, [], id="everything"),
        pytest.param({"key": NOT_READY, "operator": "Exists", "effect": "NoSchedule"}, LOST, id="another effect"),
    ],
)
def test_existing_tolerations_for_lost_node_are_kept(toleration: dict[str, Any], added: list[dict[str, Any]]) -> None:
    assert admitted(pod(tolerations=[toleration]))["tolerations"] == [toleration, *added]


def test_pod_with_extended_resources_gets_tolerations() -> None:
    init = {"name": "i", "resources": {"limits": {"example.com/fpga": 1}}}
    spec = admitted(pod({"cpu": 1, "nvidia.com/gpu": 2, "kubernetes.io/x": 1}, initContainers=[init]))
    assert spec["tolerations"][2:] == [
        {"key": "example.com/fpga", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
    ]


def test_extended_resource_toleration_is_not_duplicated() -> None:
    given = {"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}
    tolerations = admitted(pod({"google.com/tpu": 4}, tolerations=[given]))["tolerations"]
    assert tolerations == [given, *LOST]


def test_admission_keeps_input_unchanged_and_is_idempotent() -> None:
    sent = pod({"nvidia.com/gpu": 1}, priorityClassName="high")
    before = repr(sent)
    once = admit_pod(sent, {Key("PriorityClass.scheduling.k8s.io", "", "high"): HIGH}.get, None)
    assert repr(sent) == before
    assert admit_pod(once, {Key("PriorityClass.scheduling.k8s.io", "", "high"): HIGH}.get, None) == once
