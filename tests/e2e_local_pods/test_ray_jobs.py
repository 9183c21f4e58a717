"""RayJobs in a queue that `--job-controllers ray` runs in pods of this machine.

Most tests run a small program instead of Ray. The last test runs Ray from the environment that the variable
RAY_ENVIRONMENT names, by default `.ray` or the environment of the tests.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e_local_pods.node import PATIENCE, local_platform
from e2e_platform.platform_process import UpProcess

ROOT = Path(__file__).parent.parent.parent
_ENVIRONMENTS = (Path(os.environ.get("RAY_ENVIRONMENT", ROOT / ".ray")), Path(sys.prefix))
RAY = next((path for path in _ENVIRONMENTS if [*path.glob("lib/*/site-packages/ray")]), None)
pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")
PYTHON = Path(sys.executable).resolve()
#: The commands of Ray that a RayJob needs: the nodes serve HTTP, and the head runs entrypoints with a shell.
PROGRAM = """#!{python}
import json, os, subprocess, sys, threading, urllib.error, urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

words, pause = sys.argv[1:], threading.Event()
jobs, nodes = {{}}, []

def value_of(option):
    joined = [word.partition("=")[2] for word in words if word.startswith(option + "=")]
    return joined[0] if joined else words[words.index(option) + 1]

def run(job, entrypoint):
    done = subprocess.run(entrypoint, shell=True, capture_output=True, text=True)
    state = "FAILED" if done.returncode else "SUCCEEDED"
    log = done.stdout + "workers " + " ".join(sorted(nodes)) + chr(10)
    jobs[job] = {{"status": state, "message": f"exit code {{done.returncode}}", "log": log, "start_time": 1000}}

class Node(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer("success" if self.path.endswith("healthz") else jobs.get(self.path.rpartition("/")[2]))

    def do_POST(self):
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/nodes":
            nodes.append(sent)
        else:
            jobs[sent["id"]] = {{"status": "RUNNING"}}
            threading.Thread(target=run, args=(sent["id"], sent["entrypoint"])).start()
        self.answer("stored")

    def answer(self, content):
        self.send_response(200 if content else 404)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_):
        pass

def request(url, sent=None):
    content = None if sent is None else json.dumps(sent).encode()
    with urllib.request.urlopen(url, content, timeout=5) as response:
        return json.load(response)

def serve(port):
    threading.Thread(target=ThreadingHTTPServer(("", port), Node).serve_forever).start()

if words[0] == "start":
    print("arguments", *words[1:], flush=True)
    serve(int(value_of("--dashboard-agent-listen-port")))
    if "--head" in words:
        serve(8265)
        serve(6379)
    else:
        host = value_of("--address").partition(":")[0]
        request("http://" + host + ":8265/nodes", os.environ["RAY_CLOUD_INSTANCE_ID"])
elif words[0] == "health-check":
    request("http://" + value_of("--address") + "/api/healthz")
elif words[1] == "submit":
    entrypoint = " ".join(words[words.index("--") + 1 :])
    request(value_of("--address") + "/api/jobs/", {{"id": value_of("--submission-id"), "entrypoint": entrypoint}})
else:
    job = value_of("--address") + "/api/jobs/" + words[-1]
    while words[1] == "logs" and request(job)["status"] == "RUNNING":
        pause.wait(0.2)
    print(request(job).get("log", ""), end="")
"""
#: Runs a task on each node of the cluster.
TASKS = """
import ray
ray.init()

@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
def square(number):
    return number * number

nodes = [node for node in ray.nodes() if node["Alive"]]
print("nodes", len(nodes), "squares", ray.get([square.remote(number) for number in range(4)]))
"""


def queue_objects(cpu: str) -> str:
    """A queue with this much CPU, memory for the submitting pods, and a high priority."""
    resources = [{"name": "cpu", "nominalQuota": cpu}, {"name": "memory", "nominalQuota": "8Gi"}]
    flavors = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": "plain", "resources": resources}]}
    preemption = {"withinClusterQueue": "LowerPriority"}
    team = {"namespaceSelector": {}, "preemption": preemption, "resourceGroups": [flavors]}
    objects: list[dict[str, Any]] = [
        {"kind": "ResourceFlavor", "metadata": {"name": "plain"}},
        {"kind": "ClusterQueue", "metadata": {"name": "team"}, "spec": team},
        {"kind": "LocalQueue", "metadata": {"name": "ray", "namespace": "default"}, "spec": {"clusterQueue": "team"}},
        {"kind": "WorkloadPriorityClass", "metadata": {"name": "high"}, "value": 100},
    ]
    items = [{"apiVersion": "kueue.x-k8s.io/v1beta2", **each} for each in objects]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment whose `ray` is the small program."""
    folder = tmp_path_factory.mktemp("environment")
    (folder / "bin").mkdir()
    (folder / "pyvenv.cfg").write_text(f"home = {PYTHON.parent}\n")
    (folder / "bin" / "python").symlink_to(PYTHON)
    program = folder / "bin" / "ray"
    program.write_text(PROGRAM.format(python=PYTHON))
    program.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, environment: Path) -> Iterator[UpProcess]:
    """A platform with a queue for one RayJob, and without KubeRay."""
    images = ["--image", f"rayproject/small={environment}"]
    images += [] if RAY is None else ["--image", f"rayproject/ray={RAY}"]
    with local_platform(tmp_path_factory.mktemp("platform"), "--job-controllers", "ray", *images) as started:
        if started.kubectl("get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}") == "None":
            pytest.skip("pods have no network of their own here")
        started.kubectl("apply", "-f", "-", sent=queue_objects("1"))
        yield started


