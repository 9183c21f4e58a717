"""Worlds in which one limit binds. The Workload in question requests `free + missing` of the binding resource."""

from collections.abc import Callable
from typing import Any, Final

from batchyard.api import well_known
from batchyard.sim.random_worlds import RandomChoices, SeededDraws
from properties.binding_waits import WAIT_KINDS
from properties.binding_worlds import (
    HOLDERS_AT,
    NAMESPACE,
    PLENTY,
    QUEUE,
    SUBJECT,
    BindingWorld,
    ExpectedLimit,
    Quota,
    begin,
    quantity,
    resource_group,
)


def nominal_of_queue(rng: RandomChoices) -> BindingWorld:
    """Workloads of the same queue hold the quota, and the queue has no Cohort."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    used = rng.draw_integer(max(1, missing), 9)
    world.add_queue(QUEUE, {flavor: world.quotas(used + free)})
    world.hold("holder", used, priority=rng.choose([0, 100]))
    world.ask(free + missing)
    world.expect("nominal", f"ClusterQueue {QUEUE}", flavor=flavor, resource=world.resource)
    return world


def nominal_of_cohort(rng: RandomChoices) -> BindingWorld:
    """Another queue of the Cohort borrows the unused quota of the Workload's queue, which cannot reclaim it."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    own, other = rng.draw_integer(1, 6) + missing, rng.draw_integer(1, 6) + free
    total = own + other
    world.add("Cohort", "tree")
    world.add_queue(QUEUE, {flavor: world.quotas(own)}, cohortName="tree")
    world.add_queue("other", {flavor: world.quotas(other)}, cohortName="tree")
    world.hold("holder", total - free, queue="other")
    world.ask(free + missing)
    world.expect("nominal", "Cohort tree", flavor=flavor, resource=world.resource)
    return world


def borrowing_of_queue(rng: RandomChoices) -> BindingWorld:
    """The Cohort has enough quota, but the borrowingLimit of the queue is too small."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    own, limit = rng.draw_integer(1, 4), rng.draw_integer(0, 3)
    used = max(missing, own + limit - free)
    world.add_queue(QUEUE, {flavor: world.quotas(used + free - limit, borrowingLimit=limit)}, cohortName="tree")
    world.add_queue("other", {flavor: world.quotas(PLENTY)}, cohortName="tree")
    world.hold("holder", used)
    world.ask(free + missing)
    world.expect("borrowing", f"ClusterQueue {QUEUE}", flavor=flavor, resource=world.resource)
    return world


def borrowing_of_cohort(rng: RandomChoices) -> BindingWorld:
    """The borrowingLimit of the Cohort between the queue and the root is too small."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    limit = rng.draw_integer(0, 3)
    used = rng.draw_integer(0, 3) + missing + max(0, limit - free)
    group = resource_group({flavor: world.quotas(0, borrowingLimit=limit)})
    for row in group["flavors"][0]["resources"]:
        if row["name"] != world.resource:
            row["nominalQuota"] = quantity(row["name"], PLENTY)
    world.add("Cohort", "root")
    world.add("Cohort", "branch", parentName="root", resourceGroups=[group])
    world.add_queue(QUEUE, {flavor: world.quotas(used + free - limit)}, cohortName="branch")
    world.add_queue("other", {flavor: world.quotas(PLENTY)}, cohortName="root")
    world.hold("holder", used)
    world.ask(free + missing)
    world.expect("borrowing", "Cohort branch", flavor=flavor, resource=world.resource)
    return world


def lending(rng: RandomChoices) -> BindingWorld:
    """Another queue has the quota, but lends too little of it."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    lent = rng.draw_integer(0, 3)
    own = rng.draw_integer(0, 3) + missing
    world.add_queue(QUEUE, {flavor: world.quotas(own)}, cohortName="tree")
    quotas = world.quotas(lent + missing + rng.draw_integer(0, 5), lendingLimit=lent)
    world.add_queue("other", {flavor: quotas}, cohortName="tree")
    used = own + lent - free
    if used > 0:
        world.hold("holder", used)
    free = own + lent - max(0, used)
    world.ask(free + missing)
    limit = "lending" if free + missing <= own + lent else "maximum"
    places = (
        ["ClusterQueue other"] if limit == "lending" else ["ClusterQueue other", f"ClusterQueue {QUEUE}", "Cohort tree"]
    )
    world.expect(limit, *places, flavor=flavor, resource=world.resource)
    return world


def maximum_of_queue(rng: RandomChoices) -> BindingWorld:
    """The request is larger than the whole quota of the queue."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    world.add_queue(QUEUE, {flavor: world.quotas(free)})
    world.ask(free + missing)
    world.expect("maximum", f"ClusterQueue {QUEUE}", flavor=flavor, resource=world.resource)
    return world


