"""Jobs of custom kinds in queues of Kubernetes: batchyard's descriptions, and JobKinds of users."""

import json
from typing import Any, Final

import make
from e2e_kubernetes.installed_operators import SETTINGS, InstalledOperators
from e2e_kubernetes.objects import queue, template

OPEN: Final = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
KUBEFLOW: Final = ("kubeflow.org", "PyTorchJob", "pytorchjobs")
TRAINING: Final = ("ml.example.com", "Training", "trainings")
SUSPENDED: Final = "{.spec.runPolicy.suspend}"


def definition(group: str, kind: str, plural: str) -> dict[str, Any]:
    """A CustomResourceDefinition with a status subresource; it allows every field."""
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": OPEN, "status": OPEN}}}
    version = {"name": "v1", "served": True, "storage": True, "subresources": {"status": {}}, "schema": schema}
    names = {"kind": kind, "plural": plural, "singular": kind.lower()}
    metadata = {"name": f"{plural}.{group}"}
    spec = {"group": group, "scope": "Namespaced", "names": names, "versions": [version]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": spec,
    }


def define(cluster: InstalledOperators, names: tuple[str, str, str]) -> None:
    """Create a CustomResourceDefinition; wait until the operators have found the kind."""
    cluster.create(definition(*names))
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{names[2]}.{names[0]}")
    cluster.log_contains(f"{names[2]}.{names[0]} are served")


def pytorch_job(name: str, cpu: str) -> dict[str, Any]:
    """A PyTorchJob of a master and two workers."""
    replicas = {"Master": {"template": template(cpu)}, "Worker": {"replicas": 2, "template": template(cpu)}}
    metadata = {"name": name, "namespace": "default", "labels": {"kueue.x-k8s.io/queue-name": "torch"}}
    spec = {"pytorchReplicaSpecs": replicas}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": metadata, "spec": spec}


def set_status(cluster: InstalledOperators, resource: str, name: str, status: dict[str, Any]) -> None:
    """Write the status of a job, as its controller does."""
    patch = json.dumps({"status": status})
    cluster.kubectl("patch", resource, name, "--subresource=status", "--type=merge", "-p", patch)


def condition(type_: str) -> dict[str, Any]:
    return {"conditions": [{"type": type_, "status": "True", "message": f"it is {type_}"}]}


def test_kubeflow_job_is_queued_once_its_definition_exists(cluster: InstalledOperators) -> None:
    define(cluster, KUBEFLOW)
    cluster.create(*queue("torch"), pytorch_job("first", "1"))
    cluster.until(f"{SUSPENDED}=false", "pytorchjob", "first")
    cluster.create(pytorch_job("second", "1"))
    pod = "{.spec.pytorchReplicaSpecs.Worker.template.spec.nodeSelector}"
    cluster.until(f'{pod}={{"pool":"torch"}}', "pytorchjob", "first")
    assert cluster.get("pytorchjob", "second")["spec"]["runPolicy"] == {"suspend": True}
    set_status(cluster, "pytorchjob", "first", condition("Running"))
    ready = "{.items[*].status.conditions[?(@.type=='PodsReady')].status}"
    cluster.until(f"{ready}=True", "workloads", "-l", f"kueue.x-k8s.io/job-uid={uid(cluster, 'first')}")
    error = cluster.kubectl("label", "pytorchjob", "first", "kueue.x-k8s.io/queue-name=b", "--overwrite", fails=True)
    assert 'admission webhook "vpytorchjob.kb.io" denied the request' in error
    assert "field is immutable" in error
    set_status(cluster, "pytorchjob", "first", condition("Succeeded"))
    cluster.until(f"{SUSPENDED}=false", "pytorchjob", "second")
    finished = "{.items[*].status.conditions[?(@.type=='Finished')].message}"
    cluster.until(f"{finished}=it is Succeeded", "workloads", "-l", f"kueue.x-k8s.io/job-uid={uid(cluster, 'first')}")
    assert (cluster.refused(), cluster.invalid()) == ([], []), cluster.log()
    clean_up(cluster, "pytorchjobs", "torch")


JOB_KIND: Final = make.job_kind(
    active="job.?status.?active.orValue(0) > 0",
    succeeded={"when": "job.?status.?phase.orValue('') == 'Succeeded'", "message": "'done'"},
    reclaimable="[{'name': 'workers', 'count': job.?status.?succeeded.orValue(0)}]",
)
VERBS: Final = "list,watch,patch,delete"


def training(name: str) -> dict[str, Any]:
    """A job of the user's kind with three workers of one CPU."""
    metadata = {"name": name, "namespace": "default", "labels": {"kueue.x-k8s.io/queue-name": "own"}}
    spec = {"workers": 3, "template": template("1")}
    return {"apiVersion": "ml.example.com/v1", "kind": "Training", "metadata": metadata, "spec": spec}


def test_job_kind_of_user_enables_its_kind(cluster: InstalledOperators) -> None:
    invalid: dict[str, Any] = {**JOB_KIND, "spec": {**JOB_KIND["spec"], "ready": "job.status +"}}
    assert "invalid CEL expression" in cluster.kubectl("create", "-f", "-", sent=json.dumps(invalid), fails=True)
    account = ["--serviceaccount", f"{SETTINGS.namespace}:{SETTINGS.name}"]
    resources = "--resource=trainings.ml.example.com"
    cluster.create(JOB_KIND, *queue("own"), definition(*TRAINING))
    cluster.log_contains("jobs of the kind Training are not queued", any_of=True)
    cluster.kubectl("create", "clusterrole", "trainings", f"--verb={VERBS}", resources)
    finalizers = "--resource=trainings.ml.example.com/finalizers"
    cluster.kubectl("create", "clusterrole", "finalizers", "--verb=update", finalizers)
    for name in ("trainings", "finalizers"):
        cluster.kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", *account)
    cluster.log_contains("trainings.ml.example.com are served")
    forbidden = len(cluster.refused())
    cluster.create(training("first"))
    cluster.until("{.spec.paused}=false", "training", "first")
    cluster.create(training("second"))
    cluster.until("{.spec.paused}=true", "training", "second")
    set_status(cluster, "training", "first", {"active": 1, "succeeded": 2})
    cluster.until("{.spec.paused}=false", "training", "second")  # 1 + 3 of 4 CPUs
    for name in ("first", "second"):
        set_status(cluster, "training", name, {"active": 0, "phase": "Succeeded"})
    cluster.until("{.status.reservingWorkloads}=0", "clusterqueue", "own")
    assert (len(cluster.refused()), cluster.invalid()) == (forbidden, []), cluster.log()
    clean_up(cluster, "trainings", "own")


def uid(cluster: InstalledOperators, name: str) -> str:
    """The uid of a PyTorchJob."""
    result: str = cluster.get("pytorchjob", name)["metadata"]["uid"]
    return result


def clean_up(cluster: InstalledOperators, resource: str, queue_name: str) -> None:
    cluster.kubectl("delete", resource, "--all")
    cluster.kubectl("delete", "localqueue,clusterqueue,resourceflavor", queue_name)
