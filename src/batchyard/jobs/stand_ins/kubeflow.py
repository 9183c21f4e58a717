"""Controller of PyTorchJobs, TFJobs, XGBoostJobs, PaddleJobs and JAXJobs.

It takes the steps of Kubeflow's training operator (pkg/controller.v1, release 1.9), with its reasons and messages.
Events about a job are recorded when its status changes. A failed pod is replaced a few seconds after its creation or
later.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.errors import ApiError, InvalidObject
from batchyard.api.meta import Key, Obj, controller_of, key_of, with_status
from batchyard.api.times import format_second, parse_time
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import Create, Delete, EventType, Reader, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.jobs.stand_ins import training_jobs
from batchyard.jobs.stand_ins.new_objects import CREATED_MAX, complete_object, controlled_by
from batchyard.jobs.stand_ins.training_jobs import InvalidTrainingJob, TrainingJob

#: A failed pod is replaced when this time has passed since its creation, so that failures cannot create pods too fast.
RESTART_PERIOD: Final = 5 * SECOND
#: The exit code from which a failure is retryable with the policy `ExitCode`; the code of pods without one.
_RETRYABLE_EXIT_CODE: Final = 128
_UNKNOWN_EXIT_CODE: Final = 0xBEEF
_RESTARTING_POLICIES: Final = ("Always", "OnFailure", "ExitCode")
_GROUP: Final = "kubeflow.org/"
#: The reasons of the Event for a job that is deleted after its TTL.
_DELETION_REASONS: Final = {"TFJob": "SuccessfulDeleteJob", "XGBoostJob": "SuccessfulDeleteJob"}


class TrainingJobController:
    """Runs the jobs of one kind: creates and deletes their pods and Services, and writes their statuses."""

    rank = 0

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._framework = training_jobs.FRAMEWORKS[kind]
        self.name = self._framework.controller_name
        self.kinds: Sequence[str] = (kind, scheme.POD, scheme.SERVICE)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the key of a changed job, or of the job that controls a changed pod or a deleted Service."""
        key = event.key
        if key.kind == self._kind:
            return (key,)
        if key.kind == scheme.SERVICE and event.type is not EventType.DELETED:
            return ()
        owner = controller_of(event.obj)
        if owner is None or owner["kind"] != self._framework.kind or not owner["apiVersion"].startswith(_GROUP):
            return ()
        return (Key(self._kind, key.namespace, owner["name"]),)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Create, replace and delete the pods of a job, and update its status."""
        obj = reader.get(key)
        if obj is None or "deletionTimestamp" in obj["metadata"] or training_jobs.is_managed_elsewhere(obj):
            return ReconcileResult()
        job_pass = _JobPass(key, obj, self._framework.kind, reader, now)
        try:
            job = TrainingJob(obj, self._framework)
        except InvalidTrainingJob as error:
            return job_pass.reject(str(error))
        return job_pass.run(job)


class _TrainingStatus:
    """The status of a job while a reconcile changes it, and the Events about the changes."""

    def __init__(self, key: Key, obj: Obj, kind: str, now: Instant) -> None:
        self._old: Mapping[str, Any] = obj.get("status") or {}
        self._key, self._kind, self._time = key, kind, format_second(now)
        self.conditions: list[Mapping[str, Any]] = list(self._old.get("conditions") or ())
        #: By replica type: the fields `active`, `succeeded`, `failed` and `selector`; numbers are omitted if 0.
        self.replicas: dict[str, dict[str, Any]] = {
            name: dict(status) for name, status in (self._old.get("replicaStatuses") or {}).items()
        }
        self.start_time: str | None = self._old.get("startTime")
        self.completion_time: str | None = self._old.get("completionTime")
        self.events: list[EventRecord] = []

    def is_true(self, condition_type: str) -> bool:
        """Return whether the job has a condition of this type with the status True."""
        return any(each["type"] == condition_type and each["status"] == "True" for each in self.conditions)

    @property
    def is_finished(self) -> bool:
        """Whether the job has succeeded or failed."""
        return self.is_true("Succeeded") or self.is_true("Failed")

    def count(self, replica_type: str, name: str) -> int:
        """Return a number of a replica type: `active`, `succeeded` or `failed`."""
        number: int = self.replicas.get(replica_type, {}).get(name, 0)
        return number

    def start(self) -> None:
        """Set the start time."""
        self.start_time = self._time

    def create(self) -> None:
        """Set the condition Created unless the job has it."""
        if all(each["type"] != "Created" for each in self.conditions):
            self.set_condition("Created", "Created", f"{self._kind} {self._key.name} is created.")

    def run(self, message: str) -> None:
        """Set the condition Running."""
        self.set_condition("Running", "Running", message)

    def restart(self, message: str) -> None:
        """Set the condition Restarting, and record an Event if it changes."""
        if self.set_condition("Restarting", "Restarting", message):
            self.record("Warning", "Restarting", message)

    def succeed(self, message: str) -> None:
        """Set the condition Succeeded and the completion time."""
        self.completion_time = self.completion_time or self._time
        if self.set_condition("Succeeded", "Succeeded", message):
            self.record("Normal", "Succeeded", message)

    def fail(self, message: str, reason: str = "Failed", event_type: str = "Normal") -> None:
        """Set the condition Failed and the completion time."""
        self.completion_time = self.completion_time or self._time
        if self.set_condition("Failed", reason, message):
            self.record(event_type, reason, message)

    def record(self, event_type: str, reason: str, message: str) -> None:
        """Record an Event whose reason begins with the kind, together with the new status."""
        self.events.append(EventRecord(self._key, event_type, f"{self._kind}{reason}", message))

    def set_condition(self, condition_type: str, reason: str, message: str, *, is_true: bool = True) -> bool:
        """Set a condition, whose reason begins with the kind; return whether it has changed.

        A failed job keeps its conditions. Running and Restarting replace each other.
        """
        if self.is_true("Failed"):
            return False
        status, full_reason = str(is_true), f"{self._kind}{reason}"
        current = next((each for each in self.conditions if each["type"] == condition_type), None)
        if current is not None and (current["status"], current.get("reason")) == (status, full_reason):
            return False
        has_same_status = current is not None and current["status"] == status
        transition = (current or {}).get("lastTransitionTime") if has_same_status else self._time
        replaced = {"Running": "Restarting", "Restarting": "Running"}.get(condition_type)
        kept = [each for each in self.conditions if each["type"] not in (condition_type, replaced)]
        if condition_type in ("Failed", "Succeeded"):
            kept = [{**each, "status": "False"} if each["type"] == "Running" else each for each in kept]
        condition = {"type": condition_type, "status": status, "reason": full_reason, "message": message}
        self.conditions = [*kept, {**condition, "lastUpdateTime": self._time, "lastTransitionTime": transition}]
        return True

    def document(self) -> dict[str, Any]:
        """Return the status to store."""
        times = {"startTime": self.start_time, "completionTime": self.completion_time}
        fields = {"conditions": self.conditions, "replicaStatuses": self.replicas, **times}
        return {**self._old, **{name: value for name, value in fields.items() if value or name in self._old}}

    @property
    def is_changed(self) -> bool:
        """Whether the status differs from the stored one."""
        return self.document() != self._old


class _JobPass:
    """One reconcile of a job: its pods and Services, the new status, the writes and the Events."""

    def __init__(self, key: Key, obj: Obj, kind: str, reader: Reader, now: Instant) -> None:
        self._key, self._obj, self._kind, self._now = key, obj, kind, now
        self._pods = controlled_by(obj, scheme.POD, reader)
        self._services = {key_of(each).name: each for each in controlled_by(obj, scheme.SERVICE, reader)}
        self._status = _TrainingStatus(key, obj, kind, now)
        self._result = ReconcileResult(independent=True, event_if_rejected=partial(_rejection_event, key))
        self._creations_left = CREATED_MAX

    def reject(self, problem: str) -> ReconcileResult:
        """Return the result for a job with an invalid spec: the job fails, and its pods are deleted."""
        if not self._status.is_finished:
            self._status.create()
            self._delete_all()
            self._status.fail(f"{self._kind} failed validation because {problem}", "FailedValidation", "Warning")
        return self._finish()

    def run(self, job: TrainingJob) -> ReconcileResult:
        """Return the result for a valid job."""
        self._status.create()
        if self._status.is_finished:
            self._clean_up(job)
        elif job.policy.suspend:
            self._suspend(job)
        else:
            self._continue(job)
        return self._finish()

    def _finish(self) -> ReconcileResult:
        if self._status.is_changed:
            self._result.add(UpdateStatus(with_status(self._obj, self._status.document())), self._status.events)
        return self._result

    def _requeue_at(self, instant: Instant) -> None:
        self._result.requeue_at = min(instant, self._result.requeue_at or instant)

    # --- states of the job ---

    def _clean_up(self, job: TrainingJob) -> None:
        policy = "None" if job.policy.clean_pod_policy is None else job.policy.clean_pod_policy
        for pod in self._pods if policy != "None" else ():
            if policy != "Running" or _phase(pod) in ("Running", "Pending"):
                self._delete_pod(pod)
                self._delete_service(pod["metadata"]["name"])
        if self._status.is_true("Succeeded"):
            for counts in self._status.replicas.values():
                if active := counts.pop("active", 0):
                    counts["succeeded"] = counts.get("succeeded", 0) + active
        completion_time, seconds = self._status.completion_time, job.policy.ttl_seconds_after_finished
        if completion_time is None or seconds is None or job.policy.suspend:
            return
        expiry = parse_time(completion_time) + seconds * SECOND
        if expiry > self._now:
            self._requeue_at(expiry)
            return
        reason = _DELETION_REASONS.get(self._kind, "SuccessfulDeletePod")
        self._add(Delete(self._key, uid=self._obj["metadata"]["uid"]), reason, f"Deleted job: {job.name}")

    def _suspend(self, job: TrainingJob) -> None:
        self._delete_all()
        for counts in self._status.replicas.values():
            counts.pop("active", None)
        message = f"{self._kind} {job.name} is suspended."
        if self._status.is_true("Running"):
            self._status.set_condition("Running", "Suspended", message, is_true=False)
        if not self._status.is_true("Suspended"):
            self._status.set_condition("Suspended", "Suspended", message)
            self._status.record("Normal", "Suspended", message)

    def _continue(self, job: TrainingJob) -> None:
        status = self._status
        if status.is_true("Suspended"):
            message = f"{self._kind} {job.name} is resumed."
            status.set_condition("Suspended", "Resumed", message, is_true=False)
            status.start()
            status.record("Normal", "Resumed", message)
        if reason := self._exceeded_limit(job):
            self._delete_all()
            status.fail(f"Job {job.name} has failed because {reason}")
            return
        for replica_type in job.replicas:
            self._sync_pods(job, replica_type)
            self._sync_services(job, replica_type)
        if status.start_time is None:
            status.start()
        if job.policy.active_deadline_seconds is not None and status.start_time is not None:
            self._requeue_at(parse_time(status.start_time) + job.policy.active_deadline_seconds * SECOND)
        _OUTCOMES[self._kind](job, status, self._pods)

    def _exceeded_limit(self, job: TrainingJob) -> str:
        limit = job.policy.backoff_limit
        if limit is not None:
            pods = [pod for pod in self._pods if not self._is_of_earlier_run(pod)]
            failed = sum(_phase(pod) == "Failed" for pod in pods)
            recorded = sum(self._status.count(replica_type, "failed") for replica_type in self._status.replicas)
            is_new_failure = failed > recorded and sum(map(_is_active, pods)) != job.total
            restarts = sum(_restart_count(pod) for pod in pods if _may_restart(pod, job))
            if (limit == 0 and is_new_failure) or restarts >= max(limit, 1):
                return "it has reached the specified backoff limit"
        deadline, start_time = job.policy.active_deadline_seconds, self._status.start_time
        if deadline is None or start_time is None or self._now < parse_time(start_time) + deadline * SECOND:
            return ""
        return "it was active longer than specified deadline"

    def _is_of_earlier_run(self, pod: Obj) -> bool:
        """Return whether a pod in deletion is older than the start of the job, so that it is no failure of this run."""
        start_time, metadata = self._status.start_time, pod["metadata"]
        if start_time is None or "deletionTimestamp" not in metadata:
            return False
        return parse_time(metadata["creationTimestamp"]) < parse_time(start_time)

    # --- pods and Services ---

    def _sync_pods(self, job: TrainingJob, replica_type: str) -> None:
        replica = job.replicas[replica_type]
        pods = _pods_by_index(self._pods, replica_type)
        for index in range(replica.pods):
            if index not in pods and not self._create_pod(job, replica_type, index):
                break
        counts = {"active": 0, "succeeded": 0, "failed": 0}
        for index, pod in sorted(pods.items()):
            if self._is_of_earlier_run(pod):
                continue
            if index >= replica.pods:
                self._delete_pod(pod)
            elif _phase(pod) == "Failed":
                self._replace_failed(job, replica_type, pod)
            if state := _counted_state(pod):
                counts[state] += 1
        for name in ("succeeded", "failed"):
            if counts[name] > self._status.count(replica_type, name):
                self._record_exit_codes(job, pods.values())
        labels = sorted(job.replica_labels(replica_type).items())
        has_selector = self._kind in ("PyTorchJob", "PaddleJob", "JAXJob")
        selector = {"selector": ",".join(f"{name}={value}" for name, value in labels)} if has_selector else {}
        self._status.replicas[replica_type] = {name: count for name, count in counts.items() if count} | selector

    def _record_exit_codes(self, job: TrainingJob, pods: Iterable[Obj]) -> None:
        for pod in pods:
            if (code := _exit_code(pod, job.framework.container)) is not None:
                text = f"Pod: {job.namespace}.{pod['metadata']['name']} exited with code {code}"
                event = EventRecord(self._key, "Normal", "ExitedWithCode", text)
                if event not in self._status.events:
                    self._status.events.append(event)

    def _replace_failed(self, job: TrainingJob, replica_type: str, pod: Obj) -> None:
        """Delete a failed pod that the restart policy replaces; fail the job after a permanent error."""
        policy = job.replicas[replica_type].restart_policy
        code = _exit_code(pod, job.framework.container)
        is_retryable = policy != "ExitCode" or (_UNKNOWN_EXIT_CODE if code is None else code) >= _RETRYABLE_EXIT_CODE
        if policy not in _RESTARTING_POLICIES or "deletionTimestamp" in pod["metadata"]:
            return
        if not is_retryable:
            message = f'job "{job.name}" is failing because "{replica_type}" replica(s) failed.'
            self._status.fail(message, event_type="Warning")
            return
        message = f"job {job.name} is restarting because {replica_type} replica(s) failed."
        if self._kind == "TFJob":  # the condition decides whether the job fails
            self._status.set_condition("Restarting", "Restarting", message)
        due_time = parse_time(pod["metadata"]["creationTimestamp"]) + RESTART_PERIOD
        if due_time > self._now:
            self._requeue_at(due_time)
        else:
            self._delete_pod(pod, EventRecord(self._key, "Warning", f"{self._kind}Restarting", message))

    def _create_pod(self, job: TrainingJob, replica_type: str, index: int) -> bool:
        """Add the creation of a pod; return False if the pod is invalid or too many pods are created at once."""
        if self._creations_left == 0:
            return False
        self._creations_left -= 1
        try:
            pod = complete_object(job.new_pod(replica_type, index))
        except InvalidObject as error:
            self._result.events.append(EventRecord(self._key, "Warning", "FailedCreatePod", f"Error creating: {error}"))
            return False
        if job.replicas[replica_type].template["spec"].get("restartPolicy"):
            message = "Restart policy in pod template will be overwritten by restart policy in replica spec"
            self._result.events.append(EventRecord(self._key, "Warning", "SetPodTemplateRestartPolicy", message))
        self._add(Create(pod), "SuccessfulCreatePod", f"Created pod: {pod['metadata']['name']}")
        return True

    def _sync_services(self, job: TrainingJob, replica_type: str) -> None:
        count = job.replicas[replica_type].pods
        for index in range(count):
            name = job.pod_name(replica_type, index)
            if name in self._services or self._creations_left == 0:
                continue
            try:
                service = complete_object(job.new_service(replica_type, index))
            except InvalidObject as error:
                event = EventRecord(self._key, "Warning", "FailedCreateService", f"Error creating: {error}")
                self._result.events.append(event)
                return
            self._add(Create(service), "SuccessfulCreateService", f"Created service: {name}")
        services = _pods_by_index(list(self._services.values()), replica_type)
        for index, service in services.items():
            if index >= count:
                self._delete_service(service["metadata"]["name"])

    def _delete_all(self) -> None:
        for pod in self._pods:
            self._delete_pod(pod)
        for name in list(self._services):
            self._delete_service(name)

    def _delete_pod(self, pod: Obj, *events: EventRecord) -> None:
        name, metadata = pod["metadata"]["name"], pod["metadata"]
        if "deletionTimestamp" not in metadata:
            write = Delete(key_of(pod), uid=metadata["uid"])
            self._add(write, "SuccessfulDeletePod", f"Deleted pod: {name}", *events)

    def _delete_service(self, name: str) -> None:
        service = self._services.pop(name, None)
        if service is not None:
            write = Delete(key_of(service), uid=service["metadata"]["uid"])
            self._add(write, "SuccessfulDeleteService", f"Deleted service: {name}")

    def _add(self, write: Write, reason: str, message: str, *events: EventRecord) -> None:
        self._result.add(write, [EventRecord(self._key, "Normal", reason, message), *events])


# The outcome of a job: functions that set its conditions by the numbers of its pods.


def _update_status(job: TrainingJob, status: _TrainingStatus, _pods: Sequence[Obj]) -> None:
    kind, leader = job.framework.kind, "Master" if "Master" in job.replicas else "Worker"
    name = job.name if leader == "Master" else f"{job.namespace}/{job.name}"
    failing = [each for each in job.replicas if _has_missing_replicas(job, status, each)]
    is_restarting = any(job.replicas[each].restart_policy != "Never" for each in failing)
    for replica_type, replica in job.replicas.items():
        succeeded, failed = status.count(replica_type, "succeeded"), status.count(replica_type, "failed")
        if replica_type == leader and succeeded == replica.pods:
            ending = "is successfully completed" if leader == "Master" else "successfully completed"
            status.succeed(f"{kind} {name} {ending}.")
            return
        if replica_type == leader and status.count(replica_type, "active") and not is_restarting:
            status.run(f"{kind} {name} is running.")
        if replica_type in failing:
            cause = f"because {failed} {replica_type} replica(s) failed."
            if replica.restart_policy != "Never":
                status.restart(f"{kind} {job.name} is restarting {cause}")
            else:
                status.fail(f"{kind} {job.name} is failed {cause}")


def _has_missing_replicas(job: TrainingJob, status: _TrainingStatus, replica_type: str) -> bool:
    present = status.count(replica_type, "succeeded") + status.count(replica_type, "active")
    return status.count(replica_type, "failed") > 0 and job.replicas[replica_type].pods > present


def _update_xgboost_status(job: TrainingJob, status: _TrainingStatus, _pods: Sequence[Obj]) -> None:
    running = f"XGBoostJob {job.name} is running."
    retried = [name for name, each in job.replicas.items() if each.restart_policy == "ExitCode"]
    is_restarting = any(status.count(name, "failed") for name in retried)
    for replica_type, replica in job.replicas.items():
        failed = status.count(replica_type, "failed")
        if replica_type == "Master" and status.count(replica_type, "succeeded") == replica.pods:
            status.run(running)
            status.succeed(f"XGBoostJob {job.name} is successfully completed.")
            return
        is_active = replica_type == "Master" and status.count(replica_type, "active") > 0
        if (failed or is_active) and not is_restarting:
            status.run(running)
        if failed and replica_type in retried:
            status.restart(f"XGBoostJob {job.name} is restarting because {failed} {replica_type} replica(s) failed.")
        elif failed:
            status.fail(f"XGBoostJob {job.name} is failed because {failed} {replica_type} replica(s) failed.")


def _update_tensorflow_status(job: TrainingJob, status: _TrainingStatus, pods: Sequence[Obj]) -> None:
    name, leaders = f"{job.namespace}/{job.name}", job.replicas.keys() & {"Chief", "Master"} or {"Worker"}
    has_failed = any(status.count(each, "failed") for each in job.replicas)
    is_restarting = has_failed and any(each["type"] == "Restarting" for each in status.conditions)
    is_first_worker_enough = leaders == {"Worker"} and job.fields.success_policy != "AllWorkers"
    for replica_type, replica in job.replicas.items():
        succeeded, failed = status.count(replica_type, "succeeded"), status.count(replica_type, "failed")
        has_first = is_first_worker_enough and _has_first_worker_succeeded(job, pods)
        if replica_type in leaders and (succeeded == replica.pods or has_first):
            status.succeed(f"TFJob {name} successfully completed.")
            return
        if replica_type in leaders and status.count(replica_type, "active") and not is_restarting:
            status.run(f"TFJob {name} is running.")
        is_ignored = job.fields.enable_dynamic_worker and replica_type == "Worker"
        if failed and not is_restarting and not is_ignored:
            status.fail(f"TFJob {name} has failed because {failed} {replica_type} replica(s) failed.")


_OUTCOMES: Final[Mapping[str, Callable[[TrainingJob, _TrainingStatus, Sequence[Obj]], None]]] = {
    **dict.fromkeys(("PyTorchJob", "PaddleJob", "JAXJob"), _update_status),
    "XGBoostJob": _update_xgboost_status,
    "TFJob": _update_tensorflow_status,
}


# Pods.


def _has_first_worker_succeeded(job: TrainingJob, pods: Sequence[Obj]) -> bool:
    first_pod = _pods_by_index(pods, "Worker").get(0)
    if first_pod is None or _phase(first_pod) != "Succeeded":
        return False
    return _exit_code(first_pod, job.framework.container) == 0


def _pods_by_index(pods: Sequence[Obj], replica_type: str) -> dict[int, Obj]:
    by_index: dict[int, Obj] = {}
    for pod in pods:
        labels = pod["metadata"].get("labels") or {}
        index = labels.get(training_jobs.REPLICA_INDEX_LABEL, "")
        if labels.get(training_jobs.REPLICA_TYPE_LABEL) == replica_type.lower() and index.isdecimal():
            by_index.setdefault(int(index), pod)
    return by_index


def _phase(pod: Obj) -> str:
    phase: str = (pod.get("status") or {}).get("phase") or "Pending"
    return phase


def _is_active(pod: Obj) -> bool:
    return _phase(pod) not in ("Succeeded", "Failed") and "deletionTimestamp" not in pod["metadata"]


def _counted_state(pod: Obj) -> str:
    """Return the number of the status in which a pod counts; '' for a pending pod."""
    if _phase(pod) == "Running":
        return "failed" if "deletionTimestamp" in pod["metadata"] else "active"
    return {"Succeeded": "succeeded", "Failed": "failed"}.get(_phase(pod), "")


def _exit_code(pod: Obj, container: str) -> int | None:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        terminated = (status.get("state") or {}).get("terminated")
        if status["name"] == container and terminated is not None:
            code: int = terminated.get("exitCode", 0)
            return code
    return None


def _may_restart(pod: Obj, job: TrainingJob) -> bool:
    replica_type = (pod["metadata"].get("labels") or {}).get(training_jobs.REPLICA_TYPE_LABEL)
    policies = [each.restart_policy for name, each in job.replicas.items() if name.lower() == replica_type]
    return _phase(pod) == "Running" and policies[:1] != ["Never"]


def _restart_count(pod: Obj) -> int:
    status = pod.get("status") or {}
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    count: int = sum(each.get("restartCount", 0) for each in containers)
    return count


def _rejection_event(key: Key, write: Write, error: ApiError) -> EventRecord | None:
    if not isinstance(write, Create):
        return None
    reason = "FailedCreateService" if write.obj["kind"] == "Service" else "FailedCreatePod"
    return EventRecord(key, "Warning", reason, f"Error creating: {error}")
