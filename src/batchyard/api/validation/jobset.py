"""Validation of JobSets by the rules of JobSet's webhook and CRD, and of Kueue's webhook.

Source: JobSet's webhook and the rules in its CRD; Kueue's JobSet webhook; both at their default feature gates. Upstream
reports errors in Job specs and pod templates only when the Jobs are created; this module reports them at once.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj, annotation, label
from batchyard.api.schema import semantic_equality
from batchyard.api.validation import job as queued_jobs
from batchyard.api.validation import pods, rules, topology
from batchyard.api.views.node import parallel_pod_count

# Rules of a JobSet's success and failure policies, its coordinator and its volume claims.
#
# Source: JobSet's webhook at its default feature gates.


_RULES_PATH: Final = "spec.failurePolicy.rules"
_COORDINATOR_PATH: Final = "spec.coordinator"
_JOB_RESTART_ACTIONS: Final = ("RestartJob", "RestartJobAndIgnoreMaxRestarts")
_JOB_FAILURE_REASONS: Final = (
    "BackoffLimitExceeded",
    "DeadlineExceeded",
    "FailedIndexes",
    "MaxFailedIndexesExceeded",
    "PodFailurePolicy",
)
_RULE_NAME_PATTERN: Final = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", re.ASCII)
_RULE_NAME_LENGTH_MAX: Final = 128


def policy_errors(spec: Obj, jobset_name: str) -> Iterator[FieldError]:
    """Validate the success and failure policies, the coordinator and the volume claims of a JobSet's spec."""
    jobs = {each["name"]: each for each in spec.get("replicatedJobs") or ()}
    for i, name in enumerate((spec.get("successPolicy") or {}).get("targetReplicatedJobs") or ()):
        if name not in jobs:
            message = f"invalid replicatedJob name '{name}' does not appear in .spec.ReplicatedJobs"
            path = f"spec.successPolicy.targetReplicatedJobs[{i}]"
            yield rules.invalid(path, name, message, f"use one of {', '.join(jobs)}")
    if failure := spec.get("failurePolicy"):
        yield from _failure_policy_errors(failure, list(jobs))
    if coordinator := spec.get("coordinator"):
        yield from _coordinator_errors(coordinator, jobs)
        yield from _coordinator_endpoint_errors(coordinator, spec, jobset_name)
    yield from _volume_claim_errors(spec, jobset_name)


def claim_names(spec: Obj) -> list[str]:
    """Return the names of the volumes that the volume claim policies of a JobSet add to its pods."""
    claim_policies = spec.get("volumeClaimPolicies") or ()
    return [_claim_template_name(template) for policy in claim_policies for template in policy.get("templates") or ()]


def _claim_template_name(template: Obj) -> str:
    return str((template.get("metadata") or {}).get("name") or "")


def _failure_policy_errors(failure_policy: Obj, job_names: Sequence[str]) -> Iterator[FieldError]:
    if failure_policy.get("restartStrategy") == "InPlaceRestart":
        message = "InPlaceRestart restart strategy cannot be set when InPlaceRestart feature gate is disabled"
        yield rules.forbidden("spec.failurePolicy.restartStrategy", message, "use Recreate or BlockingRecreate")
    rule_indexes_by_name: dict[str, list[int]] = {}
    for i, rule in enumerate(failure_policy.get("rules") or ()):
        yield from _failure_rule_errors(rule, job_names, f"{_RULES_PATH}[{i}]")
        rule_indexes_by_name.setdefault(rule.get("name") or f"failurePolicyRule{i}", []).append(i)
    for name, indexes in rule_indexes_by_name.items():
        if len(indexes) > 1:
            shown_indexes = " ".join(map(str, indexes))
            message = f"rule names are not unique, rules with indices [{shown_indexes}] all have the same name '{name}'"
            yield rules.invalid(f"{_RULES_PATH}[{indexes[1]}].name", name, message, "give each rule a unique name")


