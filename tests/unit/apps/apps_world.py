"""A world with the controllers of the group `apps`, whose pods run without nodes."""

from collections.abc import Mapping, Sequence
from typing import Any

import make
from batchyard.api import scheme
from batchyard.api.defaults import with_defaults
from batchyard.api.meta import Obj
from batchyard.apps.deployment import DeploymentController
from batchyard.apps.replica_set import ReplicaSetController
from batchyard.apps.stateful_set import StatefulSetController
from batchyard.interfaces.controller import Controller
from batchyard.kubelet.simulated.kubelet import SimulatedKubelets
from stage import Stage

LABELS = {"app": "web"}


def controllers() -> list[Controller]:
    """Return new controllers, and kubelets that start each pod at once."""
    return [
        DeploymentController(),
        ReplicaSetController(),
        StatefulSetController(),
        SimulatedKubelets(with_nodes=False),
    ]


def template(image: str = "i:1", **fields: Any) -> Obj:
    """A pod template of one container that runs forever."""
    return {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "c", "image": image}], **fields}}


def app(kind: str, name: str = "web", **spec: Any) -> Mapping[str, Any]:
    """An object of the group `apps` with its defaults; keywords set fields of its spec."""
    obj = {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": make.metadata(name, uid=None, creationTimestamp=None),
        "spec": {"selector": {"matchLabels": LABELS}, "template": template(), **spec},
    }
    return with_defaults(obj)


class AppsWorld(Stage):
    """A stage with the controllers of the group `apps`."""

    def __init__(self, *others: Controller) -> None:
        super().__init__(*controllers(), *others)

    def change(self, kind: str, name: str = "web", **spec: Any) -> None:
        """Change fields of the spec of an object."""
        obj = self.get(kind, name)
        self.put({**obj, "spec": {**obj["spec"], **spec}})

    def pods(self) -> Sequence[Obj]:
        """Return the pods without a deletionTimestamp."""
        return [pod for pod in self.client.list(scheme.POD) if "deletionTimestamp" not in pod["metadata"]]

    def images(self) -> list[str]:
        """Return the image of each pod, sorted."""
        return sorted(pod["spec"]["containers"][0]["image"] for pod in self.pods())

    def sizes(self) -> dict[str, int]:
        """Return the replicas of each ReplicaSet by its image."""
        sets = self.client.list(scheme.REPLICA_SET)
        return {each["spec"]["template"]["spec"]["containers"][0]["image"]: each["spec"]["replicas"] for each in sets}

    def messages(self, reason: str) -> list[str]:
        """Return the messages of the Events with a reason."""
        return [event.message for event in self.events if event.reason == reason]

    def fail_pods(self, *, ready: bool = False) -> None:
        """Set the condition Ready of all pods."""
        for pod in self.pods():
            status = {**pod["status"], "conditions": [make.condition("Ready", ready)]}
            self.put({**pod, "status": status})
