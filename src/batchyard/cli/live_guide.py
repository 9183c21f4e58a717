"""`batchyard guide --live`: the guide's manifests, sent by kubectl to a platform in a process of its own.

Time runs many times faster than kubectl starts. So each step has a kubectl that was started before: it has sent what
the Jobs need, while the step before was looked at, and sends each Job at its moment. And what was to be seen at some
moment is asked for later, as of the revision that the platform had come to by then.

A guide begins whole minutes after its Cluster was made, as in the simulation: the autoscaler looks every ten seconds
from then on.
"""

import http.client
import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import yaml

from batchyard.api import scheme, well_known
from batchyard.api.conditions import is_true
from batchyard.api.meta import Obj
from batchyard.api.times import parse_time
from batchyard.base.instant import MINUTE, SECOND, Duration, Instant, format_age, parse_duration
from batchyard.cli import output
from batchyard.cli.kubectl import Kubectl, Sending
from batchyard.cli.status import connected, told_by
from batchyard.cli.up import ENDED_WITHIN, Wanted, start_behind
from batchyard.controllers.groups import GROUPS
from batchyard.live.clock import wall_clock
from batchyard.live.folder import KUBECONFIG, LOG, prepare
from batchyard.live.place import Place
from batchyard.sim.guide import (
    BEFORE,
    LONGEST,
    SHRINKING_MAX,
    Guide,
    GuideStep,
    Seen,
    is_timed,
    ready_by_pool,
    unfinished_of,
)
from batchyard.store.journal import Sync

_WORK: Final = ("Job", "JobSet")
#: What kubectl prints of what it has sent.
_CAME: Final = 'jsonpath={.metadata.creationTimestamp}{"\\n"}'
#: How often queues are looked at until their figures are right.
_LOOKS_MAX: Final = 50
#: A Job or a look that is no later than this, in time of the guide, shows the same rows.
TOLERANCE: Final = 3 * SECOND


class Started(NamedTuple):
    """A platform in a process of its own."""

    folder: Path
    process: subprocess.Popen[bytes]
    #: What reaches it as its owner.
    connection: http.client.HTTPConnection
    speed: float


class Moment(NamedTuple):
    """An instant, and the revision that the platform had come to by then."""

    now: Instant
    revision: int


@contextmanager
def platform(
    cluster: Obj | None, speed: float, controllers: Sequence[str] = GROUPS, audit_log: Path | None = None
) -> Iterator[Started]:
    """A platform that runs as long as it is needed, and leaves nothing."""
    if shutil.which("kubectl") is None:
        output.fail("batchyard: there is no kubectl on this machine, which plays the guide live")
    with TemporaryDirectory(prefix="batchyard-guide-") as name:
        folder, described = Path(name, "data"), Path(name, "cluster.json")
        described.write_text(json.dumps(cluster), "utf-8")
        prepare(folder)
        place = Place(folder, sync=Sync.PROCESS, audit_log=audit_log, controllers=controllers)
        process, running = start_behind(Wanted(place, described, speed))
        try:
            with closing(connected(running, folder)) as connection:
                yield Started(folder, process, connection, speed)
        finally:
            process.terminate()
            process.wait(ENDED_WITHIN)


