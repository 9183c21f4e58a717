"""Worlds in which the Workload in question waits for a time, for pods of other Workloads, or for a Budget."""

from collections.abc import Callable
from typing import Final

from batchyard.sim.random_worlds import RandomChoices, make_object
from properties.binding_worlds import HOLDERS_AT, NAMESPACE, PLENTY, QUEUE, SUBJECT, BindingWorld, ExpectedLimit, begin


def _begin_with_machines(rng: RandomChoices) -> tuple[BindingWorld, int, int]:
    """Return a world with a Cluster whose machines boot in 20 minutes, a free amount and a missing amount of cpu."""
    world, free, missing = begin(rng)
    world.resources, world.resource = ("cpu",), "cpu"
    pool = {"name": "pool", "machineType": "n1-standard-4", "nodeCount": 0, "autoscaling": {"min": 0, "max": 9}}
    boot = dict.fromkeys(("min", "typical", "max"), "20m")
    spec = {"zones": ["z"], "times": {"boot": boot}, "nodePools": [pool]}
    world.objects.insert(0, make_object("cloud.batchyard.dev/v1alpha1", "Cluster", "c", spec=spec))
    return world, free, missing


def pods_ready(rng: RandomChoices) -> BindingWorld:
    """Admission is blocked because the pods of one or two admitted Workloads are not ready."""
    world, free, missing = _begin_with_machines(rng)
    (flavor,) = world.add_flavors(1)
    world.settings = {"waitForPodsReady": {"enable": True, "timeout": "1h", "blockAdmission": True}}
    world.add_queue(QUEUE, {flavor: world.quotas(PLENTY)})
    names = ["unready", "unready-2"][: rng.draw_integer(1, 2)]
    for name in names:
        world.submit(name, 1, {"cpu": missing}, kind="Job", at=HOLDERS_AT)
    world.ask(free + missing)
    world.expect(
        "podsReady", *[f"Workload {NAMESPACE}/{name}" for name in ("bystander", *[f"job-{each}" for each in names])]
    )
    return world


def backoff(rng: RandomChoices) -> BindingWorld:
    """The Workload was evicted because its pods were not ready in time, and its backoff has not ended."""
    world, free, missing = _begin_with_machines(rng)
    (flavor,) = world.add_flavors(1)
    timeout, base = rng.draw_integer(30, 60), rng.draw_integer(70, 100)
    strategy = {"backoffBaseSeconds": base, "backoffMaxSeconds": 200}
    world.settings = {"waitForPodsReady": {"enable": True, "timeout": f"{timeout}s", "requeuingStrategy": strategy}}
    world.add_queue(QUEUE, {flavor: world.quotas(PLENTY)})
    count, requests = world.pods(free + missing)
    world.submit(SUBJECT, count, requests, kind=rng.choose(["Job", "JobSet"]))
    world.expect("backoff", f"Workload {SUBJECT}")
    world.has_change, world.ends_by_itself = False, True
    return world


def budget_hold(rng: RandomChoices) -> BindingWorld:
    """A Budget with the limit zero holds the LocalQueue."""
    world, free, missing = _begin_with_machines(rng)
    (flavor,) = world.add_flavors(1)
    world.add_queue(QUEUE, {flavor: world.quotas(free + missing)})
    amount = rng.choose([{"dollars": 0}, {"acceleratorHours": 0}])
    spec = {**amount, "period": rng.choose(["Day", "Month", "Total"])}
    budget = make_object("cost.batchyard.dev/v1alpha1", "Budget", "small", spec=spec)
    budget["metadata"]["namespace"] = NAMESPACE
    world.objects.append(budget)
    world.ask(free + missing)
    world.expect("stopped", f"LocalQueue {QUEUE}")
    return world


def failing_request(rng: RandomChoices) -> BindingWorld:
    """The ProvisioningRequest of the Workload failed because no machine was created in time; it is retried later."""
    world, free, missing = _begin_with_machines(rng)
    cluster = world.objects[0]["spec"]
    cluster["nodePools"] = [
        {
            "name": "pool",
            "machineType": "n1-standard-4",
            "provisioning": "queued",
            "autoscaling": {"totalMin": 0, "totalMax": 9},
        }
    ]
    cluster["capacity"] = [{"machineType": "n1-standard-4", "zone": "z", "count": 0}]
    (flavor,) = world.add_flavors(1)
    parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": "config"}
    world.add("AdmissionCheck", "machines", controllerName="kueue.x-k8s.io/provisioning-request", parameters=parameters)
    retries = {"backoffBaseSeconds": rng.draw_integer(70, 100), "backoffLimitCount": 9}
    world.add(
        "ProvisioningRequestConfig",
        "config",
        provisioningClassName="queued-provisioning.gke.io",
        parameters={"ValidUntilSeconds": str(rng.draw_integer(30, 50))},
        retryStrategy=retries,
    )
    strategy = {"admissionChecks": [{"name": "machines"}]}
    world.add_queue(QUEUE, {flavor: world.quotas(PLENTY)}, admissionChecksStrategy=strategy)
    world.submit(SUBJECT, 1, {"cpu": min(8, free + missing)}, kind=rng.choose(["Job", "JobSet"]))
    world.expected = ExpectedLimit(("admissionCheck", "backoff"), (f"Workload {SUBJECT}", "AdmissionCheck machines"))
    world.has_change, world.ends_by_itself = False, True
    return world


def stock_out(rng: RandomChoices) -> BindingWorld:
    """The cloud is out of the machines that the pods need; the autoscaler requests them again later."""
    world, free, missing = _begin_with_machines(rng)
    (flavor,) = world.add_flavors(1)
    world.objects[0]["spec"]["times"] = {"boot": dict.fromkeys(("min", "typical", "max"), "1m")}
    fault = {"at": "0s", "stockout": {"machine": "n1-standard-4", "for": f"{rng.draw_integer(3, 5)}m"}}
    world.settings = {"faults": [fault]}
    world.add_queue(QUEUE, {flavor: world.quotas(PLENTY)})
    world.submit(SUBJECT, 1, {"cpu": min(8, free + missing)}, kind=rng.choose(["Job", "JobSet"]))
    world.expect("stockOut", "NodePool pool")
    world.has_change, world.ends_by_itself, world.event = False, True, "Instance"
    return world


WAIT_KINDS: Final[dict[str, Callable[[RandomChoices], BindingWorld]]] = {
    each.__name__: each for each in (pods_ready, backoff, budget_hold, failing_request, stock_out)
}
