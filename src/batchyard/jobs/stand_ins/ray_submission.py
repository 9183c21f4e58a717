"""RayJobs as values: their fields with defaults, their validation, the RayCluster and the Job that submits the Ray job.

KubeRay asks the dashboard of the cluster for the state of the Ray job. Here the submitting pod asks it when the Ray job
has ended, and reports the answer in its termination message.

Source: ray-operator/controllers/ray/{common/job.go,utils/validation.go} of KubeRay.
"""

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from batchyard.api.meta import Obj, controller_reference
from batchyard.api.times import format_second
from batchyard.api.yaml_documents import read_documents
from batchyard.jobs.stand_ins import ray_nodes
from batchyard.jobs.stand_ins.new_objects import convert_fields
from batchyard.jobs.stand_ins.ray_nodes import InvalidRayObject, RayPodTemplate
from batchyard.jobs.stand_ins.ray_pods import RayCluster

_K8S_JOB_MODE: Final = "K8sJobMode"
#: The longest name of a RayJob, so that the name of its RayCluster is valid.
JOB_NAME_LENGTH_MAX: Final = ray_nodes.CLUSTER_NAME_LENGTH_MAX - len("-abcde")
_SUBMITTER: Final = "ray-job-submitter"
_DEFAULT_BACKOFF_LIMIT: Final = 2
_MESSAGE_PATH: Final = "/dev/termination-log"
#: The longest message of a Ray job in a report: a termination message has at most 4096 bytes.
_MESSAGE_LENGTH_MAX: Final = 600
_VALUES_MAX: Final = 10_000
_JOB_ID_PATTERN: Final = re.compile(r"[A-Za-z0-9._-]{1,253}")
#: The states of a Ray job that has ended.
TERMINAL_STATES: Final = ("SUCCEEDED", "FAILED", "STOPPED")
#: The program by which the submitting pod waits until the Ray job has ended, and reports how.
_REPORT_PROGRAM: Final = """
import json, time, urllib.request
while True:
    with urllib.request.urlopen("{address}/api/jobs/{job_id}", timeout=10) as response:
        info = json.load(response)
    if info["status"] in {states}:
        break
    time.sleep(1)
report = {{name: info.get(name) for name in ("status", "start_time", "end_time")}}
report["message"] = (info.get("message") or "")[:{length}]
with open({path!r}, "w") as file:
    json.dump(report, file)
"""


class _SubmitterConfig(msgspec.Struct, frozen=True, rename="camel"):
    backoff_limit: int | None = None


