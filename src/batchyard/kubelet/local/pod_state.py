"""Observed state of a pod on this machine: its containers by role, and their runs."""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from batchyard.api.meta import Obj
from batchyard.kubelet.local.runs import ObservedRun, by_container, images_by_container, run_of

_STATUSES = ("initContainerStatuses", "containerStatuses")


class ContainerRole(Enum):
    """The role of a container in its pod."""

    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "main"


class PodContainer(NamedTuple):
    """A container of a pod, with its last runs, the oldest first."""

    spec: Mapping[str, Any]
    part: ContainerRole
    runs: Sequence[ObservedRun]
    #: The number of the current sandbox.
    sandbox: int
    #: Its status in the pod's status; empty if it has none.
    reported: Mapping[str, Any]
    #: The image pulls for it, the oldest first.
    images: Sequence[ObservedRun] = ()

    @property
    def name(self) -> str:
        """The container's name."""
        name: str = self.spec["name"]
        return name

    @property
    def last(self) -> ObservedRun | None:
        """The last run; None before the first."""
        return self.runs[-1] if self.runs else None

    @property
    def here(self) -> ObservedRun | None:
        """The last run if it is in the current sandbox: in a new sandbox all containers start again."""
        return self.runs[-1] if self.runs and self.runs[-1].sandbox == self.sandbox else None

    @property
    def is_alive(self) -> bool:
        """Whether it runs or is starting."""
        return bool(self.runs) and self.runs[-1].is_alive

    @property
    def is_done(self) -> bool:
        """Whether an init container or sidecar allows the next container to start."""
        run = self.here
        if run is None:
            return False
        return run.is_started if self.part is ContainerRole.SIDECAR else not run.is_alive and run.exit_code == 0

    @property
    def next_attempt(self) -> int:
        """The number of its next run; derived from the status if earlier runs were deleted."""
        if self.last is not None:
            return self.last.attempt + 1
        has_run = self.reported.get("containerID") or self.reported.get("lastState")
        return int(self.reported.get("restartCount", 0)) + 1 if has_run else 0


class PodState(NamedTuple):
    """A pod, its sandbox, and its containers with their runs."""

    pod: Obj
    sandbox: ObservedRun | None
    #: Init containers and sidecars in order, then the main containers.
    containers: Sequence[PodContainer]
    #: The number of the next sandbox.
    next_sandbox: int

    def of(self, part: ContainerRole) -> Iterator[PodContainer]:
        """Yield the containers with a role, in order."""
        return (each for each in self.containers if each.part is part)

    def alive(self) -> Sequence[PodContainer]:
        """Return the containers that run or are starting."""
        return [each for each in self.containers if each.is_alive]

    @property
    def restart_policy(self) -> str:
        """The pod's restart policy."""
        policy: str = self.pod["spec"].get("restartPolicy", "Always")
        return policy


def observed_pod_state(pod: Obj, runs: Sequence[Obj]) -> PodState:
    """Return the observed state of a pod from its runs."""
    seen = [run_of(run) for run in runs]
    sandbox = next((run for run in seen if not run.container and not run.image_for), None)
    last = max((run.sandbox for run in seen), default=-1)
    number = last + 1 if sandbox is None else sandbox.sandbox
    ran, statuses, spec = by_container(seen), statuses_by_name(pod), pod["spec"]
    images = images_by_container(seen)

    def container(each: Mapping[str, Any], part: ContainerRole) -> PodContainer:
        name: str = each["name"]
        return PodContainer(each, part, ran.get(name, ()), number, statuses.get(name) or {}, images.get(name, ()))

    firsts = [
        container(each, ContainerRole.SIDECAR if each.get("restartPolicy") == "Always" else ContainerRole.INIT)
        for each in spec.get("initContainers") or ()
    ]
    return PodState(
        pod, sandbox, [*firsts, *(container(each, ContainerRole.MAIN) for each in spec["containers"])], last + 1
    )


def statuses_by_name(pod: Obj) -> Mapping[str, Mapping[str, Any]]:
    """Return the container statuses of a pod, by name."""
    status = pod.get("status") or {}
    found: list[Sequence[Mapping[str, Any]]] = [status.get(field) or () for field in _STATUSES]
    return {each["name"]: each for statuses in found for each in statuses}