def pod_template(name: str, image: str, **spec: Any) -> dict[str, Any]:
    """The template of one node; the small program needs no delay before the first probe."""
    container: dict[str, Any] = {"name": name, "image": image, "resources": {"requests": {"cpu": "200m"}}}
    if image.endswith("small"):
        probe = {"httpGet": {"path": "/api/healthz", "port": 52365}, "periodSeconds": 1}
        container["readinessProbe"] = probe
    container |= spec.pop("container", {})
    return {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1, **spec}}


def ray_job(name: str, entrypoint: str, image: str = "rayproject/small", **fields: Any) -> str:
    """A RayJob in the queue: a head, a worker, and the submitting pod, which requests 500m."""
    head = {"template": pod_template("ray-head", image, **fields.pop("head", {}))}
    params = {"rayStartParams": {"object-store-memory": "100000000"}}
    group = {"groupName": "small", "replicas": 1, "template": pod_template("ray-worker", image)}
    cluster = {"rayVersion": "2.60.0", "headGroupSpec": {**head, **params}, "workerGroupSpecs": [{**group, **params}]}
    metadata = {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "ray"}}
    spec = {"entrypoint": entrypoint, "shutdownAfterJobFinishes": True, "rayClusterSpec": cluster, **fields}
    return json.dumps({"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": metadata, "spec": spec})


def urgent_job(name: str) -> str:
    """A Job of higher priority that takes the whole quota for a moment."""
    container = {"name": "main", "image": "machine", "command": ["sleep", "1"]}
    spec = {"restartPolicy": "Never", "containers": [{**container, "resources": {"requests": {"cpu": "1"}}}]}
    labels = {"kueue.x-k8s.io/queue-name": "ray", "kueue.x-k8s.io/priority-class": "high"}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "labels": labels}}
    return json.dumps({**job, "spec": {"template": {"spec": spec}}})


def submit(platform: UpProcess, manifest: str) -> None:
    platform.kubectl("create", "-f", "-", sent=manifest)


def wait_for(platform: UpProcess, field: str, value: str, name: str) -> None:
    platform.kubectl("wait", f"--for=jsonpath={{.status.{field}}}={value}", name, PATIENCE)


def wait_long(platform: UpProcess, condition: str, name: str) -> None:
    command = ["kubectl", "wait", condition, name, "--timeout=280s"]
    subprocess.run(command, env={**os.environ, "KUBECONFIG": str(platform.kubeconfig)}, check=True, timeout=300)


def field_of(platform: UpProcess, name: str, path: str) -> str:
    return platform.kubectl("get", name, "-o", f"jsonpath={{{path}}}")


def test_job_runs_on_a_cluster_of_two_pods(platform: UpProcess) -> None:
    submit(platform, ray_job("first", "printenv RAY_CLUSTER_NAME"))
    wait_for(platform, "jobDeploymentStatus", "Complete", "rayjob/first")
    status = json.loads(platform.kubectl("get", "rayjob", "first", "-o", "json"))["status"]
    assert (status["jobStatus"], status["message"], status["succeeded"]) == ("SUCCEEDED", "exit code 0", 1)
    assert status["rayJobInfo"] == {"startTime": "1970-01-01T00:00:01Z"}
    assert status["rayClusterStatus"]["availableWorkerReplicas"] == 1
    cluster = status["rayClusterName"]
    name, workers = platform.kubectl("logs", "job/first").splitlines()[-2:]
    assert name == cluster
    assert workers.startswith(f"workers {cluster}-small-worker-")
    platform.kubectl("wait", "--for=condition=Finished", "workloads", "--all", PATIENCE)
    platform.kubectl("wait", "--for=delete", f"raycluster/{cluster}", PATIENCE)
    header, row = platform.kubectl("get", "rayjob", "first").splitlines()
    assert "JOB STATUS   DEPLOYMENT STATUS   RAY CLUSTER NAME" in header
    assert row.split()[:4] == ["first", "SUCCEEDED", "Complete", cluster]


