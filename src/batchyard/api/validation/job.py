"""Rules of Jobs: Kubernetes's own, then Kueue's.

Source: Kubernetes's pkg/apis/batch/validation; Kueue's Job webhook at its default feature gates.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.annotations import boolean, is_elastic, whole_number
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj
from batchyard.api.schema import meaning_of
from batchyard.api.selectors import selector as parsed_selector
from batchyard.api.validation import errors as faults
from batchyard.api.validation import job_policies, metadata, names, pods, queued_jobs, topology
from batchyard.api.views.ownership import pods_at_once

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
        yield faults.required("spec.selector", "", "give the selector, or drop manualSelector")
        return
    wrong = list(metadata.selector_faults(selector, "spec.selector"))
    yield from wrong
    selected = None if wrong else parsed_selector(selector)
    if selected is not None and not selected.matches(labels):
        yield faults.invalid(_LABELS, labels, _NO_MATCH, "give the template the labels of the selector")


def _generated_faults(name: str | None, selector: Obj | None, labels: Obj) -> Iterator[FieldError]:
    """A given selector and given labels equal those that Kubernetes generates."""
    if selector and (
        selector.get("matchExpressions") or set(selector.get("matchLabels") or ()) - set(well_known.POD_OWNER_LABELS)
    ):
        remedy = "drop the selector, or set manualSelector: true"
        yield faults.invalid("spec.selector", selector, "`selector` not auto-generated", remedy)
    elif selector and any(labels.get(k, value) != value for k, value in (selector.get("matchLabels") or {}).items()):
        yield faults.invalid(_LABELS, labels, _NO_MATCH, "drop the selector and these labels")
    if not name:
        return
    for message in names.label_value(name):
        yield faults.invalid(_LABELS, name, message, "shorten the name of the Job: its pods have it as a label")
    for key in (well_known.OLD_JOB_NAME, well_known.JOB_NAME):
        if labels.get(key) not in (None, name):
            yield faults.invalid(f"{_LABELS}[{key}]", labels[key], f"must be '{name}'", "drop the label")


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
    yield from faults.denied_by(_WEBHOOK, _queued_faults(job))


def job_update_faults(new: Obj, old: Obj) -> Iterator[FieldError]:
    """Validate an update of a Job: most of it is immutable once it runs."""
    yield from _kubernetes_faults(new)
    yield from _spec_update_faults(new.get("spec") or {}, old.get("spec") or {})
    yield from faults.denied_by(_WEBHOOK, _queued_update_faults(new, old))


def _queued_faults(job: Obj) -> Iterator[FieldError]:
    """Validate Kueue's rules of a Job."""
    yield from queued_jobs.create_faults(job)
    yield from _partial_admission_faults(job)
    yield from _equal_completions_faults(job)
    yield from _topology_faults(job)


def _queued_update_faults(new: Obj, old: Obj) -> Iterator[FieldError]:
    """Validate Kueue's rules of an update of a Job."""
    yield from queued_jobs.create_faults(new)
    if _annotation(new, well_known.MIN_PARALLELISM) != _annotation(old, well_known.MIN_PARALLELISM):
        yield from _partial_admission_faults(new)
    yield from _equal_completions_faults(new)
    yield from queued_jobs.update_faults(new, old)
    yield from _partial_admission_update_faults(new, old)
    yield from _topology_faults(new)


def spec_faults(spec: Obj, path: str, claims: Sequence[str] = ()) -> Iterator[FieldError]:
    """Validate a Job's spec at a path; `claims` are additional volumes."""
    yield from _number_faults(spec, path)
    yield from _completion_faults(spec, path)
    yield from manager_faults(spec.get("managedBy"), f"{path}.managedBy")
    yield from job_policies.policy_faults(spec, path)
    yield from pods.pod_template_faults(spec.get("template") or {}, f"{path}.template", claims)
    yield from _restart_faults(spec, f"{path}.template.spec.restartPolicy")


def manager_faults(manager: str | None, path: str) -> Iterator[FieldError]:
    """`managedBy` is a domain-prefixed path."""
    if manager is None:
        return
    for message in names.domain_path(manager):
        yield faults.invalid(path, manager, message, "name the controller, as example.com/name")
    if len(manager) > names.LABEL_LENGTH_MAX:
        yield faults.too_long(path, names.LABEL_LENGTH_MAX, "shorten the name")


