"""Validation of Jobs by the rules of Kubernetes and of Kueue's webhook; rules that Jobs share with JobSets.

Source: Kubernetes's pkg/apis/batch/validation; Kueue's Job webhook at its default feature gates.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj, annotation, is_elastic, parse_boolean, parse_integer, parse_selector
from batchyard.api.schema import semantic_equality
from batchyard.api.validation import pods, rules, topology, workload
from batchyard.api.validation.job_policies import failure_policy_errors, success_policy_errors
from batchyard.api.views.node import parallel_pod_count
from batchyard.api.views.queued_pods import is_suspended_pod

_POD_REPLACEMENT_POLICIES: Final = ("Failed", "TerminatingOrFailed")


def policy_errors(spec: Obj, path: str) -> Iterator[FieldError]:
    """Validate podFailurePolicy, successPolicy and podReplacementPolicy of a Job's spec."""
    failure_policy, success_policy = spec.get("podFailurePolicy"), spec.get("successPolicy")
    if failure_policy is not None:
        yield from failure_policy_errors(spec, failure_policy.get("rules") or (), f"{path}.podFailurePolicy.rules")
    if success_policy is not None:
        if spec.get("completionMode") != "Indexed":
            message = "requires indexed completion mode"
            yield rules.invalid(f"{path}.successPolicy", success_policy, message, "set completionMode to Indexed")
        else:
            yield from success_policy_errors(spec, success_policy.get("rules") or (), f"{path}.successPolicy.rules")
    replacement_policy = spec.get("podReplacementPolicy")
    allowed_policies = _POD_REPLACEMENT_POLICIES if failure_policy is None else _POD_REPLACEMENT_POLICIES[:1]
    if replacement_policy is not None and replacement_policy not in allowed_policies:
        yield rules.unsupported(f"{path}.podReplacementPolicy", replacement_policy, allowed_policies)


# Rules of Kueue's labels and annotations on Jobs and JobSets.
#
# Source: Kueue's pkg/controller/jobframework/validation.go at its default feature gates.


def queue_settings_errors(job: Obj) -> Iterator[FieldError]:
    """Validate Kueue's labels and annotations on a Job or JobSet, such as the queue name and admission gates."""
    labels = _job_labels(job)
    yield from _object_name_errors(labels.get(well_known.QUEUE_NAME), f"metadata.labels[{well_known.QUEUE_NAME}]")
    name, path = _prebuilt_name(job)
    yield from _object_name_errors(name, path)
    yield from _max_exec_time_errors(labels.get(well_known.MAX_EXEC_TIME))
    yield from _elastic_kind_errors(job)
    yield from workload.admission_gate_errors(job)
    if annotation(job, well_known.AFTER):
        from batchyard.api import job_dependencies  # noqa: PLC0415 - few jobs depend on others

        yield from job_dependencies.dependency_errors(job, None)


def service_settings_errors(new: Obj, old: Obj | None) -> Iterator[FieldError]:
    """Validate Kueue's labels and annotations on a Deployment, or on an object of another kind that serves.

    `old` is None for a new object. The queue name can change while no replica is ready, but the label must not be
    removed.
    """
    queue = _job_labels(new).get(well_known.QUEUE_NAME)
    yield from _object_name_errors(queue, f"metadata.labels[{well_known.QUEUE_NAME}]")
    yield from _elastic_kind_errors(new)
    if old is None:
        yield from workload.admission_gate_errors(new)
        return
    is_suspended = not (old.get("status") or {}).get("readyReplicas")
    if not is_suspended or not _job_labels(new).get(well_known.QUEUE_NAME):
        for error in _immutable_label_errors(new, old, well_known.QUEUE_NAME):
            yield error._replace(remedy="keep the queue, or scale to 0 before you set another one")
    yield from _priority_class_update_errors(new, old, is_suspended)
    yield from workload.admission_gate_update_errors(new, old)


