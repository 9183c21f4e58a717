"""Controller of RayClusters: creates and replaces the pods of the head and the workers, and reports their state.

It takes the steps of KubeRay's operator (ray-operator/controllers/ray/raycluster_controller.go) with its conditions and
Events. Autoscaling, fault tolerance and the other features that `ray_nodes` lists need KubeRay itself: a cluster that
asks for them gets a warning Event and no pods.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.errors import ApiError, InvalidObject
from batchyard.api.meta import (
    Condition,
    Key,
    Obj,
    QuantityFormat,
    controller_of,
    find_condition,
    format_quantity,
    is_true,
    key_of,
    label,
    with_condition,
    with_status,
)
from batchyard.api.times import format_second, parse_time
from batchyard.api.views.pods import RUNNING, is_ready, is_terminal, is_terminating, phase
from batchyard.base.instant import SECOND, Instant
from batchyard.base.primitives import uid_for
from batchyard.client.local import generated_name
from batchyard.interfaces.client import Create, Delete, EventType, Reader, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.jobs.stand_ins import ray_nodes
from batchyard.jobs.stand_ins.new_objects import CREATED_MAX, complete_object, controlled_by
from batchyard.jobs.stand_ins.ray_nodes import HEAD, RAY_CLUSTER, WORKER, InvalidRayObject, WorkerGroup
from batchyard.jobs.stand_ins.ray_pods import RayCluster, WorkerPosition, is_gpu

#: A pod that has ended is replaced when this time has passed since its creation, so that failures cannot create pods
#: too fast.
_REPLACEMENT_PERIOD: Final = 5 * SECOND
_PROVISIONED: Final = "RayClusterProvisioned"
_HEAD_READY: Final = "HeadPodReady"
_REPLICA_FAILURE: Final = "ReplicaFailure"
_SUSPENDING: Final = "RayClusterSuspending"
_SUSPENDED: Final = "RayClusterSuspended"
READY_STATE: Final = "ready"
#: The reasons of the condition ReplicaFailure and of the Event about a pod that was not created, by node type.
_CREATION_FAILURES: Final[Mapping[str, tuple[str, str]]] = {
    HEAD: ("FailedCreateHeadPod", "FailedToCreateHeadPod"),
    WORKER: ("FailedCreateWorkerPod", "FailedToCreateWorkerPod"),
}
#: The fields of the status that are left out if they are 0 or empty.
_OPTIONAL_FIELDS: Final = (
    *("readyWorkerReplicas", "availableWorkerReplicas", "desiredWorkerReplicas", "minWorkerReplicas"),
    *("maxWorkerReplicas", "observedGeneration", "endpoints", "state"),
)


class RayReplicaFailure(NamedTuple):
    """Why the last pod of a RayCluster was not created: the reason and the message of its condition."""

    reason: str
    message: str


class RayClusterController:
    """Creates and deletes the pods and Services of RayClusters, and writes their statuses."""

    name = "raycluster-controller"
    rank = 0
    kinds: Sequence[str] = (RAY_CLUSTER, scheme.POD, scheme.SERVICE)

    def __init__(self) -> None:
        #: The failures of clusters whose last pod was not created.
        self._failures: dict[Key, RayReplicaFailure] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the key of a changed RayCluster, or of the RayCluster that controls a changed pod or Service."""
        key = event.key
        if key.kind == RAY_CLUSTER:
            if event.type is EventType.DELETED:
                self._failures.pop(key, None)
            return (key,)
        owner = controller_of(event.obj)
        if owner is None or owner["kind"] != "RayCluster" or not owner["apiVersion"].startswith("ray.io/"):
            return ()
        return (Key(RAY_CLUSTER, key.namespace, owner["name"]),)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Create, replace and delete the pods of a RayCluster, and update its status."""
        obj = reader.get(key)
        if obj is None or "deletionTimestamp" in obj["metadata"] or ray_nodes.is_managed_elsewhere(obj):
            return ReconcileResult()
        part = "metadata"
        try:
            ray_nodes.check_name(key.name, "RayCluster", ray_nodes.CLUSTER_NAME_LENGTH_MAX)
            part = "spec"
            cluster = RayCluster(obj)
        except InvalidRayObject as error:
            reason = f"InvalidRayCluster{part.capitalize()}"
            message = f"The RayCluster {part} is invalid {key}: {error}"
            return ReconcileResult([], [EventRecord(key, "Warning", reason, message)])
        cluster_pass = _RayClusterPass(key, cluster, reader, now, self._failures.get(key))
        result = cluster_pass.run()
        if cluster_pass.failure is None:
            self._failures.pop(key, None)
        else:
            self._failures[key] = cluster_pass.failure
        result.on_result = partial(self._record_result, key)
        result.event_if_rejected = partial(_rejection_event, key)
        return result

    def _record_result(self, key: Key, write: Write, error: ApiError | None) -> bool:
        """Keep the error of a pod's creation for the condition; return whether an earlier one has ended."""
        if not isinstance(write, Create) or write.obj["kind"] != "Pod":
            return False
        if error is None:
            return self._failures.pop(key, None) is not None
        reason = _CREATION_FAILURES[ray_nodes.node_type(write.obj)][0]
        self._failures[key] = RayReplicaFailure(reason, f"{reason}\n{error}")
        return False