def _kubernetes_faults(job: Obj) -> Iterator[FieldError]:
    """Validate Kubernetes's own rules."""
    spec = job.get("spec") or {}
    yield from metadata.metadata_faults(job)
    yield from spec_faults(spec, "spec")
    yield from selector_faults(job)
    name, completions = job["metadata"].get("name"), spec.get("completions")
    if (
        name
        and spec.get("completionMode") == "Indexed"
        and completions
        and names.dns_label(f"{name}-{completions - 1}")
    ):
        message = f"will not able to create pod with invalid DNS label: {name}-{completions - 1}"
        remedy = "use a shorter name without dots: pods of an Indexed Job are called after it"
        yield faults.invalid("metadata.name", name, message, remedy)


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
            yield faults.invalid(f"{path}.{field}", value, faults.NEGATIVE, "give 0 or more")
    if spec.get("maxFailedIndexes") is not None and spec.get("backoffLimitPerIndex") is None:
        message = "when maxFailedIndexes is specified"
        yield faults.required(f"{path}.backoffLimitPerIndex", message, "say how often an index may fail")


def _completion_faults(spec: Obj, path: str) -> Iterator[FieldError]:
    """Fields about indexes require an Indexed Job, whose number of indexes is bounded."""
    mode = spec.get("completionMode") or "NonIndexed"
    if mode not in _MODES:
        yield faults.unsupported(f"{path}.completionMode", mode, _MODES)
    elif mode == "Indexed":
        yield from _index_faults(spec, path)
    else:
        for field in ("backoffLimitPerIndex", "maxFailedIndexes"):
            if (value := spec.get(field)) is not None:
                remedy = "set completionMode to Indexed"
                yield faults.invalid(f"{path}.{field}", value, "requires indexed completion mode", remedy)


def _index_faults(spec: Obj, path: str) -> Iterator[FieldError]:
    """Completions, parallelism and failed indexes of an Indexed Job are within limits."""
    completions, parallelism, failed = (spec.get(f) for f in ("completions", "parallelism", "maxFailedIndexes"))
    if completions is None:
        remedy = "say how many indexes there are"
        yield faults.required(f"{path}.completions", "when completion mode is Indexed", remedy)
    if parallelism is not None and parallelism > _INDEXES_MAX:
        message = f"must be less than or equal to {_INDEXES_MAX} when completion mode is Indexed"
        yield faults.invalid(f"{path}.parallelism", parallelism, message, f"give at most {_INDEXES_MAX}")
    if failed is not None and completions is not None and failed > completions:
        message = "must be less than or equal to completions"
        yield faults.invalid(f"{path}.maxFailedIndexes", failed, message, f"give at most {completions}")
    if failed is not None and failed > _INDEXES_MAX:
        message = f"must be less than or equal to {_INDEXES_MAX}"
        yield faults.invalid(f"{path}.maxFailedIndexes", failed, message, f"give at most {_INDEXES_MAX}")
    if (completions or 0) > _INDEXES_MAX and spec.get("backoffLimitPerIndex") is not None:
        yield from _many_indexes_faults(parallelism, failed, path)


def _many_indexes_faults(parallelism: int | None, failed: int | None, path: str) -> Iterator[FieldError]:
    """With very many indexes and backoffLimitPerIndex, parallelism and maxFailedIndexes are bounded."""
    if failed is None:
        message = f"must be specified when completions is above {_INDEXES_MAX}"
        remedy = f"give at most {_PARALLELISM_OF_MANY_MAX}"
        yield faults.required(f"{path}.maxFailedIndexes", message, remedy)
    for field, value in (("parallelism", parallelism), ("maxFailedIndexes", failed)):
        if value is not None and value > _PARALLELISM_OF_MANY_MAX:
            message = (
                f"must be less than or equal to {_PARALLELISM_OF_MANY_MAX} when completions are above {_INDEXES_MAX} "
                "and used with backoff limit per index"
            )
            yield faults.invalid(f"{path}.{field}", value, message, f"give at most {_PARALLELISM_OF_MANY_MAX}")


def _restart_faults(spec: Obj, path: str) -> Iterator[FieldError]:
    """The restart policy is not Always; with a podFailurePolicy it is Never."""
    policy = ((spec.get("template") or {}).get("spec") or {}).get("restartPolicy") or "Always"
    if policy == "Always":
        message = 'valid values: "OnFailure", "Never"'
        yield faults.required(
            path, message, "set restartPolicy to Never, or to OnFailure to restart containers in place"
        )
    elif policy in _RESTART_POLICIES and spec.get("podFailurePolicy") is not None and policy != "Never":
        message = 'only "Never" is supported when podFailurePolicy is specified'
        yield faults.invalid(path, policy, message, "set restartPolicy to Never, or drop podFailurePolicy")


