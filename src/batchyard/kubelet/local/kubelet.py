"""Local kubelet: the controller that runs the pods bound to this machine's node.

A run is one start of a container, pod sandbox or image pull (batchyard.interfaces.containers). The kubelet keeps only
indexes in memory. A pod's history is in its runs, which survive a restart of the platform, so the kubelet resumes
correctly.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.admission_plugins.service_accounts import ROOT_CERTIFICATE
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, with_status
from batchyard.api.scheme import POD
from batchyard.api.views.pods import awaits_deletion, is_terminal, is_terminating, node_of
from batchyard.base.instant import MINUTE, SECOND, Duration, Instant
from batchyard.interfaces.client import Create, Delete, EventType, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.containers import RUN
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.kubelet.local.errors import VolumeError, quoted
from batchyard.kubelet.local.images import (
    ERR_IMAGE_NEVER_PULL,
    ERR_IMAGE_PULL,
    IMAGE_PULL_BACK_OFF,
    INVALID_IMAGE_NAME,
    ImageWait,
    previous_image_trouble,
)
from batchyard.kubelet.local.pod_actions import (
    EXPIRED,
    GRACE_MIN,
    ContainerStart,
    ContainerStop,
    PodActions,
    PodContainer,
    PodState,
    compute_pod_actions,
    graceful_termination,
    observed_pod_state,
    statuses_by_name,
    stop_actions,
    termination_of,
)
from batchyard.kubelet.local.run_requests import RunRequests
from batchyard.kubelet.local.runs import READY, StopRequest, key_of_run, pod_of, run_of, stopped
from batchyard.kubelet.local.status import StartProblem, StatusInputs, full_name, rejected, status_of
from batchyard.kubelet.simulated.durations import is_held, remove_work_finalizer
from batchyard.kubelet.simulated.pod_status import machine_of
from batchyard.nodes.pods import PodsByNode

# --- events ---
#
# Events of pods: containers created, started or stopped, and containers that cannot start.
#
# An image that is mapped to this machine counts as "already present". The shims report image pulls by an engine.
# Sources: pkg/kubelet/kuberuntime (kuberuntime_container.go, kuberuntime_manager.go), pkg/kubelet/images
# (image_manager.go), pkg/kubelet (active_deadline.go), pkg/kubelet/events.


def pod_events(
    situation: PodState, steps: PodActions, troubles: Mapping[str, StartProblem], after: Obj, now: Instant
) -> Iterator[EventRecord]:
    """Yield the Events for the transition from a pod's current status to its new status."""
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
    """Yield Events for new warnings of a run's shim, such as failed probes."""
    pod = run["spec"]["pod"]
    known = max((each["n"] for each in _warnings(old)), default=0)
    for each in _warnings(run):
        if each["n"] > known:
            key = Key(POD, pod["namespace"], pod["name"])
            yield EventRecord(key, each.get("type", "Warning"), each["reason"], each["message"])


def _warnings(run: Obj | None) -> list[Mapping[str, Any]]:
    return [] if run is None else (run.get("status") or {}).get("warnings") or []


def _of_sandbox(key: Key, situation: PodState, steps: PodActions) -> Iterator[EventRecord]:
    """Yield the Events for a pod sandbox that is replaced."""
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
    """Yield the Events for a container that cannot be created, such as for a failed image pull."""
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


# --- refreshing ---
# Refresh intervals of a running pod's volume files: their sources may change, and tokens expire.
#
# Sources: pkg/kubelet (syncFrequency: a minute), pkg/kubelet/token (token_manager.go: a token is replaced after four
# fifths of its lifetime).


_SYNC: Final = MINUTE
_TOKEN_SECONDS: Final = 3600
#: The downward API fields that may change while the pod runs.
_CHANGES: Final = ("metadata.labels", "metadata.annotations")


def refreshed_every(pod: Obj) -> Duration | None:
    """Return the interval at which the files of a pod's volumes are refreshed; None if they do not change."""
    return min((every for volume in pod["spec"].get("volumes") or () for every in _of_volume(volume)), default=None)


