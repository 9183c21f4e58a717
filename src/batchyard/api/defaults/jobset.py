"""Defaults of JobSets. Source: JobSet's webhook; the Jobs it makes get the defaults of Jobs when they are made."""

from collections.abc import Mapping, Sequence
from typing import Any

from batchyard.api.meta import Obj


def jobset_defaults(jobset: Obj) -> Obj:
    """A JobSet with its defaults."""
    spec = jobset.get("spec") or {}
    done = dict(_filled(spec, successPolicy={"operator": "All"}, startupPolicy={"startupPolicyOrder": "AnyOrder"}))
    done["network"] = _filled(spec.get("network") or {}, enableDNSHostnames=True, publishNotReadyAddresses=True)
    done["replicatedJobs"] = [_replicated_job(each) for each in spec.get("replicatedJobs") or ()]
    if failure := spec.get("failurePolicy"):
        done["failurePolicy"] = _failure_policy(failure)
    if claims := spec.get("volumeClaimPolicies"):
        done["volumeClaimPolicies"] = [_filled(each, retentionPolicy={"whenDeleted": "Delete"}) for each in claims]
    return jobset if done == spec else {**jobset, "spec": done}


def _filled(fields: Mapping[str, Any], **defaults: Any) -> Mapping[str, Any]:
    """The fields, with defaults where there is no value."""
    missing = {name: value for name, value in defaults.items() if fields.get(name) is None}
    return {**fields, **missing} if missing else fields


def _replicated_job(replicated: Mapping[str, Any]) -> Mapping[str, Any]:
    """A replicated Job that is Indexed and whose containers restart, unless it says otherwise."""
    template = replicated.get("template") or {}
    spec = template.get("spec") or {}
    pod = spec.get("template") or {}
    pod_spec = pod.get("spec") or {}
    if spec.get("completionMode") is not None and pod_spec.get("restartPolicy"):
        return replicated
    pod = {**pod, "spec": _filled(pod_spec, restartPolicy="OnFailure")}
    spec = {**_filled(spec, completionMode="Indexed"), "template": pod}
    return {**replicated, "template": {**template, "spec": spec}}


def _failure_policy(policy: Mapping[str, Any]) -> Mapping[str, Any]:
    """A failure policy that says how to restart, and whose rules have names."""
    rules: Sequence[Mapping[str, Any]] = policy.get("rules") or ()
    filled = _filled(policy, restartStrategy="Recreate")
    if all(rule.get("name") for rule in rules):
        return filled
    named = [rule if rule.get("name") else {**rule, "name": f"failurePolicyRule{i}"} for i, rule in enumerate(rules)]
    return {**filled, "rules": named}
