"""The Kueue integration of TrainJobs: their pod sets are those of the JobSet that Kubeflow Trainer creates for them.

The JobSet is the template of the TrainJob's (Cluster)TrainingRuntime with the TrainJob's runtimePatches, nodes,
resources, and containers. Kueue's scheduling fields are one of the patches. A start first writes this patch, and then
unsuspends the TrainJob, because Trainer rejects changes of the patches of a running TrainJob.

Sources: pkg/controller/jobs/trainjob of Kueue; pkg/runtime/core/trainingruntime.go and pkg/runtime/framework/plugins
of Kubeflow Trainer 2.3.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.errors import FieldError
from batchyard.api.meta import Key, Obj, with_path
from batchyard.api.schema import validate
from batchyard.api.validation import topology
from batchyard.apiserver.patch import apply_strategic_merge_patch, merge_schema_of_kind
from batchyard.apiserver.request import StatusError
from batchyard.interfaces.client import Update, Write
from batchyard.jobframework import workloads
from batchyard.jobs.described.integration import DescribedJobIntegration, ExpressionFailed
from batchyard.jobs.jobset.integration import JobSetIntegration

#: The owner of Kueue's patch in `spec.runtimePatches`.
PATCH_MANAGER: Final = "kueue.x-k8s.io/manager"
_ANCESTOR_LABEL: Final = "trainer.kubeflow.org/trainjob-ancestor-step"
_TRAINER: Final = "trainer"
#: The name of the container that trains, and of the replicated job of MPI's nodes.
_NODE: Final = "node"
#: The field of `spec.initializer` by the ancestor label and container of its replicated job.
_INITIALIZERS: Final = {"dataset-initializer": "dataset", "model-initializer": "model"}
_STORAGE_URI: Final = "STORAGE_URI"
_NODES_MAX: Final = 2**31 - 1
_JOB_SETS: Final = JobSetIntegration()
_REMEDY: Final = (
    '. Adjust either the "TrainJob.spec.runtimePatches" or the "TrainingRuntime.Template" annotations for the '
    "corresponding Job"
)
Part = Mapping[str, Any]


class TrainJobIntegration(DescribedJobIntegration):
    """Kueue integration of TrainJobs, which reads the runtimes of the TrainJobs."""

    referenced_kinds: Sequence[str] = tuple(scheme.REFERENCED_KINDS)
    starts_in_steps = True

    def prepared_job(self, job: Obj) -> Obj:
        """Return a new TrainJob with an empty patch for Kueue's scheduling fields."""
        patches = list((job.get("spec") or {}).get("runtimePatches") or ())
        if _kueue_patch_of(job) is not None:
            return job
        patch = {"manager": PATCH_MANAGER, "trainingRuntimeSpec": {"template": {"spec": {}}}}
        prepared_job: Obj = with_path(job, ("spec", "runtimePatches"), [*patches, patch])
        return prepared_job

    def pods_ready(self, job: Obj) -> bool:
        """Return whether all jobs of the TrainJob are ready or have succeeded."""
        try:
            return _JOB_SETS.pods_ready(self._job_set(job))
        except ExpressionFailed:
            return False

    def pod_class(self, job: Obj) -> str:
        """Return the first PriorityClass in the pod templates of the JobSet; '' if the runtime is missing."""
        try:
            return _JOB_SETS.pod_class(self._job_set(job))
        except ExpressionFailed:
            return ""

    def pod_sets(self, job: Obj) -> list[dict[str, Any]]:
        """Return the pod sets of the JobSet. Raises ExpressionFailed if the runtime is missing or invalid."""
        return _JOB_SETS.pod_sets(self._job_set(job))

    def template_paths(self, job: Obj) -> list[str]:
        """Return the name of each job of the JobSet, which errors show instead of a path in the TrainJob."""
        return [f"job[{each['name']}]" for each in self._job_set(job)["spec"]["replicatedJobs"]]

    def reclaimable_pods(self, job: Obj) -> list[dict[str, Any]]:
        """Return the numbers of pods of succeeded jobs, by pod set."""
        has_status = bool((job.get("status") or {}).get("jobsStatus"))
        return _JOB_SETS.reclaimable_pods(self._job_set(job)) if has_status else []

    def started_job(self, job: Obj, injections: Sequence[workloads.PodSetInfo]) -> Obj:
        """Return the TrainJob after the next step of its start: the patch with scheduling fields, then unsuspended.

        Raises InvalidPodSetInfo if there is not one injection for each pod set, and ExpressionFailed without a patch.
        """
        replicated_jobs = self._job_set(job, with_own_patch=False)["spec"]["replicatedJobs"]
        if len(injections) != len(replicated_jobs):
            counts_text = f"expecting {len(replicated_jobs)} podset, got {len(injections)}"
            raise workloads.InvalidPodSetInfo(f"invalid podset infos: {counts_text}")
        patch = _kueue_patch_of(job)
        if patch is None:
            raise ExpressionFailed("kueue runtime patch not found")
        job_patches = [_job_patch(info, each) for info, each in zip(injections, replicated_jobs, strict=True)]
        if _job_patches_of(patch) == job_patches:
            started_job: Obj = with_path(job, self.suspend_path, False)
            return started_job
        return _with_job_patches(job, job_patches)

    def stop(self, job: Obj, pod_set_infos: Sequence[workloads.PodSetInfo]) -> Write | None:
        """Return the next write of a stop: the suspension, and once no job is active, an empty patch; else None."""
        if not self.is_suspended(job):
            return Update(with_path(job, self.suspend_path, True))
        patch = _kueue_patch_of(job)
        if patch is None or not _job_patches_of(patch) or self.is_active(job):
            return None
        return Update(_with_job_patches(job, None))

    def topology_errors(self, job: Obj) -> Iterator[FieldError]:
        """Yield the errors of topology annotations in the JobSet, or the reason for which it cannot be computed."""
        try:
            pod_sets, paths = self.pod_sets(job), self.template_paths(job)
        except ExpressionFailed as error:
            yield FieldError("", str(error), "create the runtime first, or correct the TrainJob")
            return
        for pod_set, path in zip(pod_sets, paths, strict=True):
            annotations = (pod_set["template"].get("metadata") or {}).get("annotations") or {}
            for fault in topology.topology_request_errors(annotations, f"{path}.annotations", pod_set["count"]):
                yield fault._replace(problem=f"{fault.problem}{_REMEDY}")

    def simulated_status(self, state: str, job: Obj) -> Mapping[str, Any] | None:
        """Return the status of a TrainJob in a simulation, with one entry for each job of the JobSet."""
        status = super().simulated_status(state, job)
        if status is None or "jobsStatus" not in status:
            return status
        (example,) = status["jobsStatus"]
        replicated_jobs = self._job_set(job)["spec"]["replicatedJobs"]
        return {**status, "jobsStatus": [_simulated_job_status(each, example) for each in replicated_jobs]}

    def _job_set(self, job: Obj, *, with_own_patch: bool = True) -> Obj:
        """Return the JobSet, with the jobs' states of the TrainJob. Raises ExpressionFailed on an invalid runtime."""
        runtime = self._runtime_spec(job)
        replicated_jobs = _items(workloads.value_at(runtime, ("template", "spec", "replicatedJobs")))
        for patch in _items(workloads.value_at(job, ("spec", "runtimePatches"))):
            if with_own_patch or patch.get("manager") != PATCH_MANAGER:
                replicated_jobs = _patched_jobs(replicated_jobs, _job_patches_of(patch))
        builder = _JobSetBuilder(job, runtime)
        status = {"replicatedJobsStatus": _items(workloads.value_at(job, ("status", "jobsStatus")))}
        spec = {"replicatedJobs": [builder.replicated_job(each) for each in replicated_jobs]}
        return {"metadata": job["metadata"], "spec": spec, "status": status}

    def _runtime_spec(self, job: Obj) -> Part:
        reference = workloads.value_at(job, ("spec", "runtimeRef")) or {}
        kind = f"{reference.get('kind', 'ClusterTrainingRuntime')}.{reference.get('apiGroup', 'trainer.kubeflow.org')}"
        info = scheme.REFERENCED_KINDS.get(kind)
        if info is None:
            raise ExpressionFailed(f"unsupported runtime: {kind}")
        namespace = job["metadata"].get("namespace", "") if info.namespaced else ""
        runtime = self.find_object(Key(kind, namespace, str(reference.get("name", ""))))
        if runtime is None:
            raise ExpressionFailed(f"runtime '{reference.get('name', '')}' not found")
        spec: Part = runtime.get("spec") or {}
        return spec


