"""The jobs of Kubeflow's training operator: their fields with defaults, their validation, pods and Services.

Source: pkg/apis/kubeflow.org/v1, pkg/webhooks and pkg/controller.v1 of the training operator, release 1.9.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj, controller_reference, group_kind
from batchyard.api.validation.rules import attribute_to_webhook, dns1035_label_errors, immutable, unsupported
from batchyard.jobs.stand_ins.new_objects import convert_fields, template_errors

JOB_NAME_LABEL: Final = "training.kubeflow.org/job-name"
OPERATOR_NAME_LABEL: Final = "training.kubeflow.org/operator-name"
REPLICA_TYPE_LABEL: Final = "training.kubeflow.org/replica-type"
REPLICA_INDEX_LABEL: Final = "training.kubeflow.org/replica-index"
_JOB_ROLE_LABEL: Final = "training.kubeflow.org/job-role"
#: The value of `managedBy` that selects the training operator.
TRAINING_OPERATOR: Final = "kubeflow.org/training-operator"
_MANAGERS: Final = (TRAINING_OPERATOR, "kueue.x-k8s.io/multikueue")
#: The most pods of one job, because the environment of some kinds contains the addresses of all pods.
REPLICAS_MAX: Final = 1_000

EnvironmentVariable: TypeAlias = Mapping[str, Any]


class RunPolicy(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of `runPolicy` that the controller reads."""

    clean_pod_policy: Literal["", "All", "Running", "None"] | None = "None"
    ttl_seconds_after_finished: int | None = None
    active_deadline_seconds: int | None = None
    backoff_limit: int | None = None
    suspend: bool | None = False
    managed_by: str | None = None


class _Port(msgspec.Struct, frozen=True, rename="camel"):
    container_port: int
    name: str = ""


class _Container(msgspec.Struct, frozen=True):
    name: str
    image: str = ""
    ports: list[_Port] | None = None
    env: list[Any] | None = None


class _PodSpec(msgspec.Struct, frozen=True):
    containers: list[_Container] | None = None


class _TemplateMetadata(msgspec.Struct, frozen=True):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None


class _Template(msgspec.Struct, frozen=True):
    spec: _PodSpec = _PodSpec()
    metadata: _TemplateMetadata | None = None


class _ReplicaFields(msgspec.Struct, frozen=True, rename="camel"):
    template: _Template = _Template()
    replicas: int | None = None
    restart_policy: Literal["", "Always", "OnFailure", "Never", "ExitCode"] | None = None


class _JobFields(msgspec.Struct, frozen=True, rename="camel"):
    run_policy: RunPolicy | None = None
    elastic_policy: Any = None
    nproc_per_node: str | None = None
    success_policy: str | None = None
    enable_dynamic_worker: bool | None = False


class ReplicaSpec(NamedTuple):
    """One replica type of a job, with defaults: the number of its pods, their template and the port of the service."""

    pods: int
    restart_policy: str
    template: Obj
    port: int


class Framework(NamedTuple):
    """The constants of one kind of job: field and replica types, container, port, defaults and environment."""

    kind: str
    replica_field: str
    replica_types: Sequence[str]
    container: str
    port_name: str
    port: int
    restart_policy: str
    #: Returns the variables of a pod, given the job, the replica type and the index.
    environment: Callable[["TrainingJob", str, int], list[EnvironmentVariable]]

    @property
    def controller_name(self) -> str:
        """The name of the kind's controller, which is the value of a label of the pods."""
        return f"{self.kind.lower()}-controller"


class InvalidTrainingJob(Exception):  # noqa: N818 - named after the condition
    """Raised if the spec of a job is invalid. The message contains the path of the field."""


