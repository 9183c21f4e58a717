"""Pod failure policy of a Job: the action for a failed pod.

Source: pkg/controller/job/pod_failure_policy.go of Kubernetes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.jobs.job.spec import Rule

IGNORE: Final = "Ignore"
FAIL_INDEX: Final = "FailIndex"
_FAIL_JOB: Final = "FailJob"


class PolicyDecision(NamedTuple):
    """The action of the first matching rule; "" if none matches, which is equivalent to Count."""

    action: str
    #: Why the Job fails, if it does.
    message: str | None = None


def policy_decision(rules: Sequence[Rule] | None, pod: Obj) -> PolicyDecision:
    """Return the action for a failed pod."""
    for number, rule in enumerate(rules or ()):
        status = pod.get("status") or {}
        codes, patterns = rule.get("onExitCodes"), rule.get("onPodConditions")
        what = (
            _matching_exit(status, codes, pod)
            if codes is not None
            else _matching_condition(status, patterns or (), pod)
        )
        if what is not None:
            action = rule["action"]
            message = f"{what} matching {action} rule at index {number}" if action == _FAIL_JOB else None
            return PolicyDecision(action, message)
    return PolicyDecision("")


def is_counted(rules: Sequence[Rule] | None, pod: Obj) -> bool:
    """Report whether a failed pod counts as a failure of the Job."""
    return not rules or policy_decision(rules, pod).action != IGNORE


def _matching_exit(status: Mapping[str, Any], codes: Mapping[str, Any], pod: Obj) -> str | None:
    """Describe the container that failed with a matching exit code; init containers come last."""
    for field in ("containerStatuses", "initContainerStatuses"):
        for container in status.get(field) or ():
            ended = (container.get("state") or {}).get("terminated")
            if ended is not None and _is_about(codes, container["name"], ended.get("exitCode", 0)):
                return f"Container {container['name']} for pod {_name(pod)} failed with exit code {ended['exitCode']}"
    return None


def _is_about(codes: Mapping[str, Any], container: str, exit_code: int) -> bool:
    if exit_code == 0 or codes.get("containerName") not in (None, container):
        return False
    if codes["operator"] == "In":
        return exit_code in codes["values"]
    return exit_code not in codes["values"]


def _matching_condition(status: Mapping[str, Any], patterns: Sequence[Mapping[str, Any]], pod: Obj) -> str | None:
    """Describe the pod condition that matches one of the patterns."""
    for condition in status.get("conditions") or ():
        for pattern in patterns:
            if condition["type"] == pattern["type"] and condition["status"] == (pattern.get("status") or "True"):
                return f"Pod {_name(pod)} has condition {condition['type']}"
    return None


def _name(pod: Obj) -> str:
    return f"{pod['metadata'].get('namespace', '')}/{pod['metadata']['name']}"