def _failure_rule_errors(rule: Obj, job_names: Sequence[str], path: str) -> Iterator[FieldError]:
    name = rule.get("name") or ""
    if len(name) > _RULE_NAME_LENGTH_MAX:
        message = (
            f"invalid failure policy rule name of length {len(name)}, the rule name must be at least 1 characters long "
            f"and at most {_RULE_NAME_LENGTH_MAX} characters long"
        )
        yield rules.invalid(f"{path}.name", name, message, "shorten the name")
    if name and not _RULE_NAME_PATTERN.fullmatch(name):
        message = (
            f"invalid failure policy rule name '{name}', a failure policy rule name must start with an alphabetic "
            "character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an "
            "alphanumeric character or '_'"
        )
        yield rules.invalid(f"{path}.name", name, message, "use letters, digits and '_', and start with a letter")
    if rule.get("action") in _JOB_RESTART_ACTIONS:
        message = (
            "RestartJob and RestartJobAndIgnoreMaxRestarts failure policy actions are not allowed when RestartJob "
            "feature gate is disabled"
        )
        yield rules.forbidden(f"{path}.action", message, "use RestartJobSet or RestartJobSetAndIgnoreMaxRestarts")
    for j, target in enumerate(rule.get("targetReplicatedJobs") or ()):
        if target not in job_names:
            message = f"invalid replicatedJob name '{target}' in failure policy does not appear in .spec.ReplicatedJobs"
            item_path = f"{path}.targetReplicatedJobs[{j}]"
            yield rules.invalid(item_path, target, message, f"use one of {', '.join(job_names)}")
    for j, reason in enumerate(rule.get("onJobFailureReasons") or ()):
        if reason not in _JOB_FAILURE_REASONS:
            message = f"invalid job failure reason '{reason}' in failure policy is not a recognized job failure reason"
            item_path = f"{path}.onJobFailureReasons[{j}]"
            yield rules.invalid(item_path, reason, message, f"use one of {', '.join(_JOB_FAILURE_REASONS)}")


def _coordinator_errors(coordinator: Obj, job_by_name: Mapping[str, Obj]) -> Iterator[FieldError]:
    name = coordinator["replicatedJob"]
    job_index, pod_index = coordinator.get("jobIndex", 0), coordinator.get("podIndex", 0)
    job = job_by_name.get(name)
    if job is None:
        message = f"coordinator replicatedJob {name} does not exist"
        yield rules.invalid(f"{_COORDINATOR_PATH}.replicatedJob", name, message, f"use one of {', '.join(job_by_name)}")
        return
    replicas, spec = job.get("replicas", 1), job["template"].get("spec") or {}
    if not 0 <= job_index < replicas:
        message = f"coordinator job index {job_index} is invalid for replicatedJob {name}"
        remedy = f"use an index from 0 to {replicas - 1}"
        yield rules.invalid(f"{_COORDINATOR_PATH}.jobIndex", job_index, message, remedy)
    completions = spec.get("completions")
    if spec.get("completionMode") != "Indexed" or completions is None:
        message = "job for coordinator pod must be indexed completion mode, and completions number must be set"
        remedy = f"set completionMode: Indexed and completions in replicatedJob {name}"
        yield rules.invalid(f"{_COORDINATOR_PATH}.replicatedJob", name, message, remedy)
    elif not 0 <= pod_index < completions:
        message = f"coordinator pod index {pod_index} is invalid for replicatedJob {name} job index {job_index}"
        remedy = f"use an index from 0 to {completions - 1}"
        yield rules.invalid(f"{_COORDINATOR_PATH}.podIndex", pod_index, message, remedy)


def _coordinator_endpoint_errors(coordinator: Obj, spec: Obj, jobset_name: str) -> Iterator[FieldError]:
    job_and_pod = f"{coordinator['replicatedJob']}-{coordinator.get('jobIndex', 0)}-{coordinator.get('podIndex', 0)}"
    subdomain = (spec.get("network") or {}).get("subdomain") or jobset_name
    value = f"{jobset_name}-{job_and_pod}.{subdomain}"
    if messages := rules.label_value_errors(value):
        message = (
            f'spec will lead to invalid label value "{value}" for coordinator label "jobset.sigs.k8s.io/coordinator" '
            f"(long JobSet / ReplicatedJob / SubDomain name?): {', '.join(messages)}"
        )
        yield rules.invalid(_COORDINATOR_PATH, value, message, "shorten these names, or remove the coordinator")


def _volume_claim_errors(spec: Obj, jobset_name: str) -> Iterator[FieldError]:
    seen_claim_names: dict[str, None] = {}
    for i, policy in enumerate(spec.get("volumeClaimPolicies") or ()):
        for j, template in enumerate(policy.get("templates") or ()):
            path, name = f"spec.volumeClaimPolicies[{i}].templates[{j}].metadata.name", _claim_template_name(template)
            if (template.get("metadata") or {}).get("namespace"):
                message = "namespace cannot be set for VolumeClaimPolicies templates"
                yield rules.schema_rule_fault(f"spec.volumeClaimPolicies[{i}]", "object", message, "remove namespace")
            if name in seen_claim_names:
                message = "names must be unique for VolumeClaimPolicies template"
                yield rules.invalid(path, name, message, "give each template a unique name")
            seen_claim_names[name] = None
            for message in rules.dns_subdomain_errors(name):
                yield rules.invalid(path, name, message, "use lowercase letters, digits, '-' and '.'")
            if len(f"{name}-{jobset_name}") > rules.LABEL_LENGTH_MAX:
                message = "VolumeClaimPolicies template name is too long"
                yield rules.invalid(path, name, message, "shorten the name of the template or of the JobSet")
            yield from _mounted_claim_errors(spec, name)