class TrainingJob:
    """A valid job with defaults: its run policy, and its replica types in the order of the kind."""

    __slots__ = ("fields", "framework", "name", "namespace", "obj", "policy", "replicas")

    def __init__(self, obj: Obj, framework: Framework) -> None:
        """Parse a job. Raises InvalidTrainingJob."""
        self.obj, self.framework = obj, framework
        self.name, self.namespace = obj["metadata"]["name"], obj["metadata"]["namespace"]
        spec = obj.get("spec") or {}
        self.fields: _JobFields = convert_fields(spec, _JobFields, "spec", InvalidTrainingJob)
        self.policy: RunPolicy = self.fields.run_policy or RunPolicy()
        self.replicas = _parse_replicas(spec.get(framework.replica_field), framework)
        _check(self)

    @property
    def total(self) -> int:
        """The number of pods of all replica types."""
        return sum(replica.pods for replica in self.replicas.values())

    @property
    def labels(self) -> dict[str, str]:
        """The labels that all pods and Services of the job have."""
        return {OPERATOR_NAME_LABEL: self.framework.controller_name, JOB_NAME_LABEL: self.name}

    def pod_name(self, replica_type: str, index: int) -> str:
        """Return the name of a pod, which is also that of its Service."""
        return f"{self.name}-{replica_type.lower()}-{index}"

    def replica_labels(self, replica_type: str) -> dict[str, str]:
        """Return the labels of the pods of a replica type."""
        return {**self.labels, REPLICA_TYPE_LABEL: replica_type.lower()}

    def new_pod(self, replica_type: str, index: int) -> Obj:
        """Return the manifest of a pod: the template with the labels, the port, the environment and the owner."""
        replica = self.replicas[replica_type]
        metadata, spec = replica.template.get("metadata") or {}, replica.template["spec"]
        labels = {**self.replica_labels(replica_type), REPLICA_INDEX_LABEL: str(index)}
        role = {_JOB_ROLE_LABEL: "master"} if self._is_master(replica_type, index) else {}
        copied = {field: metadata[field] for field in ("annotations", "finalizers") if metadata.get(field)}
        restart_policy = "Never" if replica.restart_policy == "ExitCode" else replica.restart_policy
        containers = _containers(self, spec, self.framework.environment(self, replica_type, index))
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": self.pod_name(replica_type, index),
                "namespace": self.namespace,
                "labels": {**(metadata.get("labels") or {}), **labels, **role},
                **copied,
                "ownerReferences": [controller_reference(self.obj)],
            },
            "spec": {**spec, "containers": containers, "restartPolicy": restart_policy},
        }

    def new_service(self, replica_type: str, index: int) -> Obj:
        """Return the manifest of the headless Service of one pod."""
        labels = {**self.replica_labels(replica_type), REPLICA_INDEX_LABEL: str(index)}
        containers = _containers(self, self.replicas[replica_type].template["spec"], [])
        container = next(each for each in containers if each["name"] == self.framework.container)
        ports = {port.get("name") or "": port["containerPort"] for port in container["ports"]}
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": self.pod_name(replica_type, index),
                "namespace": self.namespace,
                "labels": labels,
                "ownerReferences": [controller_reference(self.obj)],
            },
            "spec": {
                "clusterIP": "None",
                "selector": labels,
                "ports": [{**({"name": name} if name else {}), "port": port} for name, port in ports.items()],
            },
        }

    def _is_master(self, replica_type: str, index: int) -> bool:
        kind = self.framework.kind
        if kind in ("XGBoostJob", "PaddleJob"):
            return replica_type == "Master"
        masters = self.replicas.keys() & {"Chief", "Master"}
        return replica_type in masters if masters else replica_type == "Worker" and index == 0


def is_managed_elsewhere(obj: Obj) -> bool:
    """Return whether `managedBy` leaves a job to another controller."""
    return _manager_of(obj) not in (None, TRAINING_OPERATOR)


def _manager_of(obj: Obj) -> object:
    spec = obj.get("spec")
    policy = spec.get("runPolicy") if isinstance(spec, Mapping) else None
    return policy.get("managedBy") if isinstance(policy, Mapping) else None


def training_job_errors(new: Obj, old: Obj | None) -> list[FieldError]:
    """Return the errors that the training operator's webhook reports for a new or changed job.

    `old` is None for a new job. Source: pkg/webhooks and ValidateRunPolicy in pkg/common/util.
    """
    framework, path = FRAMEWORKS[group_kind(new)], "spec.runPolicy.managedBy"
    manager = _manager_of(new)
    errors: list[FieldError] = []
    if old is not None and manager != _manager_of(old):
        errors.append(immutable(path, manager))
    if manager is not None and manager not in _MANAGERS:
        errors.append(unsupported(path, manager, _MANAGERS))
    try:
        for name, replica in TrainingJob(new, framework).replicas.items():
            errors += template_errors(replica.template, f"spec.{framework.replica_field}[{name}].template")
    except InvalidTrainingJob as error:
        field, _, problem = str(error).partition(": ")
        errors.append(FieldError(field, problem))
    return list(attribute_to_webhook(f"validator.{framework.kind.lower()}.training-operator.kubeflow.org", errors))