class RayJobFields(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a RayJob's spec that the controller reads."""

    ray_cluster_spec: Any = None
    cluster_selector: dict[str, str] | None = None
    entrypoint: str = ""
    entrypoint_num_cpus: float = 0
    entrypoint_num_gpus: float = 0
    entrypoint_resources: str = ""
    runtime_env: str = msgspec.field(default="", name="runtimeEnvYAML")
    metadata: dict[str, str] | None = None
    job_id: str = ""
    submission_mode: str = ""
    submitter_pod_template: RayPodTemplate | None = None
    submitter_config: _SubmitterConfig | None = None
    suspend: bool | None = None
    shutdown_after_job_finishes: bool | None = None
    ttl_seconds_after_finished: int = 0
    active_deadline_seconds: int | None = None
    pre_running_deadline_seconds: int | None = None
    backoff_limit: int | None = None
    deletion_strategy: Any = None


class RayJobReport(NamedTuple):
    """How a Ray job has ended: its state, message, and times; '' if they are unknown."""

    state: str
    message: str
    start_time: str
    end_time: str


class RayJob:
    """A valid RayJob: its fields, and the manifests of its RayCluster, submitting Job and Service."""

    __slots__ = ("fields", "name", "namespace", "obj", "runtime_env")

    def __init__(self, obj: Obj) -> None:
        """Parse a RayJob. Raises InvalidRayObject, also for a feature that needs KubeRay's own operator."""
        self.obj = obj
        self.name, self.namespace = obj["metadata"]["name"], obj["metadata"]["namespace"]
        self.fields: RayJobFields = convert_fields(obj.get("spec") or {}, RayJobFields, "spec", InvalidRayObject)
        _check(self.fields)
        #: The runtime environment as JSON; '' for none.
        self.runtime_env = _to_json(self.fields.runtime_env)
        try:
            ray_nodes.parse_cluster_fields(self.fields.ray_cluster_spec, obj, "spec.rayClusterSpec")
        except InvalidRayObject as error:
            raise _invalid(str(error)) from error

    @property
    def has_own_command(self) -> bool:
        """Whether the submitting pod runs a command of the user, which may not report how the Ray job ends."""
        template = self.fields.submitter_pod_template
        containers = None if template is None else template.spec.containers
        return bool(containers and containers[0].command)

    def new_cluster(self, name: str) -> Obj:
        """Return the manifest of the RayCluster with a name."""
        metadata = self.obj["metadata"]
        mode = {"ray.io/job-submission-mode": _K8S_JOB_MODE}
        labels = {**(metadata.get("labels") or {}), **self._origin_labels(), **mode}
        return {
            "apiVersion": self.obj["apiVersion"],
            "kind": "RayCluster",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": labels,
                **({"annotations": metadata["annotations"]} if metadata.get("annotations") else {}),
                "ownerReferences": [controller_reference(self.obj)],
            },
            "spec": self.fields.ray_cluster_spec,
        }

    def new_head_service(self, cluster: RayCluster) -> Obj:
        """Return the manifest of the Service of the current head, whose name does not change with the cluster."""
        service, name = cluster.new_head_service(), f"{self.name}-{ray_nodes.HEAD}"
        labels = {ray_nodes.NODE_TYPE_LABEL: ray_nodes.HEAD, ray_nodes.IDENTIFIER_LABEL: name}
        origin = {each: value for each, value in self._origin_labels().items() if each != ray_nodes.CREATED_BY_LABEL}
        return {
            **service,
            "metadata": {
                "name": f"{name}-svc",
                "namespace": self.namespace,
                "labels": {**origin, **labels},
                "ownerReferences": [controller_reference(self.obj)],
            },
        }

    def new_submitter(self, dashboard: str, job_id: str) -> Obj:
        """Return the manifest of the Job that submits the Ray job to a dashboard, such as `host:8265`."""
        config = self.fields.submitter_config
        limit = None if config is None else config.backoff_limit
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "labels": {**self._origin_labels(), ray_nodes.CREATED_BY_LABEL: ray_nodes.COMPONENT},
                "ownerReferences": [controller_reference(self.obj)],
            },
            "spec": {
                "backoffLimit": _DEFAULT_BACKOFF_LIMIT if limit is None else limit,
                "template": self._submitter_template(dashboard, job_id),
            },
        }

    def _origin_labels(self) -> dict[str, str]:
        return {ray_nodes.ORIGIN_NAME_LABEL: self.name, ray_nodes.ORIGIN_KIND_LABEL: "RayJob"}

    def _submitter_template(self, dashboard: str, job_id: str) -> Obj:
        spec = self.obj["spec"]
        head_container = spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
        template = spec.get("submitterPodTemplate") or _default_template(head_container)
        metadata, (first, *others) = template.get("metadata") or {}, template["spec"]["containers"]
        container, address = dict(first), f"http://{dashboard}"
        if not container.get("command"):
            path = container.get("terminationMessagePath") or _MESSAGE_PATH
            container["command"] = ["/bin/bash", "-ce", "--"]
            container["args"] = [f"{self.submit_command(address, job_id)} ; {_report_command(address, job_id, path)}"]
        variables = {"PYTHONUNBUFFERED": "1", "RAY_DASHBOARD_ADDRESS": dashboard, "RAY_JOB_SUBMISSION_ID": job_id}
        added = [{"name": name, "value": value} for name, value in variables.items()]
        container["env"] = [*(container.get("env") or ()), *added]
        labels = {**self._origin_labels(), ray_nodes.CREATED_BY_LABEL: ray_nodes.COMPONENT}
        return {
            **template,
            "metadata": {**metadata, "labels": {**(metadata.get("labels") or {}), **labels}},
            "spec": {**template["spec"], "containers": [container, *others]},
        }

    def submit_command(self, address: str, job_id: str) -> str:
        """Return the shell commands that submit the Ray job unless it exists, and then follow its log."""
        request = f"urllib.request.urlopen('{address}/api/gcs_healthz', timeout=10)"
        health = f"import urllib.request; exit(b'success' not in {request}.read())"
        waiting = f'echo "Waiting for the dashboard at {address}"'
        quoted_id = shlex.quote(job_id)
        words = ["ray", "job", "submit", "--address", address, "--no-wait"]
        if self.runtime_env:
            words += ["--runtime-env-json", shlex.quote(self.runtime_env)]
        if self.fields.metadata:
            words += ["--metadata-json", shlex.quote(json.dumps(self.fields.metadata, separators=(",", ":")))]
        words += ["--submission-id", quoted_id]
        for option, number in (
            ("--entrypoint-num-cpus", self.fields.entrypoint_num_cpus),
            ("--entrypoint-num-gpus", self.fields.entrypoint_num_gpus),
        ):
            words += [option, f"{number:f}"] if number > 0 else []
        if self.fields.entrypoint_resources:
            words += ["--entrypoint-resources", shlex.quote(self.fields.entrypoint_resources)]
        submission = " ".join([*words, "--", self.fields.entrypoint.strip()])
        return " ; ".join(
            [
                f'until python -c "{health}" > /dev/null 2>&1',
                f"do {waiting}",
                "sleep 2",
                "done",
                f"if ! ray job status --address {address} {quoted_id} > /dev/null 2>&1",
                f"then {submission}",
                "fi",
                f"ray job logs --address {address} --follow {quoted_id}",
            ]
        )