def _mounted_claim_errors(spec: Obj, name: str) -> Iterator[FieldError]:
    is_mounted = False
    for i, replicated_job in enumerate(spec.get("replicatedJobs") or ()):
        pod = ((replicated_job["template"].get("spec") or {}).get("template") or {}).get("spec") or {}
        for j, volume in enumerate(pod.get("volumes") or ()):
            if volume.get("name") == name:
                path = f"spec.replicatedJobs[{i}].template.spec.template.spec.volumes[{j}].name"
                message = f"volume name conflicts with VolumeClaimPolicy template name: {name}"
                yield rules.invalid(path, name, message, "rename the volume of the pod")
        containers = [c for field in ("initContainers", "containers") for c in pod.get(field) or ()]
        is_mounted = is_mounted or any(m.get("name") == name for c in containers for m in c.get("volumeMounts") or ())
    if not is_mounted:
        message = f"replicatedJob containers don't have a matching volumeMount: {name} from VolumeClaimPolicies"
        yield rules.invalid_without_value("spec.replicatedJobs", message, f"mount {name} in a container")


#: The name of Kueue's webhook for JobSets; JobSet's own webhook has the same name.
_JOBSET_WEBHOOK_NAME: Final = "vjobset.kb.io"
JOBS_PATH: Final = "spec.replicatedJobs"
_JOBS_TYPE: Final = "[JobSet.spec.replicatedJobs]"
_INT32_MAX: Final = 2**31 - 1
#: A placeholder for the random suffix of a pod's name.
_GENERATED_POD_SUFFIX: Final = "-abcde"
_GENERATED_NAME_SUFFIX: Final = "abcde"
_SHORTEN_NAME_REMEDY: Final = "shorten the name of the JobSet or of the replicatedJob"
#: The maximum number of pod sets in a Workload.
_POD_SETS_MAX: Final = 18
_IMMUTABLE_JOBSET_FIELDS: Final = ("failurePolicy", "network", "startupPolicy", "successPolicy", "volumeClaimPolicies")


def jobset_errors(jobset: Obj) -> Iterator[FieldError]:
    """Validate a JobSet by the rules of JobSet's webhook and CRD, and of Kueue's webhook."""
    spec = jobset.get("spec") or {}
    yield from rules.metadata_errors(jobset)
    yield from _exclusive_topology_errors(jobset, "metadata")
    yield from _network_errors(spec)
    yield from queued_jobs.managed_by_errors(spec.get("managedBy"), "spec.managedBy")
    yield from _startup_order_errors(spec)
    claim_template_names = claim_names(spec)
    for i, replicated_job in enumerate(spec.get("replicatedJobs") or ()):
        path = f"{JOBS_PATH}[{i}]"
        yield from _replicated_job_errors(replicated_job, _name_or_generated_name(jobset), path)
        yield from _job_template_errors(replicated_job["template"], f"{path}.template.metadata")
        yield from queued_jobs.spec_errors(_job_spec(replicated_job), f"{path}.template.spec", claim_template_names)
    yield from policy_errors(spec, _name_or_generated_name(jobset))
    yield from rules.attribute_to_webhook(_JOBSET_WEBHOOK_NAME, queued_jobs.queue_settings_errors(jobset))
    if label(jobset, well_known.QUEUE_NAME):
        yield from _pod_set_count_errors(spec.get("replicatedJobs") or ())
    yield from rules.attribute_to_webhook(_JOBSET_WEBHOOK_NAME, _topology_request_errors(spec))


