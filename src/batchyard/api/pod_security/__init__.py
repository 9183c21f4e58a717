"""Pod Security Standards: the policy of a namespace, and the violations of a pod."""

from batchyard.api.pod_security.evaluator import PodSecurityViolations, evaluate_pod
from batchyard.api.pod_security.policy import PREFIX, LevelVersion, PodSecurityPolicy, label_faults, namespace_policy

__all__ = [
    "PREFIX",
    "LevelVersion",
    "PodSecurityPolicy",
    "PodSecurityViolations",
    "evaluate_pod",
    "label_faults",
    "namespace_policy",
]
