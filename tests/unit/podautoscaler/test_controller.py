"""HorizontalPodAutoscalers set the replicas of Deployments and custom objects by the usage of their pods."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.custom_kinds import DEFINITION
from batchyard.api.defaults import with_defaults
from batchyard.api.errors import Forbidden
from batchyard.api.meta import Key, Obj, Requirement, Selector, find_condition, key_of
from batchyard.base.instant import SECOND
from batchyard.interfaces.client import Update, Write, WriteResult
from batchyard.interfaces.containers import MeasuredUsage
from batchyard.podautoscaler.controller import PodAutoscalerController, limited_metrics
from batchyard.podautoscaler.targets import ScaledNamespace
from unit.apps.apps_world import AppsWorld, app, template

KIND = scheme.HORIZONTAL_POD_AUTOSCALER
CPU = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}


def autoscaler(name: str = "web", **spec: Any) -> Mapping[str, Any]:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    fields = {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 10, "metrics": [CPU], **spec}
    metadata = make.metadata(name, uid=None, creationTimestamp=None)
    return with_defaults(
        {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": metadata, "spec": fields}
    )


class ScaledWorld(AppsWorld):
    """A Deployment of pods that request half a core, and what each of its pods uses."""

    def __init__(self, replicas: int = 2, **usage: int) -> None:
        self.usage: dict[str, int] | None = {"cpu": 250, "memory": 64 << 20, **usage}
        self.autoscalers = PodAutoscalerController(self.usage_of, is_endless=True)
        super().__init__(self.autoscalers)
        pod = template()
        pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "500m", "memory": "128Mi"}}
        self.put(app("Deployment", replicas=replicas, template=pod))

    def usage_of(self, _pod: Obj) -> MeasuredUsage | None:
        return None if self.usage is None else MeasuredUsage({"c": self.usage})

    def reject_scaled_deployment(self) -> None:
        def intercept(writes: Iterable[Write], on_result: Callable[[WriteResult], None]) -> None:
            if any(isinstance(write, Update) and write.obj["kind"] == "Deployment" for write in writes):
                self.kernel.call_soon(lambda: on_result(WriteResult(None, Forbidden("quota"))))
            else:
                self.client.submit_directly(writes, on_result)

        self.client.set_write_interceptor(intercept)

    @property
    def replicas(self) -> int:
        replicas: int = self.get(scheme.DEPLOYMENT, "web")["spec"]["replicas"]
        return replicas

    def condition(self, condition_type: str, name: str = "web") -> tuple[str, str, str]:
        found = find_condition(self.get(KIND, name), condition_type)
        assert found is not None
        return found["status"], found["reason"], found["message"]


def test_replicas_follow_cpu_usage() -> None:
    world = ScaledWorld(cpu=500)
    world.put(autoscaler())
    assert world.replicas == 4
    assert world.messages("SuccessfulRescale") == [
        "New size: 4; reason: cpu resource utilization (percentage of request) above target"
    ]
    status = world.get(KIND, "web")["status"]
    assert (status["currentReplicas"], status["desiredReplicas"]) == (2, 4)
    current = {"averageValue": "500m", "averageUtilization": 100}
    assert status["currentMetrics"] == [{"type": "Resource", "resource": {"name": "cpu", "current": current}}]
    message = "the HPA controller was able to update the target scale to 4"
    assert world.condition("AbleToScale") == ("True", "SucceededRescale", message)
    limited = ("False", "DesiredWithinRange", "the desired count is within the acceptable range")
    assert world.condition("ScalingLimited") == limited


def test_usage_within_tolerance_changes_nothing() -> None:
    world = ScaledWorld(cpu=270)
    world.put(autoscaler())
    assert world.replicas == 2
    assert world.condition("AbleToScale") == ("True", "ReadyForNewScale", "recommended size matches current size")


def test_maximum_limits_replicas() -> None:
    world = ScaledWorld(cpu=500)
    world.put(autoscaler(maxReplicas=3))
    assert world.replicas == 3
    message = "the desired replica count is more than the maximum replica count"
    assert world.condition("ScalingLimited") == ("True", "TooManyReplicas", message)


def test_replicas_below_minimum_are_raised_without_metrics() -> None:
    world = ScaledWorld()
    world.usage = None
    world.put(autoscaler(minReplicas=5))
    assert world.replicas == 5
    assert world.messages("SuccessfulRescale") == [
        "New size: 5; reason: Current number of replicas below Spec.MinReplicas"
    ]


def test_fewer_replicas_wait_for_stabilization() -> None:
    world = ScaledWorld(replicas=4, cpu=100)
    world.put(autoscaler())
    world.run(240)
    assert world.replicas == 4
    assert world.condition("AbleToScale")[1] == "ScaleDownStabilized"
    world.run(330)
    assert world.replicas == 2
    assert world.messages("SuccessfulRescale") == ["New size: 2; reason: All metrics below target"]


def test_behavior_limits_the_rate() -> None:
    world = ScaledWorld(cpu=500)
    policy = {"type": "Pods", "value": 1, "periodSeconds": 60}
    world.put(autoscaler(behavior={"scaleUp": {"policies": [policy]}}))
    assert world.replicas == 3
    assert world.condition("ScalingLimited")[1] == "ScaleUpLimit"
    world.run(30)
    assert world.replicas == 3
    world.run(75)
    assert world.replicas == 4


def test_disabled_direction_keeps_replicas() -> None:
    world = ScaledWorld(cpu=500)
    world.put(autoscaler(behavior={"scaleUp": {"selectPolicy": "Disabled"}}))
    assert world.replicas == 2


@pytest.mark.parametrize(("tolerance", "replicas"), [("0.5", 2), ("0.1", 3)])
def test_behavior_has_its_own_tolerance(tolerance: str, replicas: int) -> None:
    world = ScaledWorld(cpu=350)
    world.put(autoscaler(behavior={"scaleUp": {"tolerance": tolerance}}))
    assert world.replicas == replicas


def test_missing_metrics_are_reported() -> None:
    world = ScaledWorld()
    world.usage = None
    world.put(autoscaler())
    error = "unable to get metrics for resource cpu: no metrics returned from resource metrics API"
    inner = f"failed to get cpu utilization: {error}"
    expected = ("False", "FailedGetResourceMetric", f"the HPA was unable to compute the replica count: {inner}")
    assert world.condition("ScalingActive") == expected
    assert world.messages("FailedComputeMetricsReplicas")[0] == (
        f"invalid metrics (1 invalid out of 1), first error is: failed to get cpu resource metric value: {inner}"
    )
    assert world.messages("FailedGetResourceMetric")[0] == inner


def test_container_metric_compares_the_average_value() -> None:
    world = ScaledWorld(memory=100 << 20)
    source = {"name": "memory", "container": "c", "target": {"type": "AverageValue", "averageValue": "50Mi"}}
    world.put(autoscaler(metrics=[{"type": "ContainerResource", "containerResource": source}]))
    assert world.replicas == 4
    current = world.get(KIND, "web")["status"]["currentMetrics"][0]["containerResource"]
    assert current == {"name": "memory", "container": "c", "current": {"averageValue": "100Mi"}}


def test_metrics_without_a_source_do_not_prevent_more_replicas() -> None:
    world = ScaledWorld(cpu=500)
    target = {"type": "AverageValue", "averageValue": "10"}
    pods = {"type": "Pods", "pods": {"metric": {"name": "requests"}, "target": target}}
    world.put(autoscaler(metrics=[pods, CPU]))
    assert world.replicas == 4
    assert world.messages("FailedGetPodsMetric")[0] == (
        "unable to get metric requests: unable to fetch metrics from custom metrics API: "
        "no custom metrics API (custom.metrics.k8s.io) registered"
    )


def test_zero_replicas_disable_scaling() -> None:
    world = ScaledWorld(replicas=0)
    world.put(autoscaler())
    message = "scaling is disabled since the replica count of the target is zero"
    assert (world.replicas, world.condition("ScalingActive")) == (0, ("False", "ScalingDisabled", message))


@pytest.mark.parametrize(
    ("kind", "api_version", "error"),
    [
        ("Deployment", "apps/v1", 'deployments.apps "absent" not found'),
        ("DaemonSet", "apps/v1", "the server could not find the requested resource"),
        ("Rocket", "x.io/v1", 'no matches for kind "Rocket" in group "x.io"'),
    ],
)
def test_unknown_targets_are_reported(kind: str, api_version: str, error: str) -> None:
    world = ScaledWorld()
    world.put(autoscaler(scaleTargetRef={"apiVersion": api_version, "kind": kind, "name": "absent"}))
    message = f"the HPA controller was unable to get the target's current scale: {error}"
    assert world.condition("AbleToScale") == ("False", "FailedGetScale", message)
    assert world.messages("FailedGetScale")[0] == error


def test_two_autoscalers_of_the_same_pods_stop() -> None:
    world = ScaledWorld(cpu=500)
    world.put(autoscaler("a"))
    world.put(autoscaler("b"))
    error = "pods by selector app=web are controlled by multiple HPAs: [{a team} {b team}]"
    assert world.condition("ScalingActive", "b") == ("False", "AmbiguousSelector", error)


def test_rejected_rescale_is_reported() -> None:
    world = ScaledWorld(cpu=500)
    world.reject_scaled_deployment()
    world.put(autoscaler())
    world.run(5)
    assert world.replicas == 2
    message = "the HPA controller was unable to update the target scale: quota"
    assert world.condition("AbleToScale") == ("False", "FailedUpdateScale", message)


def test_custom_object_is_scaled() -> None:
    world = ScaledWorld(cpu=500)
    scale = {
        "specReplicasPath": ".spec.size",
        "statusReplicasPath": ".status.size",
        "labelSelectorPath": ".status.pods",
    }
    version = {"name": "v1", "served": True, "storage": True, "subresources": {"scale": scale}}
    names = {"kind": "Rocket", "plural": "rockets", "singular": "rocket", "listKind": "RocketList"}
    spec = {"group": "x.io", "names": names, "scope": "Namespaced", "versions": [version]}
    status = {"acceptedNames": names, "conditions": [make.condition("Established")]}
    world.put(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "rockets.x.io"},
            "spec": spec,
            "status": status,
        }
    )
    assert world.client.list(DEFINITION)
    rocket = {"apiVersion": "x.io/v1", "kind": "Rocket", "metadata": make.metadata("r", uid=None)}
    world.put({**rocket, "spec": {"size": 2}, "status": {"size": 2, "pods": "app in (web)"}})
    world.put(autoscaler(scaleTargetRef={"apiVersion": "x.io/v1", "kind": "Rocket", "name": "r"}))
    assert world.get("Rocket.x.io", "r")["spec"]["size"] == 4


class CountedPods:
    """A reader of pods, one for each name, that counts how often they are listed."""

    def __init__(self, count: int) -> None:
        self.lists = 0
        metadata = [make.metadata(f"p{number}", labels={"app": f"a{number}"}) for number in range(count)]
        self.pods = {key_of(pod): pod for pod in ({"kind": "Pod", "apiVersion": "v1", "metadata": m} for m in metadata)}

    def get(self, key: Key) -> Obj | None:
        return self.pods.get(key)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        self.lists += 1
        return [*self.pods.values()]

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        raise AssertionError


def test_autoscalers_of_a_namespace_share_one_scan() -> None:
    reader = CountedPods(200)
    namespace = ScaledNamespace("team")
    for number in range(200):
        selector = Selector((Requirement("app", "In", (f"a{number}",)),))
        namespace.set_selector(Key(KIND, "team", f"h{number}"), selector)
        (pod,) = namespace.select_pods(selector, reader, 0, is_current=False)
        assert pod["metadata"]["name"] == f"p{number}"
        assert namespace.autoscalers_of([pod], 0) == [Key(KIND, "team", f"h{number}")]
    assert reader.lists == 1
    del reader.pods[key_of(pod)]
    assert namespace.select_pods(selector, reader, 0, is_current=False) == []


def test_too_much_work_delays_autoscalers_in_turn() -> None:
    reader, namespace = CountedPods(5000), ScaledNamespace("team")
    everything, now = Selector(()), 100 * SECOND
    assert namespace.turn(now) == now
    for _ in range(10):
        namespace.select_pods(everything, reader, now, is_current=False)
    first, second = namespace.turn(now), namespace.turn(now)
    assert now + 9 * SECOND < first < second < now + 10 * SECOND
    assert namespace.turn(second) == second


def test_delayed_autoscaler_is_computed_later() -> None:
    world = ScaledWorld(cpu=500)
    world.autoscalers.namespace("team").count_work(30_000, world.kernel.now())
    world.put(autoscaler())
    assert world.replicas == 2
    world.run(10)
    assert world.replicas == 4


def test_long_list_of_metrics_of_many_pods_is_cut() -> None:
    metrics = [CPU] * 15_000
    assert len(limited_metrics(metrics, 10_000)) == len(limited_metrics(metrics, 100_000)) == 10
    assert len(limited_metrics(metrics, 5)) == 15_000
