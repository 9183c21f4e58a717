"""Run times, exit codes and checkpoints of simulated pods, and the run times of Workloads without owner.

The first source that gives a run time applies:
- the annotation of the pod, its Job or its JobSet
- the sleep time of its first container
- no limit, until the pod is deleted, if its Job was deleted or a kind of the group `apps` controls it
- the run times of the Cluster (batchyard.cloud.catalog.pool_properties)
- one minute

Three kinds of containers have a sleep time:
- a container with the command `sleep`
- a container with a shell script: the total of its `sleep` commands, if none is in a loop or condition
- a container of an image that only sleeps, with the duration as its argument
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple

from batchyard.api import meta, scheme, well_known
from batchyard.api.times import parse_time
from batchyard.api.views import pods
from batchyard.base.instant import HOUR, MINUTE, SECOND, Duration, Instant, parse_duration
from batchyard.base.primitives import CACHED_TEXT_LENGTH_MAX, LruCache
from batchyard.interfaces.client import EventType, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import ReconcileResult
from batchyard.kubelet.simulated import external_controllers
from batchyard.scheduling.workload import evictions, lifecycle
from batchyard.scheduling.workload.lifecycle import is_bare_workload

#: The default run time.
DEFAULT_RUNTIME: Final = MINUTE
_MODIFIED: Final = EventType.MODIFIED
#: A duration longer than any simulation, for `sleep infinity`.
UNLIMITED_RUNTIME: Final = 1 << 62

_SHELL_PROGRAMS: Final = frozenset({"sh", "bash", "ash", "dash", "zsh"})
#: Shell keywords that make it uncertain which commands run and how often.
_FLOW_KEYWORDS: Final = frozenset({"for", "while", "until", "if", "case", "select", "function", "trap", "{", "}", "("})
#: Operators between commands that run one after the other.
_SEPARATORS: Final = frozenset({";", "\n", "&&"})
_SHELL_PUNCTUATION: Final = "();<>|&\n"
_SLEEP_UNITS: Final = {"": SECOND, "s": SECOND, "m": MINUTE, "h": HOUR, "d": 24 * HOUR}
_SLEEP_ARGUMENT_PATTERN: Final = re.compile(r"(\d{1,9})(?:\.(\d{1,6}))?([smhd]?)", re.ASCII)
_SLEEP_IMAGE_PATTERN: Final = re.compile(r"(?:.*/)?sleep(?::[^/@]*)?(?:@.*)?")


class RunPlan(NamedTuple):
    """The run time, exit code and checkpoint interval of a simulated pod's containers."""

    runtime: Duration
    exit_code: int
    #: The checkpoint interval; None for no checkpoints.
    checkpoint_every: Duration | None = None


def run_plan_of(pod: meta.Obj, reader: Reader, default: Duration | None = None) -> RunPlan:
    """Return the run time, exit code and checkpoint interval of a simulated pod's containers.

    `default` is the run time if no other source gives one, in place of the Cluster's default.
    """
    pod_and_jobs = [pod, *meta.controlling_jobs(pod, reader.get)]
    runtime = next((time for obj in pod_and_jobs if (time := annotated_runtime(obj)) is not None), None)
    if runtime is None:
        container = pod["spec"]["containers"][0]
        command, args = tuple(container.get("command") or ()), tuple(container.get("args") or ())
        runtime = sleep_time_of_command(container.get("image") or "", command, args)
    if runtime is None:
        # The annotation of a deleted Job is unknown, so the pod runs until it is deleted too.
        top_job_key = meta.controlling_job_key(pod_and_jobs[-1])
        is_endless = top_job_key is not None or _is_service_pod(pod)
        runtime = UNLIMITED_RUNTIME if is_endless else _cluster_runtime(pod_and_jobs, reader, default)
    exit_code = next(chain.from_iterable(map(_exit_codes, pod_and_jobs)), 0)
    return RunPlan(runtime, exit_code, pods.checkpoint_interval(pod_and_jobs))


def _is_service_pod(pod: meta.Obj) -> bool:
    """Return whether a ReplicaSet, StatefulSet or DaemonSet controls a pod, which should then always run."""
    owner = meta.controller_of(pod)
    return owner is not None and owner["apiVersion"] == "apps/v1"


