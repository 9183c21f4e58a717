"""Rules of what a JobSet does about failed and succeeded Jobs, of its coordinator and of its volumes.

Source: JobSet's webhook at its default feature gates.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj
from batchyard.api.validation import faults, names

_RULES: Final = "spec.failurePolicy.rules"
_COORDINATOR: Final = "spec.coordinator"
_RESTART_JOB: Final = ("RestartJob", "RestartJobAndIgnoreMaxRestarts")
_REASONS: Final = (
    "BackoffLimitExceeded",
    "DeadlineExceeded",
    "FailedIndexes",
    "MaxFailedIndexesExceeded",
    "PodFailurePolicy",
)
_RULE_NAME: Final = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", re.ASCII)
_RULE_NAME_LENGTH_MAX: Final = 128


def policy_faults(spec: Obj, jobset_name: str) -> Iterator[FieldError]:
    """All rules of the policies of a JobSet's spec."""
    jobs = {each["name"]: each for each in spec.get("replicatedJobs") or ()}
    for i, name in enumerate((spec.get("successPolicy") or {}).get("targetReplicatedJobs") or ()):
        if name not in jobs:
            message = f"invalid replicatedJob name '{name}' does not appear in .spec.ReplicatedJobs"
            path = f"spec.successPolicy.targetReplicatedJobs[{i}]"
            yield faults.invalid(path, name, message, f"use one of {', '.join(jobs)}")
    if failure := spec.get("failurePolicy"):
        yield from _failure_faults(failure, list(jobs))
    if coordinator := spec.get("coordinator"):
        yield from _coordinator_faults(coordinator, jobs)
        yield from _endpoint_faults(coordinator, spec, jobset_name)
    yield from _claim_faults(spec, jobset_name)


def claim_names(spec: Obj) -> list[str]:
    """The names of the volumes a JobSet gives to its pods."""
    return [
        _claim_name(template)
        for policy in spec.get("volumeClaimPolicies") or ()
        for template in policy.get("templates") or ()
    ]


def _claim_name(template: Obj) -> str:
    """The name of a volume claim template, '' where it has none."""
    return str((template.get("metadata") or {}).get("name") or "")


def _failure_faults(failure: Obj, jobs: Sequence[str]) -> Iterator[FieldError]:
    """Strategies and actions are those that are on; rules have names of their own and real targets."""
    if failure.get("restartStrategy") == "InPlaceRestart":
        message = "InPlaceRestart restart strategy cannot be set when InPlaceRestart feature gate is disabled"
        yield faults.forbidden("spec.failurePolicy.restartStrategy", message, "use Recreate or BlockingRecreate")
    seen: dict[str, list[int]] = {}
    for i, rule in enumerate(failure.get("rules") or ()):
        yield from _rule_faults(rule, jobs, f"{_RULES}[{i}]")
        seen.setdefault(rule.get("name") or f"failurePolicyRule{i}", []).append(i)
    for name, places in seen.items():
        if len(places) > 1:
            shown = " ".join(map(str, places))
            message = f"rule names are not unique, rules with indices [{shown}] all have the same name '{name}'"
            yield faults.invalid(f"{_RULES}[{places[1]}].name", name, message, "give each rule a name of its own")


def _rule_faults(rule: Obj, jobs: Sequence[str], path: str) -> Iterator[FieldError]:
    """A rule's name, action, targets and reasons."""
    name = rule.get("name") or ""
    if len(name) > _RULE_NAME_LENGTH_MAX:
        message = (
            f"invalid failure policy rule name of length {len(name)}, the rule name must be at least 1 characters long "
            f"and at most {_RULE_NAME_LENGTH_MAX} characters long"
        )
        yield faults.invalid(f"{path}.name", name, message, "shorten the name")
    if name and not _RULE_NAME.fullmatch(name):
        message = (
            f"invalid failure policy rule name '{name}', a failure policy rule name must start with an alphabetic "
            "character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an "
            "alphanumeric character or '_'"
        )
        yield faults.invalid(f"{path}.name", name, message, "use letters, digits and '_', a letter first")
    if rule.get("action") in _RESTART_JOB:
        message = (
            "RestartJob and RestartJobAndIgnoreMaxRestarts failure policy actions are not allowed when RestartJob "
            "feature gate is disabled"
        )
        yield faults.forbidden(f"{path}.action", message, "use RestartJobSet or RestartJobSetAndIgnoreMaxRestarts")
    for j, target in enumerate(rule.get("targetReplicatedJobs") or ()):
        if target not in jobs:
            message = f"invalid replicatedJob name '{target}' in failure policy does not appear in .spec.ReplicatedJobs"
            at = f"{path}.targetReplicatedJobs[{j}]"
            yield faults.invalid(at, target, message, f"use one of {', '.join(jobs)}")
    for j, reason in enumerate(rule.get("onJobFailureReasons") or ()):
        if reason not in _REASONS:
            message = f"invalid job failure reason '{reason}' in failure policy is not a recognized job failure reason"
            at = f"{path}.onJobFailureReasons[{j}]"
            yield faults.invalid(at, reason, message, f"use one of {', '.join(_REASONS)}")