def _elastic_kind_errors(job: Obj) -> Iterator[FieldError]:
    if not is_elastic(job) or job["kind"] == "Job":
        return
    group_version = job["apiVersion"] if "/" in job["apiVersion"] else f"/{job['apiVersion']}"
    message = f'elastic job is not supported for "{group_version}, Kind={job["kind"]}"'
    yield rules.forbidden(
        f"metadata.annotations[{well_known.ELASTIC_JOB}]", message, "remove the annotation, or use a Job"
    )


def queue_settings_update_errors(
    new: Obj, old: Obj, suspend_path: Sequence[str] = ("spec", "suspend")
) -> Iterator[FieldError]:
    """Validate an update of Kueue's labels and annotations: most are immutable unless the job is suspended.

    `suspend_path` is the path of the field that suspends the job.
    """
    is_now_suspended, was_suspended = is_suspended(new, suspend_path), is_suspended(old, suspend_path)
    if not is_now_suspended:
        yield from _immutable_label_errors(new, old, well_known.QUEUE_NAME)
    if not is_now_suspended and not is_elastic(old) and _prebuilt_name(new)[0] != _prebuilt_name(old)[0]:
        yield rules.immutable(_prebuilt_name(new)[1], _prebuilt_name(new)[0], "suspend the Job first")
    if not (is_now_suspended and was_suspended):
        yield from _immutable_label_errors(new, old, well_known.MAX_EXEC_TIME)
    yield from _priority_class_update_errors(new, old, is_now_suspended)
    if is_elastic(new) != is_elastic(old):
        yield rules.immutable(f"metadata.annotations[{well_known.ELASTIC_JOB}]", is_elastic(new))
    yield from workload.admission_gate_update_errors(new, old)
    if annotation(new, well_known.AFTER) != annotation(old, well_known.AFTER):
        from batchyard.api import job_dependencies  # noqa: PLC0415 - as above

        yield from job_dependencies.dependency_errors(new, old)


def is_suspended(job: Obj, suspend_path: Sequence[str] = ("spec", "suspend")) -> bool:
    """Return whether the field at `suspend_path` of a job is true, or a pod waits for its admission or has ended."""
    if job["kind"] == "Pod":
        return is_suspended_pod(job)
    value: Any = job
    for name in suspend_path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return bool(value)


def _job_labels(job: Obj) -> Mapping[str, str]:
    labels: Mapping[str, str] = job["metadata"].get("labels") or {}
    return labels


def _prebuilt_name(job: Obj) -> tuple[str | None, str]:
    workload_annotation = (job["metadata"].get("annotations") or {}).get(well_known.PREBUILT_WORKLOAD)
    if workload_annotation:
        return workload_annotation, f"metadata.annotations[{well_known.PREBUILT_WORKLOAD}]"
    return _job_labels(job).get(well_known.PREBUILT_WORKLOAD), f"metadata.labels[{well_known.PREBUILT_WORKLOAD}]"


def _object_name_errors(name: str | None, path: str) -> Iterator[FieldError]:
    messages = rules.dns_subdomain_errors(name) if name is not None else ()
    if messages:
        yield rules.invalid(path, name, ",".join(messages), "use a valid name: lowercase letters, digits, '-' and '.'")


def _max_exec_time_errors(value: str | None) -> Iterator[FieldError]:
    if value is None:
        return
    path, seconds = f"metadata.labels[{well_known.MAX_EXEC_TIME}]", parse_integer(value)
    if seconds is None:
        message = f"strconv.Atoi: parsing {rules.format_json(value)}: invalid syntax"
        yield rules.invalid(path, value, message, 'use a number of seconds, such as "3600"')
    elif seconds <= 0:
        yield rules.invalid(path, seconds, "should be greater than 0", "use 1 second or more, or remove the field")