def _cluster_runtime(pod_and_jobs: Sequence[meta.Obj], reader: Reader, default: Duration | None) -> Duration:
    cluster = next(iter(reader.list(scheme.CLUSTER)), None)
    names = tuple([_namespaced_name(obj) for obj in pod_and_jobs])
    known = _known_runtimes.get(names)
    if known is None or known.cluster is not cluster:
        known = _KnownRuntime(cluster, named_runtime(cluster, names))
        _known_runtimes.put(names, known)
    runtime = known.runtime
    if runtime is None:
        runtime = default_runtime(cluster) if default is None else default
    return DEFAULT_RUNTIME if runtime is None else runtime


class _KnownRuntime(NamedTuple):
    cluster: meta.Obj | None
    runtime: Duration | None


#: The run times in the Cluster of pods that were reconciled recently, by the names of the pod and its jobs.
_known_runtimes: Final[LruCache[tuple[str, ...], _KnownRuntime]] = LruCache()


def _namespaced_name(obj: meta.Obj) -> str:
    metadata = obj["metadata"]
    return f"{metadata.get('namespace') or ''}/{metadata['name']}"


def annotated_runtime(obj: meta.Obj) -> Duration | None:
    """Return the run time in an object's annotation `batchyard.dev/runtime`; None if it is missing or invalid."""
    return meta.annotated_duration(obj, well_known.RUNTIME)


def template_runtime(template: Mapping[str, Any]) -> Duration | None:
    """Return the run time in the annotation of a template of pods or Jobs; None if it is missing or invalid."""
    return annotated_runtime({"metadata": template.get("metadata") or {}})


def sleep_time_of_command(image: str, command: tuple[str, ...], args: tuple[str, ...]) -> Duration | None:
    """Return the total sleep time of a container's command; None if it does not sleep or the time is uncertain."""
    size = len(image) + sum(map(len, command)) + sum(map(len, args))
    return (_sleeping_time if size <= CACHED_TEXT_LENGTH_MAX else _sleeping_time.__wrapped__)(image, command, args)


@lru_cache(maxsize=4096)
def _sleeping_time(image: str, command: tuple[str, ...], args: tuple[str, ...]) -> Duration | None:
    if not command and _SLEEP_IMAGE_PATTERN.fullmatch(image) and args:
        return _parse_go_duration(args[0])
    argv = (*command, *args)
    program = argv[0].rpartition("/")[2] if argv else ""
    if program == "sleep":
        return _sleep_duration(argv[1:])
    script = _find_shell_script(argv[1:]) if program in _SHELL_PROGRAMS else None
    return None if script is None else _script_duration(script)


def _exit_codes(obj: meta.Obj) -> Iterable[int]:
    text = meta.annotation(obj, well_known.EXIT_CODE)
    exit_code = None if text is None else meta.parse_integer(text)
    if exit_code is not None and 0 <= exit_code <= 255:
        yield exit_code


def _parse_go_duration(text: str) -> Duration | None:
    try:
        return parse_duration(text)
    except ValueError:
        return None


def _sleep_duration(args: Sequence[str]) -> Duration | None:
    """Return the total duration of GNU sleep's arguments, such as `1m 30`; None if one is invalid or there are none."""
    total_sleep_time = 0
    for arg in args:
        if arg in {"inf", "infinity"}:
            return UNLIMITED_RUNTIME
        match = _SLEEP_ARGUMENT_PATTERN.fullmatch(arg)
        if match is None:
            return None
        integer_part, fraction, unit = match[1], match[2] or "", match[3]
        total_sleep_time += int(integer_part + fraction) * _SLEEP_UNITS[unit] // 10 ** len(fraction)
    return total_sleep_time if args else None


def _find_shell_script(args: Sequence[str]) -> str | None:
    for index, arg in enumerate(args):
        if not arg.startswith("-"):
            return None
        if "c" in arg and not arg.startswith("--"):
            return args[index + 1] if index + 1 < len(args) else None
    return None


