"""The command `batchyard queue`: shows the place of a job in its queue, the jobs before it, and its forecast start.

The list of the pending jobs of a ClusterQueue is in scheduling order.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Final

import typer

from batchyard.api import scheme
from batchyard.api.meta import Obj, controller_of
from batchyard.api.printing import format_table
from batchyard.api.scheme import kind_info
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import SECOND, Instant, format_age
from batchyard.cli import output as terminal
from batchyard.cli.daily.cluster import AllNamespaces, ClusterClient, NamespaceOption, run_in_cluster
from batchyard.cli.daily.commands import list_document, shorten, target_of
from batchyard.cli.daily.jobs import JobEntry, JobState, find_job, forbidden_error, format_requests, workload_entries
from batchyard.cli.options import Context, DataDir, Kubeconfig, Output, OutputOption
from batchyard.client.transport import decode_object, object_path
from batchyard.dashboard.models.reasons import shorten_reason

#: The maximum number of jobs before the job in question that the table shows; `-o wide` shows all.
_AHEAD_MAX: Final = 20
_FORECAST_TIMEOUT: Final = 60  # seconds
_WAITING_STATES: Final = frozenset({JobState.PENDING, JobState.CHECKING, JobState.SUSPENDED})


@dataclass(frozen=True, slots=True)
class PendingJob:
    """A pending job, with its places in its ClusterQueue and LocalQueue, which count from 1; 0 if they are unknown."""

    title: str
    namespace: str
    queue: str
    workload_name: str
    priority: int
    created: Instant
    place: int
    local_place: int
    #: The requests of all pods as text; '' if the Workload may not be read.
    requests: str
    reason: str

    def document(self) -> Mapping[str, Any]:
        """Return the fields of the job for JSON and YAML output."""
        return {
            "job": self.title,
            "namespace": self.namespace,
            "queue": self.queue,
            "workload": self.workload_name,
            "priority": self.priority,
            "created": format_time(self.created),
            "placeInClusterQueue": self.place,
            "placeInLocalQueue": self.local_place,
            "requests": self.requests,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class PendingJobList:
    """The pending jobs of a ClusterQueue in scheduling order; `note` explains missing jobs or an estimated order."""

    cluster_queue: str
    jobs: Sequence[PendingJob]
    note: str = ""
    #: False if the user may not list the pending Workloads of the ClusterQueue, so that their number is unknown.
    is_complete: bool = True

    def find_pending_job(self, namespace: str, workload_name: str) -> PendingJob | None:
        """Return the pending job that has this Workload; None if there is none."""
        return next((e for e in self.jobs if (e.namespace, e.workload_name) == (namespace, workload_name)), None)


@dataclass(frozen=True, slots=True)
class PendingJobSources:
    """The LocalQueues and Workloads that the user may list, by which jobs are assigned to ClusterQueues."""

    local_queues: Sequence[Obj]
    #: By namespace and name of the Workload.
    entries: Mapping[tuple[str, str], JobEntry]

    def cluster_queue_of(self, namespace: str, queue: str) -> str:
        """Return the name of a LocalQueue's ClusterQueue; '' if the LocalQueue is unknown."""
        for each in self.local_queues:
            if (each["metadata"]["namespace"], each["metadata"]["name"]) == (namespace, queue):
                return str(each["spec"].get("clusterQueue") or "")
        return ""


async def _read_pending_job_sources(client: ClusterClient, namespace: str) -> PendingJobSources:
    local_queues = await client.list_objects(scheme.LOCAL_QUEUE)
    if local_queues is None and namespace:
        local_queues = await client.list_objects(scheme.LOCAL_QUEUE, namespace)
    if local_queues is None:
        raise forbidden_error(client, "localqueues.kueue.x-k8s.io", namespace)
    workloads = await client.list_objects(scheme.WORKLOAD)
    if workloads is None and namespace:
        workloads = await client.list_objects(scheme.WORKLOAD, namespace)
    if workloads is None:
        raise forbidden_error(client, "workloads.kueue.x-k8s.io", namespace)
    entries = workload_entries(workloads)
    return PendingJobSources(local_queues, {(entry.namespace, entry.workload_name): entry for entry in entries})