def test_failing_job_is_reported(platform: UpProcess) -> None:
    submit(platform, ray_job("failing", "exit 3"))
    wait_for(platform, "jobDeploymentStatus", "Failed", "rayjob/failing")
    fields = ".status.jobStatus} {.status.reason} {.status.message"
    assert field_of(platform, "rayjob/failing", fields) == "FAILED AppFailed exit code 3"
    platform.kubectl("delete", "rayjob", "failing")


def test_preempted_job_starts_again_after_the_urgent_one(platform: UpProcess) -> None:
    submit(platform, ray_job("long", "sleep 600"))
    wait_for(platform, "jobStatus", "RUNNING", "rayjob/long")
    first_cluster = field_of(platform, "rayjob/long", ".status.rayClusterName")
    submit(platform, urgent_job("urgent"))
    wait_for(platform, "jobDeploymentStatus", "Suspended", "rayjob/long")
    platform.kubectl("wait", "--for=condition=Complete", "job/urgent", PATIENCE)
    wait_for(platform, "jobStatus", "RUNNING", "rayjob/long")
    assert field_of(platform, "rayjob/long", ".status.rayClusterName") != first_cluster
    events = platform.kubectl("get", "events", "-o", "jsonpath={.items[*].reason}").split()
    assert {"CreatedRayCluster", "DeletedRayCluster", "DeletedRayJobSubmitter", "CreatedHeadPod"} <= {*events}
    platform.kubectl("delete", "rayjob", "long")


def test_cluster_is_scaled_and_its_workers_are_replaced(platform: UpProcess) -> None:
    spec = json.loads(ray_job("x", "x"))["spec"]["rayClusterSpec"]
    cluster = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "idle"}, "spec": spec}
    submit(platform, json.dumps(cluster))
    wait_for(platform, "state", "ready", "raycluster/idle")
    head = platform.kubectl("get", "pods", "-l", "ray.io/cluster=idle,ray.io/node-type=head", "-o", "name").strip()
    assert "arguments --head --block" in platform.kubectl("logs", head)
    patch = json.dumps([{"op": "replace", "path": "/spec/workerGroupSpecs/0/replicas", "value": 2}])
    platform.kubectl("patch", "raycluster", "idle", "--type=json", "-p", patch)
    wait_for(platform, "readyWorkerReplicas", "2", "raycluster/idle")
    platform.kubectl("delete", "pods", "-l", "ray.io/cluster=idle,ray.io/group=small", PATIENCE)
    wait_for(platform, "readyWorkerReplicas", "2", "raycluster/idle")
    workers = platform.kubectl("get", "pods", "-l", "ray.io/group=small,ray.io/cluster=idle", "-o", "name").split()
    assert len(workers) == 2
    assert field_of(platform, "raycluster/idle", ".status.endpoints.dashboard") == "8265"
    platform.kubectl("delete", "raycluster", "idle")
    platform.kubectl("wait", "--for=delete", head, PATIENCE)


def test_job_that_needs_kuberay_waits_without_quota(platform: UpProcess) -> None:
    submit(platform, ray_job("other", "true", submissionMode="HTTPMode"))
    wait_for(platform, "jobDeploymentStatus", "ValidationFailed", "rayjob/other")
    problem = "submissionMode HTTPMode needs KubeRay's own operator"
    assert problem in field_of(platform, "rayjob/other", ".status.message")
    assert problem in platform.kubectl("events", "--for", "rayjob/other")
    platform.kubectl("delete", "rayjob", "other")


@pytest.mark.skipif(RAY is None, reason="there is no Ray: set RAY_ENVIRONMENT to an environment with ray[default]")
def test_ray_runs_tasks_in_two_pods(platform: UpProcess, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    platform.kubectl("create", "configmap", "tasks", f"--from-file={tmp_path / 'tasks.py'}")
    mount = {"volumeMounts": [{"name": "tasks", "mountPath": "/tasks"}]}
    head = {"container": mount, "volumes": [{"name": "tasks", "configMap": {"name": "tasks"}}]}
    submit(platform, ray_job("squares", "python /tasks/tasks.py", "rayproject/ray", head=head))
    wait_long(platform, "--for=jsonpath={.status.jobDeploymentStatus}=Complete", "rayjob/squares")
    assert field_of(platform, "rayjob/squares", ".status.jobStatus") == "SUCCEEDED"
    assert "nodes 2 squares [0, 1, 4, 9]" in platform.kubectl("logs", "job/squares")