def _immutable_label_errors(new: Obj, old: Obj, name: str) -> Iterator[FieldError]:
    """Report the change of a label of a Job or JobSet; the caller decides whether the label is immutable."""
    old_value, new_value = _job_labels(old).get(name) or "", _job_labels(new).get(name) or ""
    if old_value != new_value:
        yield rules.immutable(f"metadata.labels[{name}]", new_value, "suspend the Job first")


def _priority_class_update_errors(new: Obj, old: Obj, is_now_suspended: bool) -> Iterator[FieldError]:
    old_class, new_class = (_job_labels(job).get(well_known.PRIORITY_CLASS) for job in (old, new))
    path = f"metadata.labels[{well_known.PRIORITY_CLASS}]"
    if new_class and not old_class and not is_now_suspended:
        message = "WorkloadPriorityClass cannot be added to a non-suspended workload"
        yield rules.invalid(path, new_class, message, "suspend the Job first")
    if old_class and not new_class:
        message = "WorkloadPriorityClass cannot be removed from a workload"
        yield rules.invalid(path, "", message, f"keep the label with {old_class}, or use another class")


# Rules of a Job's selector, which Kubernetes generates from the Job's name and uid unless it is set manually.
#
# Source: Kubernetes's pkg/apis/batch/validation (ValidateGeneratedSelector, ValidateJobSpec).


_LABELS_PATH: Final = "spec.template.metadata.labels"
_NO_MATCH: Final = "`selector` does not match template `labels`"


def selector_errors(job: Obj) -> Iterator[FieldError]:
    """Validate a Job's selector, and that it does not contradict the labels of the Job's pod template.

    Without `manualSelector`, the selector may contain only the labels that Kubernetes generates.
    """
    spec = job.get("spec") or {}
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
    if spec.get("manualSelector"):
        yield from _manual_selector_errors(spec.get("selector"), labels)
    else:
        yield from _generated_selector_errors(job["metadata"].get("name"), spec.get("selector"), labels)


def _manual_selector_errors(selector: Obj | None, labels: Obj) -> Iterator[FieldError]:
    if selector is None:
        yield rules.required("spec.selector", "", "set the selector, or remove manualSelector")
        return
    errors = list(rules.selector_errors(selector, "spec.selector"))
    yield from errors
    label_selector = None if errors else parse_selector(selector)
    if label_selector is not None and not label_selector.matches(labels):
        yield rules.invalid(_LABELS_PATH, labels, _NO_MATCH, "add the labels of the selector to the pod template")


def _generated_selector_errors(job_name: str | None, selector: Obj | None, labels: Obj) -> Iterator[FieldError]:
    match_labels: Obj = (selector or {}).get("matchLabels") or {}
    if selector and (selector.get("matchExpressions") or match_labels.keys() - set(well_known.POD_OWNER_LABELS)):
        remedy = "remove the selector, or set manualSelector: true"
        yield rules.invalid("spec.selector", selector, "`selector` not auto-generated", remedy)
    elif any(labels.get(k, value) != value for k, value in match_labels.items()):
        yield rules.invalid(
            _LABELS_PATH, labels, _NO_MATCH, "remove the selector and these labels: Kubernetes sets them"
        )
    if not job_name:
        return
    for message in rules.label_value_errors(job_name):
        yield rules.invalid(_LABELS_PATH, job_name, message, "shorten the name of the Job: its pods get it as a label")
    for key in (well_known.OLD_JOB_NAME, well_known.JOB_NAME):
        if labels.get(key) not in (None, job_name):
            yield rules.invalid(
                f"{_LABELS_PATH}[{key}]", labels[key], f"must be '{job_name}'", "remove the label: Kubernetes sets it"
            )


#: The name of Kueue's webhook.
_JOB_WEBHOOK_NAME: Final = "vjob.kb.io"
_INDEXES_MAX: Final = 100_000
_MANY_INDEXES_LIMIT: Final = 10_000
_COMPLETION_MODES: Final = ("NonIndexed", "Indexed")
_RESTART_POLICIES: Final = ("OnFailure", "Never")
_JOB_SPEC_TYPE: Final = "JobSpec"
_POD_TEMPLATE_TYPE: Final = "PodTemplateSpec"


