"""Ray objects for tests, and a world with the controllers of RayClusters, RayJobs and Jobs."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import make
from batchyard.api import scheme
from batchyard.api.meta import Obj, label, with_path
from batchyard.api.views.pods import is_terminal
from batchyard.jobs.job.controller import JobPodController
from batchyard.jobs.stand_ins.ray import RayClusterController
from batchyard.jobs.stand_ins.ray_jobs import RayJobController
from batchyard.jobs.stand_ins.ray_nodes import RAY_CLUSTER, RAY_JOB
from batchyard.jobs.stand_ins.ray_pods import RayCluster
from stage import Stage, condition_state

READY = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [make.condition("Ready")]}


def template(name: str = "ray", container: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod template; `container` has further fields of its container."""
    return {"spec": {"containers": [{"name": name, "image": "rayproject/ray", **(container or {})}], **spec}}


def group(name: str = "small", replicas: int = 1, **fields: Any) -> dict[str, Any]:
    """A worker group."""
    return {"groupName": name, "replicas": replicas, "template": template("ray-worker"), **fields}


def cluster_spec(*groups: Mapping[str, Any], head: Mapping[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """The spec of a RayCluster; `head` has further fields of the head group."""
    head_group = {"template": template("ray-head"), **(head or {})}
    return {"rayVersion": "2.60.0", "headGroupSpec": head_group, "workerGroupSpecs": list(groups), **fields}


def ray_cluster(*groups: Mapping[str, Any], annotations: Mapping[str, str] | None = None, **fields: Any) -> Obj:
    """A RayCluster with these worker groups; keywords are fields of its spec."""
    metadata = make.metadata("rc", uid=None, creationTimestamp=None, annotations=annotations)
    spec = cluster_spec(*groups, **fields)
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata, "spec": spec}


def ray_job(**fields: Any) -> Obj:
    """A RayJob with a cluster of one worker; keywords are fields of its spec."""
    metadata = make.metadata("rj", uid=None, creationTimestamp=None, labels={"team": "a"})
    spec = {"entrypoint": "python main.py", "rayClusterSpec": cluster_spec(group()), "backoffLimit": 0, **fields}
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": metadata, "spec": spec}


def parsed(obj: Obj) -> RayCluster:
    """The cluster of an object."""
    return RayCluster(with_path(obj, ("metadata", "uid"), "u"))


class RayWorld(Stage):
    """A stage with the controllers of Ray and of Jobs."""

    def __init__(self, *objects: Obj) -> None:
        super().__init__(RayClusterController(), RayJobController(), JobPodController())
        self.put(*objects)

    def run(self, seconds: float) -> None:
        """Run until this many seconds after the start, even if nothing is due then."""
        self.kernel.call_at(make.at(seconds), lambda: None)
        super().run(seconds)

    def cluster(self) -> Obj:
        """The only RayCluster."""
        (cluster,) = self.client.list(RAY_CLUSTER)
        return cluster

    def cluster_status(self) -> Mapping[str, Any]:
        """The status of the only RayCluster."""
        status: Mapping[str, Any] = self.cluster()["status"]
        return status

    def state(self, condition_type: str) -> tuple[str, str, str]:
        """Status, reason and message of a condition of the only RayCluster."""
        return condition_state(self.cluster(), condition_type)

    def job(self) -> Mapping[str, Any]:
        """The status of the RayJob."""
        status: Mapping[str, Any] = self.get(RAY_JOB, "rj").get("status") or {}
        return status

    def phase(self) -> tuple[str, str]:
        """The `jobDeploymentStatus` and the `jobStatus` of the RayJob."""
        return self.job().get("jobDeploymentStatus", ""), self.job().get("jobStatus", "")

    def nodes(self, node_type: str = "") -> list[Obj]:
        """The pods of RayClusters, by default of both node types."""
        pods = self.client.list(scheme.POD)
        return [pod for pod in pods if (kind := label(pod, "ray.io/node-type")) and node_type in ("", kind)]

    def names(self, node_type: str = "") -> list[str]:
        """The names of the pods of RayClusters."""
        return [pod["metadata"]["name"] for pod in self.nodes(node_type)]

    def set_status(self, pods: Sequence[Obj], **status: Any) -> None:
        """Set the status of pods; by default they run and are ready."""
        for pod in pods:
            self.put({**pod, "status": {**READY, **status}})

    def start_cluster(self) -> None:
        """Let all pods of the RayCluster run."""
        self.set_status(self.nodes())

    def change(self, kind: str, name: str, path: str, value: object) -> None:
        """Change a field of the spec of an object."""
        self.put(with_path(self.get(kind, name), ("spec", *path.split(".")), value))

    def submitters(self) -> list[Obj]:
        """The pods of the submitting Job."""
        return [pod for pod in self.client.list(scheme.POD) if label(pod, "ray.io/node-type") is None]

    def end_submitter(self, seconds: float, message: str = "", phase: str = "Succeeded") -> None:
        """End the pod of the submitting Job with a termination message, and run until `seconds`."""
        pod = next(pod for pod in self.submitters() if not is_terminal(pod))
        code = 0 if phase == "Succeeded" else 1
        terminated = {"exitCode": code, "finishedAt": make.stamp(), **({"message": message} if message else {})}
        container = {"name": pod["spec"]["containers"][0]["name"], "state": {"terminated": terminated}}
        self.put({**pod, "status": {"phase": phase, "containerStatuses": [container]}})
        self.run(seconds)

    def messages(self, reason: str) -> list[str]:
        """The messages of the Events with a reason."""
        return [event.message for event in self.events if event.reason == reason]


def report(status: str, message: str = "", **times: int) -> str:
    """The termination message of a submitting pod."""
    return json.dumps({"status": status, "message": message, **times})
