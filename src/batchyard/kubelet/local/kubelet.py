"""Local kubelet: the controller that runs the pods that are bound to this machine's node.

A run is one start of a container or pod sandbox, or one image pull (batchyard.interfaces.containers). The kubelet keeps
only indexes in memory. A pod's history is in its Run objects, which survive a restart of batchyard, so the kubelet
resumes correctly.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from batchyard.admission_plugins.service_accounts import ROOT_CERTIFICATE
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, with_status
from batchyard.api.scheme import POD
from batchyard.api.views.pods import awaits_deletion, bound_node, is_terminal, is_terminating
from batchyard.base.instant import MINUTE, SECOND, Duration, Instant
from batchyard.interfaces.client import Create, Delete, EventType, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.containers import RUN
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.kubelet.local import images, pod_actions
from batchyard.kubelet.local.errors import VolumeError, quote_like_go
from batchyard.kubelet.local.run_requests import RunRequests
from batchyard.kubelet.local.runs import READY, StopRequest, key_of_run, pod_of, run_of, with_stop_request
from batchyard.kubelet.local.status import StartProblem, StatusInputs, full_name, rejected_pod_status, status_of
from batchyard.kubelet.simulated.durations import is_kept_by_finalizer, remove_work_finalizer
from batchyard.kubelet.simulated.pod_status import machine_of
from batchyard.nodes.pods import PodsByNode

# Events of pods: containers created, started or stopped, and containers that cannot start.
#
# An image that is mapped to this machine counts as "already present". The shims report image pulls by an engine.
# Sources: pkg/kubelet/kuberuntime (kuberuntime_container.go, kuberuntime_manager.go), pkg/kubelet/images
# (image_manager.go), pkg/kubelet (active_deadline.go), pkg/kubelet/events.


def pod_events(
    pod_state: pod_actions.PodState,
    actions: pod_actions.PodActions,
    problems: Mapping[str, StartProblem],
    new_pod: Obj,
    now: Instant,
) -> Iterator[EventRecord]:
    """Yield the Events for one reconciliation of a pod.

    They report changed container statuses (`new_pod` has the new ones), a replaced sandbox, an exceeded deadline, an
    eviction, container stops, and new start problems.
    """
    key = _pod_key(new_pod)
    old_statuses = pod_actions.statuses_by_name(pod_state.pod)
    for name, status in pod_actions.statuses_by_name(new_pod).items():
        yield from _container_events(key, old_statuses.get(name) or {}, status, new_pod)
    yield from _sandbox_events(key, pod_state, actions)
    termination = pod_actions.termination_of(pod_state, now)
    if (
        termination is not None
        and termination.reason
        and not any(
            container.last_run and container.last_run.stop and container.last_run.stop.at >= termination.since
            for container in pod_state.containers
        )
    ):
        yield EventRecord(
            key,
            "Normal" if termination.reason == pod_actions.DEADLINE_EXCEEDED else "Warning",
            termination.reason,
            termination.message,
        )
    for container_stop in actions.stops:
        yield EventRecord(key, "Normal", "Killing", container_stop.message)
    for container in pod_state.containers:
        problem = problems.get(container.name)
        if problem is not None and _waiting_state(old_statuses.get(container.name) or {}) != problem.state()["waiting"]:
            yield from _problem_events(key, container, problem)


def warning_events(run: Obj, old: Obj | None) -> Iterator[EventRecord]:
    """Yield an Event for each new warning of a Run object, such as a failed probe; `old` is the previous version."""
    pod = run["spec"]["pod"]
    last_reported_number = max((warning["n"] for warning in _run_warnings(old)), default=0)
    for warning in _run_warnings(run):
        if warning["n"] > last_reported_number:
            key = Key(POD, pod["namespace"], pod["name"])
            yield EventRecord(key, warning.get("type", "Warning"), warning["reason"], warning["message"])


def _run_warnings(run: Obj | None) -> list[Mapping[str, Any]]:
    return [] if run is None else (run.get("status") or {}).get("warnings") or []


def _sandbox_events(key: Key, state: pod_actions.PodState, actions: pod_actions.PodActions) -> Iterator[EventRecord]:
    sandbox = state.sandbox
    if not actions.creates_sandbox or sandbox is None:
        return
    if not sandbox.started_at:
        cause = sandbox.status.get("message") or "unknown"
        yield EventRecord(key, "Warning", "FailedCreatePodSandBox", f"Failed to create pod sandbox: {cause}")
    yield EventRecord(key, "Normal", "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")


def _container_events(key: Key, old: Mapping[str, Any], new: Mapping[str, Any], pod: Obj) -> Iterator[EventRecord]:
    name, container_id = new["name"], new.get("containerID")
    if container_id is not None and container_id != old.get("containerID"):
        if not new["imageID"]:
            yield _pulled_event(key, new["image"])
        yield EventRecord(key, "Normal", "Created", f"Created container: {name}")
        terminated_state = new["state"].get("terminated") or new["lastState"].get("terminated") or {}
        if terminated_state.get("reason") == "StartError":
            yield EventRecord(key, "Warning", "Failed", f"Error: {terminated_state.get('message', '')}")
        else:
            yield EventRecord(key, "Normal", "Started", f"Started container {name}")
    waiting_state = _waiting_state(new)
    if waiting_state.get("reason") == "CrashLoopBackOff" and waiting_state != _waiting_state(old):
        message = f"Back-off restarting failed container {name} in pod {full_name(pod)}"
        yield EventRecord(key, "Warning", "BackOff", message)


def _problem_events(key: Key, container: pod_actions.PodContainer, problem: StartProblem) -> Iterator[EventRecord]:
    image = container.spec.get("image") or ""
    if problem.reason == images.ERR_IMAGE_PULL:
        yield EventRecord(key, "Warning", "Failed", f"Failed to pull image {quote_like_go(image)}: {problem.message}")
        yield EventRecord(key, "Warning", "Failed", f"Error: {problem.reason}")
    elif problem.reason == images.INVALID_IMAGE_NAME:
        yield EventRecord(key, "Warning", "InspectFailed", problem.message)
        yield EventRecord(key, "Warning", "Failed", f"Error: {problem.reason}")
    elif problem.reason in {images.IMAGE_PULL_BACK_OFF, images.ERR_IMAGE_NEVER_PULL}:
        if problem.reason == images.IMAGE_PULL_BACK_OFF:
            yield EventRecord(key, "Normal", "BackOff", f"Back-off pulling image {quote_like_go(image)}")
        yield EventRecord(key, "Warning", "Failed", f"Error: {problem.reason}")
    else:
        if not container.images:
            yield _pulled_event(key, image)
        yield EventRecord(key, "Warning", "Failed", f"Error: {problem.message}")


def _pulled_event(key: Key, image: str) -> EventRecord:
    return EventRecord(key, "Normal", "Pulled", f"Container image {quote_like_go(image)} already present on machine")


def _waiting_state(status: Mapping[str, Any]) -> Mapping[str, Any]:
    waiting_state: Mapping[str, Any] = (status.get("state") or {}).get("waiting") or {}
    return waiting_state


def _pod_key(pod: Obj) -> Key:
    return Key(POD, pod["metadata"]["namespace"], pod["metadata"]["name"])


# Refresh intervals of a running pod's volume files: their sources may change, and tokens expire.
#
# Sources: pkg/kubelet (syncFrequency: a minute), pkg/kubelet/token (token_manager.go: a token is replaced after four
# fifths of its lifetime).


_VOLUME_SYNC_INTERVAL: Final = MINUTE
_TOKEN_EXPIRATION_SECONDS: Final = 3600
#: The downward API fields that may change while the pod runs.
_CHANGING_FIELD_PATHS: Final = ("metadata.labels", "metadata.annotations")


def refresh_interval(pod: Obj) -> Duration | None:
    """Return the interval at which the files in a pod's volumes are updated; None if they need no updates."""
    return min(chain.from_iterable(map(_volume_refresh_intervals, pod["spec"].get("volumes") or ())), default=None)


