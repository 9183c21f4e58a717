"""A fake machine in virtual time, and a stage whose kubelet uses it as its node."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, find_condition, key_of
from batchyard.base.instant import SECOND, Instant
from batchyard.client.informer import CompositeClient
from batchyard.client.local import LocalClient
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.controller_runtime.runner import Runner
from batchyard.interfaces.client import Create, Delete, EventType, Listener, WatchEvent, Write
from batchyard.interfaces.containers import RUN, SANDBOX
from batchyard.kubelet.local.images import ImageMapping
from batchyard.kubelet.local.kubelet import LocalKubelet
from batchyard.kubelet.local.run_requests import NodeSettings, RunRequests
from batchyard.kubelet.local.volumes import VolumeFile
from batchyard.store.memory import Store
from stage import Stage
from unit.kubelet.local import local_make

UID = "uid-pod"


@dataclass(frozen=True)
class ContainerScript:
    """The behavior of a container: it ends after `seconds` with `code`, or `stopping` seconds after a stop request."""

    seconds: float | None = None
    code: int = 0
    stopping: float = 0
    #: The seconds between the request for the start and the start.
    starting: float = 0
    stopped_code: int = 143
    #: The time at which the startup and readiness probes of the container succeed; None: never.
    started: float | None = 0
    ready: float | None = 0
    #: Additional fields of the container's status, from its start on.
    status: Mapping[str, Any] | None = None


FOREVER = ContainerScript()
ScriptOf = Callable[[str, int], ContainerScript]


class FakeMachine:
    """Runs follow their scripts. The machine asserts the preconditions of its interface."""

    def __init__(self, kernel: VirtualEventLoop, script: ScriptOf) -> None:
        self._kernel = kernel
        self.script = script
        self._runs: dict[Key, Obj] = {}
        self._listeners: list[Listener] = []
        self._events: list[WatchEvent] = []
        #: The errors with which the next sandboxes fail.
        self.faults: list[str] = []
        #: The results of the next image lookups: fields of their status.
        self.images: list[dict[str, Any]] = []
        #: The starts, in order: "sandbox" or "CONTAINER/N".
        self.started: list[str] = []
        #: The times of the starts, in seconds from the beginning.
        self.times: list[float] = []
        #: The files of each update of volumes, in order: by volume.
        self.written: list[Mapping[str, Mapping[str, VolumeFile]]] = []
        #: The stops, in order: name and seconds of grace.
        self.stops: list[tuple[str, int]] = []

    def find_run(self, key: Key) -> Obj | None:
        return self._runs.get(key)

    def runs(self, uid: str | None = None) -> Sequence[Obj]:
        return [run for key, run in self._runs.items() if uid in (None, key.namespace)]

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def execute_write(self, write: Write) -> Obj:
        if isinstance(write, Delete):
            return self._forget(write.key)
        if "volumes" in write.obj and not isinstance(write, Create):
            return self._refresh(write.obj)
        return self._start(write.obj) if isinstance(write, Create) else self._stop(write.obj)

    def set_status(self, name: str, uid: str = UID, **status: Any) -> None:
        """Adds fields to the status of a run, as its supervisor does."""
        key = Key(RUN, uid, name)
        if self._is_alive(key):
            run = self._runs[key]
            self._change({**run, "status": {**run["status"], **status}}, run)

    def end(self, name: str, code: int, uid: str = UID, **status: Any) -> None:
        """Ends a run now."""
        self.set_status(name, uid, phase="Exited", exitCode=code, finishedAt=self._kernel.now(), **status)

    def lose(self, name: str, uid: str = UID) -> None:
        """Ends a run with an unknown result."""
        self.end(name, 137, uid, reason="ContainerStatusUnknown", message="nobody knows")

    def forget(self) -> None:
        """Removes all runs without an event, as when its folders are lost."""
        self._runs.clear()

    def alive(self) -> list[str]:
        """The names of the runs that run or are about to run."""
        return [key.name for key in self._runs if self._is_alive(key)]

    def _start(self, request: Obj) -> Obj:
        key = key_of(request)
        before = self._runs.get(key)
        assert before is None or (key.name == SANDBOX and not self._is_alive(key)), f"{key} is asked for again"
        container = request["spec"].get("container")
        others = [run for run in self.runs(key.namespace) if container and run["spec"].get("container") == container]
        assert not any(self._is_alive(key_of(run)) for run in others), f"{key} would be a second run at a time"
        if container:
            sandbox = self._runs[Key(RUN, key.namespace, SANDBOX)]
            assert sandbox["status"]["phase"] == "Ready", "a container starts in a sandbox"
            assert request["spec"]["sandbox"] == sandbox["spec"]["sandbox"], (
                "the container belongs to the existing sandbox"
            )
        run = {field: value for field, value in request.items() if field not in {"mounts", "volumes"}}
        self._change({**run, "status": {}}, before)
        self.started.append(key.name)
        self.times.append((self._kernel.now() - make.NOW) / SECOND)
        starting = self.script(container, request["spec"].get("attempt", 0)).starting if container else 0
        if starting:
            self._kernel.call_at(self._kernel.now() + int(starting * SECOND), lambda: self._begin(key))
        else:
            self._kernel.call_soon(lambda: self._begin(key))
        return run

    def _begin(self, key: Key) -> None:
        now, run = self._kernel.now(), self._runs.get(key)
        if run is None or run["status"]:
            return
        if key.name == SANDBOX:
            fault = self.faults.pop(0) if self.faults else None
            reported = {"phase": "Exited", "message": fault, "finishedAt": now}
            self._change({**run, "status": reported if fault else {"phase": "Ready", "startedAt": now}}, run)
            return
        if run["spec"]["kind"] == "image":
            self._change({**run, "status": {"phase": "Running", "startedAt": now}}, run)
            stated: dict[str, Any] = self.images.pop(0) if self.images else {"code": 1, "reason": "ErrImagePull"}
            self._kernel.call_at(now + SECOND, lambda: self.end(key.name, uid=key.namespace, **{"code": 0, **stated}))
            return
        script = self.script(run["spec"]["container"], run["spec"]["attempt"])
        marks = {"started": script.started == 0, "ready": script.ready == 0, **(script.status or {})}
        self._change({**run, "status": {"phase": "Running", "startedAt": now, **marks}}, run)
        self._schedule(key, script)

    def _schedule(self, key: Key, script: ContainerScript) -> None:
        def later(seconds: float | None, work: Callable[[], None]) -> None:
            if seconds:
                self._kernel.call_at(self._kernel.now() + int(seconds * SECOND), work)

        later(script.started, lambda: self.set_status(key.name, key.namespace, started=True))
        later(script.ready, lambda: self.set_status(key.name, key.namespace, ready=True))
        if script.seconds == 0:
            self.end(key.name, script.code, key.namespace)
        later(script.seconds, lambda: self.end(key.name, script.code, key.namespace))
        if "stop" in self._runs[key]:
            self._stop(self._runs[key])

    def _refresh(self, request: Obj) -> Obj:
        run = self._runs[key_of(request)]
        self.written.append({name: dict(plan.files) for name, plan in request["volumes"].items()})
        self._change({**run, "filesFrom": request["filesFrom"]}, run)
        return run

    def _stop(self, request: Obj) -> Obj:
        key, stop = key_of(request), request["stop"]
        run = self._runs[key]
        if "stop" not in run or run["stop"] != stop:
            self.stops.append((key.name, stop["grace"]))
        self._change({**run, "stop": stop}, run)
        if not run["status"]:
            return run  # the run checks for a stop when it begins
        if key.name == SANDBOX or run["spec"]["kind"] == "image":
            self.end(key.name, 1 if key.name != SANDBOX else 0, key.namespace)
            return run
        script = self.script(run["spec"]["container"], run["spec"]["attempt"])
        forced: Instant = stop["at"] + stop["grace"] * SECOND
        at, code = self._kernel.now() + int(script.stopping * SECOND), script.stopped_code
        at, code = (at, code) if at <= forced else (forced, 137)
        self._kernel.call_at(at, lambda: self.end(key.name, code, key.namespace))
        return run

    def _forget(self, key: Key) -> Obj:
        assert not self._is_alive(key), f"{key} still runs"
        run = self._runs.pop(key)
        if key.name == SANDBOX:
            assert not self.runs(key.namespace), "the sandbox goes last"
        self._notify(WatchEvent(EventType.DELETED, key, run, run, 0))
        return run

    def _is_alive(self, key: Key) -> bool:
        return key in self._runs and self._runs[key]["status"].get("phase") != "Exited"

    def _change(self, run: Obj, old: Obj | None) -> None:
        self._runs[key_of(run)] = run
        self._notify(WatchEvent(EventType.ADDED if old is None else EventType.MODIFIED, key_of(run), run, old, 0))

    def _notify(self, event: WatchEvent) -> None:
        self._events.append(event)
        if len(self._events) == 1:
            self._kernel.call_soon(self._deliver)

    def _deliver(self) -> None:
        events, self._events = self._events, []
        for listener in self._listeners:
            listener(events)


class LocalStage(Stage):
    """A node with the local kubelet; `scripts` are by container or by `CONTAINER/N`; the default is to run forever."""

    #: The container engine available on the node.
    engine = ""

    def __init__(self, *objects: Obj, **scripts: ContainerScript) -> None:
        self.kernel = VirtualEventLoop(make.NOW)
        self.scripts: dict[str, ContainerScript] = dict(scripts)
        self.objects = LocalClient(Store(), self.kernel)
        self.machine = FakeMachine(self.kernel, self._script)
        self.client = CompositeClient(self.objects, self.machine)  # type: ignore[assignment]
        self.events = []
        self._run_platform()
        self.put(node(), *objects)

    def restart(self) -> None:
        """Crashes and restarts the platform."""
        self.runner.stop()
        self._run_platform()
        shown = [*(o for kind in (scheme.NODE, scheme.POD) for o in self.objects.list(kind)), *self.machine.runs()]
        self.runner.observe([WatchEvent(EventType.ADDED, key_of(obj), obj, None, 0) for obj in shown])
        self.settle()

    def delete_pod(self, grace: int | None = None, name: str = "pod") -> None:
        """Deletes the pod."""
        self.client.submit([Delete(Key(scheme.POD, "team", name), grace)], lambda _: None)
        self.settle()

    def pass_time(self, seconds: float) -> None:
        """Advances time to an instant, even without an event at that instant."""
        self.kernel.call_at(make.at(seconds), lambda: None)
        self.run(seconds)

    @property
    def status(self) -> Any:
        """The status of the pod."""
        return self.get(scheme.POD, "pod")["status"]

    def container(self, name: str = "main") -> Any:
        """The status of a container."""
        result = [*self.status.get("initContainerStatuses", ()), *self.status["containerStatuses"]]
        return next(each for each in result if each["name"] == name)

    def condition(self, kind: str) -> tuple[str, str, str]:
        """Status, reason and message of a condition of the pod."""
        result = find_condition(self.get(scheme.POD, "pod"), kind)
        assert result is not None, f"there is no condition {kind}"
        return result["status"], result.get("reason", ""), result.get("message", "")

    def is_gone(self, name: str = "pod") -> bool:
        """Whether the pod does not exist and has no runs left."""
        return self.client.get(Key(scheme.POD, "team", name)) is None and not self.machine.runs(f"uid-{name}")

    def reported(self, reason: str) -> list[str]:
        """The messages of the events of that reason."""
        return [event.message for event in self.events if event.reason == reason]

    def _script(self, container: str, attempt: int) -> ContainerScript:
        return self.scripts.get(f"{container}/{attempt}") or self.scripts.get(container) or FOREVER

    def _run_platform(self) -> None:
        settings = NodeSettings([ImageMapping("python:*", machine=True)], engines=[self.engine] if self.engine else [])
        kubelet = LocalKubelet("node", RunRequests("node", settings, lambda *_: "token"))
        self.runner = Runner(self.kernel, self.client, [kubelet], self._record)


def node() -> Obj:
    """The node, with room for some pods."""
    allocatable = {"cpu": "4", "memory": "8Gi", "pods": "10", "ephemeral-storage": "10Gi"}
    return local_make.node(("InternalIP", "10.0.0.1"), **allocatable)


def pod(*mains: Mapping[str, Any], first: Sequence[Mapping[str, Any]] = (), name: str = "pod", **spec: Any) -> Obj:
    """A bound pod as the API stores it; its default restartPolicy is Never."""
    whole = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 30, **spec}
    if first:
        whole["initContainers"] = list(first)
    created = local_make.pod(*mains, **whole)
    return {**created, "metadata": {**created["metadata"], "name": name, "uid": f"uid-{name}"}}


def sidecar(name: str = "side", **fields: Any) -> Mapping[str, Any]:
    """A sidecar container."""
    return local_make.container(name, restartPolicy="Always", **fields)
