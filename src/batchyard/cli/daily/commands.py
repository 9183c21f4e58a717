"""The commands `batchyard jobs`, `cancel`, `suspend`, `resume` and `priority`: lists and changes of queued jobs.

Suspension works like `kueuectl stop workload` and `resume workload`: it sets `spec.active` of the Workload. Source:
Kueue's cmd/kueuectl/app/stop/stop_workload.go. The priority is that of the job's label, which Kueue copies to the
Workload. Sources: Kueue's pkg/controller/jobframework/validation.go, apis/kueue/v1beta2/workload_types.go.
"""

import sys
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from batchyard.api import scheme, well_known
from batchyard.api.meta import is_true, label
from batchyard.api.printing import format_table
from batchyard.api.times import format_time
from batchyard.base.counts import count_with_noun
from batchyard.base.instant import SECOND, Instant, format_age
from batchyard.cli import output as terminal
from batchyard.cli.cluster_access import ClusterTarget
from batchyard.cli.daily.cluster import (
    AllNamespaces,
    ClusterClient,
    ClusterRequestError,
    NamespaceOption,
    run_in_cluster,
)
from batchyard.cli.daily.jobs import JobEntry, JobState, find_job, find_jobs, read_required_entries
from batchyard.cli.missing_objects import similar_names
from batchyard.cli.options import DATA_DIR, Context, DataDir, Kubeconfig, Output, OutputOption, select_kubeconfig
from batchyard.dashboard.models.reasons import shorten_reason
from batchyard.server.clocks.wall import sleep_for

#: The maximum length of a reason in a table; `-o wide` prints the whole reason.
REASON_LENGTH_MAX: Final = 60
_WAIT_POLL_INTERVAL: Final = SECOND // 2
#: The number of polls after which `cancel` no longer waits for a job to end: a minute.
_WAIT_POLLS_MAX: Final = 120
_JOBS_MAX: Final = 100

JobName: TypeAlias = Annotated[
    str, typer.Argument(metavar="JOB", help="job/NAME, jobset/NAME, workload/NAME, or only the name.")
]
JobNames: TypeAlias = Annotated[
    list[str], typer.Argument(metavar="JOB", help="job/NAME, jobset/NAME, workload/NAME, or only the name.")
]


def target_of(context: typer.Context, kubeconfig: str, kube_context: str, data_dir: Path | None) -> ClusterTarget:
    """Return the cluster that the options of a command select."""
    return ClusterTarget(select_kubeconfig(context, kubeconfig, data_dir), kube_context, data_dir or DATA_DIR)


def shorten(text: str, length_max: int = REASON_LENGTH_MAX) -> str:
    """Return the first line of a text, cut to a maximum length."""
    line = text.partition("\n")[0]
    return line if len(line) <= length_max else f"{line[: length_max - 3]}..."