def _of_volume(volume: Mapping[str, Any]) -> Iterator[Duration]:
    yield from _of_source(volume)
    for part in (volume.get("projected") or {}).get("sources") or ():
        yield from _of_source(part)


def _of_source(source: Mapping[str, Any]) -> Iterator[Duration]:
    token, config = source.get("serviceAccountToken"), source.get("configMap") or {}
    if token is not None:
        yield (token.get("expirationSeconds") or _TOKEN_SECONDS) * SECOND * 4 // 5
    if source.get("secret") or (config and config.get("name") != ROOT_CERTIFICATE):
        yield _SYNC
    paths = [(item.get("fieldRef") or {}).get("fieldPath") or "" for item in _items(source)]
    if any(path.startswith(_CHANGES) for path in paths):
        yield _SYNC


def _items(source: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    items: list[Mapping[str, Any]] = (source.get("downwardAPI") or {}).get("items") or []
    return items


#: The delay before a failed start is retried if nothing changes.
_TRIED_AGAIN_AFTER: Final = 10 * SECOND
_DELETED: Final = EventType.DELETED  # accessing an Enum member by name is slow


class LocalKubelet:
    """The controller of this machine's pods, with indexes of the pods, of their runs and of pods that cannot start."""

    name = "local-kubelet"
    rank = 0
    kinds: Sequence[str] = (scheme.POD, RUN, scheme.CONFIG_MAP, scheme.SECRET)

    def __init__(self, node: str, requests: RunRequests) -> None:
        self._node = node
        self._requests = requests
        #: Pods that have not ended.
        self._pods = PodsByNode()
        #: The uids of pods that have runs, with the number of runs, by the pod's key.
        self._uids: dict[Key, dict[str, int]] = {}
        #: By namespace, the pods that cannot start and the reason: a new object in the namespace may resolve it.
        self._troubled: dict[str, dict[Key, str]] = {}
        #: Warnings from shims that are not yet recorded as Events.
        self._warnings: dict[Key, list[EventRecord]] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the keys to reconcile: a changed pod, the pod of a changed run, or the pods that wait for an object.

        Status updates and stop requests written by the kubelet itself are skipped.
        """
        key = event.key
        if key.kind == RUN:
            pod = self._note(event)
            return () if _is_own_stop_request(event) else (pod,)
        if key.kind != scheme.POD:
            return tuple(self._troubled.get(key.namespace, ()))
        is_gone = event.type is _DELETED or is_terminal(event.obj)
        self._pods.observe(key, event.old, None if is_gone else event.obj)
        is_ours = node_of(event.obj) == self._node or key in self._uids
        return (key,) if is_ours and _is_news(event) else ()

    def _note(self, event: WatchEvent) -> Key:
        """Update the indexes for a changed run and collect its shim's new warnings; return the key of the run's pod."""
        pod = pod_of(event.obj)
        key = Key(scheme.POD, pod["namespace"], pod["name"])
        uids = self._uids.setdefault(key, {})
        if event.old is None:
            uids[pod["uid"]] = uids.get(pod["uid"], 0) + 1
        elif event.type is _DELETED:
            uids[pod["uid"]] -= 1
            if not uids[pod["uid"]]:
                del uids[pod["uid"]]
        if not uids:
            del self._uids[key]
        if event.type is not _DELETED and event.old is not None:
            warnings = list(warnings_of(event.obj, event.old))
            if warnings:
                self._warnings.setdefault(key, []).extend(warnings)
        return key

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Start and stop a pod's containers and update its status; clean up runs of deleted pods of that name."""
        pod = reader.get(key)
        is_ours = pod is not None and node_of(pod) == self._node
        uid = pod["metadata"]["uid"] if pod is not None and is_ours else ""
        writes = [
            write for gone in self._uids.get(key, ()) if gone != uid for write in _cleaned(reader.list(RUN, gone), now)
        ]
        if pod is None or not is_ours:
            self._remember_trouble(key, "")
            self._warnings.pop(key, None)
            return ReconcileResult(writes)
        runs = reader.list(RUN, uid)
        outcome = self._after_end(pod, runs, reader, now) if is_terminal(pod) else self._next(pod, runs, reader, now)
        outcome.writes[:0] = writes
        return outcome

    def _after_end(self, pod: Obj, runs: Sequence[Obj], reader: Reader, now: Instant) -> ReconcileResult:
        """Clean up after an ended pod: stop its sandbox, then delete the pod if its deletion was requested.

        If another component set the final status, the containers are first stopped with their grace period.
        """
        situation = observed_pod_state(pod, runs)
        if situation.alive():
            steps = stop_actions(situation, termination_of(situation, now) or graceful_termination(pod, 0), now)
            return self._outcome(situation, steps, reader, now)
        alive = [run for run in map(run_of, runs) if run.is_alive]
        halts: list[Write] = [Update(stopped(run, StopRequest(now, 0))) for run in alive if run.stop is None]
        if any("terminated" not in each.reported.get("state", {}) for each in situation.containers if each.runs):
            ended = self._outcome(situation, PodActions(has_ended=True), reader, now)
            return ReconcileResult([*halts, *ended.writes], ended.events)
        if is_held(pod):  # the finalizer is for simulated pods, which save their work; real pods do that themselves
            return ReconcileResult([*halts, *remove_work_finalizer(pod)])
        if alive or not awaits_deletion(pod):
            return ReconcileResult(halts)
        metadata = pod["metadata"]
        return ReconcileResult(
            [Delete(Key(scheme.POD, metadata["namespace"], metadata["name"]), grace=0, uid=metadata["uid"])]
        )

    def _next(self, pod: Obj, runs: Sequence[Obj], reader: Reader, now: Instant) -> ReconcileResult:
        key = Key(scheme.POD, pod["metadata"]["namespace"], pod["metadata"]["name"])
        if "startTime" not in (pod.get("status") or {}) and not is_terminating(pod):
            refusal = self._requests.refusal(pod, self._others(key, reader), reader)
            if refusal is not None:
                status = rejected(pod, refusal.status, now)
                warning = EventRecord(key, "Warning", refusal.reason, refusal.message)
                return ReconcileResult([UpdateStatus(with_status(pod, status))], [warning])
        situation = observed_pod_state(pod, runs)
        return self._outcome(situation, compute_pod_actions(situation, now), reader, now)

    def _outcome(self, situation: PodState, steps: PodActions, reader: Reader, now: Instant) -> ReconcileResult:
        """Return the writes for the pod's actions, with its new status and Events."""
        pod = situation.pod
        key = Key(scheme.POD, pod["metadata"]["namespace"], pod["metadata"]["name"])
        wanted = self._wanted(situation, steps, reader, now)
        host_ip = machine_of(reader.get(Key(scheme.NODE, "", self._node)), None, now).host_ip()
        after = with_status(pod, status_of(StatusInputs(situation, steps, wanted.troubles, host_ip), now))
        events = [*self._warnings.pop(key, ())]
        if wanted.fault and wanted.fault != self._troubled.get(key.namespace, {}).get(key):
            events.append(EventRecord(key, "Warning", "FailedMount", wanted.fault))
        trouble = wanted.fault or next((each.reason for each in wanted.troubles.values()), "")
        self._remember_trouble(key, trouble)
        waits = [steps.look_again, now + _TRIED_AGAIN_AFTER if trouble else None]
        waits += [self._refresh(situation, reader, wanted, now), *wanted.looks]
        news = [UpdateStatus(after)] if after["status"] != pod.get("status") else []
        events += pod_events(situation, steps, wanted.troubles, after, now)
        return ReconcileResult(
            [*wanted.writes, *news], events, requeue_at=min((at for at in waits if at is not None), default=None)
        )

    def _wanted(self, situation: PodState, steps: PodActions, reader: Reader, now: Instant) -> "_DesiredRuns":
        """Return the writes that create, stop and delete runs, and why containers or volumes cannot be created."""
        wanted = _DesiredRuns([_halted(halt) for halt in steps.halts], {}, "", [])
        if steps.makes_sandbox:
            try:
                wanted.writes.append(Create(self._requests.sandbox(situation, reader)))
            except VolumeError as error:
                return wanted._replace(fault=str(error))
        for start in steps.starts:
            request = self._requests.container(situation, start, reader, now)
            if isinstance(request, ImageWait):
                wanted.looks.append(request.until)
                trouble = request.trouble
            else:
                wanted.writes.extend([*_outdated(start, request), Create(request)])
                trouble = previous_image_trouble(start.container.reported) if run_of(request).image_for else None
            if trouble is not None:
                wanted.troubles[start.container.name] = trouble
        return wanted

    def _refresh(self, situation: PodState, reader: Reader, wanted: "_DesiredRuns", now: Instant) -> Instant | None:
        """Refresh the files of a running pod's volumes if due; return when the next refresh is due."""
        sandbox, every = situation.sandbox, refreshed_every(situation.pod)
        if sandbox is None or sandbox.phase != READY or every is None or not situation.alive():
            return None
        due = sandbox.files_are_from + every
        if due > now:
            return due
        refreshed_sandbox = self._requests.refreshed(situation, reader, now)
        if refreshed_sandbox is not None:
            wanted.writes.append(Update(refreshed_sandbox))
        return now + every

    def _others(self, key: Key, reader: Reader) -> Sequence[Obj]:
        """Return the other pods of this node that have not ended."""
        pods = [reader.get(other) for other in self._pods.on(self._node) if other != key]
        return [pod for pod in pods if pod is not None and not is_terminal(pod)]

    def _remember_trouble(self, key: Key, trouble: str) -> None:
        if trouble:
            self._troubled.setdefault(key.namespace, {})[key] = trouble
        elif key in self._troubled.get(key.namespace, ()):
            del self._troubled[key.namespace][key]
            if not self._troubled[key.namespace]:
                del self._troubled[key.namespace]


class _DesiredRuns(NamedTuple):
    """The run changes of one reconciliation of a pod, and the problems that prevent starts."""

    writes: list[Write]
    #: Why containers cannot be started, by container name.
    troubles: dict[str, StartProblem]
    #: Why the pod's volumes cannot be created; empty if they can.
    fault: str
    #: When to check again for missing images.
    looks: list[Instant | None]


def _halted(halt: ContainerStop) -> Write:
    return Update(stopped(halt.run, halt.stop))


def _outdated(start: ContainerStart, request: Obj) -> Iterator[Write]:
    """Yield the deletions of old runs before a new run: all but the last for a container, all for an image pull."""
    for run in start.container.images if run_of(request).image_for else start.container.runs[:-1]:
        yield Delete(key_of_run(run))


def _cleaned(runs: Sequence[Obj], now: Instant) -> Iterator[Write]:
    """Yield the writes that stop the runs of a deleted pod, then those that delete them, the sandbox last."""
    alive = [run for run in map(run_of, runs) if run.is_alive]
    containers = [run for run in alive if run.container] or alive
    yield from (Update(stopped(run, StopRequest(now, GRACE_MIN))) for run in containers if run.stop is None)
    if not alive:
        yield from (Delete(key_of_run(run_of(run))) for run in reversed(runs))


def _is_own_stop_request(event: WatchEvent) -> bool:
    """Report whether a change of a run is only a stop request, which the kubelet itself wrote."""
    return event.type is EventType.MODIFIED and event.old is not None and event.obj["status"] is event.old["status"]


def _is_news(event: WatchEvent) -> bool:
    """Report whether a pod was created, deleted, ended, or changed in more than its status."""
    pod, old = event.obj, event.old
    if event.type is _DELETED or old is None or pod["spec"] is not old["spec"] or awaits_deletion(pod):
        return True
    if pod["spec"].get("readinessGates") or is_terminal(pod):
        return True
    fields = ("deletionTimestamp", "deletionGracePeriodSeconds")
    return any(pod["metadata"].get(field) != old["metadata"].get(field) for field in fields)