def _parse_replicas(specs: Any, framework: Framework) -> dict[str, ReplicaSpec]:
    path = f"spec.{framework.replica_field}"
    if not isinstance(specs, Mapping):
        raise InvalidTrainingJob(f"{path}: Required value: must be required")
    for name in specs:
        if name not in framework.replica_types:
            supported = ", ".join(f'"{each}"' for each in framework.replica_types)
            raise InvalidTrainingJob(f'{path}[{name}]: Unsupported value: "{name}": supported values: {supported}')
    types = [name for name in framework.replica_types if name in specs]
    return {name: _parse_replica(specs[name], f"{path}[{name}]", framework) for name in types}


def _parse_replica(spec: Any, path: str, framework: Framework) -> ReplicaSpec:
    fields = convert_fields(spec, _ReplicaFields, path, InvalidTrainingJob)
    containers_path = f"{path}.template.spec.containers"
    containers = fields.template.spec.containers
    if not containers:
        raise InvalidTrainingJob(f"{containers_path}: Required value: must be specified")
    for position, container in enumerate(containers):
        if not container.image:
            raise InvalidTrainingJob(f"{containers_path}[{position}].image: Required value: must be required")
    names = [container.name for container in containers]
    if framework.container not in names:
        message = f"must have at least one container with name {framework.container}"
        raise InvalidTrainingJob(f"{containers_path}: Required value: {message}")
    named_ports = containers[names.index(framework.container)].ports or ()
    port = next((each.container_port for each in named_ports if each.name == framework.port_name), framework.port)
    count = 1 if fields.replicas is None else fields.replicas
    return ReplicaSpec(count, fields.restart_policy or framework.restart_policy, spec["template"], port)


def _check(job: TrainingJob) -> None:
    path = f"spec.{job.framework.replica_field}"
    name_errors = dns1035_label_errors(job.name)
    if name_errors:
        reason = ",".join(name_errors)
        raise InvalidTrainingJob(f'metadata.name: Invalid value: "{job.name}": should match: {reason}')
    if job.fields.elastic_policy is not None:
        raise InvalidTrainingJob("spec.elasticPolicy: Forbidden: elastic jobs need Kubeflow's own training operator")
    has_one_master = job.framework.kind in ("PyTorchJob", "XGBoostJob") and "Master" in job.replicas
    if has_one_master and job.replicas["Master"].pods != 1:
        raise InvalidTrainingJob(f"{path}[Master].replicas: Forbidden: must be 1")
    if job.framework.kind == "XGBoostJob" and "Master" not in job.replicas:
        raise InvalidTrainingJob(f"{path}[Master]: Required value: must be present")
    if job.replicas.keys() >= {"Chief", "Master"}:
        raise InvalidTrainingJob(f"{path}: Forbidden: must not have more than 1 Chief or Master role")
    if job.total > REPLICAS_MAX or any(replica.pods < 0 for replica in job.replicas.values()):
        raise InvalidTrainingJob(f"{path}: Invalid value: {job.total}: a job has between 0 and {REPLICAS_MAX} pods")


def _containers(job: TrainingJob, spec: Obj, variables: Sequence[EnvironmentVariable]) -> list[dict[str, Any]]:
    return [_container(job.framework, each, variables) for each in spec["containers"]]


def _container(framework: Framework, container: Obj, variables: Sequence[EnvironmentVariable]) -> dict[str, Any]:
    is_default = container["name"] == framework.container
    completed = dict(container)
    ports = list(container.get("ports") or ())
    if is_default and all(port.get("name") != framework.port_name for port in ports):
        completed["ports"] = [*ports, {"name": framework.port_name, "containerPort": framework.port}]
    if variables and (is_default or framework.kind != "TFJob"):
        completed["env"] = [*(container.get("env") or ()), *variables]
    return completed


# The environment of the pods. Programs find each other by the Services of the pods.


def _variables(values: Mapping[str, object]) -> list[EnvironmentVariable]:
    return [{"name": name, "value": str(value)} for name, value in values.items()]


def _pytorch_environment(job: TrainingJob, replica_type: str, index: int) -> list[EnvironmentVariable]:
    values: dict[str, object] = {"PYTHONUNBUFFERED": 1}
    processes = job.fields.nproc_per_node or "auto"
    if "Master" in job.replicas:
        address, port = job.pod_name("Master", 0), job.replicas["Master"].port
        rank = index + 1 if replica_type == "Worker" else index
        world_size = job.total * (int(processes) if processes.isdecimal() else 1)
        values |= {"MASTER_PORT": port, "PET_MASTER_PORT": port, "MASTER_ADDR": address, "PET_MASTER_ADDR": address}
        values |= {"WORLD_SIZE": world_size, "RANK": rank, "PET_NODE_RANK": rank}
    return _variables({**values, "PET_NPROC_PER_NODE": processes, "PET_NNODES": job.total})