def _rejection_event(key: Key, write: Write, error: ApiError) -> EventRecord | None:
    if not isinstance(write, Create):
        return None
    name = f"{key.namespace}/{write.obj['metadata']['name']}"
    if write.obj["kind"] == "Service":
        return EventRecord(key, "Warning", "FailedToCreateService", f"Failed to create service {name}, {error}")
    return _failed_pod_event(key, write.obj, error)


def _failed_pod_event(key: Key, pod: Obj, error: ApiError) -> EventRecord:
    node_type = ray_nodes.node_type(pod)
    subject = f"head Pod {key.namespace}/{pod['metadata']['name']}"
    subject = subject if node_type == HEAD else f"worker Pod for the cluster {key}"
    return EventRecord(key, "Warning", _CREATION_FAILURES[node_type][1], f"Failed to create {subject}, {error}")


class _RayClusterPass:
    """One reconcile of a RayCluster: its pods and Services, the writes and the Events."""

    def __init__(
        self, key: Key, cluster: RayCluster, reader: Reader, now: Instant, failure: RayReplicaFailure | None
    ) -> None:
        self._key, self._cluster, self._reader, self._now = key, cluster, reader, now
        #: The failure to create a pod, of an earlier reconcile or of this one.
        self.failure = failure
        self._pods = controlled_by(cluster.obj, scheme.POD, reader)
        self._services = controlled_by(cluster.obj, scheme.SERVICE, reader)
        self._name_numbers = count()
        self._names: dict[str, None] = {}
        #: Whether a pod was to be created.
        self._has_tried = False
        self._result = ReconcileResult(independent=True)

    def run(self) -> ReconcileResult:
        """Return the writes of pods, Services and the status."""
        self._create_services()
        is_complete = self._reconcile_pods()
        if not self._has_tried:
            self.failure = None
        status = _RayClusterStatus(self._cluster, self._pods, self._services, self._now)
        if status.update(self.failure, is_complete=is_complete):
            self._result.add(UpdateStatus(with_status(self._cluster.obj, status.document())), ())
        return self._result

    def _create_services(self) -> None:
        names = [service["metadata"]["name"] for service in self._services]
        for manifest in (self._cluster.new_head_service(), self._cluster.new_worker_service()):
            if manifest is None or manifest["metadata"]["name"] in names:
                continue
            name = f"{self._key.namespace}/{manifest['metadata']['name']}"
            try:
                service = complete_object(manifest)
            except InvalidObject as error:
                self._warn("FailedToCreateService", f"Failed to create service {name}, {error}")
                continue
            self._add(Create(service), "CreatedService", f"Created service {name}")

    # --- pods ---

    def _reconcile_pods(self) -> bool:
        """Create and delete pods; return False if pods had to be repaired, so that others must wait."""
        obj = self._cluster.obj
        if is_true(obj, _SUSPENDING):
            if self._delete(self._pods):
                message = f"Deleted Pods for RayCluster {self._key} due to suspension"
                self._result.events.append(EventRecord(self._key, "Normal", "DeletedPod", message))
            return True
        if is_true(obj, _SUSPENDED) or self._cluster.fields.suspend:
            return True
        return self._reconcile_head() and all(map(self._reconcile_group, self._cluster.groups))

    def _reconcile_head(self) -> bool:
        heads = [pod for pod in self._pods if ray_nodes.node_type(pod) == HEAD]
        if not heads:
            if is_true(self._cluster.obj, _PROVISIONED) and self._cluster.keeps_lost_head:
                return True
            manifest = self._cluster.new_head_pod(self._new_name(self._cluster.head_pod_prefix))
            return self._create_pod(manifest, "CreatedHeadPod", "head")
        if len(heads) == 1 and _has_ended(heads[0]):
            self._delete_ended(heads[0], "DeletedHeadPod", "head")
            return False
        return len(heads) == 1

    def _reconcile_group(self, group: WorkerGroup) -> bool:
        pods = [pod for pod in self._pods if label(pod, ray_nodes.GROUP_LABEL) == group.group_name]
        pods = [pod for pod in pods if ray_nodes.node_type(pod) == WORKER]
        if group.suspend:
            if self._delete(pods):
                message = f"Deleted all pods for suspended worker group {group.group_name} in RayCluster {self._key}"
                self._result.events.append(EventRecord(self._key, "Normal", "DeletedWorkerPod", message))
            return True
        if group.hosts > 1:
            return self._reconcile_replicas(group, pods)
        ended_pods = [pod for pod in pods if _has_ended(pod)]
        for pod in ended_pods:
            self._delete_ended(pod, "DeletedWorkerPod", "worker")
        if ended_pods:
            return False
        unwanted_names = dict.fromkeys(group.workers_to_delete)
        self._delete_workers([pod for pod in pods if pod["metadata"]["name"] in unwanted_names])
        kept_pods = [pod for pod in pods if pod["metadata"]["name"] not in unwanted_names]
        excess_count = len(kept_pods) - group.desired_pods
        if excess_count > 0:
            self._delete_workers(sorted(kept_pods, key=lambda pod: not is_terminating(pod))[:excess_count])
        indexes = _unused_indexes(kept_pods, min(-excess_count, CREATED_MAX))
        positions = (WorkerPosition("", index) for index in indexes)
        return all(self._create_worker(group, position) for position in positions)

    def _reconcile_replicas(self, group: WorkerGroup, pods: Sequence[Obj]) -> bool:
        """Reconcile a group whose replicas have several pods: a replica is created and deleted as a whole."""
        replicas: dict[str, list[Obj]] = {}
        for pod in pods:
            replicas.setdefault(label(pod, ray_nodes.REPLICA_NAME_LABEL) or "", []).append(pod)
        unwanted_names = dict.fromkeys(group.workers_to_delete)
        for members in replicas.values():
            has_unwanted = any(pod["metadata"]["name"] in unwanted_names for pod in members)
            ended_pods = [pod for pod in members if _has_ended(pod)]
            if len(members) != group.hosts or has_unwanted or ended_pods:
                if all(map(self._may_replace, ended_pods)):
                    self._delete_workers(members)
                return False
        excess_count = len(replicas) - group.desired_replicas
        for members in list(replicas.values())[: max(excess_count, 0)]:
            self._delete_workers(members)
        created_count = min(-excess_count, max(CREATED_MAX // group.hosts, 1))
        for index in _unused_indexes([members[0] for members in replicas.values()], created_count):
            replica_name = self._new_name(f"{group.group_name}-")
            for host_index in range(group.hosts):
                if not self._create_worker(group, WorkerPosition(replica_name, index, host_index)):
                    return False
        return True

    def _create_worker(self, group: WorkerGroup, position: WorkerPosition) -> bool:
        name = self._new_name(self._cluster.worker_pod_prefix(group))
        return self._create_pod(self._cluster.new_worker_pod(name, group, position), "CreatedWorkerPod", "worker")

    def _create_pod(self, manifest: Obj, reason: str, role: str) -> bool:
        """Add the creation of a pod; return False if the pod is invalid, or is a trial after a failure."""
        self._has_tried = True
        try:
            pod = complete_object(manifest)
        except InvalidObject as error:
            failure_reason = _CREATION_FAILURES[ray_nodes.node_type(manifest)][0]
            self.failure = RayReplicaFailure(failure_reason, f"{failure_reason}\n{error}")
            self._result.events.append(_failed_pod_event(self._key, manifest, error))
            return False
        name = f"{self._key.namespace}/{pod['metadata']['name']}"
        self._add(Create(pod), reason, f"Created {role} Pod {name}")
        return self.failure is None

    def _may_replace(self, pod: Obj) -> bool:
        """Return whether an ended pod is old enough; otherwise request a reconcile at that time."""
        due_time = parse_time(pod["metadata"]["creationTimestamp"]) + _REPLACEMENT_PERIOD
        if due_time > self._now:
            self._result.requeue_at = min(due_time, self._result.requeue_at or due_time)
        return due_time <= self._now

    def _delete_ended(self, pod: Obj, reason: str, role: str) -> None:
        if is_terminating(pod) or not self._may_replace(pod):
            return
        details = f"Pod status: {phase(pod)}; Pod restart policy: {pod['spec'].get('restartPolicy', 'Always')}"
        exit_code = (_ray_termination(pod) or {}).get("exitCode")
        text = f"{details}; Ray container exit code: {exit_code}"
        message = f"Deleted {role} Pod {self._key.namespace}/{pod['metadata']['name']}; {text}"
        self._add(_deletion(pod), reason, message)

    def _delete_workers(self, pods: Iterable[Obj]) -> None:
        for pod in pods:
            if not is_terminating(pod):
                message = f"Deleted Pod {self._key.namespace}/{pod['metadata']['name']}"
                self._add(_deletion(pod), "DeletedWorkerPod", message)

    def _delete(self, pods: Iterable[Obj]) -> bool:
        """Add the deletion of pods; return whether there are any to delete."""
        deletions = [_deletion(pod) for pod in pods if not is_terminating(pod)]
        self._result.writes.extend(deletions)
        return bool(deletions)

    def _new_name(self, prefix: str) -> str:
        name = ""
        while not name or name in self._names or self._reader.get(Key(scheme.POD, self._key.namespace, name)):
            seed = (self._cluster.obj["metadata"]["uid"], str(self._now), str(next(self._name_numbers)))
            name = generated_name(prefix, uid_for(0, *seed))
        self._names[name] = None
        return name

    def _add(self, write: Write, reason: str, message: str) -> None:
        self._result.add(write, [EventRecord(self._key, "Normal", reason, message)])

    def _warn(self, reason: str, message: str) -> None:
        self._result.events.append(EventRecord(self._key, "Warning", reason, message))


class _RayClusterStatus:
    """The status of a RayCluster while a reconcile changes it."""

    def __init__(self, cluster: RayCluster, pods: Sequence[Obj], services: Sequence[Obj], now: Instant) -> None:
        self._cluster, self._pods, self._services, self._now = cluster, pods, services, now
        self._old: Mapping[str, Any] = cluster.obj.get("status") or {}
        self._fields: dict[str, Any] = dict(self._old)
        self._conditions: list[Condition] = list(self._old.get("conditions") or ())

    def document(self) -> Mapping[str, Any]:
        """Return the status to store."""
        return self._fields

    def update(self, failure: RayReplicaFailure | None, *, is_complete: bool) -> bool:
        """Compute the status; return whether it differs from the stored one by more than its time.

        `is_complete`: whether no pod had to be repaired.
        """
        if failure is not None:
            self._set_condition(_REPLICA_FAILURE, True, *failure)
        elif is_complete:
            self._conditions = [each for each in self._conditions if each["type"] != _REPLICA_FAILURE]
        self._count()
        is_ready_now = failure is None and is_complete and len(self._pods) == self._cluster.desired_workers + 1
        if is_ready_now and _are_all_running(self._pods):
            self._fields["state"] = READY_STATE
        self._update_head()
        self._update_suspension()
        if self._cluster.fields.suspend and not self._pods:
            self._fields["state"] = "suspended"
        self._fields["conditions"] = self._conditions
        for name in _OPTIONAL_FIELDS:
            if not self._fields.get(name):
                self._fields.pop(name, None)
        if self._fields == self._old:
            return False
        time = format_second(self._now)
        self._fields["lastUpdateTime"] = time
        state = self._fields.get("state")
        if state != self._old.get("state"):
            self._fields["stateTransitionTimes"] = {**(self._old.get("stateTransitionTimes") or {}), state: time}
        return True

    def _count(self) -> None:
        workers = [pod for pod in self._pods if ray_nodes.node_type(pod) == WORKER]
        active_groups = [group for group in self._cluster.groups if not group.suspend]
        least, most = (
            min(sum(group.min_max_replicas[index] * group.hosts for group in active_groups), ray_nodes.INT32_MAX)
            for index in (0, 1)
        )
        resources = self._cluster.desired_resources()
        gpus = sum(amount for name, amount in resources.items() if is_gpu(name))
        self._fields |= {
            "observedGeneration": self._cluster.obj["metadata"].get("generation", 0),
            "readyWorkerReplicas": sum(phase(pod) == RUNNING and is_ready(pod) for pod in workers),
            "availableWorkerReplicas": sum(phase(pod) == RUNNING for pod in workers),
            "desiredWorkerReplicas": self._cluster.desired_workers,
            "minWorkerReplicas": least,
            "maxWorkerReplicas": most,
            "desiredCPU": format_quantity(resources.get("cpu", 0), QuantityFormat.DECIMAL),
            "desiredMemory": format_quantity(resources.get("memory", 0), QuantityFormat.BINARY),
            "desiredGPU": format_quantity(gpus, QuantityFormat.DECIMAL),
            "desiredTPU": format_quantity(resources.get("google.com/tpu", 0), QuantityFormat.DECIMAL),
        }

    def _update_head(self) -> None:
        pod = next((pod for pod in self._pods if ray_nodes.node_type(pod) == HEAD), None)
        if pod is None:
            self._set_condition(_HEAD_READY, False, "HeadPodNotFound", "Head Pod not found")
        else:
            self._set_condition(_HEAD_READY, is_ready(pod), *_head_readiness(pod))
        name = self._cluster.head_service_name
        service = next((each for each in self._services if each["metadata"]["name"] == name), None)
        pod_ip = "" if pod is None else (pod.get("status") or {}).get("podIP") or ""
        service_spec: Mapping[str, Any] = {} if service is None else service["spec"]
        cluster_ip = service_spec.get("clusterIP") or ""
        head = {
            "podIP": pod_ip,
            "podName": "" if pod is None else pod["metadata"]["name"],
            "serviceIP": pod_ip if cluster_ip == "None" else cluster_ip,
            "serviceName": "" if service is None else name,
        }
        self._fields["head"] = {field: value for field, value in head.items() if value}
        ports = [each for each in service_spec.get("ports") or () if each.get("name")]
        endpoints = {each["name"]: each.get("nodePort") or each.get("targetPort") or each["port"] for each in ports}
        texts = {port_name: str(port) for port_name, port in endpoints.items()}
        self._fields["endpoints"] = {**(self._old.get("endpoints") or {}), **texts}

    def _update_suspension(self) -> None:
        is_suspending, is_suspended = is_true(self._old, _SUSPENDING), is_true(self._old, _SUSPENDED)
        if not is_true(self._old, _PROVISIONED) and not is_suspended:
            if _are_all_running(self._pods):
                message = "All Ray Pods are ready for the first time"
                self._set_condition(_PROVISIONED, True, "AllPodRunningAndReadyFirstTime", message)
            else:
                message = "RayCluster Pods are being provisioned for first time"
                self._set_condition(_PROVISIONED, False, "RayClusterPodsProvisioning", message)
        suspends = bool(self._cluster.fields.suspend)
        if is_suspending:
            if not self._pods:
                reason, message = "RayClusterPodsProvisioning", "RayCluster has been suspended"
                self._set_condition(_PROVISIONED, False, reason, message)
                self._set_condition(_SUSPENDING, False, _SUSPENDING, "")
                self._set_condition(_SUSPENDED, True, _SUSPENDED, "")
        elif is_suspended:
            if not suspends:
                self._set_condition(_SUSPENDED, False, _SUSPENDED, "")
        else:
            self._set_condition(_SUSPENDED, False, _SUSPENDED, "")
            self._set_condition(_SUSPENDING, suspends, _SUSPENDING, "")

    def _set_condition(self, condition_type: str, holds: bool, reason: str, message: str) -> None:
        self._conditions = with_condition(
            self._conditions, type=condition_type, status=holds, reason=reason, message=message, now=self._now
        )


def _head_readiness(pod: Obj) -> tuple[str, str]:
    """Return the reason and the message of the condition HeadPodReady, from the conditions of the head's pod."""
    condition = find_condition(pod, "Ready")
    if condition is None:
        return "Unknown", ""
    reason, message = condition.get("reason") or "", condition.get("message") or ""
    if not reason:
        reason = "HeadPodRunningAndReady" if condition["status"] == "True" else "Unknown"
    if reason != "ContainersNotReady":
        return reason, message
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        state = container.get("state") or {}
        cause = state.get("waiting") or state.get("terminated")
        if cause is not None:
            detail = f"{container['name']}: {cause.get('message') or ''}"
            return cause.get("reason") or reason, f"{message}; {detail}" if message else detail
    return reason, message


def _are_all_running(pods: Sequence[Obj]) -> bool:
    """Return whether there are pods, and all of them run and are not reported as unready."""
    for pod in pods:
        condition = find_condition(pod, "Ready")
        if phase(pod) != RUNNING or (condition is not None and condition["status"] != "True"):
            return False
    return bool(pods)


def _has_ended(pod: Obj) -> bool:
    """Return whether a pod has ended, or its Ray container has and is not restarted."""
    if is_terminal(pod):
        return True
    return phase(pod) == RUNNING and _ray_termination(pod) is not None and pod["spec"].get("restartPolicy") == "Never"


def _ray_termination(pod: Obj) -> Mapping[str, Any] | None:
    name = pod["spec"]["containers"][0]["name"]
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        if container["name"] == name:
            terminated: Mapping[str, Any] | None = (container.get("state") or {}).get("terminated")
            return terminated
    return None


def _deletion(pod: Obj) -> Write:
    return Delete(key_of(pod), uid=pod["metadata"]["uid"])


def _unused_indexes(pods: Iterable[Obj], index_count: int) -> list[int]:
    """Return the `index_count` lowest indexes of replicas that no pod has; empty if the count is negative."""
    used = dict.fromkeys(label(pod, ray_nodes.REPLICA_INDEX_LABEL) for pod in pods)
    unused: list[int] = []
    for index in count():
        if len(unused) >= index_count:
            break
        if str(index) not in used:
            unused.append(index)
    return unused
