"""Rules of Jobs: Kubernetes's own, then Kueue's.

Source: Kubernetes's pkg/apis/batch/validation; Kueue's Job webhook at its default feature gates.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj, boolean, is_elastic, whole_number
from batchyard.api.meta import selector as parsed_selector
from batchyard.api.schema import meaning_of
from batchyard.api.validation import pods, rules, topology, workload
from batchyard.api.validation.job_policies import failure_faults, success_faults
from batchyard.api.views.node import pods_at_once

_REPLACEMENT: Final = ("Failed", "TerminatingOrFailed")


def policy_faults(spec: Obj, path: str) -> Iterator[FieldError]:
    """Validate the policies of a Job's spec."""
    failure, success = spec.get("podFailurePolicy"), spec.get("successPolicy")
    if failure is not None:
        yield from failure_faults(spec, failure.get("rules") or (), f"{path}.podFailurePolicy.rules")
    if success is not None:
        if spec.get("completionMode") != "Indexed":
            message = "requires indexed completion mode"
            yield rules.invalid(f"{path}.successPolicy", success, message, "set completionMode to Indexed")
        else:
            yield from success_faults(spec, success.get("rules") or (), f"{path}.successPolicy.rules")
    replacement = spec.get("podReplacementPolicy")
    allowed = _REPLACEMENT if failure is None else _REPLACEMENT[:1]
    if replacement is not None and replacement not in allowed:
        yield rules.unsupported(f"{path}.podReplacementPolicy", replacement, allowed)


# --- queued jobs ---
#
# Rules of Kueue's labels and annotations on Jobs and JobSets, and of TPU slices.
#
# Source: Kueue's pkg/controller/jobframework/validation.go at its default feature gates.


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
        yield rules.forbidden(
            f"metadata.annotations[{well_known.ELASTIC_JOB}]", message, "drop the annotation, or use a Job"
        )
    yield from workload.gate_faults(job)


def update_faults(new: Obj, old: Obj) -> Iterator[FieldError]:
    """Validate an update: the queue settings of a running Job are immutable."""
    suspended, was_suspended = is_suspended(new), is_suspended(old)
    if not suspended:
        yield from _kept_label(new, old, well_known.QUEUE_NAME)
    if not suspended and not is_elastic(old) and _prebuilt(new)[0] != _prebuilt(old)[0]:
        yield rules.immutable(_prebuilt(new)[1], _prebuilt(new)[0], "suspend the Job first")
    if not (suspended and was_suspended):
        yield from _kept_label(new, old, well_known.MAX_EXEC_TIME)
    yield from _class_update_faults(new, old)
    if is_elastic(new) != is_elastic(old):
        yield rules.immutable(f"metadata.annotations[{well_known.ELASTIC_JOB}]", is_elastic(new))
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
    messages = rules.dns_subdomain(name) if name is not None else ()
    if messages:
        yield rules.invalid(path, name, ",".join(messages), "give the name of the object, in lower case")


def _max_time_faults(value: str | None) -> Iterator[FieldError]:
    """A time limit is a positive number of seconds."""
    if value is None:
        return
    path, seconds = f"metadata.labels[{well_known.MAX_EXEC_TIME}]", whole_number(value)
    if seconds is None:
        message = f"strconv.Atoi: parsing {rules.printed(value)}: invalid syntax"
        yield rules.invalid(path, value, message, 'give a number of seconds, such as "3600"')
    elif seconds <= 0:
        yield rules.invalid(path, seconds, "should be greater than 0", "give 1 or more seconds, or drop the label")


def _kept_label(new: Obj, old: Obj, name: str) -> Iterator[FieldError]:
    """A label is immutable while the Job runs."""
    before, after = _labels(old).get(name) or "", _labels(new).get(name) or ""
    if before != after:
        yield rules.immutable(f"metadata.labels[{name}]", after, "suspend the Job first")


