"""Labels and annotations that say how work is queued, at places where nobody reads them.

Sources: Kueue's reference of labels and annotations, and its pkg/controller/jobframework (QueueName,
WorkloadPriorityClassName), which read the labels of the job itself.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.schema.nearest import nearest
from batchyard.core.lint.configuration import Configuration
from batchyard.core.lint.findings import Found, Severity
from batchyard.core.lint.works import Work

_PREFIX: Final = "kueue.x-k8s.io/"
#: All that Kueue reads or writes on jobs, pods and Workloads, without the prefix.
_KEYS: Final = (
    "admission-gated-by",
    "cluster-queue-name",
    "component-workload-index",
    "concurrent-admission-parent",
    "elastic-job",
    "is-group-workload",
    "job-completions-equal-parallelism",
    "job-min-parallelism",
    "job-owner-gvk",
    "job-owner-name",
    "job-uid",
    "local-queue-name",
    "managed",
    "max-exec-time-seconds",
    "multikueue-origin",
    "multikueue-origin-uid",
    "pod-group-fast-admission",
    "pod-group-name",
    "pod-group-pod-index",
    "pod-group-pod-index-label",
    "pod-group-serving",
    "pod-group-total-count",
    "pod-index-offset",
    "pod-suspending-parent",
    "podset",
    "podset-group-name",
    "podset-preferred-topology",
    "podset-required-topology",
    "podset-slice-required-topology",
    "podset-slice-required-topology-constraints",
    "podset-slice-size",
    "podset-unconstrained-topology",
    "prebuilt-workload-name",
    "priority-boost",
    "priority-class",
    "queue-name",
    "retriable-in-group",
    "role-hash",
    "safe-to-forcefully-delete",
    "stopping",
    "workload",
    "workload-slice-name",
    "workload-slice-replacement-for",
)
_ON_JOBS: Final = (well_known.PRIORITY_CLASS, well_known.MAX_EXEC_TIME)


def queue_name_not_a_label(config: Configuration) -> Iterator[Found]:
    """A queue that is named where nobody looks: as an annotation, or in a pod template."""
    for work in config.works:
        if work.is_job and not work.queue:
            for path, name in _elsewhere(work, well_known.QUEUE_NAME):
                problem = f"the queue {name} is named here, where it is not read: {_unmanaged(work)}"
                fix = f"set the label {well_known.QUEUE_NAME}: {name} in metadata.labels of the {work.obj['kind']}"
                yield Found(work.manifest, path, problem, fix, [(work.manifest, _moved(well_known.QUEUE_NAME, name))])


def misplaced_label(config: Configuration) -> Iterator[Found]:
    """A priority or a time limit that is given where nobody looks."""
    for work in config.works:
        for key in _ON_JOBS if work.is_job else ():
            if key in (work.obj["metadata"].get("labels") or {}):
                continue
            for path, value in _elsewhere(work, key):
                lost = (
                    "the class of the pods counts, or none" if key == well_known.PRIORITY_CLASS else "nothing ends it"
                )
                problem = f"{key}: {value} is not read here: {lost}"
                fix = f"set it in metadata.labels of the {work.obj['kind']}"
                yield Found(work.manifest, path, problem, fix, [(work.manifest, _moved(key, value))])


def unknown_kueue_key(config: Configuration) -> Iterator[Found]:
    """Keys of Kueue that Kueue does not have."""
    for work in config.works:
        for path, keys in _places(work):
            for key in keys:
                if key.startswith(_PREFIX) and key.removeprefix(_PREFIX) not in _KEYS:
                    close = nearest(key.removeprefix(_PREFIX), _KEYS)
                    fix = f"did you mean {_PREFIX}{close}?" if close else "leave it out"
                    yield Found(work.manifest, f"{path}[{key}]", f"Kueue has no key {key}: it does nothing", fix)


def job_without_queue(config: Configuration) -> Iterator[Found]:
    """Jobs that name no queue, where others queue."""
    for work in config.works:
        if not work.is_job or work.queue or any(_elsewhere(work, well_known.QUEUE_NAME)):
            continue
        there = sorted(config.local_queues_in(work.namespace))
        if not there or "default" in there:
            continue
        fix = f"set the label {well_known.QUEUE_NAME} in metadata.labels to one of {', '.join(there)}"
        is_stuck = work.obj["spec"].get("suspend") is True
        severity = Severity.ERROR if is_stuck else Severity.WARNING
        yield Found(work.manifest, "metadata.labels", f"it names no queue: {_unmanaged(work)}", fix, severity=severity)


def namespace_without_queue(config: Configuration) -> Iterator[Found]:
    """Namespaces that a queue is meant for, without a LocalQueue in them."""
    for manifest in config.last(scheme.NAMESPACE):
        name = manifest.obj["metadata"]["name"]
        works = [work for work in config.works if work.namespace == name]
        if works and config.knows(scheme.LOCAL_QUEUE) and not config.local_queues_in(name):
            problem = f"namespace {name} has no LocalQueue: its {len(works)} jobs run beside all quota, or never"
            fix = "make a LocalQueue there that names the ClusterQueue"
            yield Found(manifest, "metadata.name", problem, fix)


def not_suspended(config: Configuration) -> Iterator[Found]:
    """Jobs that say they run at once, though a queue decides that."""
    for work in config.works:
        if work.queue and work.obj["kind"] == "JobSet" and work.obj["spec"].get("suspend") is False:
            problem = "it says suspend: false, and has a queue, which suspends it until it is admitted"
            fix = "write suspend: true, or leave the field out where no webhook of Kueue can be missing"
            patches = [(work.manifest, {"spec": {"suspend": True}})]
            yield Found(work.manifest, "spec.suspend", problem, fix, patches)


def _unmanaged(work: Work) -> str:
    if work.obj["spec"].get("suspend") is True:
        return "no queue manages it, and it stays suspended for ever"
    return "no queue manages it, and its pods start at once, beside all quota"


def _moved(key: str, value: str) -> Mapping[str, object]:
    return {"metadata": {"labels": {key: value}}}


def _elsewhere(work: Work, key: str) -> Iterator[tuple[str, str]]:
    """Where a key is that belongs into the labels of the job: path and value."""
    for path, mapping in _places(work):
        if path != "metadata.labels" and key in mapping:
            yield f"{path}[{key}]", mapping[key]


def _places(work: Work) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Labels and annotations of the job, of its Jobs if it is a JobSet, and of its pods."""
    yield from _of_metadata("metadata", work.obj["metadata"])
    for index, replicated in enumerate(work.obj["spec"].get("replicatedJobs") or ()):
        metadata = replicated["template"].get("metadata") or {}
        yield from _of_metadata(f"spec.replicatedJobs[{index}].template.metadata", metadata)
    for path, template in zip(work.paths, work.templates, strict=True):
        yield from _of_metadata(f"{path}.metadata", template.get("metadata") or {})


def _of_metadata(path: str, metadata: Mapping[str, object]) -> Iterator[tuple[str, Mapping[str, str]]]:
    for field in ("labels", "annotations"):
        found = metadata.get(field)
        if isinstance(found, Mapping):
            yield f"{path}.{field}", found
