"""Pod Events: containers created, started, stopped, and why a container cannot start.

An image that is mapped to this machine counts as "already present". The shims report the pulls of engine images.
Sources: pkg/kubelet/kuberuntime (kuberuntime_container.go, kuberuntime_manager.go), pkg/kubelet/images
(image_manager.go), pkg/kubelet (active_deadline.go), pkg/kubelet/events.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from batchyard.api.meta import Key, Obj
from batchyard.api.scheme import POD
from batchyard.base.instant import Instant
from batchyard.interfaces.controller import EventRecord
from batchyard.kubelet.local.container_status import StartProblem, full_name
from batchyard.kubelet.local.errors import quoted
from batchyard.kubelet.local.images import ERR_IMAGE_NEVER_PULL, ERR_IMAGE_PULL, IMAGE_PULL_BACK_OFF, INVALID_IMAGE_NAME
from batchyard.kubelet.local.pod_actions import PodActions
from batchyard.kubelet.local.pod_state import PodContainer, PodState, statuses_by_name
from batchyard.kubelet.local.termination import EXPIRED, termination_of


def pod_events(
    situation: PodState, steps: PodActions, troubles: Mapping[str, StartProblem], after: Obj, now: Instant
) -> Iterator[EventRecord]:
    """Yield the Events for the transition from the pod's status to the next one."""
    key = _key(after)
    old = statuses_by_name(situation.pod)
    for name, status in statuses_by_name(after).items():
        yield from _of_container(key, old.get(name) or {}, status, after)
    yield from _of_sandbox(key, situation, steps)
    ending = termination_of(situation, now)
    if (
        ending is not None
        and ending.why
        and not any(each.last and each.last.stop and each.last.stop.at >= ending.since for each in situation.containers)
    ):
        yield EventRecord(key, "Normal" if ending.why == EXPIRED else "Warning", ending.why, ending.message)
    for halt in steps.halts:
        yield EventRecord(key, "Normal", "Killing", halt.message)
    for each in situation.containers:
        trouble = troubles.get(each.name)
        if trouble is not None and _waiting(old.get(each.name) or {}) != trouble.state()["waiting"]:
            yield from _of_trouble(key, each, trouble)


def warnings_of(run: Obj, old: Obj | None) -> Iterator[EventRecord]:
    """Yield the new warnings of a run's shim, such as failed probes."""
    pod = run["spec"]["pod"]
    known = max((each["n"] for each in _warnings(old)), default=0)
    for each in _warnings(run):
        if each["n"] > known:
            key = Key(POD, pod["namespace"], pod["name"])
            yield EventRecord(key, each.get("type", "Warning"), each["reason"], each["message"])


def _warnings(run: Obj | None) -> list[Mapping[str, Any]]:
    return [] if run is None else (run.get("status") or {}).get("warnings") or []


def _of_sandbox(key: Key, situation: PodState, steps: PodActions) -> Iterator[EventRecord]:
    """Yield the Events for a sandbox that is replaced."""
    sandbox = situation.sandbox
    if not steps.makes_sandbox or sandbox is None:
        return
    if not sandbox.started_at:
        why = sandbox.status.get("message") or "unknown"
        yield EventRecord(key, "Warning", "FailedCreatePodSandBox", f"Failed to create pod sandbox: {why}")
    yield EventRecord(key, "Normal", "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")


def _of_container(key: Key, old: Mapping[str, Any], new: Mapping[str, Any], pod: Obj) -> Iterator[EventRecord]:
    name, ran = new["name"], new.get("containerID")
    if ran is not None and ran != old.get("containerID"):
        if not new["imageID"]:
            yield _pulled(key, new["image"])
        yield EventRecord(key, "Normal", "Created", f"Created container: {name}")
        ended = new["state"].get("terminated") or new["lastState"].get("terminated") or {}
        if ended.get("reason") == "StartError":
            yield EventRecord(key, "Warning", "Failed", f"Error: {ended.get('message', '')}")
        else:
            yield EventRecord(key, "Normal", "Started", f"Started container {name}")
    waiting = _waiting(new)
    if waiting.get("reason") == "CrashLoopBackOff" and waiting != _waiting(old):
        message = f"Back-off restarting failed container {name} in pod {full_name(pod)}"
        yield EventRecord(key, "Warning", "BackOff", message)


def _of_trouble(key: Key, container: PodContainer, trouble: StartProblem) -> Iterator[EventRecord]:
    """Yield the Events for a container that cannot be created; the image is checked first."""
    image = container.spec.get("image") or ""
    if trouble.reason == ERR_IMAGE_PULL:
        yield EventRecord(key, "Warning", "Failed", f"Failed to pull image {quoted(image)}: {trouble.message}")
        yield EventRecord(key, "Warning", "Failed", f"Error: {trouble.reason}")
    elif trouble.reason == INVALID_IMAGE_NAME:
        yield EventRecord(key, "Warning", "InspectFailed", trouble.message)
        yield EventRecord(key, "Warning", "Failed", f"Error: {trouble.reason}")
    elif trouble.reason in {IMAGE_PULL_BACK_OFF, ERR_IMAGE_NEVER_PULL}:
        if trouble.reason == IMAGE_PULL_BACK_OFF:
            yield EventRecord(key, "Normal", "BackOff", f"Back-off pulling image {quoted(image)}")
        yield EventRecord(key, "Warning", "Failed", f"Error: {trouble.reason}")
    else:
        if not container.images:
            yield _pulled(key, image)
        yield EventRecord(key, "Warning", "Failed", f"Error: {trouble.message}")


def _pulled(key: Key, image: str) -> EventRecord:
    return EventRecord(key, "Normal", "Pulled", f"Container image {quoted(image)} already present on machine")


def _waiting(status: Mapping[str, Any]) -> Mapping[str, Any]:
    waiting: Mapping[str, Any] = (status.get("state") or {}).get("waiting") or {}
    return waiting


def _key(pod: Obj) -> Key:
    return Key(POD, pod["metadata"]["namespace"], pod["metadata"]["name"])