async def list_pending_jobs(
    client: ClusterClient, sources: PendingJobSources, cluster_queue: str, namespace: str
) -> PendingJobList:
    """Return the pending jobs of a ClusterQueue, from Kueue's visibility API if possible.

    If the user may not list the pending Workloads of the ClusterQueue, return only the jobs in its LocalQueues of
    `namespace`. If these cannot be listed either, return the pending jobs in `sources`, in an order estimated
    from priority and age.
    """
    pending = await client.list_pending(f"clusterqueues/{cluster_queue}")
    if not pending.problem:
        return PendingJobList(cluster_queue, [_pending_job(item, sources) for item in pending.items])
    if pending.is_forbidden and namespace:
        local_items = await _list_pending_in_local_queues(client, sources, cluster_queue, namespace)
        if local_items is not None:
            note = f"{pending.problem}: jobs of other LocalQueues are counted, but not shown"
            jobs = [_pending_job(item, sources) for item in local_items]
            return PendingJobList(cluster_queue, jobs, note, is_complete=False)
    note = f"{pending.problem}: the order is estimated from priority and age"
    jobs = list(estimate_queue_order(sources, cluster_queue))
    return PendingJobList(cluster_queue, jobs, note, is_complete=not pending.is_forbidden)


async def _list_pending_in_local_queues(
    client: ClusterClient, sources: PendingJobSources, cluster_queue: str, namespace: str
) -> Sequence[Obj] | None:
    items: list[Obj] = []
    for queue in sources.local_queues:
        metadata = queue["metadata"]
        if metadata["namespace"] == namespace and queue["spec"].get("clusterQueue") == cluster_queue:
            path = f"namespaces/{namespace}/localqueues/{metadata['name']}"
            pending = await client.list_pending(path)
            if pending.problem:
                return None
            items.extend(pending.items)
    return sorted(items, key=lambda item: item.get("positionInClusterQueue", 0))


def _pending_job(item: Obj, sources: PendingJobSources) -> PendingJob:
    metadata = item["metadata"]
    entry = sources.entries.get((metadata["namespace"], metadata["name"]))
    owner = controller_of(item) or next(iter(metadata.get("ownerReferences") or ()), None)
    title = f"workload/{metadata['name']}" if owner is None else f"{owner['kind'].lower()}/{owner['name']}"
    return PendingJob(
        title,
        metadata["namespace"],
        item.get("localQueueName", ""),
        metadata["name"],
        item.get("priority", 0),
        parse_time(metadata["creationTimestamp"]),
        item.get("positionInClusterQueue", 0) + 1,
        item.get("positionInLocalQueue", 0) + 1,
        _requests_of(entry),
        "" if entry is None else entry.reason,
    )


def _requests_of(entry: JobEntry | None) -> str:
    return "" if entry is None or entry.workload is None else format_requests(entry.workload)


def estimate_queue_order(sources: PendingJobSources, cluster_queue: str) -> Iterator[PendingJob]:
    """Yield the pending jobs of a ClusterQueue, by priority and then by queueing time, as Kueue does by default."""
    queued_views = []
    for entry in sources.entries.values():
        view = None if entry.workload is None else workload_view(entry.workload)
        if (
            view is not None
            and view.admissible
            and sources.cluster_queue_of(entry.namespace, entry.queue) == cluster_queue
        ):
            queued_views.append((-view.priority, view.queued, view.key, entry))
    local_counts: dict[str, int] = {}
    for place, (_, _, _, entry) in enumerate(sorted(queued_views, key=lambda row: row[:3]), 1):
        queue = f"{entry.namespace}/{entry.queue}"
        local_counts[queue] = local_counts.get(queue, 0) + 1
        yield _pending_job_of_entry(entry, place, local_counts[queue])


def _pending_job_of_entry(entry: JobEntry, place: int, local_place: int) -> PendingJob:
    assert entry.workload is not None, "only Workloads are in a queue"
    return PendingJob(
        *(entry.title, entry.namespace, entry.queue, entry.workload_name, entry.priority),
        *(workload_view(entry.workload).created, place, local_place, format_requests(entry.workload), entry.reason),
    )


# The place of one job.


