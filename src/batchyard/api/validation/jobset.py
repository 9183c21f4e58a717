"""Rules of JobSets: JobSet's own, then Kueue's.

Source: JobSet's webhook and the rules in its CRD; Kueue's JobSet webhook; both at their default feature gates. What
would only fail when the Jobs are made (their specs, their pod templates) is said at once.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj, annotation, label
from batchyard.api.schema import meaning_of
from batchyard.api.validation import (
    affinity,
    faults,
    job,
    jobset_policies,
    metadata,
    names,
    queued_jobs,
    queued_topology,
)
from batchyard.api.views.job import pods_at_once

#: Kueue's; JobSet's own is called alike.
_WEBHOOK: Final = "vjobset.kb.io"
PATH: Final = "spec.replicatedJobs"
_JOBS_TYPE: Final = "[JobSet.spec.replicatedJobs]"
_INT32_MAX: Final = 2**31 - 1
#: A pod's name ends in characters of its own.
_POD_SUFFIX: Final = "-abcde"
_GENERATED_SUFFIX: Final = "abcde"
_SHORTEN: Final = "shorten the name of the JobSet or of the replicatedJob"
#: As many as a Workload may have.
_POD_SETS_MAX: Final = 18
_KEPT: Final = ("failurePolicy", "network", "startupPolicy", "successPolicy", "volumeClaimPolicies")


def jobset_faults(jobset: Obj) -> Iterator[FieldError]:
    """All rules of a JobSet."""
    spec = jobset.get("spec") or {}
    yield from metadata.metadata_faults(jobset)
    yield from _exclusive_faults(jobset, "metadata")
    yield from _network_faults(spec)
    yield from job.manager_faults(spec.get("managedBy"), "spec.managedBy")
    yield from _order_faults(spec)
    claims = jobset_policies.claim_names(spec)
    for i, replicated in enumerate(spec.get("replicatedJobs") or ()):
        path = f"{PATH}[{i}]"
        yield from _replicated_job_faults(replicated, _name(jobset), path)
        yield from _template_faults(replicated["template"], f"{path}.template.metadata")
        yield from job.spec_faults(_job_spec(replicated), f"{path}.template.spec", claims)
    yield from jobset_policies.policy_faults(spec, _name(jobset))
    yield from faults.denied_by(_WEBHOOK, queued_jobs.create_faults(jobset))
    if label(jobset, well_known.QUEUE_NAME):
        yield from _pod_set_faults(spec.get("replicatedJobs") or ())
    yield from faults.denied_by(_WEBHOOK, _topology_faults(spec))


def jobset_update_faults(new: Obj, old: Obj) -> Iterator[FieldError]:
    """All rules of a changed JobSet: a suspended one may be told where to run, and little else changes."""
    yield from jobset_faults(new)
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    meaning = meaning_of(scheme.JOB_SET)
    for field in _KEPT:
        is_given = spec.get(field) is not None and before.get(field) is not None
        if is_given and not meaning.is_same_field("JobSet.spec", field, spec, before):
            schema_type = "array" if isinstance(spec[field], list) else "object"
            yield faults.broken_rule(
                f"spec.{field}", schema_type, "Value is immutable", "keep it, or make a new JobSet"
            )
    movable = bool(spec.get("suspend") or before.get("suspend"))
    if not meaning.is_same(_JOBS_TYPE, _jobs(spec, movable=movable), _jobs(before, movable=movable)):
        remedy = "make a new JobSet" if movable else "suspend the JobSet first; then its pods' nodes may change"
        yield faults.immutable(PATH, spec.get("replicatedJobs"), remedy)
    if spec.get("managedBy") != before.get("managedBy"):
        yield faults.immutable("spec.managedBy", spec.get("managedBy"))
    yield from faults.denied_by(_WEBHOOK, queued_jobs.update_faults(new, old))


def _name(jobset: Obj) -> str:
    """The name of the JobSet, or one as long as that which will be generated."""
    meta = jobset["metadata"]
    prefix = meta.get("generateName")
    return str(meta.get("name") or (f"{prefix}{_GENERATED_SUFFIX}" if prefix else ""))


def _job_spec(replicated: Obj) -> Obj:
    """The spec of each Job of a replicated Job, with the numbers Kubernetes would give it."""
    spec: Obj = replicated["template"].get("spec") or {}
    if spec.get("completions") is None and spec.get("parallelism") is None:
        return {**spec, "completions": 1, "parallelism": 1}
    return spec


def _network_faults(spec: Obj) -> Iterator[FieldError]:
    """The subdomain is the name of a Service."""
    subdomain = (spec.get("network") or {}).get("subdomain")
    if not subdomain:
        return
    messages = dict.fromkeys(names.dns_subdomain(subdomain) + names.dns1035_label(subdomain))
    for message in messages:
        if "must be no more than 63" in message:
            message = ".spec.network.subdomain is too long, must be less than 63 characters"  # noqa: PLW2901
        remedy = "use lower case letters, digits and '-', a letter first, at most 63 in all"
        yield faults.invalid("spec.network.subdomain", subdomain, message, remedy)


def _order_faults(spec: Obj) -> Iterator[FieldError]:
    """Replicated Jobs have names of their own, and wait only for those before them."""
    jobs: Sequence[Obj] = spec.get("replicatedJobs") or ()
    in_order = (spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder"
    if in_order and any(each.get("dependsOn") is not None for each in jobs):
        message = "StartupPolicy and DependsOn APIs are mutually exclusive"
        yield faults.broken_rule("spec", "object", message, "use dependsOn, and drop startupPolicy")
    seen: dict[str, None] = {}
    for i, replicated in enumerate(jobs):
        path, depends_on = f"{PATH}[{i}]", replicated.get("dependsOn")
        if i == 0 and depends_on is not None:
            message = "DependsOn can't be set for the first ReplicatedJob"
            yield faults.forbidden(f"{path}.dependsOn", message, "drop it, or move the Job it waits for before it")
        if replicated["name"] in seen:
            yield faults.duplicate(f"{path}.name", replicated["name"], "give each replicatedJob a name of its own")
        for j, other in enumerate(depends_on or () if i else ()):
            if other["name"] not in seen:
                message = f"replicatedJob: {replicated['name']} cannot depend on replicatedJob: {other['name']}"
                remedy = "name a replicatedJob that stands before it"
                yield faults.invalid(f"{path}.dependsOn[{j}].name", other["name"], message, remedy)
        seen[replicated["name"]] = None


def _replicated_job_faults(replicated: Obj, jobset_name: str, path: str) -> Iterator[FieldError]:
    """The number of pods can be counted, and all names made from this one are names."""
    replicas, spec = replicated.get("replicas", 1), replicated["template"].get("spec") or {}
    parallelism = spec.get("parallelism")
    if replicas * (1 if parallelism is None else parallelism) > _INT32_MAX:
        message = (
            f"the product of replicas and parallelism must not exceed {_INT32_MAX} "
            f"for replicatedJob '{replicated['name']}'"
        )
        yield faults.invalid(f"{path}.replicas", replicas, message, "give fewer replicas or less parallelism")
    group = replicated.get("groupName", "default")
    too_long = ".spec.replicatedJob[].groupName is too long, must be less than 63 characters"
    yield from _label_faults(group, too_long, f"{path}.groupName", "shorten the name of the group")
    longest = f"{jobset_name}-{replicated['name']}-{max(replicas - 1, 0)}"
    too_long = "JobSet name is too long, job names generated for this JobSet will exceed 63 characters"
    found = list(_label_faults(longest, too_long, f"{path}.name", _SHORTEN))
    completions = spec.get("completions")
    if not found and spec.get("completionMode") == "Indexed" and completions is not None:
        too_long = "JobSet name is too long, pod names generated for this JobSet will exceed 63 characters"
        pod = f"{longest}-{max(completions - 1, 0)}{_POD_SUFFIX}"
        found.extend(_label_faults(pod, too_long, f"{path}.name", _SHORTEN))
    yield from found


def _template_faults(template: Obj, path: str) -> Iterator[FieldError]:
    """What the Jobs are told of themselves."""
    meta = template.get("metadata") or {}
    yield from metadata.label_faults(meta.get("labels"), f"{path}.labels")
    yield from metadata.annotation_faults(meta.get("annotations"), f"{path}.annotations")
    yield from _exclusive_faults({"metadata": meta}, path)


def _exclusive_faults(obj: Obj, path: str) -> Iterator[FieldError]:
    """The topology that each Job has for itself becomes that of its first pod's affinity."""
    key = annotation(obj, well_known.EXCLUSIVE_TOPOLOGY)
    if key is not None:
        yield from affinity.topology_key_faults(key, f"{path}.annotations[{well_known.EXCLUSIVE_TOPOLOGY}]")


