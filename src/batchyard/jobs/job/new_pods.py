"""New pods of a Job, from its template.

Sources: Kubernetes's pkg/controller/job (manageJob, indexed_job_utils.go) and pkg/controller (GetPodFromTemplate).
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Final

from batchyard.api import well_known
from batchyard.api.meta import Obj, controller_reference
from batchyard.base.ids import uid_for
from batchyard.base.instant import Instant
from batchyard.client.object_updates import generated_name
from batchyard.jobs.job.observed import NO_INDEX
from batchyard.jobs.job.parallelism import NewPod
from batchyard.jobs.job.spec import with_selector

_INDEX_ENV: Final = "JOB_COMPLETION_INDEX"
_INDEX_FIELD: Final = {
    "name": _INDEX_ENV,
    "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{well_known.COMPLETION_INDEX}']"}},
}
#: The maximum length of `generateName`, so that a whole name fits into a label.
_PREFIX_MAX: Final = 58


def new_pods(job: Obj, wanted: Sequence[NewPod], taken: Iterable[str], came: int, now: Instant) -> list[Obj]:
    """Build the pods to create, with names not in `taken`. `came` is the number of pods that the Job has had so far.

    Each has a full name besides its `generateName` prefix, so that the Event of its creation can contain the name.
    """
    if not wanted:
        return []
    template = _template(job, indexed=any(pod.index != NO_INDEX for pod in wanted))
    names = dict.fromkeys(taken)
    pods: list[Obj] = []
    for number, pod in enumerate(wanted, came):
        prefix = _name_prefix(job["metadata"]["name"], pod.index)
        name = _free_name(prefix, names, (job["metadata"]["uid"], str(now), str(number)))
        names[name] = None
        named = {**template["metadata"], "generateName": prefix, "name": name}
        pods.append({**template, "metadata": named} if pod.index == NO_INDEX else _indexed(template, named, pod, job))
    return pods


def _template(job: Obj, *, indexed: bool) -> dict[str, Any]:
    """Return the common part of all these pods."""
    template = with_selector(job)["spec"]["template"]
    metadata, spec = template.get("metadata") or {}, template["spec"]
    finalizers = [*(metadata.get("finalizers") or ()), well_known.JOB_TRACKING]
    common = {field: metadata[field] for field in ("labels", "annotations") if metadata.get(field)}
    common |= {"finalizers": list(dict.fromkeys(finalizers)), "ownerReferences": [controller_reference(job)]}
    if job["metadata"].get("namespace"):
        common["namespace"] = job["metadata"]["namespace"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": common, "spec": _with_index_env(spec) if indexed else spec}


def _with_index_env(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a pod spec whose containers get their index as an environment variable."""
    changed = {f: [_with_index_variable(c) for c in spec[f]] for f in ("initContainers", "containers") if spec.get(f)}
    return {**spec, **changed}


def _with_index_variable(container: Mapping[str, Any]) -> Mapping[str, Any]:
    env = container.get("env") or []
    return container if any(e["name"] == _INDEX_ENV for e in env) else {**container, "env": [*env, _INDEX_FIELD]}


def _name_prefix(job: str, index: int) -> str:
    """Return the name prefix of a pod; a long Job name is truncated to keep the index."""
    if index == NO_INDEX:
        return f"{job}-"
    end = f"-{index}-"
    return job[: _PREFIX_MAX - len(end)] + end


def _free_name(prefix: str, taken: Mapping[str, None], seed: Sequence[str]) -> str:
    """Return a name with a five-letter suffix derived from the seed; the next one if it is taken."""
    for attempt in count():
        name = generated_name(prefix, uid_for(0, *seed, prefix, str(attempt)))
        if name not in taken:
            break
    return name


def _indexed(template: Mapping[str, Any], metadata: dict[str, Any], pod: NewPod, job: Obj) -> dict[str, Any]:
    """Return the pod of an index."""
    index = {well_known.COMPLETION_INDEX: str(pod.index)}
    noted = dict(index)
    if pod.failures is not None:
        noted[well_known.INDEX_FAILURES] = str(pod.failures)
    if pod.ignored:
        noted[well_known.INDEX_IGNORED_FAILURES] = str(pod.ignored)
    metadata["labels"] = {**metadata.get("labels", {}), **index}
    metadata["annotations"] = {**metadata.get("annotations", {}), **noted}
    hostname = f"{job['metadata']['name']}-{pod.index}"
    return {**template, "metadata": metadata, "spec": {**template["spec"], "hostname": hostname}}
