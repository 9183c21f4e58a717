"""Run objects (starts of containers, sandboxes and image pulls): their observed state, and requests for new ones."""

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
    """A request to stop a container or sandbox: the time, the grace period in seconds, and the reason."""

    at: Instant
    #: The grace period in seconds before SIGKILL.
    grace: int
    why: str = ""

    def end_time(self) -> Instant:
        """Return when the grace period ends."""
        return self.at + self.grace * SECOND


class ObservedRun(NamedTuple):
    """One container start, sandbox or image pull, as its Run object describes it."""

    obj: Obj
    #: The container's name; empty for a sandbox or an image pull.
    container: str
    attempt: int
    status: Mapping[str, Any]
    stop: StopRequest | None

    @property
    def image_pull_container(self) -> str:
        """The name of the container for which an image is pulled; empty if this is not an image pull."""
        return str(self.obj["spec"].get("for", ""))

    @property
    def phase(self) -> str:
        """The phase of the container, sandbox or image pull, such as Running, Ready or Exited."""
        phase: str = self.status.get("phase") or STARTING
        return phase

    @property
    def is_alive(self) -> bool:
        """Whether the container, sandbox or image pull has not ended."""
        return self.phase != EXITED

    @property
    def exit_code(self) -> int:
        """The exit code of the ended container or image pull. Raises KeyError before the end."""
        code: int = self.status["exitCode"]
        return code

    @property
    def ended_at(self) -> Instant:
        """When the container, sandbox or image pull ended. Raises KeyError before the end."""
        at: Instant = self.status["finishedAt"]
        return at

    @property
    def started_at(self) -> Instant:
        """When the container, sandbox or image pull started; 0 if it never did."""
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
    def sandbox_number(self) -> int:
        """The number of the sandbox in which this container ran; for a sandbox its own number."""
        return int(self.obj["spec"].get("sandbox", 0))

    @property
    def files_written_at(self) -> Instant:
        """When the volume files of a sandbox were last written; its start time if they were not updated since."""
        return int(self.obj.get("filesFrom", self.started_at))

    @property
    def address(self) -> str:
        """The pod's IP address if the sandbox has its own network; otherwise empty."""
        return str(self.obj["spec"].get("address") or "").partition("/")[0]

    @property
    def restarts_in_row(self) -> int:
        """The number of consecutive restarts up to this container start, which determines the next restart delay."""
        return int(self.obj["spec"].get("restartsInRow", 0))


def run_of(obj: Obj) -> ObservedRun:
    """Return the start of a container or sandbox, or the image pull, that a Run object describes."""
    stop_fields = obj.get("stop")
    return ObservedRun(
        obj,
        obj["spec"].get("container", ""),
        obj["spec"].get("attempt", 0),
        obj.get("status") or {},
        None if stop_fields is None else StopRequest(stop_fields["at"], stop_fields["grace"], stop_fields["why"]),
    )


def group_pulls_by_container(runs: Sequence[ObservedRun]) -> Mapping[str, Sequence[ObservedRun]]:
    """Return the image pulls among `runs` by container name, the oldest first."""
    pulls_by_container: dict[str, list[ObservedRun]] = {}
    for run in sorted(runs, key=lambda pull_run: int(pull_run.obj["spec"].get("number", 0))):
        if run.image_pull_container:
            pulls_by_container.setdefault(run.image_pull_container, []).append(run)
    return pulls_by_container


def group_runs_by_container(runs: Sequence[ObservedRun]) -> Mapping[str, Sequence[ObservedRun]]:
    """Return the container starts among `runs` by container name, the oldest first."""
    runs_by_container: dict[str, list[ObservedRun]] = {}
    for run in sorted(runs, key=lambda observed_run: observed_run.attempt):
        if run.container:
            runs_by_container.setdefault(run.container, []).append(run)
    return runs_by_container


def container_run_request(
    pod: Obj, spec: Mapping[str, Any], mounts: Sequence[Mount], plans: Mapping[str, VolumePlan]
) -> Obj:
    """Return the Run object that requests a container start; the runtime makes the mounts' sources absolute."""
    return {**_new_run(pod, f"{spec['container']}/{spec['attempt']}", spec), "mounts": mounts, "volumes": plans}


def image_run_request(pod: Obj, spec: Mapping[str, Any]) -> Obj:
    """Return the Run object that requests the pull of an image for a container."""
    return _new_run(pod, f"{IMAGE_PULLS}/{spec['for']}/{spec['number']}", spec)


def sandbox_run_request(pod: Obj, spec: Mapping[str, Any], plans: Mapping[str, VolumePlan]) -> Obj:
    """Return the Run object that requests a pod's sandbox, with the contents of the pod's volumes."""
    return {**_new_run(pod, SANDBOX, spec), "volumes": plans}


def with_stop_request(run: ObservedRun, stop: StopRequest) -> Obj:
    """Return the Run object of a container or sandbox, with a stop request added."""
    return {**run.obj, "stop": stop._asdict()}


def with_volume_files(run: ObservedRun, plans: Mapping[str, VolumePlan], now: Instant) -> Obj:
    """Return the Run object of a sandbox with new contents of volume files, written at `now`."""
    return {**run.obj, "volumes": plans, "filesFrom": now}


def pod_of(run: Obj) -> Mapping[str, str]:
    """Return the uid, namespace and name of the pod to which a Run object belongs."""
    pod: Mapping[str, str] = run["spec"]["pod"]
    return pod


def container_id(run: ObservedRun) -> str:
    """Return the containerID of a container start in its pod's status, such as `batchyard://UID/main/0`."""
    key = key_of_run(run)
    return f"batchyard://{key.namespace}/{key.name}"


def key_of_run(run: ObservedRun) -> Key:
    """Return the key (kind, namespace, name) of the Run object of a container start, sandbox or image pull."""
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
