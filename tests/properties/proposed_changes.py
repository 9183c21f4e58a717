"""Worlds whose Workloads never end, and the effects of the changes that `why` proposes in them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, controller_of, format_amount, key_of, quota_amount
from batchyard.api.times import parse_time
from batchyard.api.validation import validate_update
from batchyard.base.instant import SECOND
from batchyard.interfaces.client import Create, Update
from batchyard.scheduling.workload.lifecycle import has_quota_reservation
from batchyard.sim.random_worlds import RandomSource, WorldBounds, random_objects, scenario_of
from batchyard.sim.scenario import Scenario
from batchyard.sim.world import EPOCH, World

ASKED_AT = 100 * SECOND
"""When everybody has come, and nothing moves any more."""
SEEN_UNTIL = ASKED_AT + 40 * SECOND
KINDS = {
    "ClusterQueue": scheme.CLUSTER_QUEUE,
    "Cohort": scheme.COHORT,
    "Workload": scheme.WORKLOAD,
    "Job": scheme.JOB,
    "JobSet": scheme.JOB_SET,
    "LocalQueue": scheme.LOCAL_QUEUE,
    "Budget": scheme.BUDGET,
}

Change = Mapping[str, Any]


def lasting_scenario(draws: RandomSource, bounds: WorldBounds) -> Scenario:
    """Return a random world whose Workloads never end."""
    fair, objects = random_objects(draws, bounds)
    for obj in objects:
        annotations = obj["metadata"].get("annotations", {})
        annotations.pop(well_known.DELETE_AT, None)
        if well_known.RUNTIME in annotations:
            annotations[well_known.RUNTIME] = "1000h"
    return scenario_of(objects, fair_sharing=fair)


def world_at_query(scenario: Scenario) -> World:
    """Return the world at the instant of the query."""
    world = World(scenario)
    world.run_until(ASKED_AT)
    world.flush_batched_writes()
    return world


def waiting(world: World) -> list[Key]:
    """Return the pending Workloads, unless the world loops."""
    if world.loops:
        return []
    return [key_of(obj) for obj in world.objects(scheme.WORKLOAD) if not has_quota_reservation(obj)]


def admits(scenario: Scenario, key: Key, patches: Sequence[Change], event: str = "QuotaReserved") -> bool:
    """Return whether these changes lead to the event of a Workload, in flavors that its job selects.

    The event is QuotaReserved or Admitted.
    """
    reserved: dict[str, None] = {}

    def sink(record: Mapping[str, Any]) -> None:
        if record["event"] == event and record["time"] * SECOND >= ASKED_AT:
            reserved[record["workload"]] = None

    world = World(scenario, sink=sink)
    world.run_until(ASKED_AT)
    world.flush_batched_writes()
    reserved.clear()
    for patch in patches:
        if patch["type"] == "create":
            world.submit(Create(patch["patch"]))
            continue
        old = world.client.get(_key(patch))
        assert old is not None
        new = patched(old, patch)
        if validate_update(new, old):
            return False
        world.submit(Update(new))
    world.run_until(SEEN_UNTIL)
    assert world.rejected_writes == []
    return f"{key.namespace}/{key.name}" in reserved and _job_selects_flavors(world, key)


def first_time_of(scenario: Scenario, key: Key, event: str, limit: int) -> int | None:
    """Return when a Workload has an event after the query, in nanoseconds since the start; None if not by `limit`.

    The event Instance is the next request for a machine.
    """
    times: list[int] = []

    def sink(record: Mapping[str, Any]) -> None:
        is_asked = record["event"] == event and record["workload"] == f"{key.namespace}/{key.name}"
        if is_asked and record["time"] * SECOND > ASKED_AT:
            times.append(int(record["time"] * SECOND))

    world = World(scenario, sink=sink)
    world.run_until(limit)
    if event == "Instance":
        created = [parse_time(obj["metadata"]["creationTimestamp"]) - EPOCH for obj in world.objects(scheme.INSTANCE)]
        times = [each for each in created if each > ASKED_AT]
    return min(times, default=None)


def _job_selects_flavors(world: World, workload_key: Key) -> bool:
    """Return whether the pod templates of a Workload's job select its flavors; True without a job."""
    workload = world.client.get(workload_key)
    owner = None if workload is None else controller_of(workload)
    if workload is None or owner is None:
        return True
    job = world.client.get(Key(KINDS[owner["kind"]], workload_key.namespace, owner["name"]))
    assert job is not None
    templates = [each["template"]["spec"]["template"] for each in job["spec"].get("replicatedJobs") or ()]
    labels: dict[str, str] = {}
    for assignment in (workload.get("status") or {}).get("admission", {}).get("podSetAssignments", ()):
        for name in (assignment.get("flavors") or {}).values():
            flavor = world.client.get(Key(scheme.RESOURCE_FLAVOR, "", name))
            labels |= ((flavor or {}).get("spec") or {}).get("nodeLabels") or {}
    return all(_selects(template["spec"], labels) for template in templates or [job["spec"]["template"]])