def job_errors(job: Obj) -> Iterator[FieldError]:
    """Validate a Job by the rules of Kubernetes and of Kueue's webhook."""
    yield from _upstream_job_errors(job)
    yield from rules.attribute_to_webhook(_JOB_WEBHOOK_NAME, _queued_job_errors(job))


def job_update_errors(new: Obj, old: Obj) -> Iterator[FieldError]:
    """Validate an update of a Job: its selector, pod template and some other fields are immutable.

    The scheduling directives of the pod template may change if the Job is suspended.
    """
    yield from _upstream_job_errors(new)
    yield from _spec_update_errors(new.get("spec") or {}, old.get("spec") or {})
    yield from rules.attribute_to_webhook(_JOB_WEBHOOK_NAME, _queued_job_update_errors(new, old))


def _queued_job_errors(job: Obj) -> Iterator[FieldError]:
    """Validate a Job by the rules of Kueue's webhook."""
    yield from queue_settings_errors(job)
    yield from _partial_admission_errors(job)
    yield from _partial_start_errors(job)
    yield from _equal_completions_errors(job)
    yield from _topology_errors(job)


def _queued_job_update_errors(new: Obj, old: Obj) -> Iterator[FieldError]:
    yield from queue_settings_errors(new)
    if _annotation(new, well_known.MIN_PARALLELISM) != _annotation(old, well_known.MIN_PARALLELISM):
        yield from _partial_admission_errors(new)
    yield from _partial_start_errors(new)
    yield from _equal_completions_errors(new)
    yield from queue_settings_update_errors(new, old)
    yield from _partial_admission_update_errors(new, old)
    yield from _topology_errors(new)


def spec_errors(spec: Obj, path: str, claim_names: Sequence[str] = ()) -> Iterator[FieldError]:
    """Validate a Job's spec at a path; `claim_names` are names of volumes that are added to its pods."""
    yield from _non_negative_errors(spec, path)
    yield from _completion_errors(spec, path)
    yield from managed_by_errors(spec.get("managedBy"), f"{path}.managedBy")
    yield from policy_errors(spec, path)
    yield from pods.pod_template_errors(spec.get("template") or {}, f"{path}.template", claim_names)
    yield from _restart_policy_errors(spec, f"{path}.template.spec.restartPolicy")


def managed_by_errors(managed_by: str | None, path: str) -> Iterator[FieldError]:
    """Report a `managedBy` that is not a domain-prefixed path such as example.com/name of at most 63 characters."""
    if managed_by is None:
        return
    for message in rules.domain_path_errors(managed_by):
        yield rules.invalid(path, managed_by, message, "use a name such as example.com/controller")
    if len(managed_by) > rules.LABEL_LENGTH_MAX:
        yield rules.too_long(path, rules.LABEL_LENGTH_MAX, "shorten the name")


def _upstream_job_errors(job: Obj) -> Iterator[FieldError]:
    """Validate a Job by the rules of Kubernetes."""
    spec = job.get("spec") or {}
    yield from rules.metadata_errors(job)
    yield from spec_errors(spec, "spec")
    yield from selector_errors(job)
    name, completions = job["metadata"].get("name"), spec.get("completions")
    is_indexed = spec.get("completionMode") == "Indexed"
    if name and is_indexed and completions and rules.dns_label_errors(f"{name}-{completions - 1}"):
        message = f"will not able to create pod with invalid DNS label: {name}-{completions - 1}"
        remedy = "use a shorter name without dots: the host names of an Indexed Job's pods start with it"
        yield rules.invalid("metadata.name", name, message, remedy)