class _JobSetBuilder:
    """Completes the replicated jobs of a runtime with the fields of a TrainJob."""

    def __init__(self, job: Obj, runtime: Part) -> None:
        self._trainer: Part = workloads.value_at(job, ("spec", "trainer")) or {}
        self._initializer: Part = workloads.value_at(job, ("spec", "initializer")) or {}
        self._policy: Part | None = runtime.get("mlPolicy")
        self._has_mpi = isinstance(workloads.value_at(runtime, ("mlPolicy", "mpi")), Mapping)
        self._runs_launcher_as_node = workloads.is_set(runtime, ("mlPolicy", "mpi", "runLauncherAsNode"))

    def replicated_job(self, replicated_job: Part) -> dict[str, Any]:
        """Return a replicated job as in the JobSet. Raises ExpressionFailed if its template is invalid."""
        name, template = replicated_job.get("name"), replicated_job.get("template")
        if not isinstance(name, str) or not isinstance(template, Mapping):
            raise ExpressionFailed("a replicated job of the runtime has no name or template")
        if errors := validate("JobTemplateSpec", template):
            raise ExpressionFailed(f"the template of job {name} of the runtime is invalid: {errors[0]}")
        ancestor = ((template.get("metadata") or {}).get("labels") or {}).get(_ANCESTOR_LABEL, "")
        count = self._count(name, ancestor, template["spec"])
        template = with_path(template, ("spec", "parallelism"), count)
        template = with_path(template, ("spec", "completions"), count)
        path = ("spec", "template", "spec", "containers")
        containers = _items(workloads.value_at(template, path))
        template = with_path(template, path, [self._container(each, name, ancestor) for each in containers])
        is_single = ancestor == _TRAINER or ancestor in _INITIALIZERS
        replicas = 1 if is_single else _whole_number(replicated_job.get("replicas", 1), f"replicas of {name}")
        return {**replicated_job, "template": template, "replicas": replicas}

    def _count(self, name: str, ancestor: str, job_spec: Part) -> int:
        count = job_spec.get("parallelism", 1)
        if ancestor == _TRAINER and self._policy is not None:
            count = self._policy.get("numNodes", 1)
        nodes = self._trainer.get("numNodes")
        if nodes is not None and (name == _NODE if self._has_mpi else ancestor == _TRAINER):
            nodes = _whole_number(nodes, "spec.trainer.numNodes")
            return max(nodes - 1, 1) if self._runs_launcher_as_node else nodes
        return max(_whole_number(count, f"the number of pods of {name}"), 1)

    def _container(self, container: Part, job_name: str, ancestor: str) -> Part:
        is_node = container.get("name") == _NODE
        is_mpi_node = self._runs_launcher_as_node and job_name == _NODE
        if is_node and (ancestor == _TRAINER or is_mpi_node):
            if self._policy is not None and self._trainer.get("resourcesPerNode"):
                container = {**container, "resources": self._resources(container.get("resources") or {})}
            if ancestor == _TRAINER:
                fields = ("image", "command", "args")
                container = {**container, **{each: self._trainer[each] for each in fields if each in self._trainer}}
            return _with_env(container, _items(self._trainer.get("env")))
        initializer = self._initializer.get(_INITIALIZERS.get(ancestor, ""))
        if container.get("name") == ancestor and isinstance(initializer, Mapping):
            return _initializer_container(container, initializer)
        return container

    def _resources(self, resources: Part) -> dict[str, Any]:
        overrides: Part = self._trainer["resourcesPerNode"]
        merged = {**resources}
        for field in ("limits", "requests"):
            if overrides.get(field):
                merged[field] = {**(resources.get(field) or {}), **overrides[field]}
        if overrides.get("claims"):
            claims = {each.get("name"): each for each in _items(resources.get("claims"))}
            merged["claims"] = list((claims | {e.get("name"): e for e in _items(overrides["claims"])}).values())
        return merged