def _class_update_faults(new: Obj, old: Obj) -> Iterator[FieldError]:
    """A priority class may be replaced, not removed, and not added to a running Job."""
    before, after, path = (
        _labels(old).get(well_known.PRIORITY_CLASS),
        _labels(new).get(well_known.PRIORITY_CLASS),
        f"metadata.labels[{well_known.PRIORITY_CLASS}]",
    )
    if after and not before and not is_suspended(new):
        message = "WorkloadPriorityClass cannot be added to a non-suspended workload"
        yield rules.invalid(path, after, message, "suspend the Job first")
    if before and not after:
        message = "WorkloadPriorityClass cannot be removed from a workload"
        yield rules.invalid(path, "", message, f"keep {before}, or name another class")


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
        yield rules.invalid(at, topology, message, "use a larger topology, or a smaller machine type")
    elif each != chips:
        yield from one_zone_faults(pool, path, "a TPU slice of several nodes")
        yield from _sharing_faults(pool, chips, path) if each is None else _whole_faults(pool, chips // each, path)


def topology_faults(topology: str, path: str, count: int | None = None) -> Iterator[FieldError]:
    """A topology has the number of chips in each dimension; their product is `count` if given."""
    chips = _chips_in(topology)
    if chips is None:
        message = "must be the numbers of chips in two or three dimensions"
        yield rules.invalid(path, topology, message, "write it as 2x4 or 2x2x4")
    elif count not in (None, chips):
        message = f"must have the {count} chips of the machine, not {chips}"
        yield rules.invalid(path, topology, message, "write how its own chips lie, or change their count")


def one_zone_faults(pool: Spec, path: str, what: str) -> Iterator[FieldError]:
    """A pool with compact placement is in one zone."""
    zones = pool.get("zones") or []
    if len(zones) > 1:
        message = f"must have at most 1 item: {what} lies in one zone"
        yield rules.invalid(f"{path}.zones", zones, message, f"name one zone, such as zones: [{zones[0]}]")


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
            yield rules.invalid(f"{path}.{field}", count, message, f"use one of {', '.join(even)}")
            return
    yield from _whole_faults(pool, max(counts.values(), default=0), path)


def _whole_faults(pool: Spec, hosts: int, path: str) -> Iterator[FieldError]:
    """The number of nodes is 0 or the whole slice."""
    for field, count in _counts(pool).items():
        if count not in (0, hosts):
            message = f"must be 0 or {hosts}: a slice {pool['tpuTopology']} has all its nodes or none"
            yield rules.invalid(f"{path}.{field}", count, message, f"set it to {hosts}, or to 0")


def _counts(pool: Spec) -> dict[str, int]:
    """Return the node counts of a pool by field."""
    autoscaling = pool.get("autoscaling") or {}
    bounds = {f"autoscaling.{field}": autoscaling.get(field) for field in ("min", "max", "totalMin", "totalMax")}
    return {field: n for field, n in {"nodeCount": pool.get("nodeCount"), **bounds}.items() if n is not None}


# --- job selector ---
#
# Rules of a Job's selector: generated from its name and uid, or set manually.
#
# Source: Kubernetes's pkg/apis/batch/validation (ValidateGeneratedSelector, ValidateJobSpec).


_LABELS: Final = "spec.template.metadata.labels"
_NO_MATCH: Final = "`selector` does not match template `labels`"


def selector_faults(job: Obj) -> Iterator[FieldError]:
    """Validate the selector, which Kubernetes generates unless it is manual; it must match the Job's own pods."""
    spec = job.get("spec") or {}
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
    if spec.get("manualSelector"):
        yield from _own_faults(spec.get("selector"), labels)
    else:
        yield from _generated_faults(job["metadata"].get("name"), spec.get("selector"), labels)


def _own_faults(selector: Obj | None, labels: Obj) -> Iterator[FieldError]:
    """Validate a manual selector."""
    if selector is None:
        yield rules.required("spec.selector", "", "give the selector, or drop manualSelector")
        return
    wrong = list(rules.selector_faults(selector, "spec.selector"))
    yield from wrong
    selected = None if wrong else parsed_selector(selector)
    if selected is not None and not selected.matches(labels):
        yield rules.invalid(_LABELS, labels, _NO_MATCH, "give the template the labels of the selector")


def _generated_faults(name: str | None, selector: Obj | None, labels: Obj) -> Iterator[FieldError]:
    """A given selector and given labels equal those that Kubernetes generates."""
    if selector and (
        selector.get("matchExpressions") or set(selector.get("matchLabels") or ()) - set(well_known.POD_OWNER_LABELS)
    ):
        remedy = "drop the selector, or set manualSelector: true"
        yield rules.invalid("spec.selector", selector, "`selector` not auto-generated", remedy)
    elif selector and any(labels.get(k, value) != value for k, value in (selector.get("matchLabels") or {}).items()):
        yield rules.invalid(_LABELS, labels, _NO_MATCH, "drop the selector and these labels")
    if not name:
        return
    for message in rules.label_value(name):
        yield rules.invalid(_LABELS, name, message, "shorten the name of the Job: its pods have it as a label")
    for key in (well_known.OLD_JOB_NAME, well_known.JOB_NAME):
        if labels.get(key) not in (None, name):
            yield rules.invalid(f"{_LABELS}[{key}]", labels[key], f"must be '{name}'", "drop the label")


#: The name of Kueue's webhook.
_WEBHOOK: Final = "vjob.kb.io"
_INDEXES_MAX: Final = 100_000
_PARALLELISM_OF_MANY_MAX: Final = 10_000
_MODES: Final = ("NonIndexed", "Indexed")
_RESTART_POLICIES: Final = ("OnFailure", "Never")
_SPEC_TYPE: Final = "JobSpec"
_TEMPLATE_TYPE: Final = "PodTemplateSpec"
_KEPT: Final = (
    "selector",
    "completionMode",
    "podFailurePolicy",
    "backoffLimitPerIndex",
    "managedBy",
    "successPolicy",
)


def job_faults(job: Obj) -> Iterator[FieldError]:
    """Validate a Job."""
    yield from _kubernetes_faults(job)
    yield from rules.denied_by(_WEBHOOK, _queued_faults(job))


def job_update_faults(new: Obj, old: Obj) -> Iterator[FieldError]:
    """Validate an update of a Job: most of it is immutable once it runs."""
    yield from _kubernetes_faults(new)
    yield from _spec_update_faults(new.get("spec") or {}, old.get("spec") or {})
    yield from rules.denied_by(_WEBHOOK, _queued_update_faults(new, old))


def _queued_faults(job: Obj) -> Iterator[FieldError]:
    """Validate Kueue's rules of a Job."""
    yield from create_faults(job)
    yield from _partial_admission_faults(job)
    yield from _equal_completions_faults(job)
    yield from _topology_faults(job)


def _queued_update_faults(new: Obj, old: Obj) -> Iterator[FieldError]:
    """Validate Kueue's rules of an update of a Job."""
    yield from create_faults(new)
    if _annotation(new, well_known.MIN_PARALLELISM) != _annotation(old, well_known.MIN_PARALLELISM):
        yield from _partial_admission_faults(new)
    yield from _equal_completions_faults(new)
    yield from update_faults(new, old)
    yield from _partial_admission_update_faults(new, old)
    yield from _topology_faults(new)


def spec_faults(spec: Obj, path: str, claims: Sequence[str] = ()) -> Iterator[FieldError]:
    """Validate a Job's spec at a path; `claims` are additional volumes."""
    yield from _number_faults(spec, path)
    yield from _completion_faults(spec, path)
    yield from manager_faults(spec.get("managedBy"), f"{path}.managedBy")
    yield from policy_faults(spec, path)
    yield from pods.pod_template_faults(spec.get("template") or {}, f"{path}.template", claims)
    yield from _restart_faults(spec, f"{path}.template.spec.restartPolicy")


def manager_faults(manager: str | None, path: str) -> Iterator[FieldError]:
    """`managedBy` is a domain-prefixed path."""
    if manager is None:
        return
    for message in rules.domain_path(manager):
        yield rules.invalid(path, manager, message, "name the controller, as example.com/name")
    if len(manager) > rules.LABEL_LENGTH_MAX:
        yield rules.too_long(path, rules.LABEL_LENGTH_MAX, "shorten the name")


def _kubernetes_faults(job: Obj) -> Iterator[FieldError]:
    """Validate Kubernetes's own rules."""
    spec = job.get("spec") or {}
    yield from rules.metadata_faults(job)
    yield from spec_faults(spec, "spec")
    yield from selector_faults(job)
    name, completions = job["metadata"].get("name"), spec.get("completions")
    if (
        name
        and spec.get("completionMode") == "Indexed"
        and completions
        and rules.dns_label(f"{name}-{completions - 1}")
    ):
        message = f"will not able to create pod with invalid DNS label: {name}-{completions - 1}"
        remedy = "use a shorter name without dots: pods of an Indexed Job are called after it"
        yield rules.invalid("metadata.name", name, message, remedy)


def _number_faults(spec: Obj, path: str) -> Iterator[FieldError]:
    """Counts and times are not negative."""
    for field in (
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ):
        value = spec.get(field)
        if value is not None and value < 0:
            yield rules.invalid(f"{path}.{field}", value, rules.NEGATIVE, "give 0 or more")
    if spec.get("maxFailedIndexes") is not None and spec.get("backoffLimitPerIndex") is None:
        message = "when maxFailedIndexes is specified"
        yield rules.required(f"{path}.backoffLimitPerIndex", message, "say how often an index may fail")


def _completion_faults(spec: Obj, path: str) -> Iterator[FieldError]:
    """Fields about indexes require an Indexed Job, whose number of indexes is bounded."""
    mode = spec.get("completionMode") or "NonIndexed"
    if mode not in _MODES:
        yield rules.unsupported(f"{path}.completionMode", mode, _MODES)
    elif mode == "Indexed":
        yield from _index_faults(spec, path)
    else:
        for field in ("backoffLimitPerIndex", "maxFailedIndexes"):
            if (value := spec.get(field)) is not None:
                remedy = "set completionMode to Indexed"
                yield rules.invalid(f"{path}.{field}", value, "requires indexed completion mode", remedy)


def _index_faults(spec: Obj, path: str) -> Iterator[FieldError]:
    """Completions, parallelism and failed indexes of an Indexed Job are within limits."""
    completions, parallelism, failed = (spec.get(f) for f in ("completions", "parallelism", "maxFailedIndexes"))
    if completions is None:
        remedy = "say how many indexes there are"
        yield rules.required(f"{path}.completions", "when completion mode is Indexed", remedy)
    if parallelism is not None and parallelism > _INDEXES_MAX:
        message = f"must be less than or equal to {_INDEXES_MAX} when completion mode is Indexed"
        yield rules.invalid(f"{path}.parallelism", parallelism, message, f"give at most {_INDEXES_MAX}")
    if failed is not None and completions is not None and failed > completions:
        message = "must be less than or equal to completions"
        yield rules.invalid(f"{path}.maxFailedIndexes", failed, message, f"give at most {completions}")
    if failed is not None and failed > _INDEXES_MAX:
        message = f"must be less than or equal to {_INDEXES_MAX}"
        yield rules.invalid(f"{path}.maxFailedIndexes", failed, message, f"give at most {_INDEXES_MAX}")
    if (completions or 0) > _INDEXES_MAX and spec.get("backoffLimitPerIndex") is not None:
        yield from _many_indexes_faults(parallelism, failed, path)


def _many_indexes_faults(parallelism: int | None, failed: int | None, path: str) -> Iterator[FieldError]:
    """With very many indexes and backoffLimitPerIndex, parallelism and maxFailedIndexes are bounded."""
    if failed is None:
        message = f"must be specified when completions is above {_INDEXES_MAX}"
        remedy = f"give at most {_PARALLELISM_OF_MANY_MAX}"
        yield rules.required(f"{path}.maxFailedIndexes", message, remedy)
    for field, value in (("parallelism", parallelism), ("maxFailedIndexes", failed)):
        if value is not None and value > _PARALLELISM_OF_MANY_MAX:
            message = (
                f"must be less than or equal to {_PARALLELISM_OF_MANY_MAX} when completions are above {_INDEXES_MAX} "
                "and used with backoff limit per index"
            )
            yield rules.invalid(f"{path}.{field}", value, message, f"give at most {_PARALLELISM_OF_MANY_MAX}")


def _restart_faults(spec: Obj, path: str) -> Iterator[FieldError]:
    """The restart policy is not Always; with a podFailurePolicy it is Never."""
    policy = ((spec.get("template") or {}).get("spec") or {}).get("restartPolicy") or "Always"
    if policy == "Always":
        message = 'valid values: "OnFailure", "Never"'
        yield rules.required(
            path, message, "set restartPolicy to Never, or to OnFailure to restart containers in place"
        )
    elif policy in _RESTART_POLICIES and spec.get("podFailurePolicy") is not None and policy != "Never":
        message = 'only "Never" is supported when podFailurePolicy is specified'
        yield rules.invalid(path, policy, message, "set restartPolicy to Never, or drop podFailurePolicy")


def _spec_update_faults(new: Obj, old: Obj) -> Iterator[FieldError]:
    """Completions, policies and the template are immutable; the scheduling directives of a suspended Job may change."""
    meaning = meaning_of(scheme.JOB)
    for field in _KEPT:
        if not meaning.is_same_field(_SPEC_TYPE, field, new, old):
            yield rules.immutable(f"spec.{field}", new.get(field))
    completions = new.get("completions")
    if completions != old.get("completions"):
        if new.get("completionMode") != "Indexed":
            yield rules.immutable("spec.completions", completions)
        elif completions != new.get("parallelism"):
            message = "can only be modified in tandem with spec.parallelism"
            yield rules.invalid("spec.completions", completions, message, "set both to the same number")
    # Kubernetes requires the Job to be suspended before; a write that also suspends it is as safe.
    movable = bool(old.get("suspend") or new.get("suspend"))
    template, before = (spec.get("template") or {} for spec in (new, old))
    is_same = meaning.is_same(_TEMPLATE_TYPE, template, before)
    if not is_same and not (movable and meaning.is_same(_TEMPLATE_TYPE, _placeless(template), _placeless(before))):
        remedy = "delete the Job and recreate it" if movable else "suspend the Job first; then where it runs may change"
        yield rules.immutable("spec.template", template, remedy)


def _placeless(template: Obj) -> Obj:
    """Return a pod template without scheduling directives and requests."""
    spec = dict(template.get("spec") or {})
    for field in ("nodeSelector", "tolerations", "schedulingGates"):
        spec.pop(field, None)
    affinity = {k: v for k, v in (spec.pop("affinity", None) or {}).items() if k != "nodeAffinity"}
    if affinity:
        spec["affinity"] = affinity
    for field in ("containers", "initContainers"):
        if field in spec:
            spec[field] = [{k: v for k, v in c.items() if k != "resources"} for c in spec[field] or ()]
    meta = {k: v for k, v in (template.get("metadata") or {}).items() if k not in {"labels", "annotations"}}
    return {"spec": spec, **({"metadata": meta} if meta else {})}


def _annotation(job: Obj, name: str) -> str | None:
    """Return an annotation of the Job, or None."""
    value: str | None = (job["metadata"].get("annotations") or {}).get(name)
    return value


def _partial_admission_faults(job: Obj) -> Iterator[FieldError]:
    """The minimum parallelism is below the parallelism, and the Job is not elastic."""
    value, path = _annotation(job, well_known.MIN_PARALLELISM), f"metadata.annotations[{well_known.MIN_PARALLELISM}]"
    if value is None:
        return
    most = pods_at_once(job.get("spec") or {}) - 1
    least = whole_number(value)
    if least is None:
        message = f"strconv.Atoi: parsing {rules.printed(value)}: invalid syntax"
        yield rules.invalid(path, value, message, f"give a whole number from 1 to {most}")
    elif not 0 < least <= most:
        message = f"should be between 0 and {most}"
        remedy = f"give a number from 1 to {most}" if most > 0 else "drop it: the Job runs one pod at a time"
        yield rules.invalid(path, least, message, remedy)
    if is_elastic(job):
        message = "partial admission and elastic job cannot be used together"
        yield rules.invalid(path, value, message, f"drop it, or the annotation {well_known.ELASTIC_JOB}")


def _equal_completions_faults(job: Obj) -> Iterator[FieldError]:
    """Only an Indexed Job with equal completions and parallelism may keep them equal."""
    value, path = (
        _annotation(job, well_known.EQUAL_COMPLETIONS),
        f"metadata.annotations[{well_known.EQUAL_COMPLETIONS}]",
    )
    if value is None:
        return
    enabled, spec = boolean(value), job.get("spec") or {}
    if enabled is None:
        message = f"strconv.ParseBool: parsing {rules.printed(value)}: invalid syntax"
        yield rules.invalid(path, value, message, "give true or false")
    if not enabled:
        return
    if spec.get("completionMode") != "Indexed":
        message = "should not be enabled for NonIndexed jobs"
        yield rules.invalid(path, value, message, "set completionMode to Indexed, or drop the annotation")
    if spec.get("parallelism", 1) != spec.get("completions", 1):
        message = f"should be equal to parallelism when {well_known.EQUAL_COMPLETIONS} annotation is true"
        remedy = f"give {spec.get('parallelism', 1)}, as many as parallelism"
        yield rules.invalid("spec.completions", spec.get("completions"), message, remedy)


def _partial_admission_update_faults(new: Obj, old: Obj) -> Iterator[FieldError]:
    """With partial admission, the parallelism of a running Job is immutable."""
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    moved = spec.get("parallelism", 1) != before.get("parallelism", 1)
    if _annotation(old, well_known.MIN_PARALLELISM) is not None and not before.get("suspend") and moved:
        message = "cannot change when partial admission is enabled and the job is not suspended"
        yield rules.forbidden("spec.parallelism", message, "suspend the Job first")
    synced = [boolean(_annotation(job, well_known.EQUAL_COMPLETIONS) or "") or False for job in (new, old)]
    if not spec.get("suspend") and not before.get("suspend") and synced[0] != synced[1]:
        path = f"metadata.annotations[{well_known.EQUAL_COMPLETIONS}]"
        message = f"{rules.IMMUTABLE} while the job is not suspended"
        yield rules.forbidden(path, message, "suspend the Job first")


def _topology_faults(job: Obj) -> Iterator[FieldError]:
    """Validate the topology annotations of the pod template."""
    spec = job.get("spec") or {}
    annotations = ((spec.get("template") or {}).get("metadata") or {}).get("annotations")
    if annotations:
        path = "spec.template.metadata.annotations"
        elastic = is_elastic(job)
        yield from topology.request_faults(annotations, path, pods_at_once(spec), elastic=elastic)