def _report_command(address: str, job_id: str, path: str) -> str:
    program = _REPORT_PROGRAM.format(
        address=address, job_id=job_id, states=TERMINAL_STATES, length=_MESSAGE_LENGTH_MAX, path=path
    )
    return f"python -c {shlex.quote(program)}"


def _default_template(head_container: Obj) -> Obj:
    limits, requests = {"cpu": "1", "memory": "1Gi"}, {"cpu": "500m", "memory": "200Mi"}
    resources = {"limits": limits, "requests": requests}
    container = {"name": _SUBMITTER, "image": head_container.get("image"), "resources": resources}
    return {"spec": {"containers": [container], "restartPolicy": "Never"}}


# Validation.


def _invalid(problem: str) -> InvalidRayObject:
    return InvalidRayObject(f"The RayJob spec is invalid: {problem}")


def _check(fields: RayJobFields) -> None:
    unsupported = {
        "clusterSelector": fields.cluster_selector,
        "deletionStrategy": fields.deletion_strategy is not None,
        f"submissionMode {fields.submission_mode}": fields.submission_mode not in ("", _K8S_JOB_MODE),
    }
    for feature, is_used in unsupported.items():
        if is_used:
            raise _invalid(f"{feature} needs KubeRay's own operator")
    if fields.suspend and not fields.shutdown_after_job_finishes:
        raise _invalid("a RayJob with shutdownAfterJobFinishes set to false is not allowed to be suspended")
    if fields.ttl_seconds_after_finished < 0:
        raise _invalid("TTLSecondsAfterFinished must be a non-negative integer")
    if fields.ray_cluster_spec is None:
        raise _invalid("one of RayClusterSpec or ClusterSelector must be set")
    for name, value, minimum in (
        ("activeDeadlineSeconds", fields.active_deadline_seconds, 1),
        ("preRunningDeadlineSeconds", fields.pre_running_deadline_seconds, 1),
        ("backoffLimit", fields.backoff_limit, 0),
    ):
        if value is not None and value < minimum:
            raise _invalid(f"{name} must be a positive integer")
    if fields.job_id and not _JOB_ID_PATTERN.fullmatch(fields.job_id):
        raise _invalid("jobId must consist of letters, digits and the characters -_.")
    template = fields.submitter_pod_template
    if template is not None and not template.spec.containers:
        raise _invalid("submitterPodTemplate should have at least one container")


def _to_json(text: str) -> str:
    """Return a YAML mapping as JSON; '' for an empty text. Raises InvalidRayObject if it is not one mapping."""
    if not text.strip():
        return ""
    documents = list(read_documents(text, _VALUES_MAX))
    faults = [fault for document in documents for fault in document.faults]
    if len(documents) != 1 or faults or not isinstance(documents[0].value, Mapping):
        problem = str(faults[0]) if faults else "it is not one mapping"
        raise _invalid(f"failed to unmarshal RuntimeEnvYAML: {problem}")
    return json.dumps(documents[0].value, separators=(",", ":"))


# Reports of submitting pods.


def read_report(pods: Iterable[Obj], *, has_own_command: bool) -> RayJobReport | None:
    """Return the report of the submitting pod that has succeeded; None if there is no such pod or no valid report.

    Success without a report counts as success of the Ray job: simulated pods and the commands of users report nothing.
    """
    for pod in pods:
        status = pod.get("status") or {}
        if status.get("phase") != "Succeeded":
            continue
        states = [each.get("state") or {} for each in status.get("containerStatuses") or ()]
        messages = [message for state in states if (message := (state.get("terminated") or {}).get("message"))]
        for message in messages:
            if report := _parse_report(message):
                return report
        if has_own_command or not messages:
            return RayJobReport("SUCCEEDED", "", "", "")
    return None


class _ReportFields(msgspec.Struct):
    status: str
    message: str = ""
    start_time: int | None = None
    end_time: int | None = None


def _parse_report(text: str) -> RayJobReport | None:
    try:
        fields = msgspec.json.decode(text, type=_ReportFields)
    except msgspec.DecodeError:
        return None
    if fields.status not in TERMINAL_STATES:
        return None
    times = (format_second(each * 1000) if each else "" for each in (fields.start_time, fields.end_time))
    return RayJobReport(fields.status, fields.message, *times)