def _initializer_container(container: Part, initializer: Part) -> Part:
    uri = initializer.get("storageUri")
    variables = [{"name": _STORAGE_URI, "value": uri}] if uri is not None else []
    container = _with_env(container, [*variables, *_items(initializer.get("env"))])
    secret = initializer.get("secretRef")
    if not isinstance(secret, Mapping):
        return container
    sources = [*_items(container.get("envFrom")), {"secretRef": {"name": secret.get("name", "")}}]
    return {**container, "envFrom": sources}


def _with_env(container: Part, variables: Sequence[Part]) -> Part:
    if not variables:
        return container
    merged = {each.get("name"): each for each in _items(container.get("env"))}
    merged |= {each.get("name"): each for each in variables}
    return {**container, "env": list(merged.values())}


def _patched_jobs(replicated_jobs: Sequence[Part], patches: Sequence[Part]) -> list[Part]:
    """Return replicated jobs after strategic merge patches of jobs with their names; others are added first."""
    schema = merge_schema_of_kind(scheme.kind_info(scheme.JOB), "v1")
    jobs = {each.get("name"): each for each in replicated_jobs}
    added: list[Part] = []
    for patch in patches:
        name = patch.get("name")
        old: Part = jobs.get(name) or {}
        template = patch.get("template")
        merged: Part = {**old, "name": name}
        if isinstance(template, Mapping):
            try:
                new_template = apply_strategic_merge_patch(old.get("template") or {}, template, schema)
                merged = {**merged, "template": new_template}
            except StatusError as error:
                raise ExpressionFailed(f"spec.runtimePatches of job {name} is invalid: {error}") from error
        if name in jobs:
            jobs[name] = merged
        else:
            added.append(merged)
    return [*added, *jobs.values()]


