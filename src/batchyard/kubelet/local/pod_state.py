"""What there is of a pod on this machine: its containers by their part in it, and what ran of each."""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from batchyard.api.meta import Obj
from batchyard.kubelet.local.runs import Run, by_container, images_by_container, run_of

_STATUSES = ("initContainerStatuses", "containerStatuses")


class Part(Enum):
    """The part of a container in its pod."""

    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "main"


class Container(NamedTuple):
    """A container of a pod, with its last runs, the oldest first."""

    spec: Mapping[str, Any]
    part: Part
    runs: Sequence[Run]
    #: The number of the sandbox there is now.
    sandbox: int
    #: What the pod's status says of it; empty if nothing.
    told: Mapping[str, Any]
    #: What was done to have its image, the oldest first.
    images: Sequence[Run] = ()

    @property
    def name(self) -> str:
        """Its name in the pod."""
        name: str = self.spec["name"]
        return name

    @property
    def last(self) -> Run | None:
        """The last run; None before the first."""
        return self.runs[-1] if self.runs else None

    @property
    def here(self) -> Run | None:
        """The last run if it is in the sandbox there is now: with another all containers begin anew."""
        return self.runs[-1] if self.runs and self.runs[-1].sandbox == self.sandbox else None

    @property
    def is_alive(self) -> bool:
        """Whether it runs or is about to."""
        return bool(self.runs) and self.runs[-1].is_alive

    @property
    def is_done(self) -> bool:
        """Whether, as one of those that come first, it lets the next one start."""
        run = self.here
        if run is None:
            return False
        return run.is_started if self.part is Part.SIDECAR else not run.is_alive and run.exit_code == 0

    @property
    def next_attempt(self) -> int:
        """The number of its next run, also where those before are forgotten but for what the status says."""
        if self.last is not None:
            return self.last.attempt + 1
        has_run = self.told.get("containerID") or self.told.get("lastState")
        return int(self.told.get("restartCount", 0)) + 1 if has_run else 0


class Situation(NamedTuple):
    """A pod and all that ran of it."""

    pod: Obj
    sandbox: Run | None
    #: Init containers and sidecars in their order, then the main ones.
    containers: Sequence[Container]
    #: The number of the next sandbox.
    next_sandbox: int

    def of(self, part: Part) -> Iterator[Container]:
        """The containers with that part, in order."""
        return (each for each in self.containers if each.part is part)

    def alive(self) -> Sequence[Container]:
        """The containers that run."""
        return [each for each in self.containers if each.is_alive]

    @property
    def restart_policy(self) -> str:
        """What the pod says of containers that have ended."""
        policy: str = self.pod["spec"].get("restartPolicy", "Always")
        return policy


def situation_of(pod: Obj, runs: Sequence[Obj]) -> Situation:
    """What the runs of a pod make of it."""
    seen = [run_of(run) for run in runs]
    sandbox = next((run for run in seen if not run.container and not run.image_for), None)
    last = max((run.sandbox for run in seen), default=-1)
    number = last + 1 if sandbox is None else sandbox.sandbox
    ran, told, spec = by_container(seen), statuses_by_name(pod), pod["spec"]
    images = images_by_container(seen)

    def container(each: Mapping[str, Any], part: Part) -> Container:
        name: str = each["name"]
        return Container(each, part, ran.get(name, ()), number, told.get(name) or {}, images.get(name, ()))

    firsts = [
        container(each, Part.SIDECAR if each.get("restartPolicy") == "Always" else Part.INIT)
        for each in spec.get("initContainers") or ()
    ]
    return Situation(pod, sandbox, [*firsts, *(container(each, Part.MAIN) for each in spec["containers"])], last + 1)


def statuses_by_name(pod: Obj) -> Mapping[str, Mapping[str, Any]]:
    """What the status of a pod says of its containers."""
    status = pod.get("status") or {}
    found: list[Sequence[Mapping[str, Any]]] = [status.get(field) or () for field in _STATUSES]
    return {each["name"]: each for statuses in found for each in statuses}