def _spec_update_faults(new: Obj, old: Obj) -> Iterator[FieldError]:
    """Completions, policies and the template are immutable; the scheduling directives of a suspended Job may change."""
    meaning = meaning_of(scheme.JOB)
    for field in _KEPT:
        if not meaning.is_same_field(_SPEC_TYPE, field, new, old):
            yield faults.immutable(f"spec.{field}", new.get(field))
    completions = new.get("completions")
    if completions != old.get("completions"):
        if new.get("completionMode") != "Indexed":
            yield faults.immutable("spec.completions", completions)
        elif completions != new.get("parallelism"):
            message = "can only be modified in tandem with spec.parallelism"
            yield faults.invalid("spec.completions", completions, message, "set both to the same number")
    # Kubernetes requires the Job to be suspended before; a write that also suspends it is as safe.
    movable = bool(old.get("suspend") or new.get("suspend"))
    template, before = (spec.get("template") or {} for spec in (new, old))
    is_same = meaning.is_same(_TEMPLATE_TYPE, template, before)
    if not is_same and not (movable and meaning.is_same(_TEMPLATE_TYPE, _placeless(template), _placeless(before))):
        remedy = "delete the Job and recreate it" if movable else "suspend the Job first; then where it runs may change"
        yield faults.immutable("spec.template", template, remedy)


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
        message = f"strconv.Atoi: parsing {faults.printed(value)}: invalid syntax"
        yield faults.invalid(path, value, message, f"give a whole number from 1 to {most}")
    elif not 0 < least <= most:
        message = f"should be between 0 and {most}"
        remedy = f"give a number from 1 to {most}" if most > 0 else "drop it: the Job runs one pod at a time"
        yield faults.invalid(path, least, message, remedy)
    if is_elastic(job):
        message = "partial admission and elastic job cannot be used together"
        yield faults.invalid(path, value, message, f"drop it, or the annotation {well_known.ELASTIC_JOB}")


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
        message = f"strconv.ParseBool: parsing {faults.printed(value)}: invalid syntax"
        yield faults.invalid(path, value, message, "give true or false")
    if not enabled:
        return
    if spec.get("completionMode") != "Indexed":
        message = "should not be enabled for NonIndexed jobs"
        yield faults.invalid(path, value, message, "set completionMode to Indexed, or drop the annotation")
    if spec.get("parallelism", 1) != spec.get("completions", 1):
        message = f"should be equal to parallelism when {well_known.EQUAL_COMPLETIONS} annotation is true"
        remedy = f"give {spec.get('parallelism', 1)}, as many as parallelism"
        yield faults.invalid("spec.completions", spec.get("completions"), message, remedy)


def _partial_admission_update_faults(new: Obj, old: Obj) -> Iterator[FieldError]:
    """With partial admission, the parallelism of a running Job is immutable."""
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    moved = spec.get("parallelism", 1) != before.get("parallelism", 1)
    if _annotation(old, well_known.MIN_PARALLELISM) is not None and not before.get("suspend") and moved:
        message = "cannot change when partial admission is enabled and the job is not suspended"
        yield faults.forbidden("spec.parallelism", message, "suspend the Job first")
    synced = [boolean(_annotation(job, well_known.EQUAL_COMPLETIONS) or "") or False for job in (new, old)]
    if not spec.get("suspend") and not before.get("suspend") and synced[0] != synced[1]:
        path = f"metadata.annotations[{well_known.EQUAL_COMPLETIONS}]"
        message = f"{faults.IMMUTABLE} while the job is not suspended"
        yield faults.forbidden(path, message, "suspend the Job first")


def _topology_faults(job: Obj) -> Iterator[FieldError]:
    """Validate the topology annotations of the pod template."""
    spec = job.get("spec") or {}
    annotations = ((spec.get("template") or {}).get("metadata") or {}).get("annotations")
    if annotations:
        path = "spec.template.metadata.annotations"
        elastic = is_elastic(job)
        yield from topology.request_faults(annotations, path, pods_at_once(spec), elastic=elastic)