def _tensorflow_environment(job: TrainingJob, replica_type: str, index: int) -> list[EnvironmentVariable]:
    if job.total == 1:
        return []
    role = replica_type.lower()
    cluster: dict[str, Any] = {name.lower(): list(_addresses(job, name)) for name in sorted(job.replicas)}
    task = {"type": role, "index": index}
    config: dict[str, Any] = {"cluster": cluster, "task": task, "environment": "cloud"}
    if job.fields.enable_dynamic_worker:
        servers = cluster.get("ps", []) if role == "worker" else [cluster[role][index]] if role == "ps" else []
        workers = {str(index): cluster[role][index]} if role == "worker" else {}
        config = {"cluster": {"worker": workers, "ps": servers}, "task": task}
    return _variables({"TF_CONFIG": json.dumps(config, separators=(",", ":"))})


def _addresses(job: TrainingJob, replica_type: str) -> Iterator[str]:
    replica = job.replicas[replica_type]
    for index in range(replica.pods):
        yield f"{job.pod_name(replica_type, index)}.{job.namespace}.svc:{replica.port}"


def _xgboost_environment(job: TrainingJob, replica_type: str, index: int) -> list[EnvironmentVariable]:
    values: dict[str, object] = {
        "MASTER_PORT": job.replicas["Master"].port,
        "MASTER_ADDR": job.pod_name("Master", 0),
        "WORLD_SIZE": job.total,
        "RANK": index + 1 if replica_type == "Worker" else index,
        "PYTHONUNBUFFERED": 1,
    }
    if job.total > 1:
        addresses = [job.pod_name("Worker", position) for position in range(job.total - 1)]
        values |= {"WORKER_PORT": job.replicas["Worker"].port, "WORKER_ADDRS": ",".join(addresses)}
    return _variables(values)


def _paddle_environment(job: TrainingJob, replica_type: str, index: int) -> list[EnvironmentVariable]:
    variables = _variables({"PYTHONUNBUFFERED": 1, "PADDLE_JOB_ID": job.name, "PADDLE_NNODES": job.total})
    leader = "Master" if "Master" in job.replicas else "Worker"
    port = job.replicas[leader].port
    if replica_type == leader and index == 0:
        variables.append({"name": "POD_IP_DUMMY", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
        variables += _variables({"PADDLE_MASTER": f"$(POD_IP_DUMMY):{port}"})
    else:
        variables += _variables({"PADDLE_MASTER": f"{job.pod_name(leader, 0)}:{port}"})
    if leader == "Master":
        variables += _variables({"PADDLE_SERVER_NUM" if replica_type == "Master" else "PADDLE_TRAINER_NUM": 1})
    return variables


def _jax_environment(job: TrainingJob, _replica_type: str, index: int) -> list[EnvironmentVariable]:
    values = {
        "PYTHONUNBUFFERED": 1,
        "COORDINATOR_PORT": job.replicas["Worker"].port,
        "COORDINATOR_ADDRESS": job.pod_name("Worker", 0),
        "NUM_PROCESSES": job.total,
        "PROCESS_ID": index,
    }
    return _variables(values)


_PAIR: Final = ("Master", "Worker")
_TF_TYPES: Final = ("Chief", "Master", "PS", "Worker", "Evaluator")
#: The kinds of jobs, by their names in the store.
FRAMEWORKS: Final[Mapping[str, Framework]] = {
    f"{framework.kind}.kubeflow.org": framework
    for framework in (
        Framework(
            *("PyTorchJob", "pytorchReplicaSpecs", _PAIR, "pytorch", "pytorchjob-port", 23456, "OnFailure"),
            _pytorch_environment,
        ),
        Framework(
            *("TFJob", "tfReplicaSpecs", _TF_TYPES, "tensorflow", "tfjob-port", 2222, "Never"), _tensorflow_environment
        ),
        Framework(
            *("XGBoostJob", "xgbReplicaSpecs", _PAIR, "xgboost", "xgboostjob-port", 9999, "Never"), _xgboost_environment
        ),
        Framework(
            *("PaddleJob", "paddleReplicaSpecs", _PAIR, "paddle", "master", 36543, "OnFailure"), _paddle_environment
        ),
        Framework(*("JAXJob", "jaxReplicaSpecs", ("Worker",), "jax", "jaxjob-port", 6666, "Never"), _jax_environment),
    )
}
