"""Scenes with the same result on a simulated and a real runtime: each pod specifies its behavior for both."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchyard.api.meta import is_true
from contract.scenes import priority, queue

Obj = Mapping[str, Any]
Objects = Callable[[str], Sequence[Obj]]

LONG = 3600
NAMESPACE = "default"


@dataclass(frozen=True)
class RuntimeStep:
    """Created and deleted objects, and the condition on objects by kind that ends the step."""

    until: Callable[[Objects], bool]
    creates: Sequence[Obj] = ()
    #: Names of pods.
    deletes: Sequence[str] = ()


def pod_template(seconds: float = 0.2, code: int = 0, policy: str = "Never", **spec: Any) -> dict[str, Any]:
    """Return a pod with this duration and exit code on each runtime."""
    notes = {"batchyard.dev/runtime": f"{int(seconds * 1000)}ms", "batchyard.dev/exit-code": str(code)}
    requests = {"resources": {"requests": {"cpu": "10m"}}}
    container = {
        "name": "main",
        "image": "machine",
        # the first process of a container receives only handled signals
        "command": ["sh", "-c", f"trap 'exit 143' TERM; sleep {seconds} & wait $!; exit {code}"],
        **requests,
    }
    whole = {"restartPolicy": policy, "terminationGracePeriodSeconds": 2, "containers": [container], **spec}
    return {"metadata": {"annotations": notes}, "spec": whole}


def pod(name: str, **fields: Any) -> Obj:
    """Return a pod."""
    template = pod_template(**fields)
    metadata = {**template["metadata"], "name": name, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def job(name: str, template: Mapping[str, Any], labels: Mapping[str, str] | None = None, **spec: Any) -> Obj:
    """Return a Job, by default of one pod."""
    metadata = {"name": name, "namespace": NAMESPACE, "labels": dict(labels or {})}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template, **spec}}


def jobset(name: str, template: Mapping[str, Any], **spec: Any) -> Obj:
    """Return a JobSet of one Job of one pod."""
    jobs = [{"name": "worker", "replicas": 1, "template": {"spec": {"backoffLimit": 0, "template": template}}}]
    metadata = {"name": name, "namespace": NAMESPACE}
    spec = {"replicatedJobs": jobs, **spec}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": spec}


def find_object(objects: Objects, kind: str, name: str) -> Obj:
    """Return an object; if it does not exist, an object without fields."""
    return next((obj for obj in objects(kind) if obj["metadata"]["name"] == name), {"metadata": {}})


def in_phase(name: str, *phases: str) -> Callable[[Objects], bool]:
    """Return a check that a pod is in one of these phases."""
    return lambda objects: (find_object(objects, "Pod", name).get("status") or {}).get("phase") in phases


def waits_for(name: str, reason: str) -> Callable[[Objects], bool]:
    """Return a check that the container of a pod waits with this reason."""

    def holds(objects: Objects) -> bool:
        statuses = (find_object(objects, "Pod", name).get("status") or {}).get("containerStatuses") or [{"state": {}}]
        return bool((statuses[0]["state"].get("waiting") or {}).get("reason") == reason)

    return holds


def is_gone(name: str) -> Callable[[Objects], bool]:
    """Return a check that a pod does not exist."""
    return lambda objects: find_object(objects, "Pod", name) == {"metadata": {}}


def holds(kind: str, name: str, condition: str) -> Callable[[Objects], bool]:
    """Return a check that a condition of an object is true."""
    return lambda objects: is_true(find_object(objects, kind, name), condition)


def runs(name: str) -> Callable[[Objects], bool]:
    """Return a check that a pod of a Job is ready."""
    return lambda objects: bool((find_object(objects, "Job.batch", name).get("status") or {}).get("ready"))


_RULE = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}
_FIRST = {"name": "first", "image": "machine", "command": ["true"]}
_QUEUED = {"kueue.x-k8s.io/queue-name": "preempt"}
_LOW, _HIGH = ({**_QUEUED, "kueue.x-k8s.io/priority-class": f"preempt-{name}"} for name in ("low", "high"))
_PREEMPTS = {"withinClusterQueue": "LowerPriority"}


def _quota() -> list[Obj]:
    """Return a queue for one pod."""
    flavor = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "plain"}}
    return [flavor, *queue("preempt", {"plain": "10m"}, preemption=_PREEMPTS)]  # type: ignore[dict-item]


SCENES: Mapping[str, Sequence[RuntimeStep]] = {
    "good": [RuntimeStep(in_phase("good", "Succeeded"), [pod("good")])],
    "fails": [RuntimeStep(in_phase("fails", "Failed"), [pod("fails", code=3)])],
    "first": [RuntimeStep(in_phase("first", "Succeeded"), [pod("first", initContainers=[_FIRST])])],
    "runs": [RuntimeStep(in_phase("runs", "Running"), [pod("runs", seconds=LONG)])],
    "loops": [RuntimeStep(waits_for("loops", "CrashLoopBackOff"), [pod("loops", code=1, policy="OnFailure")])],
    "expires": [RuntimeStep(in_phase("expires", "Failed"), [pod("expires", seconds=LONG, activeDeadlineSeconds=4)])],
    "deleted": [
        RuntimeStep(in_phase("deleted", "Running"), [pod("deleted", seconds=LONG)]),
        RuntimeStep(is_gone("deleted"), deletes=["deleted"]),
    ],
    "twice": [
        RuntimeStep(
            holds("Job.batch", "twice", "Complete"), [job("twice", pod_template(), completions=2, parallelism=2)]
        )
    ],
    "again": [RuntimeStep(holds("Job.batch", "again", "Failed"), [job("again", pod_template(code=1), backoffLimit=1)])],
    "policy": [
        RuntimeStep(
            holds("Job.batch", "policy", "Failed"),
            [job("policy", pod_template(code=42), podFailurePolicy={"rules": [_RULE]})],
        )
    ],
    "late": [
        RuntimeStep(
            holds("Job.batch", "late", "Failed"), [job("late", pod_template(seconds=LONG), activeDeadlineSeconds=1)]
        )
    ],
    "set": [
        RuntimeStep(
            holds("JobSet.jobset.x-k8s.io", "set", "Failed"),
            [jobset("set", pod_template(code=1), failurePolicy={"maxRestarts": 1})],
        )
    ],
    "preempt": [
        RuntimeStep(
            runs("preempt-low"),
            [
                *_quota(),
                priority("preempt-low", 1),
                priority("preempt-high", 2),
                job("preempt-low", pod_template(seconds=LONG), _LOW, suspend=True),
            ],
        ),
        RuntimeStep(runs("preempt-high"), [job("preempt-high", pod_template(seconds=LONG), _HIGH, suspend=True)]),
    ],
}