class LiveGuide:
    """The guide as a platform that runs plays it."""

    def __init__(self, planned: Guide, started: Started) -> None:
        self._files = planned.files
        self._cluster = planned.cluster
        self._started = started
        self._kubectl = Kubectl(started.folder / KUBECONFIG)
        #: How things stood at the last look.
        self._stood = self._present()
        self.initial: Mapping[str, int] = {}
        #: When the guide began, so that its first step comes when it is due.
        self.began: Instant = 0
        #: Which moments of the guide were missed, as lines of text.
        self.missed: list[str] = []

    def play(self, steps: Sequence[GuideStep]) -> Iterator[Seen]:
        """Play each step, and look; a step that follows another is sent before the other is told of."""
        self._kubectl.run("apply", "-f", "-", sent="\n".join(map(json.dumps, self._documents_of(BEFORE))))
        sending = self._prepared(steps[0])
        self.began = self._first_minute()
        looked: tuple[GuideStep, Instant, Sequence[Obj]] | None = None
        for step, following in zip_longest(steps, steps[1:]):
            last = self._last_of(step, sending)
            if looked is not None:
                yield self._seen(*looked)
            now, queues = self._settled_queues(step, last + parse_duration(step.looks.queues))
            sending = self._prepared(following)
            due = last + parse_duration(step.looks.nodes)
            self._stood = self._moment(due)
            self._note_look(step, "nodes", self._stood.now - due)
            looked = (step, now, queues)
        assert looked is not None, "there is a step"
        yield self._seen(*looked)

    def now(self) -> Instant:
        """When it was looked at last."""
        return self._stood.now

    def objects(self, kind: str) -> Sequence[Obj]:
        """All objects of a kind, as they were when they were looked at last."""
        return self._objects_at(self._stood, kind)

    def _first_minute(self) -> Instant:
        """The next whole minute of the Cluster; what nodes it has until then are those that it began with."""
        self._stood = self._present()
        self.initial = ready_by_pool(self.objects(scheme.NODE))
        (cluster,) = self.objects(scheme.CLUSTER)
        made = parse_time(cluster["metadata"]["creationTimestamp"])
        return made - (made - self._stood.now) // MINUTE * MINUTE

    def _seen(self, step: GuideStep, now: Instant, queues: Sequence[Obj]) -> Seen:
        return Seen(step, now, queues, self.now(), self.objects(scheme.NODE))

    def _objects_at(self, moment: Moment, kind: str) -> Sequence[Obj]:
        """All objects of a kind as they were."""
        info = scheme.kind_info(kind)
        group = f"apis/{info.group}" if info.group else "api"
        asked = f"resourceVersion={moment.revision}&resourceVersionMatch=Exact"
        return _items(self._kubectl.run("get", "--raw", f"/{group}/{info.storage_version}/{info.plural}?{asked}"))

    def _note_look(self, step: GuideStep, what: str, late: Duration) -> None:
        if late > TOLERANCE:
            self.missed.append(f"step {step.name}: the {what} were read {format_age(late)} late")

    def _note_jobs(self, step: GuideStep, late: Mapping[str, Duration]) -> None:
        """Note how many Jobs came too late, and the latest of them."""
        misses = {name: duration for name, duration in late.items() if duration > TOLERANCE}
        if misses:
            latest = max(misses, key=lambda name: misses[name])
            told = f"step {step.name}: {len(misses)} of {len(late)} Jobs came more than {format_age(TOLERANCE)} late"
            self.missed.append(f"{told}, {latest} by {format_age(misses[latest])}")

    def _settled_queues(self, step: GuideStep, instant: Instant) -> tuple[Instant, Sequence[Obj]]:
        """The ClusterQueues at an instant, or as soon after it as their figures count every Workload."""
        for look in range(_LOOKS_MAX):
            moment = self._moment(instant + look * SECOND)
            queues = self._objects_at(moment, scheme.CLUSTER_QUEUE)
            workloads = self._objects_at(moment, scheme.WORKLOAD)
            if sum(map(_counted, queues)) == sum(not is_true(each, "Finished") for each in workloads):
                break
        self._note_look(step, "queues", moment.now - instant)
        return moment.now, queues

    def _prepared(self, step: GuideStep | None) -> Sending | None:
        """A kubectl that sends what a step's Jobs need, and goes on with the Jobs."""
        if step is None or step.folder is None:
            return None
        sending = self._kubectl.sending("create", "-f", "-", "-o", _CAME)
        for document in self._documents_of(step.name):
            if document["kind"] not in _WORK:
                sending.give(document)
        return sending

    def _last_of(self, step: GuideStep, sending: Sending | None) -> Instant:
        """Send a step's Jobs, each when it is due, or wait for the end; when the last of them came, or all was over."""
        if sending is None:
            return self._end_of_all(step)
        files = self._files[step.name]
        work = [(at, each) for path, at in files for each in _documents(path) if each["kind"] in _WORK]
        began, asked_at = self._moment(self.began + step.starts_at).now, wall_clock()
        for at, document in work:
            self._wait(self.began + at - began - int((wall_clock() - asked_at) * self._started.speed))
            sending.give(_timed(document, step.runtime, self._cluster))
        came = [parse_time(text) for text in sending.end().split()][-len(work) :]  # the Jobs were sent last
        names = [document["metadata"]["name"] for _, document in work]
        due = [self.began + at for at, _ in work]
        self._note_jobs(step, {name: at - then for name, at, then in zip(names, came, due, strict=True)})
        return max(due[-1], *came)

    def _documents_of(self, step: str) -> Sequence[dict[str, Any]]:
        return [document for path, _ in self._files[step] for document in _documents(path)]

    def _end_of_all(self, step: GuideStep) -> Instant:
        """When everything is over and the nodes are gone, by whole minutes."""
        due = self.began + step.starts_at
        while unfinished_of(self._objects_at(self._moment(due), scheme.JOB)) and due < self.began + LONGEST:
            due += MINUTE
        latest, few = due + SHRINKING_MAX, sum(self.initial.values())
        while len(self._objects_at(self._moment(due), scheme.NODE)) > few and due < latest:
            due += MINUTE
        return due

    def _moment(self, instant: Instant) -> Moment:
        """Wait for an instant, and say what it is then; later where the machine is too slow for the time."""
        while (moment := self._present()).now < instant:
            self._wait(instant - moment.now)
        return moment

    def _present(self) -> Moment:
        connection = self._started.connection
        try:
            told = told_by(connection)
        except (OSError, http.client.HTTPException):
            self._wait(0)  # which tells if the platform has ended
            connection.close()
            told = told_by(connection)
        return Moment(told["instant"], told["revision"])

    def _wait(self, duration: Duration) -> None:
        """Let time pass for the platform, which must not end meanwhile."""
        try:
            self._started.process.wait(duration / SECOND / self._started.speed)
        except subprocess.TimeoutExpired:
            return
        told = (self._started.folder / LOG).read_text("utf-8", "replace")
        output.fail(f"{told}batchyard: the platform ended before the guide did")


def _items(text: str) -> Sequence[Obj]:
    items: list[Obj] = json.loads(text)["items"]
    return items


def _counted(queue: Obj) -> int:
    """How many Workloads the figures of a ClusterQueue count."""
    status = queue.get("status") or {}
    counted: int = status.get("pendingWorkloads", 0) + status.get("reservingWorkloads", 0)
    return counted


def _documents(path: Path) -> Sequence[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [document for document in yaml.safe_load_all(file) if document]


def _timed(document: dict[str, Any], runtime: str, cluster: Obj | None) -> dict[str, Any]:
    """A document whose pods run so long, if neither it nor the Cluster gives a run time."""
    if is_timed(document, cluster):
        return document
    metadata = document["metadata"]
    annotations = {**(metadata.get("annotations") or {}), well_known.RUNTIME: runtime}
    return {**document, "metadata": {**metadata, "annotations": annotations}}