def _script_duration(script: str) -> Duration | None:
    """Return the total of a script's sleeps; None if it has none, or one that may not run exactly once."""
    script_words = _split_script(script)
    if script_words is None or not _FLOW_KEYWORDS.isdisjoint(script_words):
        return None
    total_duration: Duration | None = None
    for previous_operator, command, next_operator in _split_commands(script_words):
        is_last_command = command[0] in {"exec", "exit"}
        if any("sleep" in word for word in command):
            sleep_time = _command_duration(command[1:] if is_last_command else command)
            if sleep_time is None or previous_operator not in _SEPARATORS or next_operator not in _SEPARATORS:
                return None
            total_duration = sleep_time + (total_duration or 0)
        if is_last_command:
            break
    return total_duration


def _command_duration(command: Sequence[str]) -> Duration | None:
    return _sleep_duration(command[1:]) if command[0] == "sleep" else None


def _split_script(script: str) -> list[str] | None:
    lines = [line for line in script.replace("\\\n", " ").splitlines() if not line.lstrip().startswith("#")]
    lexer = shlex.shlex("\n".join(lines), posix=True, punctuation_chars=_SHELL_PUNCTUATION)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        words = list(lexer)
    except ValueError:  # unbalanced quotes
        return None
    return None if any(word.startswith("<<") for word in words) else _remove_comment_words(words)


def _remove_comment_words(words: Sequence[str]) -> list[str] | None:
    """Return a script's words without comments; None if a comment contains `sleep`, as its `#` may be quoted."""
    kept_words: list[str] = []
    is_comment = False
    for word in words:
        is_comment = not _is_shell_operator(word, "\n") and (is_comment or word.startswith("#"))
        if not is_comment:
            kept_words.append(word)
        elif "sleep" in word:
            return None
    return kept_words


def _split_commands(words: Sequence[str]) -> Iterable[tuple[str, list[str], str]]:
    """Yield each command of a script with the operators before and after it; start and end count as newlines."""
    previous_operator: str = "\n"
    command: list[str] = []
    for word in (*words, "\n"):
        if not _is_shell_operator(word):
            command.append(word)
            continue
        operator = word.strip("\n") or "\n"
        if command:
            yield previous_operator, command, operator
        previous_operator, command = operator, []


def _is_shell_operator(word: str, characters: str = "") -> bool:
    return bool(word) and characters in word and set(word) <= set(_SHELL_PUNCTUATION)


# Work of simulated pods is saved when containers end, and resumed when containers start.
#
# Programs save periodically, so the saved work follows from the start time, however the containers end. A lost machine
# loses only the work since the last checkpoint. Saved work is recorded per place (batchyard.api.views.pods) on the
# topmost Job or JobSet above the pod. On a JobSet it outlives the Jobs. A finalizer keeps the pod until it is recorded.


def with_work_finalizer(pod: meta.Obj, reader: Reader) -> meta.Obj:
    """Return a pod to create, with the checkpoint finalizer if it belongs to a Job or JobSet and saves checkpoints.

    The finalizer keeps the deleted pod until its work is recorded.
    """
    owners = list(meta.controlling_jobs(pod, reader.get))
    if not owners or pods.checkpoint_interval([pod, *owners]) is None:
        return pod
    return meta.with_finalizer(pod, well_known.WORK_FINALIZER)


def is_kept_by_finalizer(pod: meta.Obj) -> bool:
    """Return whether a deleted pod still exists because its checkpointed work must be recorded first."""
    return pods.is_terminating(pod) and well_known.WORK_FINALIZER in meta.finalizers_of(pod)


def remove_work_finalizer(pod: meta.Obj) -> list[Write]:
    """Return the write that removes the checkpoint finalizer of a terminating pod; empty for other pods."""
    return [Update(meta.without_finalizer(pod, well_known.WORK_FINALIZER))] if is_kept_by_finalizer(pod) else []


def record_work_at_end(pod: meta.Obj, new_pod: meta.Obj, interval: Duration, reader: Reader) -> list[Write]:
    """Return the write that updates the saved work on an ended pod's Job or JobSet; empty if nothing changes.

    `new_pod` is the pod after its change; the result is empty unless it has ended. The pod's checkpointed work is
    recorded. If the pod succeeded and is never recreated, its recorded work is removed instead.
    """
    job = _work_owner(pod, reader) if pods.is_terminal(new_pod) else None
    if job is None:
        return []
    has_succeeded = pods.phase(new_pod) == pods.SUCCEEDED
    if has_succeeded and (pods.is_interchangeable(pod) or meta.group_kind(job) != scheme.JOB_SET):
        # The Job never recreates a succeeded pod.
        return _job_update_if_changed(job, pods.with_saved_work(job, pods.saved_work_key(pod), 0))
    return _record_work(job, pods.saved_work_key(pod), _work_after_run(pod, new_pod, interval))


