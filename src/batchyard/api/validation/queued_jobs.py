"""Rules of what says how a Job or JobSet is queued: labels and annotations of Kueue.

Source: Kueue's pkg/controller/jobframework/validation.go at its default feature gates.
"""

from collections.abc import Iterator, Mapping

from batchyard.api import well_known
from batchyard.api.annotations import is_elastic, whole_number
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj
from batchyard.api.validation import admission_gates, faults, names


def create_faults(job: Obj) -> Iterator[FieldError]:
    """The rules that hold whenever a Job or JobSet is stored."""
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
    yield from admission_gates.gate_faults(job)


def update_faults(new: Obj, old: Obj) -> Iterator[FieldError]:
    """The rules of changes: once a Job runs, how it was queued stays."""
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
    yield from admission_gates.gate_update_faults(new, old)


def is_suspended(job: Obj) -> bool:
    """Whether a Job or JobSet is suspended."""
    return bool((job.get("spec") or {}).get("suspend"))


def _labels(job: Obj) -> Mapping[str, str]:
    """The labels of a Job, maybe none."""
    labels: Mapping[str, str] = job["metadata"].get("labels") or {}
    return labels


def _prebuilt(job: Obj) -> tuple[str | None, str]:
    """The Workload that was made for the Job beforehand, and where the Job says so; annotations come first."""
    annotation = (job["metadata"].get("annotations") or {}).get(well_known.PREBUILT_WORKLOAD)
    if annotation:
        return annotation, f"metadata.annotations[{well_known.PREBUILT_WORKLOAD}]"
    return _labels(job).get(well_known.PREBUILT_WORKLOAD), f"metadata.labels[{well_known.PREBUILT_WORKLOAD}]"


def _object_name_faults(name: str | None, path: str) -> Iterator[FieldError]:
    """A label that names another object has a name that object can have."""
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
    """A label that stays while the Job runs."""
    before, after = _labels(old).get(name) or "", _labels(new).get(name) or ""
    if before != after:
        yield faults.immutable(f"metadata.labels[{name}]", after, "suspend the Job first")


def _class_update_faults(new: Obj, old: Obj) -> Iterator[FieldError]:
    """A priority class is not added to what runs, and never taken away; it may be swapped for another."""
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
