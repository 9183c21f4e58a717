"""The Kueue integration of AppWrappers: their pod sets are the pod templates in the objects that they wrap.

A component of an AppWrapper declares the paths of its pod templates, or has a kind for which the paths are known. A
start writes the scheduling fields into `podSetInfos` of the components. The controller of AppWrappers adds them to the
objects that it creates.

Sources: pkg/controller/jobs/appwrapper of Kueue; pkg/utils/utils.go of AppWrapper 1.2.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import well_known
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj, parse_integer, with_path
from batchyard.api.schema import validate
from batchyard.interfaces.client import Update, Write
from batchyard.jobframework import workloads
from batchyard.jobs.described.description import POD_SETS_MAX
from batchyard.jobs.described.integration import DescribedJobIntegration, ExpressionFailed
from batchyard.scheduling.workload.adjustments import first_priority_class

Part = Mapping[str, Any]
_ANNOTATION_PREFIX: Final = "workload.codeflare.dev.appwrapper/tas-"
_POD_INDEX: Final = f"{_ANNOTATION_PREFIX}pod-index-label"
_GROUP_INDEX: Final = f"{_ANNOTATION_PREFIX}sub-group-index-label"
_GROUP_COUNT: Final = f"{_ANNOTATION_PREFIX}sub-group-count"
_PATH: Final = re.compile(r"template(\.[^.\[\]]+|\[\d{1,6}\])*")
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_COUNT_MAX: Final = 2**31 - 1
#: The fields of containers and pods that Kueue copies, with their defaults; None for fields without a default.
_CONTAINER_FIELDS: Final[Part] = {
    **dict.fromkeys(("name", "image", "command", "args", "resources", "imagePullPolicy", "securityContext")),
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}
_POD_FIELDS: Final[Part] = {
    **dict.fromkeys(("nodeSelector", "nodeName", "affinity", "tolerations", "priorityClassName", "overhead")),
    "topologySpreadConstraints": None,
    "restartPolicy": "Always",
    "dnsPolicy": "ClusterFirst",
    "securityContext": {},
    "schedulerName": "default-scheduler",
    "preemptionPolicy": "PreemptLowerPriority",
}


class ComponentPodSet(NamedTuple):
    """A pod set of a component: the path of its template in the wrapped object, the pod count, and annotations."""

    path: str
    pod_count: int
    annotations: Part


class AppWrapperIntegration(DescribedJobIntegration):
    """Kueue integration of AppWrappers: pod sets in the order of components, named after the AppWrapper."""

    def pod_class(self, job: Obj) -> str:
        """Return the first PriorityClass in the pod templates; '' if none names one, or if one is invalid."""
        try:
            return first_priority_class(template for _, _, template in self._templates(job))
        except ExpressionFailed:
            return ""

    def pod_sets(self, job: Obj) -> list[dict[str, Any]]:
        """Return the pod sets of all components. Raises ExpressionFailed if an inferred pod template is invalid."""
        templates = list(self._templates(job))
        if len(templates) > POD_SETS_MAX:
            counts_text = f"{len(templates)} pod sets, and a Workload can have {POD_SETS_MAX}"
            raise ExpressionFailed(f"spec.components of the AppWrapper: the job has {counts_text}")
        return [
            {
                "name": f"{job['metadata']['name']}-{index}".lower(),
                "template": template,
                "count": pod_set.pod_count,
                "topologyRequest": workloads.topology_request(template, **_topology_indexes(pod_set.annotations)),
            }
            for index, (_, pod_set, template) in enumerate(templates)
        ]

    def simulated_pod_sets(self, job: Obj) -> list[dict[str, Any]]:
        """Return the pod sets with the scheduling fields of `podSetInfos`, as the created objects have them."""
        infos = [info for each in _components_of(job) for info in _items(each.get("podSetInfos"))]
        pod_sets = self.pod_sets(job)
        if len(infos) != len(pod_sets):
            return pod_sets
        return [
            {**each, "template": workloads.inject_pod_set_info(each["template"], _pod_set_info(each["name"], info))}
            for each, info in zip(pod_sets, infos, strict=True)
        ]

    def template_paths(self, job: Obj) -> list[str]:
        """Return the path of the template of each pod set in the AppWrapper."""
        return [f"spec.components[{index}].{pod_set.path}" for index, pod_set, _ in self._templates(job)]

    def topology_errors(self, job: Obj) -> Iterator[FieldError]:
        """Return no errors: Kueue validates the topology annotations of AppWrappers with their Workloads."""
        return iter(())

    def started_job(self, job: Obj, injections: Sequence[workloads.PodSetInfo]) -> Obj:
        """Return the unsuspended AppWrapper with `podSetInfos` in its components.

        Raises InvalidPodSetInfo if there is not one injection for each pod set.
        """
        counts = [len(each) for each in _component_pod_sets(job)]
        if sum(counts) != len(injections):
            counts_text = f"expecting {sum(counts)} podsets, got {len(injections)}"
            raise workloads.InvalidPodSetInfo(f"invalid podset infos: {counts_text}")
        infos = iter(map(_info_fields, injections))
        components = [
            {**component, "podSetInfos": [next(infos) for _ in range(count)]}
            for component, count in zip(_components_of(job), counts, strict=True)
        ]
        started_job: Obj = with_path(job, ("spec", "components"), components)
        return _with_suspend(started_job, False)

    def stop(self, job: Obj, pod_set_infos: Sequence[workloads.PodSetInfo]) -> Write | None:
        """Return the write that suspends the AppWrapper and removes `podSetInfos`; None if already suspended."""
        if self.is_suspended(job):
            return None
        if pod_set_infos:
            components = [
                {name: value for name, value in each.items() if name != "podSetInfos"} for each in _components_of(job)
            ]
            job = with_path(job, ("spec", "components"), components)
        return Update(_with_suspend(job, True))

    def _templates(self, job: Obj) -> Iterator[tuple[int, ComponentPodSet, Part]]:
        """Yield the pod sets with the index of their component and their template, except those without a template."""
        pairs = zip(_components_of(job), _component_pod_sets(job), strict=True)
        for index, (component, pod_sets) in enumerate(pairs):
            for pod_set in pod_sets:
                template, _ = _pod_template(component.get("template"), pod_set.path)
                if template is not None:
                    yield index, pod_set, template


def _component_pod_sets(job: Obj) -> list[Sequence[ComponentPodSet]]:
    """Return the pod sets of each component: those in the status, else the declared ones, else those of its kind."""
    components = _components_of(job)
    statuses = _items(workloads.value_at(job, ("status", "componentStatus")))
    if len(statuses) == len(components):
        return [_declared_pod_sets(each) for each in statuses]
    return [_declared_pod_sets(each) if each.get("podSets") else _inferred_pod_sets(each) for each in components]


def _declared_pod_sets(component: Part) -> Sequence[ComponentPodSet]:
    return [
        ComponentPodSet(str(each.get("path", "")), _count(each.get("replicas", 1), "replicas"), _annotations_of(each))
        for each in _items(component.get("podSets"))
    ]


def _inferred_pod_sets(component: Part) -> Sequence[ComponentPodSet]:
    """Return the pod sets of a component of a known kind. Raises ExpressionFailed if one has no valid template."""
    wrapped = component.get("template")
    if not isinstance(wrapped, Mapping):
        return ()
    infer = _INFERENCES.get((str(wrapped.get("apiVersion")), str(wrapped.get("kind"))))
    pod_sets = [] if infer is None else list(infer(wrapped))
    for pod_set in pod_sets:
        _, problem = _pod_template(wrapped, pod_set.path)
        if problem:
            raise ExpressionFailed(f"{pod_set.path} does not refer to a v1.PodSpecTemplate: {problem}")
    return pod_sets


def _infer_single(path: str, replicas_path: str) -> Callable[[Part], Iterator[ComponentPodSet]]:
    def infer(wrapped: Part) -> Iterator[ComponentPodSet]:
        if _value_at(wrapped, path) is not None:
            yield ComponentPodSet(path, _replicas_at(wrapped, replicas_path), {})

    return infer


def _infer_job(wrapped: Part) -> Iterator[ComponentPodSet]:
    annotations = {_POD_INDEX: well_known.COMPLETION_INDEX}
    yield ComponentPodSet("template.spec.template", _parallel_count(wrapped, "template.spec"), annotations)


def _infer_job_set(wrapped: Part) -> Iterator[ComponentPodSet]:
    for prefix in _item_paths(wrapped, "template.spec.replicatedJobs"):
        if _value_at(wrapped, f"{prefix}.template") is None:
            continue
        replicas = _replicas_at(wrapped, f"{prefix}.replicas")
        count = replicas * _parallel_count(wrapped, f"{prefix}.template.spec")
        annotations = {_POD_INDEX: well_known.COMPLETION_INDEX, _GROUP_INDEX: well_known.JOB_INDEX}
        annotations[_GROUP_COUNT] = str(replicas)
        yield ComponentPodSet(f"{prefix}.template.spec.template", count, annotations)


def _infer_pytorch_job(wrapped: Part) -> Iterator[ComponentPodSet]:
    for replica_type in ("Master", "Worker"):
        prefix = f"template.spec.pytorchReplicaSpecs.{replica_type}"
        if _value_at(wrapped, f"{prefix}.template") is not None:
            annotations = {_POD_INDEX: "training.kubeflow.org/replica-index"}
            yield ComponentPodSet(f"{prefix}.template", _replicas_at(wrapped, f"{prefix}.replicas"), annotations)


def _infer_ray(cluster_path: str) -> Callable[[Part], Iterator[ComponentPodSet]]:
    def infer(wrapped: Part) -> Iterator[ComponentPodSet]:
        yield ComponentPodSet(f"{cluster_path}.headGroupSpec.template", 1, {})
        for prefix in _item_paths(wrapped, f"{cluster_path}.workerGroupSpecs"):
            if _value_at(wrapped, f"{prefix}.template") is not None:
                yield ComponentPodSet(f"{prefix}.template", _replicas_at(wrapped, f"{prefix}.replicas"), {})

    return infer


_INFERENCES: Final[Mapping[tuple[str, str], Callable[[Part], Iterator[ComponentPodSet]]]] = {
    ("v1", "Pod"): _infer_single("template", ""),
    ("apps/v1", "Deployment"): _infer_single("template.spec.template", "template.spec.replicas"),
    ("apps/v1", "StatefulSet"): _infer_single("template.spec.template", "template.spec.replicas"),
    ("batch/v1", "Job"): _infer_job,
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): _infer_job_set,
    ("kubeflow.org/v1", "PyTorchJob"): _infer_pytorch_job,
    ("ray.io/v1", "RayCluster"): _infer_ray("template.spec"),
    ("ray.io/v1", "RayJob"): _infer_ray("template.spec.rayClusterSpec"),
}


def _pod_template(wrapped: Any, path: str) -> tuple[dict[str, Any] | None, str]:
    """Return the pod template at a path with the fields that Kueue copies, or None and the problem."""
    value = _value_at(wrapped, path)
    if not isinstance(value, Mapping):
        return None, f"at path position '{path}' non-map value"
    spec, metadata = value.get("spec"), value.get("metadata") or {}
    if not isinstance(spec, Mapping) or not isinstance(metadata, Mapping):
        return None, f"content at {path} does not contain a spec"
    if errors := validate("PodTemplateSpec", {"spec": spec}):
        return None, f"content at {path}.spec not parseable as a v1.PodSpec: {errors[0]}"
    pod_spec = _copied_fields(spec, _POD_FIELDS)
    for field in ("containers", "initContainers"):
        if spec.get(field):
            pod_spec[field] = [_copied_fields(each, _CONTAINER_FIELDS) for each in spec[field]]
    if "terminationGracePeriodSeconds" not in spec:
        pod_spec["terminationGracePeriodSeconds"] = 30
    names = ("labels", "annotations")
    copied_metadata = {name: _strings_of(metadata[name]) for name in names if isinstance(metadata.get(name), Mapping)}
    return {**({"metadata": copied_metadata} if copied_metadata else {}), "spec": pod_spec}, ""


def _copied_fields(value: Part, fields: Part) -> dict[str, Any]:
    copied = {name: value.get(name, default) for name, default in fields.items()}
    return {name: field for name, field in copied.items() if field is not None}


def _strings_of(value: Part) -> dict[str, str]:
    return {name: text for name, text in value.items() if isinstance(text, str)}


def _value_at(wrapped: Any, path: str) -> Any:
    """Return the value at a path such as `template.spec.jobs[0]`; None if the path is invalid or has no value."""
    if len(path) > 1024 or not _PATH.fullmatch(path):
        return None
    value = wrapped
    for field, index in _STEP.findall(path):
        if field:
            value = value.get(field) if isinstance(value, Mapping) else None
        else:
            value = value[int(index)] if isinstance(value, list) and int(index) < len(value) else None
    return value


def _item_paths(wrapped: Part, path: str) -> list[str]:
    value = _value_at(wrapped, path)
    return [f"{path}[{index}]" for index in range(len(value))] if isinstance(value, list) else []


def _replicas_at(wrapped: Part, path: str) -> int:
    value = _value_at(wrapped, path) if path else None
    return 1 if value is None else _count(value, path)


def _parallel_count(wrapped: Part, path: str) -> int:
    parallelism, completions = (_value_at(wrapped, f"{path}.{name}") for name in ("parallelism", "completions"))
    count = 1 if parallelism is None else _count(parallelism, f"{path}.parallelism")
    return count if completions is None else min(count, _count(completions, f"{path}.completions"))


def _count(value: Any, path: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _COUNT_MAX:
        raise ExpressionFailed(f"at path position '{path}' non-int value {value!r:.100}")
    return value


def _topology_indexes(annotations: Part) -> dict[str, Any]:
    indexes: dict[str, Any] = {}
    if _POD_INDEX in annotations:
        indexes["podIndexLabel"] = annotations[_POD_INDEX]
    if _GROUP_INDEX in annotations:
        indexes["subGroupIndexLabel"] = annotations[_GROUP_INDEX]
    count = parse_integer(str(annotations.get(_GROUP_COUNT, "")), bits=32)
    return indexes if count is None else {**indexes, "subGroupCount": count}


def _info_fields(info: workloads.PodSetInfo) -> dict[str, Any]:
    fields = {
        "annotations": dict(info.annotations),
        "labels": dict(info.labels),
        "nodeSelector": dict(info.node_selector),
        "tolerations": list(info.tolerations),
        "schedulingGates": list(info.scheduling_gates),
    }
    return {name: value for name, value in fields.items() if value}


def _pod_set_info(name: str, fields: Part) -> workloads.PodSetInfo:
    return workloads.PodSetInfo(
        name,
        0,
        labels=fields.get("labels") or {},
        annotations=fields.get("annotations") or {},
        node_selector=fields.get("nodeSelector") or {},
        tolerations=fields.get("tolerations") or (),
        scheduling_gates=fields.get("schedulingGates") or (),
    )


def _with_suspend(job: Obj, value: bool) -> Obj:
    changed_job: Obj = with_path(job, workloads.SUSPEND_PATH, value)
    return changed_job


def _components_of(job: Obj) -> list[Part]:
    return _items(workloads.value_at(job, ("spec", "components")))


def _annotations_of(pod_set: Part) -> Part:
    annotations = pod_set.get("annotations")
    return annotations if isinstance(annotations, Mapping) else {}


def _items(value: Any) -> list[Part]:
    """Return the objects of a list; [] if the value is not a list."""
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
