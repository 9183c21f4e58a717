"""Jobs of Kubeflow's training operator for tests, and a world with their controller."""

from collections.abc import Mapping
from typing import Any

import make
from batchyard.api import scheme
from batchyard.api.meta import Obj, with_path
from batchyard.jobs.stand_ins.kubeflow import TrainingJobController
from batchyard.jobs.stand_ins.training_jobs import FRAMEWORKS, TrainingJob
from stage import Stage, condition_state

DEFAULT_REPLICAS = {"Master": 1, "Worker": 2}


def kind_of(kind: str) -> str:
    """The name of a kind in the store."""
    return f"{kind}.kubeflow.org"


def replica(kind: str, count: int | None, restart_policy: str = "", **fields: Any) -> dict[str, Any]:
    """One replica type; `container` has further fields of its container, `metadata` is that of the template."""
    container = {"name": FRAMEWORKS[kind_of(kind)].container, "image": "i", **fields.pop("container", {})}
    template = {"metadata": fields.pop("metadata", {}), "spec": {"containers": [container], **fields}}
    policy = {"restartPolicy": restart_policy} if restart_policy else {}
    return {**({} if count is None else {"replicas": count}), **policy, "template": template}


def training_job(
    kind: str = "PyTorchJob",
    counts: Mapping[str, int] = DEFAULT_REPLICAS,
    policy: Mapping[str, Any] | None = None,
    restart_policy: str = "",
    **spec: Any,
) -> Obj:
    """A job with these numbers of replicas; keywords are fields of its spec."""
    replicas = {name: replica(kind, count, restart_policy) for name, count in counts.items()}
    fields = {"runPolicy": dict(policy or {}), FRAMEWORKS[kind_of(kind)].replica_field: replicas, **spec}
    metadata = make.metadata("train", uid=None, creationTimestamp=None)
    return {"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": metadata, "spec": fields}


def parsed(obj: Obj) -> TrainingJob:
    """The job of an object."""
    return TrainingJob(with_path(obj, ("metadata", "uid"), "u"), FRAMEWORKS[kind_of(obj["kind"])])


class TrainingWorld(Stage):
    """A stage with the controller of a kind, and one job."""

    def __init__(self, obj: Obj) -> None:
        self.kind = kind_of(obj["kind"])
        super().__init__(TrainingJobController(self.kind))
        self.put(obj)

    def job(self) -> Obj:
        """The stored job."""
        return self.get(self.kind, "train")

    def status(self) -> Mapping[str, Any]:
        """The status of the job."""
        status: Mapping[str, Any] = self.job()["status"]
        return status

    def state(self, condition_type: str) -> tuple[str, str, str]:
        """Status, reason and message of a condition."""
        return condition_state(self.job(), condition_type)

    def conditions(self) -> dict[str, str]:
        """The status of each condition by its type."""
        return {each["type"]: each["status"] for each in self.status()["conditions"]}

    def pods(self) -> list[str]:
        """The names of the pods without their common part."""
        return [pod["metadata"]["name"].removeprefix("train-") for pod in self.client.list(scheme.POD)]

    def services(self) -> list[str]:
        """The names of the Services without their common part."""
        return [each["metadata"]["name"].removeprefix("train-") for each in self.client.list(scheme.SERVICE)]

    def run(self, seconds: float) -> None:
        """Run until this many seconds after the start, and move the clock there even if nothing is due."""
        self.kernel.call_at(make.at(seconds), lambda: None)
        super().run(seconds)

    def report(self, phase: str, *names: str, code: int | None = None) -> None:
        """Set the phase of pods (all by default), with the exit code of their container."""
        for name in names or self.pods():
            pod = self.get(scheme.POD, f"train-{name}")
            container = {"name": pod["spec"]["containers"][0]["name"], "restartCount": 0}
            state = {} if code is None else {"state": {"terminated": {"exitCode": code}}}
            self.put({**pod, "status": {"phase": phase, "containerStatuses": [{**container, **state}]}})

    def change(self, path: str, value: object) -> None:
        """Change a field of the spec of the job."""
        self.put(with_path(self.job(), ("spec", *path.split(".")), value))

    def messages(self, reason: str) -> list[str]:
        """The messages of the Events with a reason."""
        return [event.message for event in self.events if event.reason == reason]