def _job_patch(info: workloads.PodSetInfo, replicated_job: Part) -> dict[str, Any]:
    """Return the patch of a job with the scheduling fields of its pod set; it keeps the tolerations of the runtime."""
    pod_spec = workloads.value_at(replicated_job, ("template", "spec", "template", "spec")) or {}
    old_tolerations = _items(pod_spec.get("tolerations")) if info.tolerations else []
    tolerations = [*old_tolerations, *(each for each in info.tolerations if each not in old_tolerations)]
    metadata = {"annotations": dict(info.annotations), "labels": dict(info.labels)}
    spec = {
        "nodeSelector": dict(info.node_selector),
        "tolerations": tolerations,
        "schedulingGates": list(info.scheduling_gates),
    }
    template = {
        "metadata": {name: value for name, value in metadata.items() if value},
        "spec": {name: value for name, value in spec.items() if value},
    }
    return {"name": info.name, "template": {"spec": {"template": template}}}


def _kueue_patch_of(job: Obj) -> Part | None:
    patches = _items(workloads.value_at(job, ("spec", "runtimePatches")))
    return next((each for each in patches if each.get("manager") == PATCH_MANAGER), None)


def _job_patches_of(patch: Part) -> list[Part]:
    return _items(workloads.value_at(patch, ("trainingRuntimeSpec", "template", "spec", "replicatedJobs")))


def _with_job_patches(job: Obj, job_patches: Sequence[Part] | None) -> Obj:
    path = ("trainingRuntimeSpec", "template", "spec", "replicatedJobs")
    patches = [
        with_path(each, path, job_patches) if each.get("manager") == PATCH_MANAGER else each
        for each in _items(workloads.value_at(job, ("spec", "runtimePatches")))
    ]
    changed_job: Obj = with_path(job, ("spec", "runtimePatches"), patches)
    return changed_job


def _simulated_job_status(replicated_job: Part, example: Part) -> dict[str, Any]:
    replicas = replicated_job["replicas"]
    counts = {field: replicas for field in example if field != "name"}
    return {"name": replicated_job["name"], **counts}


def _items(value: Any) -> list[Part]:
    """Return the objects of a list; [] if the value is not a list."""
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _whole_number(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _NODES_MAX:
        raise ExpressionFailed(f"{name} must be a whole number from 0 to {_NODES_MAX}, not {value!r:.100}")
    return value