def _non_negative_errors(spec: Obj, path: str) -> Iterator[FieldError]:
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
            yield rules.invalid(f"{path}.{field}", value, rules.NEGATIVE_MESSAGE, "use 0 or more")
    if spec.get("maxFailedIndexes") is not None and spec.get("backoffLimitPerIndex") is None:
        message = "when maxFailedIndexes is specified"
        yield rules.required(f"{path}.backoffLimitPerIndex", message, "specify the number of retries for each index")


def _completion_errors(spec: Obj, path: str) -> Iterator[FieldError]:
    completion_mode = spec.get("completionMode") or "NonIndexed"
    if completion_mode not in _COMPLETION_MODES:
        yield rules.unsupported(f"{path}.completionMode", completion_mode, _COMPLETION_MODES)
    elif completion_mode == "Indexed":
        yield from _index_errors(spec, path)
    else:
        for field in ("backoffLimitPerIndex", "maxFailedIndexes"):
            if (value := spec.get(field)) is not None:
                remedy = "set completionMode to Indexed"
                yield rules.invalid(f"{path}.{field}", value, "requires indexed completion mode", remedy)


def _index_errors(spec: Obj, path: str) -> Iterator[FieldError]:
    completions, parallelism, failed_indexes_max = (
        spec.get(f) for f in ("completions", "parallelism", "maxFailedIndexes")
    )
    if completions is None:
        remedy = "specify the number of indexes"
        yield rules.required(f"{path}.completions", "when completion mode is Indexed", remedy)
    if parallelism is not None and parallelism > _INDEXES_MAX:
        message = f"must be less than or equal to {_INDEXES_MAX} when completion mode is Indexed"
        yield rules.invalid(f"{path}.parallelism", parallelism, message, f"use at most {_INDEXES_MAX}")
    if failed_indexes_max is not None and completions is not None and failed_indexes_max > completions:
        message = "must be less than or equal to completions"
        yield rules.invalid(f"{path}.maxFailedIndexes", failed_indexes_max, message, f"use at most {completions}")
    if failed_indexes_max is not None and failed_indexes_max > _INDEXES_MAX:
        message = f"must be less than or equal to {_INDEXES_MAX}"
        yield rules.invalid(f"{path}.maxFailedIndexes", failed_indexes_max, message, f"use at most {_INDEXES_MAX}")
    if (completions or 0) > _INDEXES_MAX and spec.get("backoffLimitPerIndex") is not None:
        yield from _many_indexes_errors(parallelism, failed_indexes_max, path)


def _many_indexes_errors(parallelism: int | None, failed_indexes_max: int | None, path: str) -> Iterator[FieldError]:
    """Report a missing maxFailedIndexes, and values of maxFailedIndexes and parallelism above 10,000.

    This applies to Jobs with backoffLimitPerIndex and over 100,000 completions.
    """
    if failed_indexes_max is None:
        message = f"must be specified when completions is above {_INDEXES_MAX}"
        remedy = f"set maxFailedIndexes to at most {_MANY_INDEXES_LIMIT}"
        yield rules.required(f"{path}.maxFailedIndexes", message, remedy)
    for field, value in (("parallelism", parallelism), ("maxFailedIndexes", failed_indexes_max)):
        if value is not None and value > _MANY_INDEXES_LIMIT:
            message = (
                f"must be less than or equal to {_MANY_INDEXES_LIMIT} when completions are above {_INDEXES_MAX} "
                "and used with backoff limit per index"
            )
            yield rules.invalid(f"{path}.{field}", value, message, f"use at most {_MANY_INDEXES_LIMIT}")


def _restart_policy_errors(spec: Obj, path: str) -> Iterator[FieldError]:
    restart_policy = ((spec.get("template") or {}).get("spec") or {}).get("restartPolicy") or "Always"
    if restart_policy == "Always":
        message = 'valid values: "OnFailure", "Never"'
        yield rules.required(
            path, message, "set restartPolicy to Never, or to OnFailure to restart failed containers in the same pod"
        )
    elif restart_policy in _RESTART_POLICIES and spec.get("podFailurePolicy") is not None and restart_policy != "Never":
        message = 'only "Never" is supported when podFailurePolicy is specified'
        yield rules.invalid(path, restart_policy, message, "set restartPolicy to Never, or remove podFailurePolicy")


