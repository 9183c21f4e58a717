"""Jobs of Kubeflow's training operator: their pods, Services, environment and errors.

Sources: pkg/controller.v1/*/envvar_test.go and pkg/webhooks/*/*_test.go of the training operator.
"""

import json
from typing import Any

import pytest

from batchyard.api.meta import Obj
from batchyard.jobs.stand_ins.new_objects import complete_object
from batchyard.jobs.stand_ins.training_jobs import InvalidTrainingJob, training_job_errors
from unit.jobs.stand_ins.training import parsed, replica, training_job

PREFIX = "training.kubeflow.org/"


def environment(obj: Obj, replica_type: str, index: int) -> dict[str, Any]:
    """The variables of a pod: their values, or the source of the value."""
    (container,) = parsed(obj).new_pod(replica_type, index)["spec"]["containers"]
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container.get("env", ())}


def test_pod_has_name_labels_and_owner() -> None:
    job = training_job()
    job["spec"]["pytorchReplicaSpecs"]["Worker"] = replica("PyTorchJob", 1, metadata={"labels": {"team": "a"}})
    metadata = complete_object(parsed(job).new_pod("Worker", 0))["metadata"]
    expected = {"job-name": "train", "operator-name": "pytorchjob-controller"}
    expected |= {"replica-type": "worker", "replica-index": "0"}
    assert metadata["name"] == "train-worker-0"
    assert metadata["labels"] == {"team": "a", **{f"{PREFIX}{name}": value for name, value in expected.items()}}
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("PyTorchJob", "train", True)


@pytest.mark.parametrize(
    ("kind", "counts", "masters"),
    [
        ("PyTorchJob", {"Master": 1, "Worker": 1}, ["train-master-0"]),
        ("PyTorchJob", {"Worker": 2}, ["train-worker-0"]),
        ("TFJob", {"Chief": 1, "Worker": 1}, ["train-chief-0"]),
        ("TFJob", {"PS": 1, "Worker": 2}, ["train-worker-0"]),
        ("XGBoostJob", {"Master": 1, "Worker": 1}, ["train-master-0"]),
        ("PaddleJob", {"Worker": 2}, []),
        ("JAXJob", {"Worker": 2}, ["train-worker-0"]),
    ],
)
def test_master_has_its_role(kind: str, counts: dict[str, int], masters: list[str]) -> None:
    job = parsed(training_job(kind, counts))
    pods = [job.new_pod(name, index) for name, count in counts.items() for index in range(count)]
    named = [pod["metadata"]["name"] for pod in pods if f"{PREFIX}job-role" in pod["metadata"]["labels"]]
    assert named == masters


@pytest.mark.parametrize(
    ("policy", "expected"), [("ExitCode", "Never"), ("Always", "Always"), ("OnFailure", "OnFailure"), ("", "OnFailure")]
)
def test_restart_policy_of_pods(policy: str, expected: str) -> None:
    pod = parsed(training_job(restart_policy=policy)).new_pod("Worker", 0)
    assert pod["spec"]["restartPolicy"] == expected


def test_service_is_headless_and_has_the_default_port() -> None:
    service = complete_object(parsed(training_job()).new_service("Master", 0))
    assert (service["metadata"]["name"], service["spec"]["clusterIP"]) == ("train-master-0", "None")
    (port,) = service["spec"]["ports"]
    assert (port["name"], port["port"]) == ("pytorchjob-port", 23456)
    assert service["spec"]["selector"] == service["metadata"]["labels"]
    assert f"{PREFIX}job-role" not in service["spec"]["selector"]


def test_port_of_the_template_replaces_the_default() -> None:
    job = training_job(counts={"Master": 1})
    ports = [{"name": "pytorchjob-port", "containerPort": 29500}, {"name": "http", "containerPort": 80}]
    job["spec"]["pytorchReplicaSpecs"]["Master"] = replica("PyTorchJob", 1, container={"ports": ports})
    service = parsed(job).new_service("Master", 0)
    assert service["spec"]["ports"] == [{"name": "pytorchjob-port", "port": 29500}, {"name": "http", "port": 80}]
    assert environment(job, "Master", 0)["MASTER_PORT"] == "29500"