def _selects(spec: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether a pod's selector and its required affinity, with the operator In only, match labels."""
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution", {}
    )
    selected = [{key: [value] for key, value in (spec.get("nodeSelector") or {}).items()}]
    terms = [
        {each["key"]: each["values"] for each in term["matchExpressions"]}
        for term in affinity.get("nodeSelectorTerms", ())
    ]
    return all(
        any(all(labels.get(key, values[0]) in values for key, values in term.items()) for term in alternatives)
        for alternatives in (selected, terms)
        if alternatives
    )


def patched(obj: Obj, patch: Change) -> Obj:
    """Return an object with an applied patch."""
    if patch["type"] == "merge":
        merged: Obj = _merged(obj, patch["patch"])
        return merged
    for operation in patch["patch"]:
        path = operation["path"].strip("/").split("/")
        obj = _set(obj, path, operation.get("value"), is_removed=operation["op"] == "remove")
    return obj


def one_less(change: Change, world: World) -> Iterator[Sequence[Change]]:
    """Yield reduced variants of a change: without one of its patches, or with one unit less in one place."""
    patches = change["apply"]
    for number, patch in enumerate(patches):
        yield [*patches[:number], *patches[number + 1 :]]
        for less in _less(change["kind"], patch, world):
            yield [*patches[:number], {**patch, "patch": less}, *patches[number + 1 :]]


def _less_correction(patch: Change, world: World) -> Iterator[Any]:
    """Yield smaller variants of a patch that corrects an object."""
    fields = patch["patch"]
    if patch["kind"] == "Budget":
        yield from ({"spec": {field: f"{float(amount) - 0.01:.2f}"}} for field, amount in fields["spec"].items())
    elif patch["type"] == "json":
        yield from _less_limits(fields)
    elif "admissionChecksStrategy" in fields.get("spec", {}):
        yield from _fewer_checks_removed(patch, world)
    elif "annotations" in fields.get("metadata", {}):
        yield from _fewer_gates_removed(patch, world)


def _less(kind: str, patch: Change, world: World) -> Iterator[Any]:
    if patch["type"] == "create":
        return
    yield from _less_correction(patch, world)
    if patch["type"] == "merge" and kind not in patch["patch"].get("spec", {}) and kind != "size":
        return  # a correction beside the change
    if kind == "priority":
        yield {"spec": {"priority": patch["patch"]["spec"]["priority"] - 1}}
    elif kind == "size" and patch["type"] == "merge":
        if "parallelism" not in patch["patch"]["spec"]:
            return
        yield {**patch["patch"], "spec": {"parallelism": patch["patch"]["spec"]["parallelism"] + 1}}
    elif kind == "size":
        first, *others = patch["patch"]
        yield [{**first, "value": first["value"] + 1}, *others]
    elif kind == "quota":
        for number, operation in enumerate(patch["patch"]):
            if operation["path"].endswith("/-"):
                yield from _less_coverage(patch["patch"], number)
                continue
            resource = _resource_at(operation["path"].split("/"), world.client.get(_key(patch)))
            amount = format_amount(resource, quota_amount(resource, operation["value"]) - 1)
            yield [*patch["patch"][:number], {**operation, "value": amount}, *patch["patch"][number + 1 :]]