def list_document(items: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return rows as a document of kind List, for JSON and YAML output."""
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}


# `batchyard jobs`.


def format_jobs(entries: Sequence[JobEntry], now: Instant, output_format: Output, *, with_namespace: bool) -> str:
    """Format jobs as a table, JSON or YAML; `with_namespace` adds the namespace to the table."""
    if not output_format.is_table:
        return terminal.render_document(list_document([_job_document(entry) for entry in entries]), output_format)
    if not entries:
        return terminal.NOTHING_FOUND
    is_wide = output_format is Output.WIDE
    header = ["JOB", "QUEUE", "STATE", "SINCE", "PODS", "NODES"]
    header += ["PRIORITY", "CLUSTERQUEUE", "WORKLOAD", "REASON"] if is_wide else ["REASON"]
    rows = [header, *(_job_row(entry, now, is_wide=is_wide) for entry in entries)]
    if with_namespace:
        rows = [["NAMESPACE", *rows[0]]] + [[e.namespace, *row] for e, row in zip(entries, rows[1:], strict=True)]
    return format_table(rows)


def _job_row(entry: JobEntry, now: Instant, *, is_wide: bool) -> list[str]:
    pods = "-" if entry.pods is None else f"{entry.pods.ready}/{entry.pod_count}"
    nodes = "-" if entry.pods is None else str(entry.pods.nodes)
    cells = [entry.title, entry.queue, entry.state, format_age(now - entry.since), pods, nodes]
    if is_wide:
        return [*cells, str(entry.priority), entry.cluster_queue, entry.workload_name, entry.reason]
    return [*cells, shorten(str(shorten_reason(entry.reason)))]


def _job_document(entry: JobEntry) -> Mapping[str, Any]:
    pods = {} if entry.pods is None else {"podsReady": entry.pods.ready, "nodes": entry.pods.nodes}
    return {
        "apiVersion": entry.api_version,
        "kind": entry.kind,
        "namespace": entry.namespace,
        "name": entry.name,
        "queue": entry.queue,
        "state": str(entry.state),
        "since": format_time(entry.since),
        "pods": entry.pod_count,
        **pods,
        "priority": entry.priority,
        "clusterQueue": entry.cluster_queue,
        "workload": entry.workload_name,
        "reason": entry.reason,
    }


def jobs(
    context: typer.Context,
    namespace: NamespaceOption = "",
    all_namespaces: AllNamespaces = False,
    queue: Annotated[str, typer.Option(metavar="QUEUE", help="Only jobs of this LocalQueue.")] = "",
    kubeconfig: Kubeconfig = "",
    kube_context: Context = "",
    data_dir: DataDir = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the jobs of all kinds in the queues, with their state, ready pods, nodes and reason."""

    async def run(client: ClusterClient) -> str:
        entries = await read_required_entries(client, "" if all_namespaces else namespace or client.namespace)
        queued_entries = [e for e in entries if (e.queue or e.workload is not None) and queue in ("", e.queue)]
        return format_jobs(queued_entries, client.now, output, with_namespace=all_namespaces)

    terminal.write(run_in_cluster(target_of(context, kubeconfig, kube_context, data_dir), run))


# `batchyard cancel`.


async def _find_named_jobs(client: ClusterClient, namespace: str, names: Sequence[str]) -> Sequence[JobEntry]:
    if len(names) > _JOBS_MAX:
        raise ClusterRequestError(f"{len(names)} names are too many: use at most {_JOBS_MAX} at once")
    return await find_jobs(client, namespace or client.namespace, names)


def _confirm_cancellation(entries: Sequence[JobEntry], *, is_confirmed: bool) -> None:
    if is_confirmed or not entries:
        return
    lines = [f"{entry.title} in namespace {entry.namespace} ({describe_state(entry)})" for entry in entries]
    question = "\n  ".join([f"Delete {len(entries)} jobs:", *lines]) if len(entries) > 1 else f"Delete {lines[0]}"
    if not sys.stdin.isatty():
        terminal.fail(f"{question}\nbatchyard: no terminal to ask for confirmation: use --yes to confirm")
    try:
        if not typer.confirm(f"{question}\nContinue?" if len(entries) > 1 else f"{question}?", err=True):
            terminal.fail("batchyard: nothing was cancelled")
    except typer.Abort:
        raise KeyboardInterrupt from None


def describe_state(entry: JobEntry) -> str:
    """Return a job's state as text, with its pods if it holds quota, such as `Running, 2 pods on 1 node`."""
    if entry.pods is None or not entry.state.holds_quota:
        return str(entry.state)
    return f"{entry.state}, {count_with_noun(entry.pods.ready, 'pod')} on {count_with_noun(entry.pods.nodes, 'node')}"


async def _cancel(client: ClusterClient, entry: JobEntry, *, waits: bool) -> None:
    path = await client.path_of(entry.api_version, entry.kind, entry.namespace, entry.name)
    try:
        await client.delete(path, entry.uid)
    except ClusterRequestError as error:
        message = f"{entry.title} in namespace {entry.namespace} cannot be deleted: {error}"
        remedy = f"if this is forbidden, ask an administrator for permission to delete {entry.kind}s there"
        raise ClusterRequestError(f"{message}; {remedy}") from None
    duration = format_age(client.now - entry.since)
    state_text = f"it had been {describe_state(entry)} for {duration}"
    summary = f"{entry.title} in namespace {entry.namespace} cancelled; {state_text}"
    if waits and not await _wait_until_gone(client, path, entry.uid):
        summary += "; its pods are still terminating: `kubectl get pods` shows them"
    terminal.write(f"{summary}\n")


async def _wait_until_gone(client: ClusterClient, path: str, uid: str) -> bool:
    for _ in range(_WAIT_POLLS_MAX):
        response = await client.get(path)
        if response.code == HTTPStatus.NOT_FOUND or uid.encode() not in response.body:
            return True
        await sleep_for(_WAIT_POLL_INTERVAL)
    return False


def cancel(
    context: typer.Context,
    names: JobNames,
    namespace: NamespaceOption = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the pods have stopped.")] = True,
    kubeconfig: Kubeconfig = "",
    kube_context: Context = "",
    data_dir: DataDir = None,
) -> None:
    """Delete jobs with their pods. Jobs that have ended are kept."""

    async def run(client: ClusterClient) -> None:
        entries = await _find_named_jobs(client, namespace, names)
        for entry in entries:
            if entry.state.has_ended:
                age = format_age(client.now - entry.since)
                terminal.report_line(
                    f"batchyard: {entry.title} has already ended ({entry.state}, {age} ago): it is kept"
                )
        active_entries = [entry for entry in entries if not entry.state.has_ended]
        _confirm_cancellation(active_entries, is_confirmed=yes)
        for entry in active_entries:
            await _cancel(client, entry, waits=wait)

    run_in_cluster(target_of(context, kubeconfig, kube_context, data_dir), run)


# `batchyard suspend` and `batchyard resume`.

_SUSPEND_EFFECTS: Final[Mapping[JobState, str]] = {
    JobState.PENDING: "it leaves the queue",
    JobState.CHECKING: "its quota is released",
}


async def _set_active(client: ClusterClient, entry: JobEntry, *, is_active: bool) -> None:
    verb, job_text = ("resumed" if is_active else "suspended"), f"{entry.title} in namespace {entry.namespace}"
    if entry.state.has_ended:
        raise ClusterRequestError(f"{job_text} has ended ({entry.state}), so it cannot be {verb}: submit it again")
    if entry.workload is None and entry.queue:
        raise ClusterRequestError(f"{job_text} has no Workload yet: run the command again once Kueue has created it")
    if entry.workload is None:
        message = f"{job_text} has no Workload, so no queue manages it"
        raise ClusterRequestError(f"{message}: set its label {well_known.QUEUE_NAME} to a LocalQueue")
    if (entry.workload["spec"].get("active") is not False) is is_active:
        note = "is not suspended" if is_active else "is already suspended"
        terminal.write(f"{job_text} {note} ({entry.state})\n")
        return
    try:
        await client.merge_patch(await _workload_path(client, entry), {"spec": {"active": is_active}})
    except ClusterRequestError as error:
        raise ClusterRequestError(
            f"Workload {entry.workload_name} of {job_text} cannot be {verb}: {error}; if this is forbidden, ask an"
            " administrator for permission to patch Workloads there"
        ) from None
    effect = "it is queued again" if is_active else _SUSPEND_EFFECTS.get(entry.state, "its pods are stopped")
    remedy = "" if is_active else f"; continue it with: batchyard resume {entry.title} -n {entry.namespace}"
    terminal.write(f"{job_text} {verb}: {effect}{remedy}\n")


async def _workload_path(client: ClusterClient, entry: JobEntry) -> str:
    assert entry.workload is not None, "the caller checks that the job has a Workload"
    api_version: str = entry.workload["apiVersion"]
    return await client.path_of(api_version, "Workload", entry.namespace, entry.workload_name)


def _set_active_by_name(target: ClusterTarget, namespace: str, names: Sequence[str], *, is_active: bool) -> None:
    async def run(client: ClusterClient) -> None:
        for entry in await _find_named_jobs(client, namespace, names):
            await _set_active(client, entry, is_active=is_active)

    run_in_cluster(target, run)


def suspend(
    context: typer.Context,
    names: JobNames,
    namespace: NamespaceOption = "",
    kubeconfig: Kubeconfig = "",
    kube_context: Context = "",
    data_dir: DataDir = None,
) -> None:
    """Stop jobs and keep them out of their queues: set `spec.active` of their Workloads to false."""
    _set_active_by_name(target_of(context, kubeconfig, kube_context, data_dir), namespace, names, is_active=False)


def resume(
    context: typer.Context,
    names: JobNames,
    namespace: NamespaceOption = "",
    kubeconfig: Kubeconfig = "",
    kube_context: Context = "",
    data_dir: DataDir = None,
) -> None:
    """Put suspended jobs back into their queues: set `spec.active` of their Workloads to true."""
    _set_active_by_name(target_of(context, kubeconfig, kube_context, data_dir), namespace, names, is_active=True)


# `batchyard priority`.


async def _set_priority(client: ClusterClient, entry: JobEntry, class_name: str) -> str:
    job_text = f"{entry.title} in namespace {entry.namespace}"
    value = await _priority_class_value(client, class_name)
    if entry.state.has_ended:
        raise ClusterRequestError(f"{job_text} has ended ({entry.state}): its priority has no effect any more")
    if entry.job is None and entry.kind == "Workload":
        command = f"kubectl edit workload {entry.name} -n {entry.namespace}"
        raise ClusterRequestError(f"{job_text} has no job: set its spec.priorityClassRef with `{command}`")
    _check_priority_class_change(entry, job_text)
    old_class = _priority_class_of(entry)
    if old_class == class_name:
        return f"{job_text} already has WorkloadPriorityClass {class_name}"
    path = await client.path_of(entry.api_version, entry.kind, entry.namespace, entry.name)
    try:
        await client.merge_patch(path, {"metadata": {"labels": {well_known.PRIORITY_CLASS: class_name}}})
    except ClusterRequestError as error:
        raise ClusterRequestError(f"the priority of {job_text} cannot be changed: {error}") from None
    old_text = f"{old_class}, " if old_class else ""
    summary = f"{job_text}: WorkloadPriorityClass {class_name}, priority {value}"
    summary += f" (before: {old_text}priority {entry.priority})"
    effect = "; it keeps running: the priority now counts in preemption" if entry.state.holds_quota else ""
    return f"{summary}{effect}"


async def _priority_class_value(client: ClusterClient, class_name: str) -> int | str:
    """Return the value of a WorkloadPriorityClass; `unknown` if the user may not list these classes."""
    classes = await client.list_objects(scheme.WORKLOAD_PRIORITY_CLASS)
    if classes is None:
        return "unknown"
    values: dict[str, int] = {each["metadata"]["name"]: each["value"] for each in classes}
    if class_name not in values:
        similar_classes = similar_names(class_name, list(values))
        hint = f"; similar names: {', '.join(similar_classes)}" if similar_classes else ""
        available = ", ".join(f"{name} ({value})" for name, value in values.items()) or "none: create one first"
        raise ClusterRequestError(f"WorkloadPriorityClass {class_name} not found{hint}; available: {available}")
    return values[class_name]


def _priority_class_of(entry: JobEntry) -> str:
    if entry.job is not None:
        return label(entry.job, well_known.PRIORITY_CLASS) or ""
    reference = {} if entry.workload is None else entry.workload["spec"].get("priorityClassRef") or {}
    return str(reference["name"]) if reference.get("kind") == "WorkloadPriorityClass" else ""


def _check_priority_class_change(entry: JobEntry, job_text: str) -> None:
    """Raise ClusterRequestError for a change that Kueue rejects: a job with quota can change its class, not add one."""
    if entry.workload is None or not is_true(entry.workload, "QuotaReserved") or _priority_class_of(entry):
        return
    names = f"{entry.title} -n {entry.namespace}"
    raise ClusterRequestError(
        f"{job_text} holds quota and has no WorkloadPriorityClass, so Kueue rejects adding one: first run"
        f" `batchyard suspend {names}`, and afterwards `batchyard resume {names}`; this stops its pods"
    )


def priority(
    context: typer.Context,
    name: JobName,
    class_name: Annotated[str, typer.Argument(metavar="CLASS", help="The WorkloadPriorityClass.")],
    namespace: NamespaceOption = "",
    kubeconfig: Kubeconfig = "",
    kube_context: Context = "",
    data_dir: DataDir = None,
) -> None:
    """Change the WorkloadPriorityClass of a job, which affects its place in the queue and preemption."""

    async def run(client: ClusterClient) -> str:
        entry = await find_job(client, namespace or client.namespace, name)
        return await _set_priority(client, entry, class_name)

    terminal.write(run_in_cluster(target_of(context, kubeconfig, kube_context, data_dir), run) + "\n")
