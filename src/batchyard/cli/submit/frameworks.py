"""Submitted commands that run as PyTorchJobs, MPIJobs and RayJobs, as arrays, or after other jobs."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, TypeAlias

import typer

from batchyard.api import job_dependencies, well_known
from batchyard.api.meta import Obj
from batchyard.api.scheme import DESCRIBED_KINDS, JOB, ServedKind, kind_info
from batchyard.cli.submit.manifests import JobRequest, job_manifest

_SHAPE: Final = re.compile(r"([1-9]\d{0,3})(?:x(\d{1,3}))?")
_ARRAY: Final = re.compile(r"([1-9]\d{0,4})(?:%([1-9]\d{0,4}))?")

PyTorch: TypeAlias = Annotated[
    str, typer.Option("--pytorch", metavar="PODS[xGPUS]", help="Run a PyTorchJob: 2x4 is 2 pods with 4 GPUs each.")
]
Mpi: TypeAlias = Annotated[
    str, typer.Option("--mpi", metavar="PODS[xGPUS]", help="Run an MPIJob: a launcher with the command, and workers.")
]
Ray: TypeAlias = Annotated[
    str, typer.Option("--ray", metavar="PODS[xGPUS]", help="Run a RayJob: the command on a Ray cluster of workers.")
]
Array: TypeAlias = Annotated[
    str, typer.Option(metavar="N[%M]", help="Run the command N times, M at once; a failed one does not stop the rest.")
]
PartialStart: TypeAlias = Annotated[
    bool, typer.Option("--partial-start", help="Start the tasks of an array that fit in the quota, the others later.")
]
After: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="ok|any|notok:JOB", help="Start after another job succeeds, ends or fails; repeatable."),
]


@dataclass(frozen=True, slots=True)
class JobFramework:
    """A kind of jobs that another controller runs: its kind, the default image, and how to install the kind."""

    kind: str
    controller: str
    #: An image that contains the programs of the framework, as an example.
    image: str = ""

    @property
    def served_kind(self) -> ServedKind:
        """The served kind, with its version and plural name."""
        return DESCRIBED_KINDS[self.kind]


#: What `batchyard up` offers instead of an installation.
_OWN_CONTROLLERS: Final = "with `batchyard up`, add --job-controllers"
FRAMEWORKS: Final[Mapping[str, JobFramework]] = {
    "pytorch": JobFramework(
        "PyTorchJob.kubeflow.org", f"the training operator of Kubeflow ({_OWN_CONTROLLERS} kubeflow)"
    ),
    "mpi": JobFramework("MPIJob.kubeflow.org", "the MPI operator of Kubeflow", "mpioperator/openmpi:v0.6.0"),
    "ray": JobFramework("RayJob.ray.io", f"KubeRay ({_OWN_CONTROLLERS} ray)", "rayproject/ray:2.46.0"),
}
#: The annotations of a Job that starts with the tasks that have quota.
_PARTIAL_START: Final = {
    well_known.ELASTIC_JOB: "true",
    well_known.SCALE_UP_STRATEGY: well_known.PARTIAL_SCALE_UP,
    well_known.PARTIAL_START: "true",
}
#: The image of jobs that name none.
DEFAULT_IMAGE: Final = "python:3.12-slim"


@dataclass(frozen=True, slots=True)
class ShapeOptions:
    """The values of the options about the kind of the job and its pods; '' or False for options that are not set."""

    pytorch: str
    mpi: str
    ray: str
    array: str
    has_partial_start: bool
    after: Sequence[str]
    gpu_resource: str
    has_counts: bool
    has_folder: bool


def with_shape(job: JobRequest, options: ShapeOptions) -> JobRequest:
    """Return the request with the kind, pods and dependencies of the options; raise BadParameter if they conflict."""
    shapes = {"pytorch": options.pytorch, "mpi": options.mpi, "ray": options.ray}
    chosen = {name: text for name, text in shapes.items() if text}
    used = [f"--{name}" for name in chosen] + (["--array"] if options.array else [])
    if len(used) > 1:
        raise typer.BadParameter(f"{used[0]} and {used[1]} exclude each other: use one of them")
    if used and options.has_counts:
        raise typer.BadParameter(f"{used[0]} sets the number of pods: remove --completions and --parallelism")
    if options.has_partial_start and not options.array:
        raise typer.BadParameter("--partial-start is for arrays of tasks: add --array N")
    job = _with_dependencies(job, options.after)
    if options.array:
        job = _with_array(job, options.array)
        return replace(job, annotations={**_PARTIAL_START, **job.annotations}) if options.has_partial_start else job
    if not chosen:
        return job
    ((name, text),) = chosen.items()
    return _with_framework(job, name, text, options)


def _with_array(job: JobRequest, text: str) -> JobRequest:
    match = _ARRAY.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"--array {text}: use N or N%M, such as 100 or 100%10, with numbers from 1 to 99999")
    count = int(match[1])
    return replace(job, completions=count, parallelism=min(count, int(match[2] or count)), is_array=True)


def _with_framework(job: JobRequest, name: str, text: str, options: ShapeOptions) -> JobRequest:
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"--{name} {text}: use PODS or PODSxGPUS, such as 2 or 2x4, with up to 9999 pods")
    devices = dict(job.devices)
    if match[2] and devices:
        raise typer.BadParameter(f"--{name} {text} sets the GPUs: use --{name} {match[1]}, or remove --gpus")
    if match[2] and int(match[2]):
        devices = {options.gpu_resource: int(match[2])}
    framework = FRAMEWORKS[name]
    if framework.image and job.image == DEFAULT_IMAGE:
        raise typer.BadParameter(f"--{name} needs an image with its programs: add --image, such as {framework.image}")
    if framework.image and options.has_folder:
        message = f"--{name} cannot ship a folder, because the workers need the files too"
        raise typer.BadParameter(f"{message}: put them in the image, or on a volume with --checkpoint-dir")
    return replace(job, framework=name, completions=int(match[1]), parallelism=int(match[1]), devices=devices)


def _with_dependencies(job: JobRequest, after: Sequence[str]) -> JobRequest:
    if not after:
        return job
    if well_known.AFTER in job.annotations:
        raise typer.BadParameter(f"--after and the annotation {well_known.AFTER} exclude each other: use one of them")
    text = ",".join(after)
    try:
        job_dependencies.parse_dependencies(text)
    except ValueError as error:
        raise typer.BadParameter(f"--after {text}: {error}") from None
    return replace(job, annotations={**job.annotations, well_known.AFTER: text})


def served_kind_of(job: JobRequest) -> ServedKind:
    """Return the kind of object that is created for a request."""
    return FRAMEWORKS[job.framework].served_kind if job.framework else kind_info(JOB)


def submitted_manifest(job_request: JobRequest, archive: bytes | None) -> Obj:
    """Return the manifest of the requested job, which is a Job or has the kind of a framework."""
    job = job_manifest(job_request, archive)
    if not job_request.framework:
        return job
    build = {"pytorch": _pytorch_spec, "mpi": _mpi_spec, "ray": _ray_spec}[job_request.framework]
    served = served_kind_of(job_request)
    spec = build(job_request, job["spec"]["template"]["spec"])
    return {**job, "apiVersion": f"{served.group}/{served.versions[0]}", "kind": served.kind, "spec": spec}


def _replica(pod_spec: Mapping[str, Any], count: int, container: str, **fields: Any) -> dict[str, Any]:
    (main,) = pod_spec["containers"]
    containers = [{key: value for key, value in {**main, "name": container, **fields}.items() if value is not None}]
    pod = {key: value for key, value in pod_spec.items() if key != "restartPolicy"}
    return {"replicas": count, "restartPolicy": "Never", "template": {"spec": {**pod, "containers": containers}}}


def _run_policy(job_request: JobRequest) -> dict[str, Any]:
    return {"suspend": True, "cleanPodPolicy": "Running", "backoffLimit": job_request.backoff_limit}


def _pytorch_spec(job_request: JobRequest, pod_spec: Mapping[str, Any]) -> dict[str, Any]:
    replicas = {"Master": _replica(pod_spec, 1, "pytorch")}
    if job_request.completions > 1:
        replicas["Worker"] = _replica(pod_spec, job_request.completions - 1, "pytorch")
    return {"runPolicy": _run_policy(job_request), "pytorchReplicaSpecs": replicas}


def _without_devices(job_request: JobRequest, pod_spec: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the resources of a container that only starts others, which has no GPUs; None without any."""
    requests = (pod_spec["containers"][0].get("resources") or {}).get("requests") or {}
    kept = {name: amount for name, amount in requests.items() if name not in job_request.devices}
    return {"requests": kept, "limits": kept} if kept else None


