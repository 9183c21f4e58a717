"""Rules of Kueue's labels and annotations on Jobs and JobSets, and of TPU slices.

Source: Kueue's pkg/controller/jobframework/validation.go at its default feature gates.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api import well_known
from batchyard.api.annotations import is_elastic, whole_number
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj
from batchyard.api.validation import errors as faults
from batchyard.api.validation import names, workload


def create_faults(job: Obj) -> Iterator[FieldError]:
    """Validate the rules for every stored Job or JobSet."""
    labels = _labels(job)
    yield from _object_name_faults(labels.get(well_known.QUEUE_NAME), f"metadata.labels[{well_known.QUEUE_NAME}]")
    name, path = _prebuilt(job)
    yield from _object_name_faults(name, path)
    yield from _max_time_faults(labels.get(well_known.MAX_EXEC_TIME))
    if is_elastic(job) and job["kind"] != "Job":
        group_version, kind = job["apiVersion"], job["kind"]
        message = f'elastic job is not supported for "{group_version}, Kind={kind}"'
        yield faults.forbidden(
            f"metadata.annotations[{well_known.ELASTIC_JOB}]", message, "drop the annotation, or use a Job"
        )
    yield from workload.gate_faults(job)


def update_faults(new: Obj, old: Obj) -> Iterator[FieldError]:
    """Validate an update: the queue settings of a running Job are immutable."""
    suspended, was_suspended = is_suspended(new), is_suspended(old)
    if not suspended:
        yield from _kept_label(new, old, well_known.QUEUE_NAME)
    if not suspended and not is_elastic(old) and _prebuilt(new)[0] != _prebuilt(old)[0]:
        yield faults.immutable(_prebuilt(new)[1], _prebuilt(new)[0], "suspend the Job first")
    if not (suspended and was_suspended):
        yield from _kept_label(new, old, well_known.MAX_EXEC_TIME)
    yield from _class_update_faults(new, old)
    if is_elastic(new) != is_elastic(old):
        yield faults.immutable(f"metadata.annotations[{well_known.ELASTIC_JOB}]", is_elastic(new))
    yield from workload.gate_update_faults(new, old)


def is_suspended(job: Obj) -> bool:
    """Report whether a Job or JobSet is suspended."""
    return bool((job.get("spec") or {}).get("suspend"))


def _labels(job: Obj) -> Mapping[str, str]:
    """Return the labels of a Job, possibly empty."""
    labels: Mapping[str, str] = job["metadata"].get("labels") or {}
    return labels


def _prebuilt(job: Obj) -> tuple[str | None, str]:
    """Return the prebuilt Workload of a Job and the path of its name; the annotation takes precedence."""
    annotation = (job["metadata"].get("annotations") or {}).get(well_known.PREBUILT_WORKLOAD)
    if annotation:
        return annotation, f"metadata.annotations[{well_known.PREBUILT_WORKLOAD}]"
    return _labels(job).get(well_known.PREBUILT_WORKLOAD), f"metadata.labels[{well_known.PREBUILT_WORKLOAD}]"


def _object_name_faults(name: str | None, path: str) -> Iterator[FieldError]:
    """A label with the name of another object has a valid name."""
    messages = names.dns_subdomain(name) if name is not None else ()
    if messages:
        yield faults.invalid(path, name, ",".join(messages), "give the name of the object, in lower case")


def _max_time_faults(value: str | None) -> Iterator[FieldError]:
    """A time limit is a positive number of seconds."""
    if value is None:
        return
    path, seconds = f"metadata.labels[{well_known.MAX_EXEC_TIME}]", whole_number(value)
    if seconds is None:
        message = f"strconv.Atoi: parsing {faults.printed(value)}: invalid syntax"
        yield faults.invalid(path, value, message, 'give a number of seconds, such as "3600"')
    elif seconds <= 0:
        yield faults.invalid(path, seconds, "should be greater than 0", "give 1 or more seconds, or drop the label")


def _kept_label(new: Obj, old: Obj, name: str) -> Iterator[FieldError]:
    """A label is immutable while the Job runs."""
    before, after = _labels(old).get(name) or "", _labels(new).get(name) or ""
    if before != after:
        yield faults.immutable(f"metadata.labels[{name}]", after, "suspend the Job first")


def _class_update_faults(new: Obj, old: Obj) -> Iterator[FieldError]:
    """A priority class may be replaced, not removed, and not added to a running Job."""
    before, after, path = (
        _labels(old).get(well_known.PRIORITY_CLASS),
        _labels(new).get(well_known.PRIORITY_CLASS),
        f"metadata.labels[{well_known.PRIORITY_CLASS}]",
    )
    if after and not before and not is_suspended(new):
        message = "WorkloadPriorityClass cannot be added to a non-suspended workload"
        yield faults.invalid(path, after, message, "suspend the Job first")
    if before and not after:
        message = "WorkloadPriorityClass cannot be removed from a workload"
        yield faults.invalid(path, "", message, f"keep {before}, or name another class")


# --- slices ---
#
# Rules of pools whose nodes form one TPU slice: they share its chips, are in one zone, and are created and deleted
# together.
#
# Source: GKE's multi-host TPU node pools, which are resized between 0 and all their nodes; pkg/cloudprovider/gke
# (IsMultiHostTpuPodslice, ZeroOrMaxNodeScaling). A slice of one node is a normal pool.


Spec = Mapping[str, Any]

_TOPOLOGY: Final = re.compile(r"[1-9]\d{0,3}(x[1-9]\d{0,3}){1,2}", re.ASCII)
#: Google names TPU machines by their number of chips: ct5lp-hightpu-4t.
_CHIPS: Final = re.compile(r".*-([1-9]\d?)t", re.ASCII)
_NODES_SHOWN_MAX: Final = 256


def slice_faults(pool: Spec, path: str) -> Iterator[FieldError]:
    """A slice has a topology that its nodes fill, and exactly that number of nodes."""
    topology = pool.get("tpuTopology")
    if topology is None:
        return
    at, chips, each = f"{path}.tpuTopology", _chips_in(topology), _chips_of_machine(pool["machineType"])
    if chips is None:
        yield from topology_faults(topology, at)
    elif each is not None and chips % each:
        message = f"must have a multiple of the {each} chips of a {pool['machineType']}, not {chips}"
        yield faults.invalid(at, topology, message, "use a larger topology, or a smaller machine type")
    elif each != chips:
        yield from one_zone_faults(pool, path, "a TPU slice of several nodes")
        yield from _sharing_faults(pool, chips, path) if each is None else _whole_faults(pool, chips // each, path)


def topology_faults(topology: str, path: str, count: int | None = None) -> Iterator[FieldError]:
    """A topology has the number of chips in each dimension; their product is `count` if given."""
    chips = _chips_in(topology)
    if chips is None:
        message = "must be the numbers of chips in two or three dimensions"
        yield faults.invalid(path, topology, message, "write it as 2x4 or 2x2x4")
    elif count not in (None, chips):
        message = f"must have the {count} chips of the machine, not {chips}"
        yield faults.invalid(path, topology, message, "write how its own chips lie, or change their count")


def one_zone_faults(pool: Spec, path: str, what: str) -> Iterator[FieldError]:
    """A pool with compact placement is in one zone."""
    zones = pool.get("zones") or []
    if len(zones) > 1:
        message = f"must have at most 1 item: {what} lies in one zone"
        yield faults.invalid(f"{path}.zones", zones, message, f"name one zone, such as zones: [{zones[0]}]")


def _chips_in(topology: str) -> int | None:
    """Return the chips of a topology such as 2x4 or 2x2x4; None if it is malformed."""
    return math.prod(map(int, topology.split("x"))) if _TOPOLOGY.fullmatch(topology) else None


def _chips_of_machine(machine_type: str) -> int | None:
    """Return the chips of a machine from its type name; None if it does not contain them."""
    found = _CHIPS.fullmatch(machine_type)
    return int(found[1]) if found else None


def _sharing_faults(pool: Spec, chips: int, path: str) -> Iterator[FieldError]:
    """The number of nodes divides the chips evenly, and an autoscaled pool scales by the whole slice."""
    counts = _counts(pool)
    for field, count in counts.items():
        if count and chips % count:
            message = f"must divide the {chips} chips of topology {pool['tpuTopology']}, so that each node has as many"
            even = [str(n) for n in range(1, min(chips, _NODES_SHOWN_MAX) + 1) if chips % n == 0]
            yield faults.invalid(f"{path}.{field}", count, message, f"use one of {', '.join(even)}")
            return
    yield from _whole_faults(pool, max(counts.values(), default=0), path)


def _whole_faults(pool: Spec, hosts: int, path: str) -> Iterator[FieldError]:
    """The number of nodes is 0 or the whole slice."""
    for field, count in _counts(pool).items():
        if count not in (0, hosts):
            message = f"must be 0 or {hosts}: a slice {pool['tpuTopology']} has all its nodes or none"
            yield faults.invalid(f"{path}.{field}", count, message, f"set it to {hosts}, or to 0")


def _counts(pool: Spec) -> dict[str, int]:
    """Return the node counts of a pool by field."""
    autoscaling = pool.get("autoscaling") or {}
    bounds = {f"autoscaling.{field}": autoscaling.get(field) for field in ("min", "max", "totalMin", "totalMax")}
    return {field: n for field, n in {"nodeCount": pool.get("nodeCount"), **bounds}.items() if n is not None}