def _spec_update_errors(new: Obj, old: Obj) -> Iterator[FieldError]:
    field_equality = semantic_equality(scheme.JOB)
    for key in ("selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"):
        if not field_equality.is_same_field(_JOB_SPEC_TYPE, key, new, old):
            yield rules.immutable(f"spec.{key}", new.get(key))
    completions = new.get("completions")
    if completions != old.get("completions"):
        if new.get("completionMode") != "Indexed":
            yield rules.immutable("spec.completions", completions)
        elif completions != new.get("parallelism"):
            message = "can only be modified in tandem with spec.parallelism"
            yield rules.invalid("spec.completions", completions, message, "set completions to parallelism")
    # Kubernetes requires the Job to be suspended before; a write that also suspends it is as safe.
    may_change_scheduling = bool(old.get("suspend") or new.get("suspend"))
    template, old_template = (spec.get("template") or {} for spec in (new, old))
    comparable_templates = (
        _without_scheduling_fields(each) if may_change_scheduling else each for each in (template, old_template)
    )
    if not field_equality.is_same(_POD_TEMPLATE_TYPE, *comparable_templates):
        remedy = (
            "recreate the Job"
            if may_change_scheduling
            else "suspend the Job first; then its scheduling directives may change"
        )
        yield rules.immutable("spec.template", template, remedy)


def _without_scheduling_fields(template: Obj) -> Obj:
    spec = dict(template.get("spec") or {})
    for field in ("nodeSelector", "tolerations", "schedulingGates"):
        spec.pop(field, None)
    kept_affinity = {k: v for k, v in (spec.pop("affinity", None) or {}).items() if k != "nodeAffinity"}
    if kept_affinity:
        spec["affinity"] = kept_affinity
    for field in ("containers", "initContainers"):
        if field in spec:
            spec[field] = [{k: v for k, v in c.items() if k != "resources"} for c in spec[field] or ()]
    kept_metadata = {k: v for k, v in (template.get("metadata") or {}).items() if k not in {"labels", "annotations"}}
    return {"spec": spec, **({"metadata": kept_metadata} if kept_metadata else {})}


def _annotation(job: Obj, name: str) -> str | None:
    value: str | None = (job["metadata"].get("annotations") or {}).get(name)
    return value


def _partial_admission_errors(job: Obj) -> Iterator[FieldError]:
    value, path = _annotation(job, well_known.MIN_PARALLELISM), f"metadata.annotations[{well_known.MIN_PARALLELISM}]"
    if value is None:
        return
    maximum = parallel_pod_count(job.get("spec") or {}) - 1
    minimum_parallelism = parse_integer(value)
    may_be_shrunk = is_elastic(job) and _annotation(job, well_known.PARTIAL_PREEMPTION) == "true"
    remedy = f"use an integer from 1 to {maximum}" if maximum > 0 else "remove the annotation: pods run one at a time"
    if minimum_parallelism is None:
        message = f"strconv.Atoi: parsing {rules.format_json(value)}: invalid syntax"
        yield rules.invalid(path, value, message, remedy)
    elif not 0 < minimum_parallelism <= maximum and not (may_be_shrunk and minimum_parallelism > 0):
        message = f"should be between 0 and {maximum}"
        yield rules.invalid(path, minimum_parallelism, message, remedy)
    if is_elastic(job) and not may_be_shrunk:
        message = "partial admission and elastic job cannot be used together"
        yield rules.invalid(path, value, message, f"remove this annotation or {well_known.ELASTIC_JOB}")