def _mpi_spec(job_request: JobRequest, pod_spec: Mapping[str, Any]) -> dict[str, Any]:
    launcher = _replica(pod_spec, 1, "mpi-launcher", resources=_without_devices(job_request, pod_spec))
    worker = _replica(pod_spec, job_request.completions, "mpi-worker", command=None)
    slots = max(1, *job_request.devices.values()) if job_request.devices else 1
    policy = _run_policy(job_request)
    return {"slotsPerWorker": slots, "runPolicy": policy, "mpiReplicaSpecs": {"Launcher": launcher, "Worker": worker}}


def _ray_spec(job_request: JobRequest, pod_spec: Mapping[str, Any]) -> dict[str, Any]:
    head = _replica(pod_spec, 1, "ray-head", command=None, resources=_without_devices(job_request, pod_spec))
    worker = _replica(pod_spec, job_request.completions, "ray-worker", command=None)
    count = job_request.completions
    group = {"groupName": "workers", "replicas": count, "minReplicas": count, "maxReplicas": count}
    group |= {"rayStartParams": {}, "template": worker["template"]}
    cluster = {"headGroupSpec": {"rayStartParams": {}, "template": head["template"]}, "workerGroupSpecs": [group]}
    return {
        "suspend": True,
        "entrypoint": shlex.join(job_request.argv),
        "shutdownAfterJobFinishes": True,
        "backoffLimit": job_request.backoff_limit,
        "rayClusterSpec": cluster,
    }