@dataclass(frozen=True, slots=True)
class _JobPlace:
    entry: JobEntry
    job_list: PendingJobList
    #: The job in the list; None if the list does not contain the job.
    pending_job: PendingJob | None
    forecast: Mapping[str, Any] | None
    now: Instant

    def document(self) -> Mapping[str, Any]:
        ahead = [each.document() for each in self.ahead]
        return {
            "job": self.entry.title,
            "namespace": self.entry.namespace,
            "queue": self.entry.queue,
            "clusterQueue": self.job_list.cluster_queue,
            "state": str(self.entry.state),
            "placeInClusterQueue": 0 if self.pending_job is None else self.pending_job.place,
            "placeInLocalQueue": 0 if self.pending_job is None else self.pending_job.local_place,
            "pending": len(self.job_list.jobs),
            "ahead": ahead,
            "reason": self.entry.reason,
            "note": self.job_list.note,
            **({} if self.forecast is None else {"forecast": dict(self.forecast)}),
        }

    @property
    def ahead(self) -> Sequence[PendingJob]:
        pending = self.pending_job
        return [] if pending is None else [each for each in self.job_list.jobs if each.place < pending.place]

    def lines(self, *, is_wide: bool) -> Iterator[str]:
        entry, pending_job = self.entry, self.pending_job
        if entry.state not in _WAITING_STATES:
            age = format_age(self.now - entry.since)
            yield f"{entry.title} in namespace {entry.namespace} does not wait: it has been {entry.state} for {age}"
            return
        if pending_job is None:
            reason = f": {entry.reason}" if entry.reason else ""
            yield f"{entry.title} in namespace {entry.namespace} is not queued: it is {entry.state}{reason}"
            return
        total = f" of {len(self.job_list.jobs)}" if self.job_list.is_complete else ""
        local_place = f"position {pending_job.local_place} in LocalQueue {entry.queue} of namespace {entry.namespace}"
        queue_place = f"position {pending_job.place}{total} in ClusterQueue {self.job_list.cluster_queue}"
        yield f"{entry.title} has {queue_place}, and {local_place}"
        if entry.reason:
            yield f"it waits: {entry.reason if is_wide else shorten(str(shorten_reason(entry.reason)), 100)}"
        yield from _forecast_lines(entry, self.forecast)
        if self.job_list.note:
            yield f"note: {self.job_list.note}"
        yield from _ahead_lines(self.ahead, self.now, is_wide=is_wide)


def _forecast_lines(entry: JobEntry, forecast: Mapping[str, Any] | None) -> Iterator[str]:
    if forecast is None:
        command = f"batchyard eta workload/{entry.workload_name} -n {entry.namespace}"
        yield f"start: unknown: the server offers no forecast; `{command}` computes one here"
        return
    seconds = forecast["waitSeconds"]
    texts = {level: format_age(round(value * SECOND)) for level, value in seconds.items()}
    if "p50" not in texts:
        yield f"start: not within a day in most of the {forecast['forks']} simulated forks"
    else:
        interval_text = f"{texts['p10']} to {texts.get('p90', 'an unknown time')}"
        yield f"start: likely in {texts['p50']}; in {interval_text} in 80% of the forks"


def _ahead_lines(ahead: Sequence[PendingJob], now: Instant, *, is_wide: bool) -> Iterator[str]:
    if not ahead:
        return
    shown_jobs = ahead if is_wide else ahead[-_AHEAD_MAX:]
    header = ["POSITION", "JOB", "OWNER", "QUEUE", "PRIORITY", "REQUESTS", "AGE", *(["WORKLOAD"] if is_wide else [])]
    rows = [
        [
            *(str(each.place), each.title, each.namespace, each.queue, str(each.priority)),
            *(each.requests or "-", format_age(now - each.created), *([each.workload_name] if is_wide else [])),
        ]
        for each in shown_jobs
    ]
    yield ""
    yield format_table([header, *rows]).rstrip("\n")
    if len(shown_jobs) < len(ahead):
        yield f"... and {len(ahead) - len(shown_jobs)} more ahead: -o wide"


async def _find_place_in_queue(client: ClusterClient, namespace: str, name: str, *, with_forecast: bool) -> _JobPlace:
    entry = await find_job(client, namespace, name)
    if entry.state not in _WAITING_STATES or entry.workload is None:
        return _JobPlace(entry, PendingJobList(entry.cluster_queue, ()), None, None, client.now)
    sources = await _read_pending_job_sources(client, namespace)
    cluster_queue = sources.cluster_queue_of(namespace, entry.queue)
    if not cluster_queue:
        return _JobPlace(entry, PendingJobList("", ()), None, None, client.now)
    job_list = await list_pending_jobs(client, sources, cluster_queue, namespace)
    pending_job = job_list.find_pending_job(namespace, entry.workload_name)
    forecast = await _read_forecast(client, entry) if with_forecast and pending_job is not None else None
    return _JobPlace(entry, job_list, pending_job, forecast, client.now)