def jobset_update_errors(new: Obj, old: Obj) -> Iterator[FieldError]:
    """Validate an update of a JobSet: most of its spec is immutable; if suspended, scheduling directives may change."""
    yield from jobset_errors(new)
    spec, old_spec = new.get("spec") or {}, old.get("spec") or {}
    equality = semantic_equality(scheme.JOB_SET)
    for field in _IMMUTABLE_JOBSET_FIELDS:
        is_in_both = spec.get(field) is not None and old_spec.get(field) is not None
        if is_in_both and not equality.is_same_field("JobSet.spec", field, spec, old_spec):
            schema_type = "array" if isinstance(spec[field], list) else "object"
            yield rules.schema_rule_fault(f"spec.{field}", schema_type, "Value is immutable", "create another JobSet")
    may_change_scheduling = bool(spec.get("suspend") or old_spec.get("suspend"))
    if not equality.is_same(
        _JOBS_TYPE, *(_comparable_jobs(each, may_change_scheduling=may_change_scheduling) for each in (spec, old_spec))
    ):
        remedy = (
            "create another JobSet"
            if may_change_scheduling
            else "suspend the JobSet first; then its scheduling directives may change"
        )
        yield rules.immutable(JOBS_PATH, spec.get("replicatedJobs"), remedy)
    if spec.get("managedBy") != old_spec.get("managedBy"):
        yield rules.immutable("spec.managedBy", spec.get("managedBy"))
    yield from rules.attribute_to_webhook(_JOBSET_WEBHOOK_NAME, queued_jobs.queue_settings_update_errors(new, old))


def _name_or_generated_name(jobset: Obj) -> str:
    metadata = jobset["metadata"]
    generate_name = metadata.get("generateName")
    return str(metadata.get("name") or (f"{generate_name}{_GENERATED_NAME_SUFFIX}" if generate_name else ""))


def _job_spec(job: Obj) -> Obj:
    spec: Obj = job["template"].get("spec") or {}
    if spec.get("completions") is None and spec.get("parallelism") is None:
        return {**spec, "completions": 1, "parallelism": 1}
    return spec


def _network_errors(spec: Obj) -> Iterator[FieldError]:
    subdomain = (spec.get("network") or {}).get("subdomain")
    if not subdomain:
        return
    subdomain_messages = dict.fromkeys(rules.dns_subdomain_errors(subdomain) + rules.dns1035_label_errors(subdomain))
    for message in subdomain_messages:
        if "must be no more than 63" in message:
            message = ".spec.network.subdomain is too long, must be less than 63 characters"  # noqa: PLW2901
        remedy = "use at most 63 lowercase letters, digits and '-', and start with a letter"
        yield rules.invalid("spec.network.subdomain", subdomain, message, remedy)


