"""The command `batchyard logs`: prints or follows the logs of a job's pods."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, label
from batchyard.api.scheme import kind_info
from batchyard.base.counts import count_with_noun, select_verb
from batchyard.base.instant import SECOND
from batchyard.cli import output as terminal
from batchyard.cli.daily.cluster import ClusterClient, ClusterRequestError, LogReader, NamespaceOption, run_in_cluster
from batchyard.cli.daily.commands import JobName, target_of
from batchyard.cli.daily.jobs import JobEntry, find_job, forbidden_error, pod_owner, state_of
from batchyard.cli.missing_objects import similar_names
from batchyard.cli.options import Context, DataDir, Kubeconfig
from batchyard.client.transport import decode_object, failure_reason, object_path
from batchyard.server.clocks.wall import sleep_for

#: The maximum number of logs that are followed at once, each over its own connection.
_FOLLOWED_MAX: Final = 100
_POLL_INTERVAL: Final = 2 * SECOND
_RETRY_DELAY: Final = SECOND
_DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
_NAMES_SHOWN_MAX: Final = 10
#: The labels with the names of jobs on their pods; the pods of other kinds are found by their owner.
_POD_LABELS: Final[Mapping[str, str]] = {"Job": well_known.OLD_JOB_NAME, "JobSet": well_known.JOB_SET_NAME}


@dataclass(frozen=True, slots=True)
class LogRequest:
    """The selection of logs: the pod or completion index ('' and None for all), the container, and the last lines."""

    pod: str
    index: int | None
    #: '' for the default container.
    container: str
    #: The number of lines from the end; None for all.
    tail: int | None
    follow: bool


class _JobLogs:
    def __init__(self, client: ClusterClient, entry: JobEntry, request: LogRequest) -> None:
        self._client = client
        self._entry = entry
        self._request = request
        self._has_several = False
        self._readers: dict[str, asyncio.Task[None]] = {}

    async def print(self) -> None:
        pods = await self._list_pods()
        started_pods = [pod for pod in pods if _has_started(pod, self._container_of(pod))]
        self._check_started(pods, started_pods)
        self._has_several = len(started_pods) > 1
        for pod in started_pods:
            await self._print_pod_log(pod)

    async def follow(self) -> None:
        """Print the logs until the job, or the pod of `--pod`, ends; pods that start later are included."""
        self._has_several = self._entry.pod_count > 1 and not self._request.pod
        while True:
            has_job_ended = await self._has_job_ended()  # before the pods are listed, so that no pod is missed
            pods = await self._list_pods()
            self._has_several = self._has_several or len(pods) > 1
            for pod in pods:
                self._start_reader(pod)
            for task in [task for task in self._readers.values() if task.done()]:
                task.result()  # raises the error of a reader
            all_ended = all(task.done() for task in self._readers.values())
            if has_job_ended or (self._request.pod and pods and _has_pod_ended(pods[0]) and all_ended):
                await asyncio.gather(*self._readers.values())
                return
            await sleep_for(_POLL_INTERVAL)

    def _start_reader(self, pod: Obj) -> None:
        name = pod["metadata"]["name"]
        if name in self._readers or not _has_started(pod, self._container_of(pod)):
            return
        if sum(not task.done() for task in self._readers.values()) >= _FOLLOWED_MAX:
            raise ClusterRequestError(
                f"{self._entry.title} runs more than {_FOLLOWED_MAX} pods, whose logs cannot all be followed: select"
                " one with --index or --pod"
            )
        self._readers[name] = asyncio.ensure_future(self._print_pod_log(pod))

    async def _print_pod_log(self, pod: Obj) -> None:
        name, container = pod["metadata"]["name"], self._container_of(pod)
        reader = LogReader(name, self._print_line)
        path = object_path(kind_info(scheme.POD), "v1", self._entry.namespace, name)
        tail = "" if self._request.tail is None else f"&tailLines={self._request.tail}"
        while True:
            query = f"container={quote(container)}&follow={str(self._request.follow).lower()}{tail}"
            response = await self._client.stream_log(path, query, reader.since, reader.process_lines)
            if response.code not in {0, HTTPStatus.OK}:
                if response.code == HTTPStatus.NOT_FOUND and self._request.follow:
                    return  # the pod was deleted
                raise ClusterRequestError(f"log of pod {name}, container {container}: {failure_reason(response)}")
            if not response.trouble and (not self._request.follow or await self._is_pod_gone(path)):
                return
            if not self._request.follow:
                raise ClusterRequestError(f"log of pod {name} is incomplete: {response.trouble}: run the command again")
            reader.restart_reading()
            tail = ""
            await sleep_for(_RETRY_DELAY)

    async def _is_pod_gone(self, path: str) -> bool:
        response = await self._client.get(path)
        return response.code == HTTPStatus.NOT_FOUND or _has_pod_ended(decode_object(response.body))

    async def _has_job_ended(self) -> bool:
        entry = self._entry
        path = await self._client.path_of(entry.api_version, entry.kind, entry.namespace, entry.name)
        response = await self._client.get(path)
        job: Any = decode_object(response.body)
        if response.code == HTTPStatus.NOT_FOUND or job.get("metadata", {}).get("uid") != entry.uid:
            return True
        return entry.job is not None and state_of(job, None, None).state.has_ended

    async def _list_pods(self) -> Sequence[Obj]:
        entry, request = self._entry, self._request
        selector = _POD_LABELS.get(entry.kind)
        query = f"labelSelector={quote(f'{selector}={entry.name}')}" if selector else ""
        listed_pods = await self._client.list_objects(scheme.POD, entry.namespace, query)
        if listed_pods is None:
            raise forbidden_error(self._client, "pods", entry.namespace)
        pods = [pod for pod in listed_pods if pod_owner(pod) == (entry.kind, entry.name)]
        pods.sort(key=lambda pod: (_index_of(pod) is None, _index_of(pod) or 0, pod["metadata"]["name"]))
        selected_pods = [
            pod
            for pod in pods
            if request.pod in ("", pod["metadata"]["name"]) and request.index in (None, _index_of(pod))
        ]
        if pods and not selected_pods and not request.follow:
            raise ClusterRequestError(self._missing_pod_message(pods))
        return selected_pods

    def _missing_pod_message(self, pods: Sequence[Obj]) -> str:
        request, names = self._request, [pod["metadata"]["name"] for pod in pods]
        if request.pod:
            similar_pods = similar_names(request.pod, names) or names[:_NAMES_SHOWN_MAX]
            return f"{self._entry.title} has no pod {request.pod}; it has: {', '.join(similar_pods)}"
        indexes = [str(index) for index in dict.fromkeys(map(_index_of, pods)) if index is not None]
        available = (
            f"it has {', '.join(indexes[:_NAMES_SHOWN_MAX])}" if indexes else "its pods have no index: use --pod"
        )
        return f"{self._entry.title} has no pod with index {request.index}; {available}"

    def _check_started(self, pods: Sequence[Obj], started_pods: Sequence[Obj]) -> None:
        entry = self._entry
        if not started_pods:
            state = f"{entry.state}: {entry.reason}" if entry.reason else str(entry.state)
            pods_text = "no pod that has started" if pods else "no pods"
            command = "kubectl describe" if entry.workload is None else "batchyard why"
            subject = entry.title if entry.workload is None else f"workload/{entry.workload_name}"
            raise ClusterRequestError(
                f"{entry.title} in namespace {entry.namespace} has {pods_text}; it is {state}; add -f to wait for its"
                f" logs, or run: {command} {subject} -n {entry.namespace}"
            )
        if len(started_pods) < len(pods):
            missing_count = len(pods) - len(started_pods)
            pods_text = f"{count_with_noun(len(pods), 'pod')} {select_verb(missing_count, 'has', 'have')}"
            terminal.report_line(f"batchyard: {missing_count} of {pods_text} not started")

    def _container_of(self, pod: Obj) -> str:
        names = [container["name"] for container in (pod.get("spec") or {}).get("containers") or ()]
        default = (pod["metadata"].get("annotations") or {}).get(_DEFAULT_CONTAINER) or names[0]
        container = self._request.container or default
        if container not in names:
            pod_name = pod["metadata"]["name"]
            raise ClusterRequestError(f"pod {pod_name} has no container {container}; it has: {', '.join(names)}")
        return str(container)

    def _print_line(self, pod: str, line: str) -> None:
        terminal.write(f"[{pod}] {line}\n" if self._has_several else f"{line}\n")


def _index_of(pod: Obj) -> int | None:
    text = label(pod, well_known.COMPLETION_INDEX) or ""
    return int(text) if text.isdecimal() else None


def _has_started(pod: Obj, container: str) -> bool:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        state = status.get("state") or {}
        if status["name"] == container:
            return bool(
                "running" in state or (state.get("terminated") or {}).get("startedAt") or status.get("restartCount")
            )
    return False


def _has_pod_ended(pod: Any) -> bool:
    return (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def logs(
    context: typer.Context,
    name: JobName,
    namespace: NamespaceOption = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the logs until the job ends.")] = False,
    pod: Annotated[str, typer.Option(metavar="POD", help="Only this pod.")] = "",
    index: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Only the pod with this completion index.")
    ] = None,
    container: Annotated[
        str, typer.Option("--container", "-c", metavar="NAME", help="The container; default: the pod's default.")
    ] = "",
    tail: Annotated[int | None, typer.Option(metavar="N", min=0, help="Only the last lines of each log.")] = None,
    kubeconfig: Kubeconfig = "",
    kube_context: Context = "",
    data_dir: DataDir = None,
) -> None:
    """Print the logs of a job's pods; each line starts with the name of its pod if there are several."""
    if pod and index is not None:
        raise typer.BadParameter("--pod and --index both select a pod: remove one of the options")

    async def run(client: ClusterClient) -> None:
        entry = await find_job(client, namespace or client.namespace, name)
        job_logs = _JobLogs(client, entry, LogRequest(pod, index, container, tail, follow))
        await (job_logs.follow() if follow else job_logs.print())

    run_in_cluster(target_of(context, kubeconfig, kube_context, data_dir), run)