def record_work_at_loss(pod: meta.Obj, lost_at: Instant, interval: Duration, reader: Reader) -> list[Write]:
    """Return the write that records the checkpointed work of a pod whose machine was lost; [] if there is none.

    `interval` is the checkpoint interval.
    """
    job, start_time = _work_owner(pod, reader), pods.running_since(pod)
    if job is None or start_time is None:
        return []
    work_done = pods.resumed_work(pod) + pods.kept_work(start_time, interval, lost_at)
    return _record_work(job, pods.saved_work_key(pod), work_done)


def resume_from_checkpoint(
    pod: meta.Obj, new_pod: meta.Obj, interval: Duration, reader: Reader, now: Instant
) -> meta.Obj:
    """Return `new_pod`, the pod after a change, with the checkpoint from which its containers resume.

    `interval` is the checkpoint interval. A pod that has ended is returned unchanged.
    """
    if pods.is_terminal(new_pod):
        return new_pod
    work_done = _work_after_run(pod, new_pod, interval)
    resumed_work = pods.ResumedWork(pods.saved_work_key(pod), work_done) if work_done else None
    if pods.running_since(new_pod) is not None and pods.running_since(new_pod) != pods.running_since(pod):
        resumed_work = _larger_resumed_work(pod, resumed_work, reader)
    return pods.with_resumption(new_pod, resumed_work, now)


def _work_after_run(pod: meta.Obj, new_pod: meta.Obj, interval: Duration) -> Duration:
    start_time, work_before_run = pods.running_since(pod), pods.resumed_work(pod)
    if start_time is None or pods.running_since(new_pod) == start_time:
        return work_before_run
    container = new_pod["status"]["containerStatuses"][0]
    terminated_state = container["state"].get("terminated") or container["lastState"]["terminated"]
    if "finishedAt" not in terminated_state:  # the container was lost, and its work was recorded at that time
        return work_before_run
    if terminated_state["exitCode"] == 0 and not pods.is_terminal(new_pod):
        return 0
    return work_before_run + pods.kept_work(start_time, interval, parse_time(terminated_state["finishedAt"]))


def _larger_resumed_work(pod: meta.Obj, own_work: pods.ResumedWork | None, reader: Reader) -> pods.ResumedWork | None:
    """Return the checkpoint from which a pod resumes: its own, or the one recorded on its Job if that is larger.

    Without either, an interchangeable pod takes over the largest checkpoint that no other pod uses.
    """
    job, work_key = _work_owner(pod, reader), pods.saved_work_key(pod)
    if job is None:
        return own_work
    recorded_work = pods.saved_work(job, work_key)
    if recorded_work:
        return pods.ResumedWork(work_key, max(recorded_work, 0 if own_work is None else own_work.work))
    if own_work is not None or not pods.is_interchangeable(pod) or not pods.saved_work_by_pod_key(job):
        return own_work
    key_prefix, occupied_keys = work_key.rpartition("/")[0], _occupied_work_keys(pod, reader)
    free_keys = [
        candidate
        for candidate in pods.saved_work_by_pod_key(job)
        if candidate not in occupied_keys and candidate.rpartition("/")[0] == key_prefix
    ]
    return pods.most_saved_work(job, free_keys)


def _occupied_work_keys(pod: meta.Obj, reader: Reader) -> dict[str, None]:
    owner = meta.controller_of(pod)
    owned_objects = () if owner is None else reader.owned_by(owner["uid"], pod["metadata"].get("namespace", ""))
    return {
        pods.saved_work_key(obj): None
        for obj in owned_objects
        if meta.group_kind(obj) == scheme.POD and pods.phase(obj) != pods.FAILED
    }


def _work_owner(pod: meta.Obj, reader: Reader) -> meta.Obj | None:
    owners = list(meta.controlling_jobs(pod, reader.get))
    owner = meta.controller_of(pod)
    if owner is None or not owners or owners[0]["metadata"]["uid"] != owner["uid"]:
        return None
    return owners[-1]


