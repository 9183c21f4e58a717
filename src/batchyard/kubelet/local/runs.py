"""Runs (starts of containers, sandboxes and image pulls): their observed state and the requests to create them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Key, Obj, key_of
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.containers import IMAGE_PULLS, SANDBOX
from batchyard.kubelet.local.volumes import Mount, VolumePlan

API_VERSION: Final = "node.batchyard.dev/v1alpha1"
READY: Final = "Ready"
RUNNING: Final = "Running"
EXITED: Final = "Exited"
STARTING: Final = "Starting"


class StopRequest(NamedTuple):
    """A request to stop a run: when, with which grace period, and why."""

    at: Instant
    #: The grace period in seconds before SIGKILL.
    grace: int
    why: str = ""

    def end_time(self) -> Instant:
        """Return when the grace period ends."""
        return self.at + self.grace * SECOND


class ObservedRun(NamedTuple):
    """One run of a container, sandbox or image pull, as an object. Its phase is Running, or Ready for a sandbox."""

    obj: Obj
    #: The container's name; empty for a sandbox or an image pull.
    container: str
    attempt: int
    status: Mapping[str, Any]
    stop: StopRequest | None

    @property
    def image_for(self) -> str:
        """The name of the container for which an image is pulled; empty if the run is no image pull."""
        return str(self.obj["spec"].get("for", ""))

    @property
    def phase(self) -> str:
        """The phase of the run."""
        phase: str = self.status.get("phase") or STARTING
        return phase

    @property
    def is_alive(self) -> bool:
        """Whether the run has not ended."""
        return self.phase != EXITED

    @property
    def exit_code(self) -> int:
        """The exit code of an ended run; KeyError for other runs."""
        code: int = self.status["exitCode"]
        return code

    @property
    def ended_at(self) -> Instant:
        """When the run ended; KeyError if it has not ended."""
        at: Instant = self.status["finishedAt"]
        return at

    @property
    def started_at(self) -> Instant:
        """When the run started; 0 if it never started."""
        at: Instant = self.status.get("startedAt") or 0
        return at

    @property
    def is_started(self) -> bool:
        """Whether the container runs and its startup probe, if any, has succeeded."""
        return self.phase == RUNNING and bool(self.status.get("started"))

    @property
    def is_killed_by_probe(self) -> bool:
        """Whether the container was stopped because a probe failed."""
        return "probe" in (self.status.get("failed") or {})

    @property
    def sandbox(self) -> int:
        """The number of the run's sandbox; for a sandbox its own number."""
        return int(self.obj["spec"].get("sandbox", 0))

    @property
    def files_written_at(self) -> Instant:
        """When the files of the pod's volumes were last written; only for a ready sandbox."""
        return int(self.obj.get("filesFrom", self.started_at))

    @property
    def address(self) -> str:
        """The pod's address if its sandbox has its own network; otherwise empty."""
        return str(self.obj["spec"].get("address") or "").partition("/")[0]

    @property
    def restarts_in_row(self) -> int:
        """The number of consecutive early restarts before this run, which determines the restart backoff."""
        return int(self.obj["spec"].get("restartsInRow", 0))


def run_of(obj: Obj) -> ObservedRun:
    """Return the observed run for a Run object."""
    stop = obj.get("stop")
    return ObservedRun(
        obj,
        obj["spec"].get("container", ""),
        obj["spec"].get("attempt", 0),
        obj.get("status") or {},
        None if stop is None else StopRequest(stop["at"], stop["grace"], stop["why"]),
    )


def group_pulls_by_container(runs: Sequence[ObservedRun]) -> Mapping[str, Sequence[ObservedRun]]:
    """Group the image pulls among runs by container, the oldest first."""
    groups: dict[str, list[ObservedRun]] = {}
    for run in sorted(runs, key=lambda pull_run: int(pull_run.obj["spec"].get("number", 0))):
        if run.image_for:
            groups.setdefault(run.image_for, []).append(run)
    return groups


def group_runs_by_container(runs: Sequence[ObservedRun]) -> Mapping[str, Sequence[ObservedRun]]:
    """Group the container runs by container, the oldest first."""
    groups: dict[str, list[ObservedRun]] = {}
    for run in sorted(runs, key=lambda observed_run: observed_run.attempt):
        if run.container:
            groups.setdefault(run.container, []).append(run)
    return groups


def container_run_request(
    pod: Obj, spec: Mapping[str, Any], mounts: Sequence[Mount], plans: Mapping[str, VolumePlan]
) -> Obj:
    """Return the Run object that requests a container start; the runtime resolves the sources of its mounts."""
    return {**_new_run(pod, f"{spec['container']}/{spec['attempt']}", spec), "mounts": mounts, "volumes": plans}


def image_run_request(pod: Obj, spec: Mapping[str, Any]) -> Obj:
    """Return the Run object that requests the pull of a container's image."""
    return _new_run(pod, f"{IMAGE_PULLS}/{spec['for']}/{spec['number']}", spec)


def sandbox_run_request(pod: Obj, spec: Mapping[str, Any], plans: Mapping[str, VolumePlan]) -> Obj:
    """Return the Run object that requests a pod's sandbox, with the volume plans."""
    return {**_new_run(pod, SANDBOX, spec), "volumes": plans}


def with_stop_request(run: ObservedRun, stop: StopRequest) -> Obj:
    """Return the Run object with a stop request."""
    return {**run.obj, "stop": stop._asdict()}


def with_volume_files(run: ObservedRun, plans: Mapping[str, VolumePlan], now: Instant) -> Obj:
    """Return a sandbox's Run object with new volume files."""
    return {**run.obj, "volumes": plans, "filesFrom": now}


def pod_of(run: Obj) -> Mapping[str, str]:
    """Return the uid, namespace and name of a run's pod."""
    pod: Mapping[str, str] = run["spec"]["pod"]
    return pod


def key_of_run(run: ObservedRun) -> Key:
    """Return the key of a run's Run object."""
    return key_of(run.obj)


def _new_run(pod: Obj, name: str, spec: Mapping[str, Any]) -> Obj:
    metadata = pod["metadata"]
    pod_reference = {"uid": metadata["uid"], "namespace": metadata["namespace"], "name": metadata["name"]}
    return {
        "apiVersion": API_VERSION,
        "kind": "Run",
        "metadata": {"namespace": metadata["uid"], "name": name},
        "spec": {"pod": pod_reference, **spec},
    }
