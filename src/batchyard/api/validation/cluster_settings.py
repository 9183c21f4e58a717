"""Rules of what a Cluster says beside its pools: how it scales, how long things take, what machines are and cost."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.patterns import pattern_fault
from batchyard.api.validation import amounts, faults, names
from batchyard.api.validation.resources import is_extended
from batchyard.api.validation.slices import topology_faults
from batchyard.base.instant import parse_duration

Spec = Mapping[str, Any]

#: What GKE must be told before it makes pools on its own.
_LIMITED: Final = ("cpu", "memory")
_STEPS: Final = ("provisioning", "boot", "registration", "network", "drivers", "shutdown", "podStart")
_AMOUNTS: Final = ("cpu", "sustainedCpu", "memory", "onDemand", "spot", "reserved", "flexStart")


def settings_faults(spec: Spec) -> Iterator[FieldError]:
    """All rules of a Cluster's settings."""
    yield from _autoscaling_faults(spec.get("autoscaling") or {}, "spec.autoscaling")
    yield from _times_faults(spec.get("times") or {}, "spec.times")
    for machine, times in ((spec.get("times") or {}).get("byMachine") or {}).items():
        yield from _times_faults(times, f"spec.times.byMachine[{machine}]")
    for machine, prices in (spec.get("prices") or {}).items():
        for field, price in prices.items():
            yield from amounts.amount_faults(price, f"spec.prices[{machine}].{field}")
    for machine, described in (spec.get("catalog") or {}).items():
        if not machine or names.label_value(machine):
            message = "a machine type is a label of its nodes: at most 63 letters, digits, '-', '_' and '.'"
            yield faults.invalid("spec.catalog", machine, message, "use a name such as x1-huge-8")
        yield from _machine_faults(described, f"spec.catalog[{machine}]")


def _machine_faults(described: Spec, path: str) -> Iterator[FieldError]:
    """What a machine has and costs is no less than nothing, and it cannot sustain more than it has."""
    for field in _AMOUNTS:
        if field in described:
            yield from amounts.amount_faults(described[field], f"{path}.{field}")
    for field in ("cpu", "memory"):
        if amounts.nano(described[field]) == 0:
            yield faults.invalid(f"{path}.{field}", described[field], "must be greater than 0", "say what it has")
    sustained = described.get("sustainedCpu")
    if sustained is not None and amounts.exceeds(sustained, described["cpu"]):
        message = f"must be no more than its cpu, {amounts.shown(described['cpu'])}"
        yield faults.invalid(
            f"{path}.sustainedCpu", sustained, message, "give what it has all the time, or leave it out"
        )
    yield from _device_faults(described, path)


def _device_faults(described: Spec, path: str) -> Iterator[FieldError]:
    """Pods can ask for the accelerators of a machine, and the topology of its chips has as many."""
    accelerator, topology = described.get("accelerator") or {}, described.get("topology")
    resource = accelerator.get("resource")
    if resource and not is_extended(resource):
        message = "must be a resource that is not Kubernetes' own, with a domain before a slash"
        yield faults.invalid(f"{path}.accelerator.resource", resource, message, "use a name such as example.com/gpu")
    if topology and not accelerator:
        message = "may not be set without accelerator: it tells how its chips lie"
        yield faults.forbidden(f"{path}.topology", message, "drop it, or give the accelerator")
    elif topology:
        yield from topology_faults(topology, f"{path}.topology", accelerator["count"])


def _autoscaling_faults(autoscaling: Spec, path: str) -> Iterator[FieldError]:
    """The autoscaler looks every now and then, and has an order of pools if it goes by one."""
    threshold = autoscaling.get("utilizationThreshold", 0)
    if amounts.exceeds(threshold, 1) or amounts.exceeds(0, threshold):
        message = "must be between 0 and 1"
        yield faults.invalid(f"{path}.utilizationThreshold", threshold, message, "give a share, such as 0.5")
    for field, usual in (("scanInterval", "10s"), ("maxNodeProvisionTime", "15m")):
        duration = autoscaling.get(field, usual)
        if parse_duration(duration) <= 0:
            yield faults.invalid(f"{path}.{field}", duration, "must be greater than 0", f"use {usual}")
    yield from _priorities_faults(autoscaling, f"{path}.priorities")
    limits = (autoscaling.get("autoProvisioning") or {}).get("limits")
    if limits is not None:
        yield from _limits_faults(limits, f"{path}.autoProvisioning.limits")


def _priorities_faults(autoscaling: Spec, path: str) -> Iterator[FieldError]:
    """An order of pools is a list of regular expressions, and there for the expander that goes by it."""
    priorities, expander = autoscaling.get("priorities"), autoscaling.get("expander", "least-waste")
    if expander == "priority" and not priorities:
        remedy = "list pools, most wanted first, or use another expander"
        yield faults.required(path, "the expander priority goes by it", remedy)
    elif priorities and expander != "priority":
        message = f"the expander {expander} does not go by it"
        yield faults.forbidden(path, message, "drop it, or set expander to priority")
    for i, pattern in enumerate(priorities or ()):
        if wrong := pattern_fault(pattern):
            message = f"must be a regular expression ({wrong})"
            yield faults.invalid(
                f"{path}[{i}]", pattern, message, "use the name of a pool, or a pattern such as spot-.*"
            )


def _limits_faults(limits: Sequence[Spec], path: str) -> Iterator[FieldError]:
    """Pools are made within limits, of cpu and memory at least."""
    for i, limit in enumerate(limits):
        if limit.get("min", 0) > limit["max"]:
            message = f"must be at most max, which is {limit['max']}"
            yield faults.invalid(f"{path}[{i}].min", limit["min"], message, "lower min, or raise max")
    given = {limit["resource"] for limit in limits}
    for resource in _LIMITED:
        if resource not in given:
            remedy = f"add {{resource: {resource}, max: 1000}}{' (memory in GB)' if resource == 'memory' else ''}"
            yield faults.required(path, f"a limit of {resource} must be given", remedy)


def _times_faults(times: Spec, path: str) -> Iterator[FieldError]:
    """What takes between a shortest and a longest time takes something between them as a rule."""
    for field in _STEPS:
        if spread := times.get(field):
            lowest, typical, highest = (parse_duration(spread[bound]) for bound in ("min", "typical", "max"))
            if not lowest <= typical <= highest:
                message = "must be in order: min, typical, max"
                yield faults.invalid(f"{path}.{field}", spread, message, "give times such as 30s, 60s, 120s")