def _fewer_gates_removed(patch: Change, world: World) -> Iterator[Any]:
    """Yield variants of the patch, each of which keeps one more of several admission gates."""
    name = well_known.ADMISSION_GATED_BY
    gates = (annotation(world.client.get(_key(patch)) or {}, name) or "").split(",")
    if len(gates) > 1:
        yield from ({"metadata": {"annotations": {name: gate}}} for gate in gates)


def _fewer_checks_removed(patch: Change, world: World) -> Iterator[Any]:
    """Yield variants of the patch, each of which keeps one more admission check of a ClusterQueue."""
    kept = patch["patch"]["spec"]["admissionChecksStrategy"]["admissionChecks"]
    queue = world.client.get(_key(patch))
    assert queue is not None
    for check in queue["spec"]["admissionChecksStrategy"]["admissionChecks"]:
        if check not in kept:
            yield {"spec": {"admissionChecksStrategy": {"admissionChecks": [*kept, check]}}}


def _less_limits(operations: Sequence[Change]) -> Iterator[Sequence[Change]]:
    """Yield variants of the operations, each with one unit less of a container limit that an operation sets."""
    for number, operation in enumerate(operations):
        *_, field, name = operation["path"].split("/")
        if field == "limits":
            resource = _unescaped(name)
            amount = format_amount(resource, quota_amount(resource, operation["value"]) - 1)
            yield [*operations[:number], {**operation, "value": amount}, *operations[number + 1 :]]


def _unescaped(step: str) -> str:
    """Return the field name in a step of a JSON Pointer, unescaped."""
    return step.replace("~1", "/").replace("~0", "~")


def _less_coverage(operations: Sequence[Change], number: int) -> Iterator[Sequence[Change]]:
    """Yield the operations with one unit less of the quota that operation `number` adds."""
    value = operations[number]["value"]
    units = quota_amount(value["name"], value["nominalQuota"]) if isinstance(value, Mapping) else 0
    if units:
        less = {**value, "nominalQuota": format_amount(value["name"], units - 1)}
        yield [*operations[:number], {**operations[number], "value": less}, *operations[number + 1 :]]


def _key(patch: Change) -> Key:
    return Key(KINDS[patch["kind"]], patch.get("namespace", ""), patch["name"])


def _resource_at(path: Sequence[str], obj: Obj | None) -> str:
    """Return the resource of the quota at a path: /spec/resourceGroups/G/flavors/F/resources/R/nominalQuota."""
    assert obj is not None
    group, flavor, resource = (int(path[place]) for place in (3, 5, 7))
    name: str = obj["spec"]["resourceGroups"][group]["flavors"][flavor]["resources"][resource]["name"]
    return name


def _merged(obj: Any, fields: Mapping[str, Any]) -> Any:
    created = dict(obj)
    for name, value in fields.items():
        if value is None:
            created.pop(name, None)
        else:
            created[name] = _merged(created.get(name) or {}, value) if isinstance(value, Mapping) else value
    return created


def _set(value: Any, path: Sequence[str], new: Any, *, is_removed: bool = False) -> Any:
    first, *rest = path
    first = _unescaped(first)
    if first == "-":
        return [*value, new]
    if isinstance(value, list):
        place = int(first)
        inner = _set(value[place], rest, new, is_removed=is_removed) if rest else new
        return [*value[:place], inner, *value[place + 1 :]]
    if is_removed and not rest:
        return {name: field for name, field in value.items() if name != first}
    return {**value, first: _set(value.get(first, {}), rest, new, is_removed=is_removed) if rest else new}