def test_pytorch_environment() -> None:
    address = {"MASTER_ADDR": "train-master-0", "MASTER_PORT": "23456"}
    expected = {"PYTHONUNBUFFERED": "1", **address, **{f"PET_{name}": value for name, value in address.items()}}
    expected |= {"WORLD_SIZE": "3", "RANK": "2", "PET_NODE_RANK": "2", "PET_NNODES": "3", "PET_NPROC_PER_NODE": "auto"}
    assert environment(training_job(), "Worker", 1) == expected
    assert environment(training_job(), "Master", 0)["RANK"] == "0"
    four = environment(training_job(nprocPerNode="4"), "Master", 0)
    assert (four["WORLD_SIZE"], four["PET_NPROC_PER_NODE"]) == ("12", "4")


def test_pytorch_environment_without_master_has_no_address() -> None:
    expected = {"PYTHONUNBUFFERED": "1", "PET_NPROC_PER_NODE": "auto", "PET_NNODES": "2"}
    assert environment(training_job(counts={"Worker": 2}), "Worker", 1) == expected


def test_environment_follows_that_of_the_template() -> None:
    job = training_job(counts={"Master": 1})
    own = [{"name": "RANK", "value": "own"}, {"name": "A", "value": "b"}]
    job["spec"]["pytorchReplicaSpecs"]["Master"] = replica("PyTorchJob", 1, container={"env": own})
    (container,) = parsed(job).new_pod("Master", 0)["spec"]["containers"]
    assert container["env"][:2] == own
    assert container["env"][-1] == {"name": "PET_NNODES", "value": "1"}


def test_tensorflow_configuration_lists_all_addresses() -> None:
    job = training_job("TFJob", {"PS": 1, "Worker": 2})
    cluster = {
        "ps": ["train-ps-0.team.svc:2222"],
        "worker": ["train-worker-0.team.svc:2222", "train-worker-1.team.svc:2222"],
    }
    config = json.loads(environment(job, "Worker", 1)["TF_CONFIG"])
    assert config == {"cluster": cluster, "task": {"type": "worker", "index": 1}, "environment": "cloud"}
    assert environment(training_job("TFJob", {"Worker": 1}), "Worker", 0) == {}


def test_tensorflow_configuration_of_dynamic_workers_is_sparse() -> None:
    job = training_job("TFJob", {"PS": 1, "Worker": 2}, enableDynamicWorker=True)
    cluster = {"worker": {"1": "train-worker-1.team.svc:2222"}, "ps": ["train-ps-0.team.svc:2222"]}
    assert json.loads(environment(job, "Worker", 1)["TF_CONFIG"]) == {
        "cluster": cluster,
        "task": {"type": "worker", "index": 1},
    }


def test_xgboost_environment() -> None:
    expected = {"MASTER_PORT": "9999", "MASTER_ADDR": "train-master-0", "WORLD_SIZE": "3", "RANK": "2"}
    workers = {"WORKER_PORT": "9999", "WORKER_ADDRS": "train-worker-0,train-worker-1"}
    found = environment(training_job("XGBoostJob"), "Worker", 1)
    assert found == {**expected, "PYTHONUNBUFFERED": "1", **workers}
    assert "WORKER_PORT" not in environment(training_job("XGBoostJob", {"Master": 1}), "Master", 0)


def test_paddle_environment() -> None:
    address = {"fieldRef": {"fieldPath": "status.podIP"}}
    common = {"PYTHONUNBUFFERED": "1", "PADDLE_JOB_ID": "train"}
    collective = training_job("PaddleJob", {"Worker": 2})
    first = {"POD_IP_DUMMY": address, "PADDLE_MASTER": "$(POD_IP_DUMMY):36543"}
    assert environment(collective, "Worker", 0) == {**common, "PADDLE_NNODES": "2", **first}
    other = {"PADDLE_NNODES": "2", "PADDLE_MASTER": "train-worker-0:36543"}
    assert environment(collective, "Worker", 1) == {**common, **other}
    servers = training_job("PaddleJob", {"Master": 1, "Worker": 1})
    assert environment(servers, "Master", 0) == {**common, "PADDLE_NNODES": "2", **first, "PADDLE_SERVER_NUM": "1"}
    trainer = {"PADDLE_MASTER": "train-master-0:36543", "PADDLE_TRAINER_NUM": "1"}
    assert environment(servers, "Worker", 0) == {**common, "PADDLE_NNODES": "2", **trainer}


