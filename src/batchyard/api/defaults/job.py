"""Defaults of Jobs. Source: Kubernetes's pkg/apis/batch/v1/defaults.go."""

from collections.abc import Mapping
from typing import Any, Final

from batchyard.api.meta import Obj, with_metadata

_INT32_MAX: Final = 2**31 - 1


def job_defaults(job: Obj) -> Obj:
    """A Job with its defaults. One without labels gets those of its pods, its queue among them."""
    spec = job.get("spec") or {}
    missing = {field: value for field, value in _spec_defaults(spec).items() if spec.get(field) is None}
    policy = spec.get("podFailurePolicy")
    if policy and (complete := _policy_defaults(policy)) is not policy:
        missing["podFailurePolicy"] = complete
    done = {**job, "spec": {**spec, **missing}} if missing else job
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    return with_metadata(done, labels=labels) if labels and not job["metadata"].get("labels") else done


def _spec_defaults(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What the fields of a spec are where they are not given; how many completions only where nothing says it."""
    indexes_fail_alone = spec.get("backoffLimitPerIndex") is not None
    defaults: dict[str, Any] = {
        "parallelism": 1,
        "backoffLimit": _INT32_MAX if indexes_fail_alone else 6,
        "completionMode": "NonIndexed",
        "manualSelector": False,
        "suspend": False,
        "podReplacementPolicy": "TerminatingOrFailed" if spec.get("podFailurePolicy") is None else "Failed",
    }
    return defaults if spec.get("parallelism") is not None else {"completions": 1, **defaults}


def _policy_defaults(policy: Mapping[str, Any]) -> Mapping[str, Any]:
    """A pod failure policy whose patterns of conditions have a status."""
    rules = policy.get("rules") or []
    if all(pattern.get("status") for rule in rules for pattern in rule.get("onPodConditions") or ()):
        return policy
    return {**policy, "rules": [_rule_defaults(rule) for rule in rules]}


def _rule_defaults(rule: Mapping[str, Any]) -> Mapping[str, Any]:
    """A rule whose patterns of conditions have a status."""
    patterns = rule.get("onPodConditions")
    if not patterns:
        return rule
    return {**rule, "onPodConditions": [p if p.get("status") else {**p, "status": "True"} for p in patterns]}