def _partial_start_errors(job: Obj) -> Iterator[FieldError]:
    value, path = _annotation(job, well_known.PARTIAL_START), f"metadata.annotations[{well_known.PARTIAL_START}]"
    if value not in (None, "true", "false"):
        yield rules.invalid(path, value, "must be true or false", "use true or false")
    elif value == "true":
        strategy = _annotation(job, well_known.SCALE_UP_STRATEGY)
        if not is_elastic(job) or strategy != well_known.PARTIAL_SCALE_UP:
            needed = f"{well_known.ELASTIC_JOB}: true and {well_known.SCALE_UP_STRATEGY}: {well_known.PARTIAL_SCALE_UP}"
            message = "only an elastic Job that grows in part can start in part"
            yield rules.invalid(path, value, message, f"set the annotations {needed}")


def _equal_completions_errors(job: Obj) -> Iterator[FieldError]:
    value = _annotation(job, well_known.EQUAL_COMPLETIONS)
    path = f"metadata.annotations[{well_known.EQUAL_COMPLETIONS}]"
    if value is None:
        return
    requires_equal_completions, spec = parse_boolean(value), job.get("spec") or {}
    if requires_equal_completions is None:
        message = f"strconv.ParseBool: parsing {rules.format_json(value)}: invalid syntax"
        yield rules.invalid(path, value, message, "use true or false")
    if not requires_equal_completions:
        return
    if spec.get("completionMode") != "Indexed":
        message = "should not be enabled for NonIndexed jobs"
        yield rules.invalid(path, value, message, "set completionMode to Indexed, or remove the annotation")
    if spec.get("parallelism", 1) != spec.get("completions", 1):
        message = f"should be equal to parallelism when {well_known.EQUAL_COMPLETIONS} annotation is true"
        remedy = f"use {spec.get('parallelism', 1)}, the value of parallelism"
        yield rules.invalid("spec.completions", spec.get("completions"), message, remedy)


def _partial_admission_update_errors(new: Obj, old: Obj) -> Iterator[FieldError]:
    spec, old_spec = new.get("spec") or {}, old.get("spec") or {}
    changes_parallelism = spec.get("parallelism", 1) != old_spec.get("parallelism", 1)
    is_partial = _annotation(old, well_known.MIN_PARALLELISM) is not None and not is_elastic(old)
    if is_partial and not old_spec.get("suspend") and changes_parallelism:
        message = "cannot change when partial admission is enabled and the job is not suspended"
        yield rules.forbidden("spec.parallelism", message, "suspend the Job first")
    is_on, was_on = (parse_boolean(_annotation(job, well_known.EQUAL_COMPLETIONS) or "") or False for job in (new, old))
    if not spec.get("suspend") and not old_spec.get("suspend") and is_on != was_on:
        path = f"metadata.annotations[{well_known.EQUAL_COMPLETIONS}]"
        message = f"{rules.IMMUTABLE_MESSAGE} while the job is not suspended"
        yield rules.forbidden(path, message, "suspend the Job first")


_TEMPLATE_ANNOTATIONS_PATH: Final = "spec.template.metadata.annotations"


def _topology_errors(job: Obj) -> Iterator[FieldError]:
    annotations = _template_annotations(job)
    if annotations:
        pod_count = parallel_pod_count(job.get("spec") or {})
        yield from topology.topology_request_errors(
            annotations, _TEMPLATE_ANNOTATIONS_PATH, pod_count, is_elastic_job=is_elastic(job)
        )


def _template_annotations(job: Obj) -> Mapping[str, str]:
    template = (job.get("spec") or {}).get("template") or {}
    return (template.get("metadata") or {}).get("annotations") or {}


def disabled_layers_errors(job: Obj) -> Iterator[FieldError]:
    """Report layers of slices in a Job, for the feature gate TASMultiLayerTopology disabled."""
    errors = topology.disabled_layers_errors(_template_annotations(job), _TEMPLATE_ANNOTATIONS_PATH)
    return rules.attribute_to_webhook(_JOB_WEBHOOK_NAME, errors)