def _coordinator_faults(coordinator: Obj, jobs: Mapping[str, Obj]) -> Iterator[FieldError]:
    """The coordinator is a pod the JobSet will have."""
    name, index, pod = coordinator["replicatedJob"], coordinator.get("jobIndex", 0), coordinator.get("podIndex", 0)
    replicated = jobs.get(name)
    if replicated is None:
        message = f"coordinator replicatedJob {name} does not exist"
        yield faults.invalid(f"{_COORDINATOR}.replicatedJob", name, message, f"use one of {', '.join(jobs)}")
        return
    replicas, spec = replicated.get("replicas", 1), replicated["template"].get("spec") or {}
    if not 0 <= index < replicas:
        message = f"coordinator job index {index} is invalid for replicatedJob {name}"
        yield faults.invalid(f"{_COORDINATOR}.jobIndex", index, message, f"give an index from 0 to {replicas - 1}")
    completions = spec.get("completions")
    if spec.get("completionMode") != "Indexed" or completions is None:
        message = "job for coordinator pod must be indexed completion mode, and completions number must be set"
        remedy = f"set completionMode: Indexed and completions in replicatedJob {name}"
        yield faults.invalid(f"{_COORDINATOR}.replicatedJob", name, message, remedy)
    elif not 0 <= pod < completions:
        message = f"coordinator pod index {pod} is invalid for replicatedJob {name} job index {index}"
        yield faults.invalid(f"{_COORDINATOR}.podIndex", pod, message, f"give an index from 0 to {completions - 1}")


def _endpoint_faults(coordinator: Obj, spec: Obj, jobset_name: str) -> Iterator[FieldError]:
    """The coordinator's host name becomes the value of a label."""
    job = f"{coordinator['replicatedJob']}-{coordinator.get('jobIndex', 0)}-{coordinator.get('podIndex', 0)}"
    subdomain = (spec.get("network") or {}).get("subdomain") or jobset_name
    value = f"{jobset_name}-{job}.{subdomain}"
    if messages := names.label_value(value):
        message = (
            f'spec will lead to invalid label value "{value}" for coordinator label "jobset.sigs.k8s.io/coordinator" '
            f"(long JobSet / ReplicatedJob / SubDomain name?): {', '.join(messages)}"
        )
        yield faults.invalid(_COORDINATOR, value, message, "shorten these names, or drop the coordinator")


def _claim_faults(spec: Obj, jobset_name: str) -> Iterator[FieldError]:
    """Volume claims have names of their own that are short enough, and some container mounts each."""
    seen: dict[str, None] = {}
    for i, policy in enumerate(spec.get("volumeClaimPolicies") or ()):
        for j, template in enumerate(policy.get("templates") or ()):
            path, name = f"spec.volumeClaimPolicies[{i}].templates[{j}]", _claim_name(template)
            if (template.get("metadata") or {}).get("namespace"):
                message = "namespace cannot be set for VolumeClaimPolicies templates"
                yield faults.broken_rule(f"spec.volumeClaimPolicies[{i}]", "object", message, "drop the namespace")
            if name in seen:
                message = "names must be unique for VolumeClaimPolicies template"
                yield faults.invalid(f"{path}.metadata.name", name, message, "give each template a name of its own")
            seen[name] = None
            for message in names.dns_subdomain(name):
                yield faults.invalid(f"{path}.metadata.name", name, message, "use lower case letters, digits and '-'")
            if len(f"{name}-{jobset_name}") > names.LABEL_LENGTH_MAX:
                message = "VolumeClaimPolicies template name is too long"
                yield faults.invalid(f"{path}.metadata.name", name, message, "shorten it, or the name of the JobSet")
            yield from _mounted_faults(spec, name)


def _mounted_faults(spec: Obj, name: str) -> Iterator[FieldError]:
    """A volume claim is mounted somewhere, and no volume of a pod has its name."""
    mounted = False
    for i, replicated in enumerate(spec.get("replicatedJobs") or ()):
        pod = ((replicated["template"].get("spec") or {}).get("template") or {}).get("spec") or {}
        for j, volume in enumerate(pod.get("volumes") or ()):
            if volume.get("name") == name:
                path = f"spec.replicatedJobs[{i}].template.spec.template.spec.volumes[{j}].name"
                message = f"volume name conflicts with VolumeClaimPolicy template name: {name}"
                yield faults.invalid(path, name, message, "rename the volume")
        containers = [c for field in ("initContainers", "containers") for c in pod.get(field) or ()]
        mounted = mounted or any(m.get("name") == name for c in containers for m in c.get("volumeMounts") or ())
    if not mounted:
        message = f"replicatedJob containers don't have a matching volumeMount: {name} from VolumeClaimPolicies"
        yield faults.invalid_here("spec.replicatedJobs", message, f"mount the volume {name} in a container")