def _startup_order_errors(spec: Obj) -> Iterator[FieldError]:
    jobs: Sequence[Obj] = spec.get("replicatedJobs") or ()
    is_in_order = (spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder"
    if is_in_order and any(each.get("dependsOn") is not None for each in jobs):
        message = "StartupPolicy and DependsOn APIs are mutually exclusive"
        yield rules.schema_rule_fault("spec", "object", message, "use dependsOn, and remove startupPolicy")
    seen_names: dict[str, None] = {}
    for i, replicated_job in enumerate(jobs):
        path, depends_on = f"{JOBS_PATH}[{i}]", replicated_job.get("dependsOn")
        if i == 0 and depends_on is not None:
            message = "DependsOn can't be set for the first ReplicatedJob"
            remedy = "remove dependsOn, or move the replicatedJob that it depends on to the front"
            yield rules.forbidden(f"{path}.dependsOn", message, remedy)
        if replicated_job["name"] in seen_names:
            yield rules.duplicate(f"{path}.name", replicated_job["name"], "give each replicatedJob a unique name")
        for j, dependency in enumerate(depends_on or () if i else ()):
            if dependency["name"] not in seen_names:
                message = (
                    f"replicatedJob: {replicated_job['name']} cannot depend on replicatedJob: {dependency['name']}"
                )
                remedy = f"use the name of a replicatedJob that precedes {replicated_job['name']} in the list"
                yield rules.invalid(f"{path}.dependsOn[{j}].name", dependency["name"], message, remedy)
        seen_names[replicated_job["name"]] = None


def _replicated_job_errors(job: Obj, jobset_name: str, path: str) -> Iterator[FieldError]:
    replicas, spec = job.get("replicas", 1), job["template"].get("spec") or {}
    parallelism = spec.get("parallelism")
    if replicas * (1 if parallelism is None else parallelism) > _INT32_MAX:
        message = (
            f"the product of replicas and parallelism must not exceed {_INT32_MAX} for replicatedJob '{job['name']}'"
        )
        yield rules.invalid(f"{path}.replicas", replicas, message, "reduce replicas or parallelism")
    group_name = job.get("groupName", "default")
    too_long_message = ".spec.replicatedJob[].groupName is too long, must be less than 63 characters"
    yield from _name_label_errors(group_name, too_long_message, f"{path}.groupName", "shorten the name of the group")
    longest_job_name = f"{jobset_name}-{job['name']}-{max(replicas - 1, 0)}"
    too_long_message = "JobSet name is too long, job names generated for this JobSet will exceed 63 characters"
    name_errors = list(_name_label_errors(longest_job_name, too_long_message, f"{path}.name", _SHORTEN_NAME_REMEDY))
    completions = spec.get("completions")
    if not name_errors and spec.get("completionMode") == "Indexed" and completions is not None:
        too_long_message = "JobSet name is too long, pod names generated for this JobSet will exceed 63 characters"
        longest_pod_name = f"{longest_job_name}-{max(completions - 1, 0)}{_GENERATED_POD_SUFFIX}"
        name_errors.extend(_name_label_errors(longest_pod_name, too_long_message, f"{path}.name", _SHORTEN_NAME_REMEDY))
    yield from name_errors


def _job_template_errors(template: Obj, path: str) -> Iterator[FieldError]:
    metadata = template.get("metadata") or {}
    yield from rules.label_errors(metadata.get("labels"), f"{path}.labels")
    yield from rules.annotation_errors(metadata.get("annotations"), f"{path}.annotations")
    yield from _exclusive_topology_errors({"metadata": metadata}, path)


def _exclusive_topology_errors(obj: Obj, path: str) -> Iterator[FieldError]:
    key = annotation(obj, well_known.EXCLUSIVE_TOPOLOGY)
    if key is not None:
        yield from pods.topology_key_errors(key, f"{path}.annotations[{well_known.EXCLUSIVE_TOPOLOGY}]")


def _pod_set_count_errors(replicated_jobs: Sequence[Obj]) -> Iterator[FieldError]:
    if not replicated_jobs:
        message = "a JobSet in a queue needs at least one replicatedJob"
        yield rules.required(JOBS_PATH, message, f"add a replicatedJob, or remove the label {well_known.QUEUE_NAME}")
    if len(replicated_jobs) > _POD_SETS_MAX:
        remedy = f"merge some replicatedJobs, or remove the label {well_known.QUEUE_NAME}"
        yield rules.too_many_items_error(JOBS_PATH, len(replicated_jobs), _POD_SETS_MAX, remedy)


def _name_label_errors(name: str, too_long_message: str, path: str, remedy: str) -> Iterator[FieldError]:
    for message in rules.dns1035_label_errors(name):
        yield rules.invalid(path, name, too_long_message if "must be no more than 63" in message else message, remedy)


def _topology_request_errors(spec: Obj) -> Iterator[FieldError]:
    pod_sets = _annotated_pod_sets(spec)
    for pod_set in pod_sets:
        yield from topology.topology_request_errors(pod_set.annotations, pod_set.path, pod_set.count)
    yield from topology.pod_set_group_errors(pod_sets)


def _annotated_pod_sets(spec: Obj) -> list[topology.PodSetTopology]:
    pod_sets = []
    for i, replicated_job in enumerate(spec.get("replicatedJobs") or ()):
        job_spec = replicated_job["template"].get("spec") or {}
        annotations = ((job_spec.get("template") or {}).get("metadata") or {}).get("annotations")
        if annotations:
            path = f"{JOBS_PATH}[{i}].template.spec.template.metadata.annotations"
            pod_count = replicated_job.get("replicas", 1) * parallel_pod_count(job_spec)
            pod_sets.append(topology.PodSetTopology(annotations, path, pod_count))
    return pod_sets


def disabled_layers_errors(jobset: Obj) -> Iterator[FieldError]:
    """Report layers of slices in a JobSet, for the feature gate TASMultiLayerTopology disabled."""
    for pod_set in _annotated_pod_sets(jobset.get("spec") or {}):
        errors = topology.disabled_layers_errors(pod_set.annotations, pod_set.path)
        yield from rules.attribute_to_webhook(_JOBSET_WEBHOOK_NAME, errors)


def _comparable_jobs(spec: Obj, *, may_change_scheduling: bool) -> list[Obj]:
    jobs: list[Obj] = spec.get("replicatedJobs") or []
    return [_without_scheduling_fields(each) for each in jobs] if may_change_scheduling else jobs


def _without_scheduling_fields(job: Obj) -> Obj:
    template = job["template"]
    job_spec = template.get("spec") or {}
    pod = job_spec.get("template") or {}
    metadata = {k: v for k, v in (pod.get("metadata") or {}).items() if k not in {"labels", "annotations"}}
    scheduling_fields = {"nodeSelector", "tolerations", "schedulingGates"}
    spec = {k: v for k, v in (pod.get("spec") or {}).items() if k not in scheduling_fields}
    return {**job, "template": {**template, "spec": {**job_spec, "template": {"metadata": metadata, "spec": spec}}}}
