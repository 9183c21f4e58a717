"""A stage with simulated kubelets, and helpers that read pods."""

from collections.abc import Sequence
from typing import Any

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.base.instant import SECOND
from batchyard.interfaces.client import Delete
from batchyard.kubelet.simulated.kubelet import ContainerDelays, SimulatedKubelets
from stage import Stage
from unit.nodes.node_make import node


def kubelet_stage(*objects: Obj, pace: ContainerDelays | None = None) -> Stage:
    """A stage with a ready node and these objects."""
    stage = Stage(SimulatedKubelets(pace))
    stage.put(node(), *objects)
    return stage


def slow(seconds: float) -> ContainerDelays:
    """Containers that start after this delay."""
    return ContainerDelays(start_delay=lambda _: int(seconds * SECOND))


def status(stage: Stage, name: str = "pod") -> Any:
    """The status of a pod."""
    return stage.get(scheme.POD, name)["status"]


def container(stage: Stage, name: str = "pod") -> Any:
    """The status of its container."""
    return status(stage, name)["containerStatuses"][0]


def is_gone(stage: Stage, name: str = "pod") -> bool:
    """Whether the pod does not exist."""
    return stage.client.get(Key(scheme.POD, "team", name)) is None


def pass_time(stage: Stage, seconds: float) -> None:
    """Advances time to an instant, even without an event at that instant."""
    stage.kernel.call_at(make.at(seconds), lambda: None)
    stage.run(seconds)


def delete(stage: Stage, grace: int | None = None, name: str = "pod") -> None:
    """Deletes a pod."""
    stage.client.submit([Delete(Key(scheme.POD, "team", name), grace)], lambda _: None)
    stage.settle()


def conditions(stage: Stage, *kinds: str) -> Sequence[tuple[str, str]]:
    """Status and reason of conditions of the pod."""
    result = {c["type"]: c for c in status(stage)["conditions"]}
    return [(result[kind]["status"], result[kind].get("reason", "")) for kind in kinds]