def maximum_by_borrowing_limit(rng: RandomChoices) -> BindingWorld:
    """The request is larger than the sum of the queue's quota and its borrowingLimit."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    limit = rng.draw_integer(0, free)
    quotas = world.quotas(free - limit, borrowingLimit=limit)
    world.add_queue(QUEUE, {flavor: quotas}, cohortName="tree")
    world.add_queue("other", {flavor: world.quotas(PLENTY)}, cohortName="tree")
    world.ask(free + missing)
    world.expect("maximum", f"ClusterQueue {QUEUE}", flavor=flavor, resource=world.resource)
    return world


def priority_in_queue(rng: RandomChoices) -> BindingWorld:
    """The queue may preempt, but the holders of the quota do not have a lower priority."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    used, mine = rng.draw_integer(max(1, missing), 9), rng.choose([0, 50, 100])
    policy = rng.choose(["LowerPriority", "LowerOrNewerEqualPriority"])
    world.add_queue(QUEUE, {flavor: world.quotas(used + free)}, preemption={"withinClusterQueue": policy})
    world.hold("holder", used, priority=mine + rng.choose([0, 0, 50]))
    world.ask(free + missing, priority=mine)
    world.expect("priority", f"ClusterQueue {QUEUE}", flavor=flavor, resource=world.resource)
    return world


def priority_in_cohort(rng: RandomChoices) -> BindingWorld:
    """The queue may reclaim quota from Workloads of lower priority, but the borrowers do not have a lower priority."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    own, other = rng.draw_integer(1, 4) + missing + free, rng.draw_integer(0, 4)
    mine = rng.choose([0, 50, 100])
    rules = {"reclaimWithinCohort": "LowerPriority"}
    world.add_queue(QUEUE, {flavor: world.quotas(own)}, cohortName="tree", preemption=rules)
    world.add_queue("other", {flavor: world.quotas(other)}, cohortName="tree")
    world.hold("holder", own + other - free, queue="other", priority=mine + rng.choose([0, 50]))
    world.ask(free + missing, priority=mine)
    world.expect("priority", "Cohort tree", flavor=flavor, resource=world.resource)
    return world


def preemption_policy(rng: RandomChoices) -> BindingWorld:
    """The holders of the quota have a lower priority, but the queue never preempts."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    used = rng.draw_integer(max(1, missing), 9)
    world.add_queue(QUEUE, {flavor: world.quotas(used + free)}, preemption={"withinClusterQueue": "Never"})
    world.hold("holder", used, priority=0)
    world.ask(free + missing, priority=100)
    world.expect("nominal", f"ClusterQueue {QUEUE}", flavor=flavor, resource=world.resource)
    return world


def taint(rng: RandomChoices) -> BindingWorld:
    """All flavors have a taint that the pods do not tolerate."""
    world, free, missing = begin(rng)
    names = [f"f{number}" for number in range(rng.draw_integer(1, 2))]
    for name in names:
        world.add("ResourceFlavor", name, nodeTaints=[{"key": name, "value": "true", "effect": "NoSchedule"}])
    world.add_queue(QUEUE, {name: world.quotas(PLENTY) for name in names})
    world.ask(free + missing)
    world.expect("taint", *[f"ResourceFlavor {name}" for name in names])
    return world