def _record_work(job: meta.Obj, work_key: str, work: Duration) -> list[Write]:
    return (
        _job_update_if_changed(job, pods.with_saved_work(job, work_key, work))
        if pods.saved_work(job, work_key) < work
        else []
    )


def _job_update_if_changed(old_job: meta.Obj, new_job: meta.Obj) -> list[Write]:
    return [] if new_job is old_job else [Update(new_job)]


# Bare Workloads have no owner and no pods, and finish after their run time.
#
# The annotation `batchyard.dev/runtime` gives the run time; without it they run until they are deleted. After an
# eviction and readmission they start over.


class BareWorkloads:
    """The controller that finishes Workloads without owner after their run time, and releases quota after evictions.

    It also sets their admission checks and PodsReady if annotations plan them (`external_controllers.py`).
    """

    name = "bare-workloads"
    rank = 0
    kinds = (scheme.WORKLOAD,)

    def __init__(self) -> None:
        self._external_controllers = external_controllers.ExternalControllers()

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Return the key of a changed Workload that holds quota, has no owner and is not finished."""
        obj = event.obj
        if event.type is not _MODIFIED and has_external_plan(obj):
            self._external_controllers.observe(event)
        holds_quota = "admission" in (obj.get("status") or ()) and is_bare_workload(obj)
        return (event.key,) if holds_quota and not lifecycle.is_finished(obj) else ()

    def reconcile(self, key: meta.Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Release the quota of an evicted Workload without owner, or finish an admitted one after its run time.

        If the Workload runs on, update the status that its annotations plan.
        """
        workload = reader.get(key)
        if workload is None or lifecycle.is_finished(workload) or not is_bare_workload(workload):
            return ReconcileResult()
        released_workload = evictions.release_after_eviction(workload, now)
        if released_workload is not workload:
            return ReconcileResult([UpdateStatus(released_workload)])
        admitted_condition, runtime = meta.find_condition(workload, lifecycle.ADMITTED), annotated_runtime(workload)
        finish_at: Instant | None = None
        if admitted_condition is not None and admitted_condition["status"] == "True" and runtime is not None:
            finish_at = parse_time(admitted_condition["lastTransitionTime"]) + runtime
            if finish_at <= now:
                finished_workload = lifecycle.finish(workload, lifecycle.SUCCEEDED, "Job finished successfully", now)
                return ReconcileResult([UpdateStatus(finished_workload)])
        if not has_external_plan(workload):
            return ReconcileResult(requeue_at=finish_at)
        return self._set_planned_status(workload, finish_at, now)

    def _set_planned_status(self, workload: meta.Obj, finish_at: Instant | None, now: Instant) -> ReconcileResult:
        new_workload, next_change = self._external_controllers.planned_status(workload, now)
        if new_workload is not workload:
            return ReconcileResult([UpdateStatus(new_workload)])
        times = [time for time in (finish_at, next_change) if time is not None]
        return ReconcileResult(requeue_at=min(times, default=None))


def has_external_plan(workload: meta.Obj) -> bool:
    """Return whether annotations of a Workload plan its admission checks or the readiness of its pods."""
    annotations = workload["metadata"].get("annotations")
    return bool(annotations) and (well_known.CHECKS in annotations or well_known.PODS_READY in annotations)


def named_runtime(cluster: meta.Obj | None, names: Sequence[str]) -> Duration | None:
    """Return the run time of the Cluster's first entry in `spec.runtimes.jobs` that matches any of `names`, or None.

    Each of `names` has the form `namespace/name`.
    """
    for entry in _cluster_runtimes(cluster).get("jobs") or ():
        if _matches_pattern(entry["names"], names):
            return parse_duration(entry["runtime"])
    return None


def default_runtime(cluster: meta.Obj | None) -> Duration | None:
    """Return the Cluster's default run time for pods that match none of its rows; None if it has no default."""
    text = _cluster_runtimes(cluster).get("default")
    return None if text is None else parse_duration(text)


def _cluster_runtimes(cluster: meta.Obj | None) -> Mapping[str, Any]:
    runtimes: Mapping[str, Any] = {} if cluster is None else cluster["spec"].get("runtimes") or {}
    return runtimes


def _matches_pattern(patterns: Iterable[str], names: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)
