"""Jobs and their pods, by keyword."""

from collections.abc import Mapping, Sequence
from typing import Any

import make
from batchyard.api import well_known
from batchyard.base.instant import Instant
from batchyard.jobs.job.spec import ObservedJob, job_pod, observe_job

Obj = dict[str, Any]


def job(
    *,
    status: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    restart: str = "Never",
    **spec: Any,
) -> Obj:
    """A running Job of one pod (three if Indexed); other keywords are fields of its spec."""
    count = 3 if spec.get("completionMode") == "Indexed" else 1
    template = make.pod_template(restartPolicy=restart)
    given = {"suspend": False, "parallelism": count, "completions": count, "template": template, **spec}
    obj = make.job(queue=None, **{name: value for name, value in given.items() if value is not None})
    obj["spec"] = {name: value for name, value in obj["spec"].items() if given.get(name) is not None}
    obj["metadata"] |= metadata or {}
    return {**obj, "status": dict(status)} if status is not None else obj


def indexed(**spec: Any) -> Obj:
    """An Indexed Job of three pods."""
    return job(completionMode="Indexed", **spec)


def per_index(limit: int = 1, **spec: Any) -> Obj:
    """An Indexed Job of three pods with a backoff limit per index."""
    return indexed(backoffLimitPerIndex=limit, backoffLimit=2**31 - 1, **spec)


def pod(
    name: str = "p",
    phase: str = "Pending",
    *,
    index: int | None = None,
    tracked: bool = True,
    ready: bool = False,
    since: float = 0,
    **more: Any,
) -> Obj:
    """A pod of the Job. `since` is its ready or end time; more: exit_code, deleted, conditions, node, notes."""
    notes = dict(more.get("notes") or {})
    if index is not None:
        notes[well_known.COMPLETION_INDEX] = str(index)
    metadata = make.metadata(name, annotations=notes or None)
    if tracked:
        metadata["finalizers"] = [well_known.JOB_TRACKING]
    if more.get("deleted"):
        metadata |= {"deletionTimestamp": make.stamp(since + 30), "deletionGracePeriodSeconds": 30}
    conditions = [make.condition("Ready", ready, since=since), *more.get("conditions", ())]
    status: Obj = {"phase": phase, "conditions": conditions}
    if "exit_code" in more:
        status["containerStatuses"] = [terminated_status("c", more["exit_code"], since)]
    spec = {"nodeName": more["node"]} if more.get("node") else {}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def terminated_status(container: str, exit_code: int, since: float = 0) -> Obj:
    """The status of a terminated container."""
    return {"name": container, "state": {"terminated": {"exitCode": exit_code, "finishedAt": make.stamp(since)}}}


def observed_job(job: Obj, *pods: Obj) -> ObservedJob:
    """The Job observed with these pods."""
    return observe_job(job, list(map(job_pod, pods)))


def seconds(instant: Instant | None) -> float | None:
    """An instant in seconds after the start."""
    return None if instant is None else (instant - make.NOW) / 1_000_000


def uids(pods: Sequence[Any]) -> list[str]:
    """The uids of the views of pods."""
    return [pod.uid for pod in pods]
