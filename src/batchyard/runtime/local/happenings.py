"""What a kubelet tells of a pod besides its status: containers made, started, stopped, and why one is not.

Sources: pkg/kubelet/kuberuntime (kuberuntime_container.go), pkg/kubelet/events.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api.meta import Key, Obj
from batchyard.ports.controller import EventRecord
from batchyard.runtime.local.next_steps import Steps
from batchyard.runtime.local.situation import Situation
from batchyard.runtime.local.status import Trouble

_STATUSES: Final = ("initContainerStatuses", "containerStatuses")


def happenings(
    key: Key, situation: Situation, steps: Steps, troubles: Mapping[str, Trouble], change: tuple[Obj, Obj]
) -> Iterator[EventRecord]:
    """What is told when a pod comes from one status to the next."""
    before, after = change
    old, new = _by_name(before), _by_name(after)
    for name, status in new.items():
        yield from _of_container(key, name, old.get(name) or {}, status)
    for halt in steps.halts:
        if halt.message:
            yield EventRecord(key, "Normal", halt.reason, halt.message)
    sandbox = situation.sandbox
    if steps.makes_sandbox and sandbox is not None:
        if sandbox.status.get("message"):
            yield EventRecord(
                key, "Warning", "FailedCreatePodSandBox", f"Failed to create pod sandbox: {sandbox.status['message']}"
            )
        else:
            told = "Pod sandbox changed, it will be killed and re-created."
            yield EventRecord(key, "Normal", "SandboxChanged", told)
    for name, trouble in troubles.items():
        if _waiting(old.get(name) or {}) != trouble._asdict():
            yield EventRecord(key, "Warning", "Failed", f"Error: {trouble.message}")


def _of_container(key: Key, name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[EventRecord]:
    ran = new.get("containerID")
    if ran is not None and ran != old.get("containerID"):
        ended = new["state"].get("terminated") or new["lastState"].get("terminated") or {}
        if ended.get("reason") == "StartError":
            yield EventRecord(key, "Warning", "Failed", f"Error: {ended.get('message', '')}")
        else:
            yield EventRecord(key, "Normal", "Created", f"Created container: {name}")
            yield EventRecord(key, "Normal", "Started", f"Started container {name}")
    waiting = _waiting(new)
    if waiting.get("reason") == "CrashLoopBackOff" and waiting != _waiting(old):
        pod = waiting["message"].rpartition(" pod=")[2]
        yield EventRecord(key, "Warning", "BackOff", f"Back-off restarting failed container {name} in pod {pod}")


def _waiting(status: Mapping[str, Any]) -> Mapping[str, Any]:
    waiting: Mapping[str, Any] = (status.get("state") or {}).get("waiting") or {}
    return waiting


def _by_name(pod: Obj) -> Mapping[str, Mapping[str, Any]]:
    status = pod.get("status") or {}
    found: list[Sequence[Mapping[str, Any]]] = [status.get(field) or () for field in _STATUSES]
    return {each["name"]: each for statuses in found for each in statuses}