def test_jax_environment() -> None:
    expected = {"COORDINATOR_PORT": "6666", "COORDINATOR_ADDRESS": "train-worker-0", "NUM_PROCESSES": "2"}
    found = environment(training_job("JAXJob", {"Worker": 2}), "Worker", 1)
    assert found == {"PYTHONUNBUFFERED": "1", **expected, "PROCESS_ID": "1"}


def changed(kind: str = "PyTorchJob", counts: dict[str, int] | None = None, **spec: Any) -> Obj:
    return training_job(kind, counts or {"Master": 1}, **spec)


def with_containers(*containers: dict[str, Any]) -> Obj:
    master = {"replicas": 1, "template": {"spec": {"containers": list(containers)}}}
    return changed(pytorchReplicaSpecs={"Master": master})


CONTAINERS = "spec.pytorchReplicaSpecs[Master].template.spec.containers"


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (changed(pytorchReplicaSpecs=None), "spec.pytorchReplicaSpecs: Required value: must be required"),
        (
            changed(pytorchReplicaSpecs={"worker": replica("PyTorchJob", 1)}),
            'spec.pytorchReplicaSpecs[worker]: Unsupported value: "worker": supported values: "Master", "Worker"',
        ),
        (with_containers(), f"{CONTAINERS}: Required value: must be specified"),
        (with_containers({"name": "pytorch"}), f"{CONTAINERS}[0].image: Required value: must be required"),
        (
            with_containers({"name": "main", "image": "i"}),
            f"{CONTAINERS}: Required value: must have at least one container with name pytorch",
        ),
        (changed(counts={"Master": 2}), "spec.pytorchReplicaSpecs[Master].replicas: Forbidden: must be 1"),
        (changed("XGBoostJob", {"Worker": 1}), "spec.xgbReplicaSpecs[Master]: Required value: must be present"),
        (
            changed("TFJob", {"Chief": 1, "Master": 1}),
            "spec.tfReplicaSpecs: Forbidden: must not have more than 1 Chief or Master role",
        ),
        (
            changed(elasticPolicy={}),
            "spec.elasticPolicy: Forbidden: elastic jobs need Kubeflow's own training operator",
        ),
        (
            changed(counts={"Worker": 1001}),
            "spec.pytorchReplicaSpecs: Invalid value: 1001: a job has between 0 and 1000 pods",
        ),
        (changed(policy={"suspend": 1}), "spec.runPolicy.suspend: Invalid value: Expected `bool | null`, got `int`"),
    ],
)
def test_invalid_job_is_rejected(job: Obj, message: str) -> None:
    with pytest.raises(InvalidTrainingJob) as caught:
        parsed(job)
    assert str(caught.value) == message


def test_errors_name_the_webhook_and_include_the_manager() -> None:
    new = changed(policy={"managedBy": "a"}, elasticPolicy={})
    errors = training_job_errors(new, changed(policy={"managedBy": "b"}))
    assert {each.webhook for each in errors} == {"validator.pytorchjob.training-operator.kubeflow.org"}
    assert [each.problem for each in errors] == [
        'Invalid value: "a": field is immutable',
        'Unsupported value: "a": supported values: "kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue"',
        "Forbidden: elastic jobs need Kubeflow's own training operator",
    ]
    assert training_job_errors(changed(), None) == []


def test_errors_of_pod_templates_have_their_path() -> None:
    job = with_containers({"name": "pytorch", "image": "i", "resources": {"limits": {"cpu": "many"}}})
    (error,) = training_job_errors(job, None)
    assert error.path == f"{CONTAINERS}[0].resources.limits[cpu]"


def test_name_must_be_the_name_of_a_service() -> None:
    job = changed()
    job["metadata"]["name"] = "1st"
    with pytest.raises(InvalidTrainingJob, match=r'^metadata\.name: Invalid value: "1st": should match: a DNS-1035'):
        parsed(job)