def _volume_refresh_intervals(volume: Mapping[str, Any]) -> Iterator[Duration]:
    yield from _source_refresh_intervals(volume)
    for projected_source in (volume.get("projected") or {}).get("sources") or ():
        yield from _source_refresh_intervals(projected_source)


def _source_refresh_intervals(source: Mapping[str, Any]) -> Iterator[Duration]:
    token_source, config_map = source.get("serviceAccountToken"), source.get("configMap") or {}
    if token_source is not None:
        yield (token_source.get("expirationSeconds") or _TOKEN_EXPIRATION_SECONDS) * SECOND * 4 // 5
    if source.get("secret") or (config_map and config_map.get("name") != ROOT_CERTIFICATE):
        yield _VOLUME_SYNC_INTERVAL
    paths = [(item.get("fieldRef") or {}).get("fieldPath") or "" for item in _downward_api_items(source)]
    if any(path.startswith(_CHANGING_FIELD_PATHS) for path in paths):
        yield _VOLUME_SYNC_INTERVAL


def _downward_api_items(source: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    file_items: list[Mapping[str, Any]] = (source.get("downwardAPI") or {}).get("items") or []
    return file_items


#: The delay before a failed start is retried if nothing changes.
_PROBLEM_RETRY_DELAY: Final = 10 * SECOND
_DELETED: Final = EventType.DELETED  # accessing an Enum member by name is slow


class LocalKubelet:
    """The controller that runs the pods on this machine's node; indexes them, their Run objects and start problems."""

    name = "local-kubelet"
    rank = 0
    kinds: Sequence[str] = (scheme.POD, RUN, scheme.CONFIG_MAP, scheme.SECRET, scheme.PERSISTENT_VOLUME_CLAIM)

    def __init__(self, node: str, requests: RunRequests) -> None:
        self._node = node
        self._requests = requests
        #: Pods that have not ended.
        self._pods = PodsByNode()
        #: By pod key: the number of Run objects of each pod uid.
        self._run_counts_by_pod: dict[Key, dict[str, int]] = {}
        #: By namespace, the pods that cannot start and the reason: a new object in the namespace may resolve it.
        self._blocked_pods: dict[str, dict[Key, str]] = {}
        #: Warnings from shims that are not yet recorded as Events.
        self._run_warnings: dict[Key, list[EventRecord]] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Index a changed pod or Run object; return the keys of the pods to reconcile.

        For an event of a pod on this node, this is the pod; for a Run object, its pod; for a ConfigMap, Secret or
        claim, the pods in its namespace that cannot start. Changes that require no action, such as the kubelet's own
        stop requests, give no key.
        """
        key = event.key
        if key.kind == RUN:
            pod = self._index_run(event)
            return () if _is_own_stop_request(event) else (pod,)
        if key.kind != scheme.POD:
            return tuple(self._blocked_pods.get(key.namespace, ()))
        is_gone_or_terminal = event.type is _DELETED or is_terminal(event.obj)
        self._pods.observe(key, event.old, None if is_gone_or_terminal else event.obj)
        is_local = bound_node(event.obj) == self._node or key in self._run_counts_by_pod
        return (key,) if is_local and _is_relevant_pod_change(event) else ()

    def _index_run(self, event: WatchEvent) -> Key:
        pod = pod_of(event.obj)
        key = Key(scheme.POD, pod["namespace"], pod["name"])
        run_counts = self._run_counts_by_pod.setdefault(key, {})
        if event.old is None:
            run_counts[pod["uid"]] = run_counts.get(pod["uid"], 0) + 1
        elif event.type is _DELETED:
            run_counts[pod["uid"]] -= 1
            if not run_counts[pod["uid"]]:
                del run_counts[pod["uid"]]
        if not run_counts:
            del self._run_counts_by_pod[key]
        if event.type is not _DELETED and event.old is not None:
            warnings = list(warning_events(event.obj, event.old))
            if warnings:
                self._run_warnings.setdefault(key, []).extend(warnings)
        return key

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Start and stop a pod's containers and update its status; clean up after deleted pods with the same name."""
        pod = reader.get(key)
        is_local = pod is not None and bound_node(pod) == self._node
        uid = pod["metadata"]["uid"] if pod is not None and is_local else ""
        writes = [
            write
            for other_uid in self._run_counts_by_pod.get(key, ())
            if other_uid != uid
            for write in _clean_up_runs(reader.list(RUN, other_uid), now)
        ]
        if pod is None or not is_local:
            self._remember_problem(key, "")
            self._run_warnings.pop(key, None)
            return ReconcileResult(writes)
        runs = reader.list(RUN, uid)
        reconcile_pod = self._clean_up_ended_pod if is_terminal(pod) else self._advance_pod
        pod_result = reconcile_pod(pod, runs, reader, now)
        pod_result.writes[:0] = writes
        return pod_result

    def _clean_up_ended_pod(self, pod: Obj, runs: Sequence[Obj], reader: Reader, now: Instant) -> ReconcileResult:
        """Clean up after an ended pod: stop its sandbox, then delete the pod if a deletion was requested.

        If another component set the final status, the containers are first stopped with their grace period.
        """
        pod_state = pod_actions.observed_pod_state(pod, runs)
        if pod_state.live_containers():
            stop_pod_actions = pod_actions.stop_actions(
                pod_state, pod_actions.termination_of(pod_state, now) or pod_actions.graceful_termination(pod, 0), now
            )
            return self._build_result(pod_state, stop_pod_actions, reader, now)
        live_runs = [run for run in map(run_of, runs) if run.is_alive]
        stop_writes: list[Write] = [
            Update(with_stop_request(run, StopRequest(now, 0))) for run in live_runs if run.stop is None
        ]
        if any("terminated" not in c.status.get("state", {}) for c in pod_state.containers if c.runs):
            result = self._build_result(pod_state, pod_actions.PodActions(has_ended=True), reader, now)
            return ReconcileResult([*stop_writes, *result.writes], result.events)
        # The finalizer is for simulated pods, which save their work; real pods do that themselves.
        if is_kept_by_finalizer(pod):
            return ReconcileResult([*stop_writes, *remove_work_finalizer(pod)])
        if live_runs or not awaits_deletion(pod):
            return ReconcileResult(stop_writes)
        metadata = pod["metadata"]
        key = Key(scheme.POD, metadata["namespace"], metadata["name"])
        return ReconcileResult([Delete(key, grace_period_seconds=0, uid=metadata["uid"])])

    def _advance_pod(self, pod: Obj, runs: Sequence[Obj], reader: Reader, now: Instant) -> ReconcileResult:
        key = Key(scheme.POD, pod["metadata"]["namespace"], pod["metadata"]["name"])
        if "startTime" not in (pod.get("status") or {}) and not is_terminating(pod):
            rejection = self._requests.check_admission(pod, self._other_pods_on_node(key, reader), reader)
            if rejection is not None:
                status = rejected_pod_status(pod, rejection.status, now)
                rejection_event = EventRecord(key, "Warning", rejection.reason, rejection.message)
                return ReconcileResult([UpdateStatus(with_status(pod, status))], [rejection_event])
        pod_state = pod_actions.observed_pod_state(pod, runs)
        return self._build_result(pod_state, pod_actions.compute_pod_actions(pod_state, now), reader, now)

    def _build_result(
        self, pod_state: pod_actions.PodState, actions: pod_actions.PodActions, reader: Reader, now: Instant
    ) -> ReconcileResult:
        pod = pod_state.pod
        key = Key(scheme.POD, pod["metadata"]["namespace"], pod["metadata"]["name"])
        desired_runs = self._compute_desired_runs(pod_state, actions, reader, now)
        host_ip = machine_of(reader.get(Key(scheme.NODE, "", self._node)), None, now).host_ip()
        new_pod = with_status(pod, status_of(StatusInputs(pod_state, actions, desired_runs.problems, host_ip), now))
        events = [*self._run_warnings.pop(key, ())]
        volume_error = desired_runs.volume_error
        if volume_error and volume_error != self._blocked_pods.get(key.namespace, {}).get(key):
            events.append(EventRecord(key, "Warning", "FailedMount", volume_error))
        problem = volume_error or next((start_problem.reason for start_problem in desired_runs.problems.values()), "")
        self._remember_problem(key, problem)
        requeue_times = [actions.next_check_at, now + _PROBLEM_RETRY_DELAY if problem else None]
        requeue_times += [self._refresh_volumes(pod_state, reader, desired_runs, now), *desired_runs.check_times]
        status_writes = [UpdateStatus(new_pod)] if new_pod["status"] != pod.get("status") else []
        events += pod_events(pod_state, actions, desired_runs.problems, new_pod, now)
        return ReconcileResult(
            [*desired_runs.writes, *status_writes],
            events,
            requeue_at=min((time for time in requeue_times if time is not None), default=None),
        )

    def _compute_desired_runs(
        self, pod_state: pod_actions.PodState, actions: pod_actions.PodActions, reader: Reader, now: Instant
    ) -> "_DesiredRuns":
        desired_runs = _DesiredRuns([_stop_write(container_stop) for container_stop in actions.stops], {}, "", [])
        if actions.creates_sandbox:
            try:
                desired_runs.writes.append(Create(self._requests.build_sandbox_request(pod_state, reader)))
            except VolumeError as error:
                return desired_runs._replace(volume_error=str(error))
        for start in actions.starts:
            request = self._requests.build_container_request(pod_state, start, reader, now)
            if isinstance(request, images.ImageWait):
                desired_runs.check_times.append(request.check_at)
                problem = request.problem
            else:
                desired_runs.writes.extend([*_delete_outdated_runs(start, request), Create(request)])
                problem = (
                    images.previous_image_problem(start.container.status)
                    if run_of(request).image_pull_container
                    else None
                )
            if problem is not None:
                desired_runs.problems[start.container.name] = problem
        return desired_runs

    def _refresh_volumes(
        self, pod_state: pod_actions.PodState, reader: Reader, desired_runs: "_DesiredRuns", now: Instant
    ) -> Instant | None:
        sandbox, volume_interval = pod_state.sandbox, refresh_interval(pod_state.pod)
        if sandbox is None or sandbox.phase != READY or volume_interval is None or not pod_state.live_containers():
            return None
        refresh_due_at = sandbox.files_written_at + volume_interval
        if refresh_due_at > now:
            return refresh_due_at
        refreshed_sandbox = self._requests.build_sandbox_update(pod_state, reader, now)
        if refreshed_sandbox is not None:
            desired_runs.writes.append(Update(refreshed_sandbox))
        return now + volume_interval

    def _other_pods_on_node(self, key: Key, reader: Reader) -> Sequence[Obj]:
        pods = [reader.get(other_key) for other_key in self._pods.pod_keys_on(self._node) if other_key != key]
        return [pod for pod in pods if pod is not None and not is_terminal(pod)]

    def _remember_problem(self, key: Key, problem_reason: str) -> None:
        if problem_reason:
            self._blocked_pods.setdefault(key.namespace, {})[key] = problem_reason
        elif key in self._blocked_pods.get(key.namespace, ()):
            del self._blocked_pods[key.namespace][key]
            if not self._blocked_pods[key.namespace]:
                del self._blocked_pods[key.namespace]


class _DesiredRuns(NamedTuple):
    writes: list[Write]
    #: Why containers cannot be started, by container name.
    problems: dict[str, StartProblem]
    #: Why the pod's volumes cannot be created; empty if they can.
    volume_error: str
    #: When to check again for missing images.
    check_times: list[Instant | None]


def _stop_write(container_stop: pod_actions.ContainerStop) -> Write:
    return Update(with_stop_request(container_stop.run, container_stop.stop))


def _delete_outdated_runs(start: pod_actions.ContainerStart, request: Obj) -> Iterator[Write]:
    """Yield the deletions of a container's old Run objects before `request`, a new one, is created.

    A new image pull replaces all earlier pulls. A new container start replaces all earlier starts except the last.
    """
    for run in start.container.images if run_of(request).image_pull_container else start.container.runs[:-1]:
        yield Delete(key_of_run(run))


def _clean_up_runs(runs: Sequence[Obj], now: Instant) -> Iterator[Write]:
    live_runs = [run for run in map(run_of, runs) if run.is_alive]
    container_runs = [run for run in live_runs if run.container] or live_runs
    stop_request = StopRequest(now, pod_actions.GRACE_MIN)
    yield from (Update(with_stop_request(run, stop_request)) for run in container_runs if run.stop is None)
    if not live_runs:
        yield from (Delete(key_of_run(run_of(run))) for run in reversed(runs))


def _is_own_stop_request(event: WatchEvent) -> bool:
    """Return whether a change left a Run object's status as it was, as only the kubelet's own changes do."""
    return event.type is EventType.MODIFIED and event.old is not None and event.obj["status"] is event.old["status"]


def _is_relevant_pod_change(event: WatchEvent) -> bool:
    pod, old = event.obj, event.old
    if event.type is _DELETED or old is None or pod["spec"] is not old["spec"] or awaits_deletion(pod):
        return True
    if pod["spec"].get("readinessGates") or is_terminal(pod):
        return True
    deletion_fields = ("deletionTimestamp", "deletionGracePeriodSeconds")
    return any(pod["metadata"].get(field) != old["metadata"].get(field) for field in deletion_fields)
