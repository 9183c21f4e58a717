"""What there is of a pod on this machine: its containers by their part in it, and what ran of each."""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from batchyard.api.meta import Obj
from batchyard.runtime.local.runs import Run, by_container, run_of


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
    def is_alive(self) -> bool:
        """Whether it runs or is about to."""
        return bool(self.runs) and self.runs[-1].is_alive


class Situation(NamedTuple):
    """A pod and all that ran of it."""

    pod: Obj
    sandbox: Run | None
    containers: Sequence[Container]

    def of(self, part: Part) -> Iterator[Container]:
        """The containers with that part, in order."""
        return (each for each in self.containers if each.part is part)

    def alive(self) -> Sequence[Container]:
        """The containers that run."""
        return [each for each in self.containers if each.is_alive]

    @property
    def is_initialized(self) -> bool:
        """Whether the main containers may start, or have."""
        if any(each.runs for each in self.of(Part.MAIN)):
            return True
        return all(is_done(each) for each in self.of(Part.INIT)) and all(
            each.last is not None and each.last.is_started for each in self.of(Part.SIDECAR)
        )


def is_done(container: Container) -> bool:
    """Whether it has run to a good end."""
    return container.last is not None and not container.last.is_alive and container.last.exit_code == 0


def situation_of(pod: Obj, runs: Sequence[Obj]) -> Situation:
    """What the runs of a pod make of it."""
    seen = [run_of(run) for run in runs]
    ran, spec = by_container(seen), pod["spec"]
    firsts = [
        Container(each, Part.SIDECAR if each.get("restartPolicy") == "Always" else Part.INIT, ran.get(each["name"], ()))
        for each in spec.get("initContainers") or ()
    ]
    mains = [Container(each, Part.MAIN, ran.get(each["name"], ())) for each in spec["containers"]]
    return Situation(pod, next((run for run in seen if not run.container), None), [*firsts, *mains])