async def _read_forecast(client: ClusterClient, entry: JobEntry) -> Mapping[str, Any] | None:
    info = kind_info(scheme.WORKLOAD)
    path = object_path(info, info.storage_version, entry.namespace, entry.workload_name, "eta")
    response = await client.get(path, _FORECAST_TIMEOUT)
    return decode_object(response.body) if response.code == HTTPStatus.OK else None


# All pending jobs of a namespace.


async def _pending_jobs(client: ClusterClient, namespace: str) -> tuple[list[PendingJob], Mapping[str, PendingJobList]]:
    """Return the pending jobs of a namespace ('': of all), and the list of each of their ClusterQueues by name.

    The jobs are sorted by namespace, LocalQueue and place in the queue; jobs with an unknown place come last.
    """
    sources = await _read_pending_job_sources(client, namespace)
    queues = [each for each in sources.local_queues if namespace in ("", each["metadata"]["namespace"])]
    names = dict.fromkeys(name for each in queues if (name := each["spec"].get("clusterQueue")))
    job_lists = {name: await list_pending_jobs(client, sources, name, namespace) for name in names}
    pending = [job for job_list in job_lists.values() for job in job_list.jobs if namespace in ("", job.namespace)]
    listed_keys = {(job.namespace, job.workload_name) for job in pending}
    other_jobs = [
        _pending_job_of_entry(entry, 0, 0)
        for key, entry in sources.entries.items()
        if entry.state in _WAITING_STATES and key not in listed_keys and namespace in ("", entry.namespace)
    ]
    return sorted(
        [*pending, *other_jobs], key=lambda job: (job.namespace, job.queue, job.place == 0, job.place)
    ), job_lists


def _format_pending(jobs: Sequence[PendingJob], now: Instant, output_format: Output, *, with_namespace: bool) -> str:
    if not output_format.is_table:
        return terminal.render_document(list_document([job.document() for job in jobs]), output_format)
    if not jobs:
        return "no pending jobs\n"
    is_wide = output_format is Output.WIDE
    header = [
        "QUEUE",
        "PLACE",
        "OVERALL",
        "JOB",
        "PRIORITY",
        "REQUESTS",
        "AGE",
        *(["WORKLOAD"] if is_wide else []),
        "REASON",
    ]
    rows = [
        [
            *([job.namespace] if with_namespace else []),
            *(job.queue, str(job.local_place or "-"), str(job.place or "-"), job.title, str(job.priority)),
            *(job.requests or "-", format_age(now - job.created), *([job.workload_name] if is_wide else [])),
            job.reason if is_wide else shorten(job.reason),
        ]
        for job in jobs
    ]
    return format_table([["NAMESPACE", *header] if with_namespace else header, *rows])


def queue(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="JOB", help="job/NAME, jobset/NAME, workload/NAME or only the name.", show_default=False
        ),
    ] = "",
    namespace: NamespaceOption = "",
    all_namespaces: AllNamespaces = False,
    eta: Annotated[bool, typer.Option("--eta/--no-eta", help="Forecast the start of the job.")] = True,
    kubeconfig: Kubeconfig = "",
    kube_context: Context = "",
    data_dir: DataDir = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a job's position in its queue, the jobs before it and its likely start, or all pending jobs without JOB."""
    if name and all_namespaces:
        raise typer.BadParameter("-A lists all pending jobs: remove it, or remove JOB and select a namespace with -n")

    async def show_job_place(client: ClusterClient) -> str:
        answer = await _find_place_in_queue(client, namespace or client.namespace, name, with_forecast=eta)
        if not output.is_table:
            return terminal.render_document(answer.document(), output)
        return "\n".join(answer.lines(is_wide=output is Output.WIDE)) + "\n"

    async def show_pending(client: ClusterClient) -> str:
        pending, job_lists = await _pending_jobs(client, "" if all_namespaces else namespace or client.namespace)
        for note in dict.fromkeys(job_list.note for job_list in job_lists.values() if job_list.note):
            terminal.report_line(f"batchyard: {note}")
        return _format_pending(pending, client.now, output, with_namespace=all_namespaces)

    target = target_of(context, kubeconfig, kube_context, data_dir)
    terminal.write(run_in_cluster(target, show_job_place if name else show_pending))