def affinity(rng: RandomChoices) -> BindingWorld:
    """The pods require a label value that no flavor has, by a node selector or a node affinity."""
    world, free, missing = begin(rng)
    names = [f"f{number}" for number in range(rng.draw_integer(1, 2))]
    for name in names:
        world.add("ResourceFlavor", name, nodeLabels={"zone": name})
    world.add_queue(QUEUE, {name: world.quotas(PLENTY) for name in names})
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["elsewhere"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    by_selector: dict[str, Any] = {"nodeSelector": {"zone": "elsewhere"}}
    fields = rng.choose([by_selector, {"affinity": {"nodeAffinity": required}}])
    world.ask(free + missing, **fields)
    world.expect("affinity", *[f"ResourceFlavor {name}" for name in names])
    # The affinity of a JobSet is immutable.
    world.has_change = world.objects[-1]["kind"] != "JobSet" or fields is by_selector
    return world


def nearest_flavor(rng: RandomChoices) -> BindingWorld:
    """One flavor is tainted, one is too small for the request, one lacks a little free quota; their order is random."""
    world, free, missing = begin(rng)
    world.add("ResourceFlavor", "spot", nodeTaints=[{"key": "spot", "value": "true", "effect": "NoSchedule"}])
    world.add("ResourceFlavor", "small", nodeLabels={"size": "small"})
    world.add("ResourceFlavor", "near", nodeLabels={"size": "near"})
    used = missing + rng.draw_integer(0, 4)
    quotas = {
        "spot": world.quotas(rng.choose([1, PLENTY])),
        "small": world.quotas(max(0, free + missing - 1)),
        "near": world.quotas(used + free),
    }
    names = rng.choose([("spot", "small", "near"), ("near", "spot", "small"), ("small", "near", "spot")])
    world.add_queue(QUEUE, {name: quotas[name] for name in names})
    world.hold("holder", used, nodeSelector={"size": "near"})
    world.ask(free + missing)
    world.expect("nominal", f"ClusterQueue {QUEUE}", flavor="near", resource=world.resource)
    return world


def one_group_of_two(rng: RandomChoices) -> BindingWorld:
    """Two resource groups: only the group of the binding resource lacks quota."""
    world, free, missing = begin(rng)
    world.resources = ("cpu", "example.com/gpu")
    world.resource = rng.choose(world.resources)
    world.add("ResourceFlavor", "machines")
    world.add("ResourceFlavor", "devices")
    used = missing + rng.draw_integer(0, 4)
    quotas = world.quotas(used + free)
    groups = [
        resource_group({flavor: {resource: quotas[resource]}})
        for flavor, resource in (("machines", "cpu"), ("devices", "example.com/gpu"))
    ]
    world.add_queue(QUEUE, {"machines": quotas}, resourceGroups=groups)
    world.hold("holder", used)
    world.ask(free + missing)
    flavor = "machines" if world.resource == "cpu" else "devices"
    world.expect("nominal", f"ClusterQueue {QUEUE}", flavor=flavor, resource=world.resource)
    return world


def short_beside_reclaimable(rng: RandomChoices) -> BindingWorld:
    """Much cpu can be reclaimed from a borrower; a little memory is missing, and cannot be reclaimed."""
    world, free, missing = begin(rng)
    world.resources, world.resource = ("cpu", "memory"), "memory"
    (flavor,) = world.add_flavors(1)
    cpu = rng.draw_integer(4, 8)
    amount = 2 * missing + free + rng.draw_integer(3, 6)
    quotas: dict[str, Quota] = {"cpu": {"nominalQuota": cpu + 1}, "memory": {"nominalQuota": amount}}
    world.add("Cohort", "tree")
    rules = {"reclaimWithinCohort": "Any"}
    world.add_queue(QUEUE, {flavor: quotas}, cohortName="tree", preemption=rules)
    other: dict[str, Quota] = {"cpu": {"nominalQuota": 0}, "memory": {"nominalQuota": 1, "lendingLimit": 0}}
    world.add_queue("other", {flavor: other}, cohortName="tree")
    world.submit("own-holder", 1, {"cpu": 1, "memory": missing}, at=HOLDERS_AT)
    world.submit("borrower", 1, {"cpu": cpu, "memory": 1}, queue="other", at=HOLDERS_AT)
    world.submit(SUBJECT, 1, {"cpu": cpu, "memory": amount})
    world.expect("nominal", f"ClusterQueue {QUEUE}", "Cohort tree", flavor=flavor, resource="memory")
    return world


def uncovered(rng: RandomChoices) -> BindingWorld:
    """The pods request a resource that the queue does not cover."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    world.resources, world.resource = ("cpu",), "cpu"
    world.add_queue(QUEUE, {flavor: world.quotas(PLENTY)})
    extra = rng.choose(["memory", "example.com/gpu"])
    count, requests = world.pods(free + missing)
    world.submit(SUBJECT, count, {**requests, extra: missing}, kind=rng.choose(["Workload", "Job", "JobSet"]))
    world.expect("misconfigured", f"ClusterQueue {QUEUE}", resource=extra)
    return world


def stopped_queue(rng: RandomChoices) -> BindingWorld:
    """The ClusterQueue has a stopPolicy."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    policy = rng.choose(["Hold", "HoldAndDrain"])
    world.add_queue(QUEUE, {flavor: world.quotas(free + missing)}, stopPolicy=policy)
    world.ask(free + missing)
    world.expect("stopped", f"ClusterQueue {QUEUE}")
    return world


def stopped_local_queue(rng: RandomChoices) -> BindingWorld:
    """The LocalQueue has a stopPolicy."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    world.add_queue(QUEUE, {flavor: world.quotas(free + missing)})
    world.objects[-1]["spec"]["stopPolicy"] = rng.choose(["Hold", "HoldAndDrain"])
    world.ask(free + missing)
    world.expect("stopped", f"LocalQueue {QUEUE}")
    return world


def unselected_namespace(rng: RandomChoices) -> BindingWorld:
    """The ClusterQueue does not select the namespace."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    labels = {"matchLabels": {"kubernetes.io/metadata.name": "elsewhere"}}
    world.add_queue(QUEUE, {flavor: world.quotas(free + missing)}, namespaceSelector=labels)
    world.ask(free + missing)
    world.expect("misconfigured", f"ClusterQueue {QUEUE}")
    return world


def deactivated(rng: RandomChoices) -> BindingWorld:
    """The Workload is not active."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    world.add_queue(QUEUE, {flavor: world.quotas(free + missing)})
    count, requests = world.pods(free + missing)
    world.submit(SUBJECT, count, requests)["spec"]["active"] = False
    world.expect("stopped", f"Workload {SUBJECT}")
    return world


def missing_local_queue(rng: RandomChoices) -> BindingWorld:
    """The job names a LocalQueue that does not exist; another LocalQueue exists, or only a ClusterQueue."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    world.add_queue(QUEUE, {flavor: world.quotas(free + missing)})
    if rng.draw_bool(50):
        world.objects.pop()
    world.ask(free + missing, queue="absent")
    world.expect("misconfigured", "LocalQueue absent")
    return world


def missing_cluster_queue(rng: RandomChoices) -> BindingWorld:
    """The LocalQueue names a ClusterQueue that does not exist; another ClusterQueue exists."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    world.add_queue(QUEUE, {flavor: world.quotas(free + missing)})
    world.objects[-1]["spec"]["clusterQueue"] = "absent"
    world.ask(free + missing)
    world.expect("misconfigured", "ClusterQueue absent")
    return world


def missing_flavor(rng: RandomChoices) -> BindingWorld:
    """The ClusterQueue names a ResourceFlavor that does not exist."""
    world, free, missing = begin(rng)
    world.add_queue(QUEUE, {"absent": world.quotas(free + missing)})
    world.ask(free + missing)
    world.expect("stopped", f"ClusterQueue {QUEUE}")
    return world


def missing_check(rng: RandomChoices) -> BindingWorld:
    """The ClusterQueue names an AdmissionCheck that does not exist."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    strategy = {"admissionChecks": [{"name": "absent"}]}
    world.add_queue(QUEUE, {flavor: world.quotas(free + missing)}, admissionChecksStrategy=strategy)
    world.ask(free + missing)
    world.expect("stopped", f"ClusterQueue {QUEUE}")
    return world


def head_of_line(rng: RandomChoices) -> BindingWorld:
    """A StrictFIFO queue has quota for the Workload, but a larger Workload that does not fit is ahead of it."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    free, used = free + 1, rng.draw_integer(2, 6)
    world.add_queue(QUEUE, {flavor: world.quotas(used + free)}, queueingStrategy="StrictFIFO")
    world.hold("holder", used)
    count, requests = world.pods(free + missing)
    world.submit("head", count, requests, at="5s")
    world.ask(free)
    world.expect("headOfLine", f"Workload {NAMESPACE}/head")
    return world


def partial_admission(rng: RandomChoices) -> BindingWorld:
    """Even the minimum number of pods (minCount) does not fit."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    used = rng.draw_integer(2, 6) + missing
    world.add_queue(QUEUE, {flavor: world.quotas(used + free)})
    world.hold("holder", used)
    least, most = free + missing, free + missing + rng.draw_integer(1, 4)
    others = dict.fromkeys(world.resources, 1)
    obj = world.submit(SUBJECT, most, others)
    obj["spec"]["podSets"][0]["minCount"] = least
    world.expected = ExpectedLimit(("nominal", "maximum"), (f"ClusterQueue {QUEUE}",), flavor, world.resource)
    return world


def reserved_before_checks(rng: RandomChoices) -> BindingWorld:
    """A Workload that waits for its AdmissionCheck holds the quota."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    used = rng.draw_integer(max(1, missing), 9)
    world.add_check()
    strategy = {"admissionChecks": [{"name": "manual"}]}
    world.add_queue(QUEUE, {flavor: world.quotas(used + free)}, admissionChecksStrategy=strategy)
    world.hold("holder", used)
    world.ask(free + missing)
    world.expect("nominal", f"ClusterQueue {QUEUE}", flavor=flavor, resource=world.resource)
    return world


def two_pod_sets(rng: RandomChoices) -> BindingWorld:
    """Each of two pod sets fits alone, but not both together."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    used = rng.draw_integer(1, 5) + missing
    free += 2
    missing = min(missing, free - 1)
    world.add_queue(QUEUE, {flavor: world.quotas(used + free)})
    world.hold("holder", used)
    count, requests = world.pods(free)
    obj = world.submit(SUBJECT, count, requests)
    (first,) = obj["spec"]["podSets"]
    count, requests = world.pods(missing)
    amounts = {each: quantity(each, amount) for each, amount in requests.items()}
    limits = {each: amount for each, amount in amounts.items() if "/" in each}
    container = {"name": "main", "image": "pause", "resources": {"requests": amounts, "limits": limits}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    obj["spec"]["podSets"] = [first, {"name": "more", "count": count, "template": template}]
    world.expect("nominal", f"ClusterQueue {QUEUE}", flavor=flavor, resource=world.resource)
    return world


def quota_of_pods(rng: RandomChoices) -> BindingWorld:
    """The queue has quota for a number of pods, and the Workload has more pods."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    used = rng.draw_integer(1, 5) + missing
    quotas: dict[str, Quota] = {"cpu": {"nominalQuota": PLENTY}, "pods": {"nominalQuota": used + free}}
    world.add_queue(QUEUE, {flavor: quotas})
    world.submit("holder", used, {"cpu": 1}, at=HOLDERS_AT)
    world.submit(
        SUBJECT, free + missing, {"cpu": rng.draw_integer(1, 3)}, kind=rng.choose(["Workload", "Job", "JobSet"])
    )
    world.expect("nominal", f"ClusterQueue {QUEUE}", flavor=flavor, resource="pods")
    return world


def fair_shares(rng: RandomChoices) -> BindingWorld:
    """With fair sharing, two queues borrow equally, and a preemption would not make their shares fairer."""
    world, _, _ = begin(rng)
    world.fair_sharing = True
    world.resources, world.resource = ("cpu",), "cpu"
    (flavor,) = world.add_flavors(1)
    half = rng.draw_integer(2, 6)
    rules = {"reclaimWithinCohort": "Any"}
    world.add_queue("lender", {flavor: world.quotas(2 * half)}, cohortName="tree")
    for name in (QUEUE, "other"):
        world.add_queue(name, {flavor: world.quotas(0)}, cohortName="tree", preemption=rules)
        for number in range(half):
            world.submit(f"{name}-{number}", 1, {"cpu": 1}, queue=name, at=HOLDERS_AT)
    world.submit(SUBJECT, 1, {"cpu": 1}, kind=rng.choose(["Workload", "Job", "JobSet"]))
    world.expected = ExpectedLimit(("nominal", "priority"), (f"ClusterQueue {QUEUE}", "Cohort tree"), flavor, "cpu")
    return world


def requests_above_limits(rng: RandomChoices) -> BindingWorld:
    """The containers of the Workload request more than their limits, for one or two resources."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    world.resources, world.resource = ("cpu", "memory"), "cpu"
    world.add_queue(QUEUE, {flavor: world.quotas(PLENTY)})
    requests = {"cpu": free + missing + 1, "memory": free + missing + 1}
    obj = world.submit(SUBJECT, rng.draw_integer(1, 3), requests)
    container = obj["spec"]["podSets"][0]["template"]["spec"]["containers"][0]
    limited = rng.choose([("cpu",), ("memory",), ("cpu", "memory")])
    container["resources"]["limits"] = {each: quantity(each, rng.draw_integer(1, free + missing)) for each in limited}
    world.expect("misconfigured", f"Workload {SUBJECT}")
    return world


def check_pending(rng: RandomChoices) -> BindingWorld:
    """The Workload has quota, and one or two AdmissionChecks are pending."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    names = ["manual", "second"][: rng.draw_integer(1, 2)]
    for name in names:
        world.add_check(name)
    strategy = {"admissionChecks": [{"name": name} for name in names]}
    world.add_queue(QUEUE, {flavor: world.quotas(PLENTY)}, admissionChecksStrategy=strategy)
    world.ask(free + missing)
    world.expect("admissionCheck", "AdmissionCheck manual")
    world.event = "Admitted"
    return world


def cohort_cycle(rng: RandomChoices) -> BindingWorld:
    """The Cohort of the queue is in a cycle of Cohorts, or below such a cycle."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    names = ["a", "b", "c"][: rng.draw_integer(2, 3)]
    for name, parent in zip(names, [*names[1:], names[0]], strict=True):
        world.add("Cohort", name, parentName=parent)
    world.add("Cohort", "below", parentName=rng.choose(names))
    cohort = rng.choose([*names, "below"])
    world.add_queue(QUEUE, {flavor: world.quotas(missing)}, cohortName=cohort)
    world.add_queue("other", {flavor: world.quotas(free)}, cohortName=cohort)
    world.ask(free + missing)
    world.expect("misconfigured", *[f"Cohort {name}" for name in (*names, "below")])
    return world


def lending_of_cohort(rng: RandomChoices) -> BindingWorld:
    """A Cohort beside the queue has the quota, but lends too little of it."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    lent, own = free + rng.draw_integer(0, 2), missing + rng.draw_integer(0, 2)
    group = resource_group({flavor: world.quotas(missing + lent + rng.draw_integer(0, 3), lendingLimit=lent)})
    world.add("Cohort", "root")
    world.add("Cohort", "branch", parentName="root", resourceGroups=[group])
    world.add_queue(QUEUE, {flavor: world.quotas(own)}, cohortName="root")
    world.hold("holder", own + lent - free)
    world.ask(free + missing)
    world.expect("lending", "Cohort branch", flavor=flavor, resource=world.resource)
    return world


def two_errors(rng: RandomChoices) -> BindingWorld:
    """The LocalQueue is stopped; also, the ClusterQueue is stopped or does not select the namespace."""
    world = stopped_local_queue(rng)
    queue = next(obj for obj in world.objects if obj["kind"] == "ClusterQueue" and obj["metadata"]["name"] == QUEUE)
    queue["spec"] |= rng.choose([{"stopPolicy": "Hold"}, {"namespaceSelector": {"matchLabels": {"a": "b"}}}])
    return world


def stopped_and_short(rng: RandomChoices) -> BindingWorld:
    """The LocalQueue is stopped; also, the ClusterQueue has too little quota."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    world.add_queue(QUEUE, {flavor: world.quotas(free + missing - 1)})
    world.objects[-1]["spec"]["stopPolicy"] = "Hold"
    world.ask(free + missing)
    world.expect("stopped", f"LocalQueue {QUEUE}")
    return world


def gated(rng: RandomChoices) -> BindingWorld:
    """The Workload or its Job has one or two admission gates."""
    world, free, missing = begin(rng)
    (flavor,) = world.add_flavors(1)
    world.add_queue(QUEUE, {flavor: world.quotas(free + missing)})
    count, requests = world.pods(free + missing)
    obj = world.submit(SUBJECT, count, requests, kind=rng.choose(["Workload", "Job"]))
    gates = rng.choose(["example.com/gate", "example.com/gate,example.com/other"])
    obj["metadata"]["annotations"][well_known.ADMISSION_GATED_BY] = gates
    world.expect("gated", f"Workload {SUBJECT}")
    return world


KINDS: Final[dict[str, Callable[[RandomChoices], BindingWorld]]] = {
    each.__name__: each
    for each in (
        nominal_of_queue, nominal_of_cohort, borrowing_of_queue, borrowing_of_cohort, lending, maximum_of_queue,
        maximum_by_borrowing_limit, priority_in_queue, priority_in_cohort, preemption_policy, taint, affinity,
        nearest_flavor, one_group_of_two, short_beside_reclaimable, uncovered, stopped_queue, stopped_local_queue,
        unselected_namespace, deactivated, missing_local_queue, missing_cluster_queue, missing_flavor, missing_check,
        head_of_line, partial_admission, reserved_before_checks, two_pod_sets, quota_of_pods, fair_shares,
        requests_above_limits, check_pending, cohort_cycle, lending_of_cohort, two_errors, stopped_and_short, gated,
    )
} | WAIT_KINDS  # fmt: skip


def binding_world(kind: str, seed: int) -> BindingWorld:
    """Return the world of a kind and a seed."""
    return KINDS[kind](RandomChoices(SeededDraws(seed)))
