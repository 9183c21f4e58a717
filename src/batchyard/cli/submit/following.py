"""Follows a submitted Job until it ends: its Workload, its pods, and their logs."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj
from batchyard.api.scheme import kind_info
from batchyard.base.instant import SECOND
from batchyard.cli.submit.cluster import Cluster
from batchyard.cli.submit.manifests import CONTAINER, JobRequest
from batchyard.cli.submit.story import JobProgress, ProgressMessage, has_begun, terminated
from batchyard.client.cache import Cache
from batchyard.client.informer import Informer, InformerScope
from batchyard.client.writes import failure_reason
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.server.clocks.timers import sleep_for

#: The interval between queries of the queue position, which cannot be watched.
_LOOKS_EVERY: Final = 5 * SECOND
_TRIES_AGAIN: Final = SECOND
#: The longest wait for the rest of the logs after the end.
_DRAINS_WITHIN: Final = 30  # seconds
_GONE: Final = 404


class FollowCallbacks(NamedTuple):
    """Callbacks: `report` for each message, `log` for each line of a pod's log."""

    report: Callable[[ProgressMessage], None]
    log: Callable[[str, str], None]


class JobFollower:
    """A Job being followed: its informers, log readers and reported messages."""

    def __init__(self, cluster: Cluster, asked: JobRequest, job: Mapping[str, Any], heard: FollowCallbacks) -> None:
        self._cluster = cluster
        self._asked = asked
        self._notify, self._log = heard
        self._story = JobProgress()
        self._uid = uid = job["metadata"]["uid"]
        #: The latest version of the Job.
        self._job: Obj = job
        self._pods_of = f"labelSelector={quote(f'{well_known.CONTROLLER_UID}={uid}')}"
        of_kind = {
            scheme.JOB: f"fieldSelector={quote(f'metadata.name={asked.name}')}",
            scheme.WORKLOAD: f"labelSelector={quote(f'{well_known.JOB_UID}={uid}')}",
            scheme.POD: self._pods_of,
        }
        self._cache = Cache()
        self._informers = [
            Informer(kind_info(kind), self._cache, 0, InformerScope(asked.namespace, selector))
            for kind, selector in of_kind.items()
        ]
        self._troubles: dict[str, None] = {}
        self._logs: dict[str, asyncio.Task[None]] = {}
        self._over = asyncio.Event()

    async def follow(self) -> int:
        """Report the Job's progress until it ends; return the exit code."""
        looking = [asyncio.ensure_future(each) for each in (*map(self._watch, self._informers), self._look())]
        over = asyncio.ensure_future(self._over.wait())
        done, _ = await asyncio.wait([over, *looking], return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()  # these tasks never end by themselves: raise their error
        for pod in await self._pods():
            self._follow_log(pod)
        if self._logs:
            done, _ = await asyncio.wait(self._logs.values(), timeout=_DRAINS_WITHIN)
            for each in done:
                each.result()  # raises an unexpected error
        self._report_all(self._story.process_job(self._job, await self._pods()))
        code = self._story.ended
        assert code is not None, "it is over"
        return code

    async def _watch(self, informer: Informer) -> None:
        """List and watch a kind until the task is cancelled."""
        while True:
            following = informer.following()
            if following.wait:
                await sleep_for(following.wait)
            if following.is_watch:
                answer = await self._cluster.wire.stream(following.request, lambda lines: self._heard(informer, lines))
                informer.ended(answer)
            else:
                self._take_in(informer.listed(await self._cluster.wire.ask(following.request)))
            self._report_trouble(informer)

    def _heard(self, informer: Informer, lines: Sequence[bytes]) -> None:
        self._take_in(informer.watched(lines))

    def _take_in(self, events: Sequence[WatchEvent]) -> None:
        for event in events:
            is_gone = event.type is EventType.DELETED
            match event.key.kind:
                case scheme.WORKLOAD if not is_gone:
                    self._report_all(self._story.process_workload(event.obj))
                case scheme.POD:
                    self._report_all(self._story.process_pod(event.obj))
                    self._follow_log(event.obj)
                case scheme.JOB if event.obj["metadata"]["uid"] == self._uid:
                    self._job_is(event.obj, is_gone=is_gone)

    def _job_is(self, job: Obj, *, is_gone: bool) -> None:
        status = job.get("status") or {}
        ended = {each["type"] for each in status.get("conditions") or () if each["status"] == "True"}
        if is_gone and not self._over.is_set():
            self._report_all(self._story.process_deletion())
        self._job = job
        if is_gone or ended & {"Complete", "Failed"}:
            self._over.set()

    async def _pods(self) -> Sequence[Obj]:
        """List the Job's pods: the pod watch may be behind the watch that reported the Job's end."""
        return await self._cluster.pods(self._asked.namespace, self._pods_of)

    async def _look(self) -> None:
        """Report the queue position while the Job waits, and warnings about its pods that do not run yet."""
        while True:
            for pod in list(self._cache.of_kind(scheme.POD).values()):
                waits = not has_begun(pod) and terminated(pod) is None
                if waits and (warning := await self._cluster.warning(pod)) is not None:
                    self._report_all(self._story.process_warning(pod["metadata"]["name"], *warning))
            if self._story.waits:
                found = await self._cluster.place(self._asked, self._uid)
                if found is not None:
                    self._report_all(self._story.process_position(*found, self._asked.queue))
            await sleep_for(_LOOKS_EVERY)

    def _follow_log(self, pod: Obj) -> None:
        name = pod["metadata"]["name"]
        if name not in self._logs and has_begun(pod):
            self._logs[name] = asyncio.ensure_future(self._read_log(name))

    async def _read_log(self, pod: str) -> None:
        """Report a log up to its end; resume if the connection breaks."""
        log = LogReader(pod, self._log)
        while True:
            answer = await self._cluster.follow_log(self._asked.namespace, pod, CONTAINER, log.since, log.take)
            is_whole = answer.code == 200 and not answer.trouble
            known = self._cache.of_kind(scheme.POD)
            found = next((each for key, each in known.items() if key.name == pod), None)
            if answer.code == _GONE or (is_whole and (found is None or terminated(found) is not None)):
                return
            if answer.code >= 400:
                self._report_once(f"the log of pod {pod}: {failure_reason(answer)}")
            log.restart_reading()
            await sleep_for(_TRIES_AGAIN)

    def _report_all(self, reported: Iterable[ProgressMessage]) -> None:
        for each in reported:
            self._notify(each)

    def _report_trouble(self, informer: Informer) -> None:
        if informer.trouble:
            self._report_once(f"{informer.info.plural}: {informer.trouble}")

    def _report_once(self, trouble: str) -> None:
        if trouble not in self._troubles:
            self._troubles[trouble] = None
            self._notify(ProgressMessage("Trouble", trouble, {"message": trouble}))


class LogReader:
    """Reports each line of a timestamped log once, however often reading restarts."""

    def __init__(self, pod: str, notify: Callable[[str, str], None]) -> None:
        self._pod = pod
        self._notify = notify
        #: The time of the last line, and how many lines with that time were reported.
        self.since = ""
        self._reported = 0
        self._skips = 0

    def take(self, lines: Sequence[bytes]) -> None:
        """Process lines; skip those that were already reported."""
        for line in lines:
            time, _, text = line.decode("utf-8", "replace").partition(" ")
            if time == self.since and self._skips:
                self._skips -= 1
                continue
            if time < self.since:
                continue
            self._reported = self._reported + 1 if time == self.since else 1
            self.since = time
            self._notify(self._pod, text)

    def restart_reading(self) -> None:
        """Restart reading at the time of the last line."""
        self._skips = self._reported
