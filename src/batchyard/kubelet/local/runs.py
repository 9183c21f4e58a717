"""Runs as a kubelet reads them, and the wishes it has for them (batchyard.interfaces.containers)."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Key, Obj, key_of
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.containers import IMAGES, SANDBOX
from batchyard.kubelet.local.volume_plans import Mount, Plan

API_VERSION: Final = "node.batchyard.dev/v1alpha1"
READY: Final = "Ready"
RUNNING: Final = "Running"
EXITED: Final = "Exited"
STARTING: Final = "Starting"


class Stop(NamedTuple):
    """A wish that a run end."""

    at: Instant
    #: Seconds from then to the end by force.
    grace: int
    why: str = ""

    def until(self) -> Instant:
        """When it ends by force."""
        return self.at + self.grace * SECOND


class Run(NamedTuple):
    """One run. Of a sandbox `Ready` is what `Running` is of a container."""

    obj: Obj
    #: Empty for a sandbox, and for an image.
    container: str
    attempt: int
    status: Mapping[str, Any]
    stop: Stop | None

    @property
    def image_for(self) -> str:
        """The container that an image is for; empty for what is no image."""
        return str(self.obj["spec"].get("for", ""))

    @property
    def phase(self) -> str:
        """How far it has come."""
        phase: str = self.status.get("phase") or STARTING
        return phase

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self.phase != EXITED

    @property
    def exit_code(self) -> int:
        """How it ended; asked only of one that has."""
        code: int = self.status["exitCode"]
        return code

    @property
    def ended_at(self) -> Instant:
        """When it ended; asked only of one that has."""
        at: Instant = self.status["finishedAt"]
        return at

    @property
    def started_at(self) -> Instant:
        """When it began; 0 for one that never did."""
        at: Instant = self.status.get("startedAt") or 0
        return at

    @property
    def is_started(self) -> bool:
        """Whether it runs, and its startup probe has succeeded if it has one."""
        return self.phase == RUNNING and bool(self.status.get("started"))

    @property
    def is_killed_by_probe(self) -> bool:
        """Whether it was to end because a probe gave it up."""
        return "probe" in (self.status.get("failed") or {})

    @property
    def sandbox(self) -> int:
        """The number of the sandbox that it is in; of a sandbox its own."""
        return int(self.obj["spec"].get("sandbox", 0))

    @property
    def files_are_from(self) -> Instant:
        """When the files of the pod's volumes were made; asked only of a sandbox that is ready."""
        return int(self.obj.get("filesFrom", self.started_at))

    @property
    def address(self) -> str:
        """The address of a sandbox that has a network of its own; else empty."""
        return str(self.obj["spec"].get("address") or "").partition("/")[0]

    @property
    def restarts_in_row(self) -> int:
        """How many restarts there were before it, each soon after the last."""
        return int(self.obj["spec"].get("restartsInRow", 0))


def run_of(obj: Obj) -> Run:
    """A run as it is told."""
    stop = obj.get("stop")
    return Run(
        obj,
        obj["spec"].get("container", ""),
        obj["spec"].get("attempt", 0),
        obj.get("status") or {},
        None if stop is None else Stop(stop["at"], stop["grace"], stop["why"]),
    )


def images_by_container(runs: Sequence[Run]) -> Mapping[str, Sequence[Run]]:
    """What was done to have the image of each container, the oldest first."""
    found: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda each: int(each.obj["spec"].get("number", 0))):
        if run.image_for:
            found.setdefault(run.image_for, []).append(run)
    return found


def by_container(runs: Sequence[Run]) -> Mapping[str, Sequence[Run]]:
    """The runs of each container, the oldest first."""
    found: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda each: each.attempt):
        if run.container:
            found.setdefault(run.container, []).append(run)
    return found


def run_wish(pod: Obj, spec: Mapping[str, Any], mounts: Sequence[Mount], plans: Mapping[str, Plan]) -> Obj:
    """The wish that a container be started. What its mounts lead to is looked up where the volumes are."""
    return {**_new(pod, f"{spec['container']}/{spec['attempt']}", spec), "mounts": mounts, "volumes": plans}


def image_wish(pod: Obj, spec: Mapping[str, Any]) -> Obj:
    """The wish that the image of a container be there."""
    return _new(pod, f"{IMAGES}/{spec['for']}/{spec['number']}", spec)


def sandbox_wish(pod: Obj, spec: Mapping[str, Any], plans: Mapping[str, Plan]) -> Obj:
    """The wish that there be a sandbox for the containers of a pod, with its volumes."""
    return {**_new(pod, SANDBOX, spec), "volumes": plans}


def stopped(run: Run, stop: Stop) -> Obj:
    """The run as it is to be: ending."""
    return {**run.obj, "stop": stop._asdict()}


def refreshed(run: Run, plans: Mapping[str, Plan], now: Instant) -> Obj:
    """The sandbox as it is to be: the files of its volumes up to date."""
    return {**run.obj, "volumes": plans, "filesFrom": now}


def pod_of(run: Obj) -> Mapping[str, str]:
    """Uid, namespace and name of the pod that a run is of."""
    pod: Mapping[str, str] = run["spec"]["pod"]
    return pod


def key_of_run(run: Run) -> Key:
    """The key of a run."""
    return key_of(run.obj)


def _new(pod: Obj, name: str, spec: Mapping[str, Any]) -> Obj:
    metadata = pod["metadata"]
    whose = {"uid": metadata["uid"], "namespace": metadata["namespace"], "name": metadata["name"]}
    return {
        "apiVersion": API_VERSION,
        "kind": "Run",
        "metadata": {"namespace": metadata["uid"], "name": name},
        "spec": {"pod": whose, **spec},
    }