def _pod_set_faults(replicated_jobs: Sequence[Obj]) -> Iterator[FieldError]:
    """In a queue the JobSet is one Workload, with a pod set for each replicatedJob: neither none nor too many."""
    if not replicated_jobs:
        message = "a JobSet in a queue has at least one replicatedJob"
        yield faults.required(PATH, message, f"give it one, or drop the label {well_known.QUEUE_NAME}")
    if len(replicated_jobs) > _POD_SETS_MAX:
        remedy = f"a JobSet in a queue has no more; merge some, or drop the label {well_known.QUEUE_NAME}"
        yield faults.too_many(PATH, len(replicated_jobs), _POD_SETS_MAX, remedy)


def _label_faults(name: str, too_long: str, path: str, remedy: str) -> Iterator[FieldError]:
    """A name that becomes part of host names; JobSet says in its own words what would be too long."""
    for message in names.dns1035_label(name):
        yield faults.invalid(path, name, too_long if "must be no more than 63" in message else message, remedy)


def _topology_faults(spec: Obj) -> Iterator[FieldError]:
    """What the pod templates' annotations ask of the topology, each and in groups."""
    pod_sets = []
    for i, replicated in enumerate(spec.get("replicatedJobs") or ()):
        job_spec = replicated["template"].get("spec") or {}
        annotations = ((job_spec.get("template") or {}).get("metadata") or {}).get("annotations")
        if annotations:
            path = f"{PATH}[{i}].template.spec.template.metadata.annotations"
            count = replicated.get("replicas", 1) * pods_at_once(job_spec)
            pod_sets.append(queued_topology.PodSetTopology(annotations, path, count))
    for pod_set in pod_sets:
        yield from queued_topology.request_faults(pod_set.annotations, pod_set.path, pod_set.count)
    yield from queued_topology.group_faults(pod_sets)


def _jobs(spec: Obj, *, movable: bool) -> list[Obj]:
    """The replicated Jobs, without what a queue may change while the JobSet is suspended."""
    jobs: list[Obj] = spec.get("replicatedJobs") or []
    return [_placeless(each) for each in jobs] if movable else jobs


def _placeless(replicated: Obj) -> Obj:
    """A replicated Job without where its pods are to run."""
    template = replicated["template"]
    job_spec = template.get("spec") or {}
    pod = job_spec.get("template") or {}
    meta = {k: v for k, v in (pod.get("metadata") or {}).items() if k not in {"labels", "annotations"}}
    hidden = {"nodeSelector", "tolerations", "schedulingGates"}
    pod_spec = {k: v for k, v in (pod.get("spec") or {}).items() if k not in hidden}
    return {
        **replicated,
        "template": {**template, "spec": {**job_spec, "template": {"metadata": meta, "spec": pod_spec}}},
    }
