"""`batchyard guide --live`: the guide's manifests, created by kubectl on a platform in its own process.

The clock of the platform runs to the instant of the next Job or reading and stops there, until kubectl has created the
Job or the objects have been read. A slow machine then changes no result. The clock does not stop at real-time speed,
nor if operators run beside the platform, because they could be in the middle of a reconcile. Jobs and readings can be
late then; `Timings` records by how much.

The kubectl of each step starts during the step before it and creates what the Jobs need. Objects are read as of the
revision of the platform at the instant of the reading.

A guide begins whole minutes after the creation of its Cluster, as in the simulation, because the autoscaler runs every
ten seconds from then on.
"""

import http.client
import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import zip_longest
from math import floor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Final, NamedTuple, TypeAlias

import yaml

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, is_true
from batchyard.api.times import parse_time
from batchyard.base.instant import MINUTE, SECOND, Duration, Instant, format_age, parse_duration
from batchyard.cli import output
from batchyard.cli.background import ENDED_WITHIN, UpOptions, start_behind
from batchyard.cli.commands.status import answer_to_owner, owner_connection
from batchyard.controller_groups import GROUPS
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.platform.data_dir import KUBECONFIG, LOG, PlatformOptions, prepare
from batchyard.server.platform.platform import PATH as CLOCK
from batchyard.server.platform.status_report import STATUS_REPORT_PATH as STATUS
from batchyard.sim.guide import (
    BEFORE,
    LONGEST,
    SHRINKING_MAX,
    Guide,
    GuideObservation,
    GuideStep,
    is_timed,
    ready_by_pool,
    unfinished_of,
)
from batchyard.store.journal import SyncMode

# --- kubectl ---
#
# The user's kubectl, run as a subprocess.


#: The bytes that kubectl reads from standard input before it processes any of them.
#: Source: k8s.io/cli-runtime, pkg/resource/visitor.go (StreamVisitor).
_READ_FIRST: Final = 4096


class Kubectl:
    """kubectl with a kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig

    def run(self, *arguments: str, sent: str = "") -> str:
        """Run kubectl with a text as standard input and return its output; ends the command if it fails."""
        return _printed(self._started(arguments), arguments, sent)

    def sending(self, *arguments: str) -> "KubectlStream":
        """Start a kubectl that processes documents as they are written to its standard input."""
        return KubectlStream(self._started(arguments), arguments)

    def _started(self, arguments: tuple[str, ...]) -> "subprocess.Popen[str]":
        return subprocess.Popen(  # noqa: S603 - kubectl with fixed arguments
            ["kubectl", "--kubeconfig", str(self._kubeconfig), *arguments],  # noqa: S607 - the user's kubectl
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


class KubectlStream:
    """A kubectl that processes each document as soon as it is given."""

    def __init__(self, process: "subprocess.Popen[str]", arguments: tuple[str, ...]) -> None:
        self._process = process
        self._arguments = arguments
        self._is_first = True

    def give(self, document: dict[str, Any]) -> None:
        """Write the next document."""
        text = json.dumps(document)
        if self._is_first:
            text = text[0] + " " * _READ_FIRST + text[1:]
            self._is_first = False
        sent: IO[str] | None = self._process.stdin
        assert sent is not None, "started with a pipe"
        try:
            sent.write(f"{text}\n")
            sent.flush()
        except BrokenPipeError:
            self.end()  # reports the failure

    def next_line(self) -> str:
        """Wait for the next line of output; ends the command if kubectl ends first."""
        printed: IO[str] | None = self._process.stdout
        assert printed is not None, "started with a pipe"
        line = printed.readline()
        return line.rstrip("\n") if line else self.end()

    def end(self) -> str:
        """Close the input and return the remaining output; ends the command if kubectl failed."""
        return _printed(self._process, self._arguments, "")


def _printed(process: "subprocess.Popen[str]", arguments: tuple[str, ...], sent: str) -> str:
    printed, reported = process.communicate(sent)
    if process.returncode:
        output.fail(f"batchyard: kubectl {' '.join(arguments)}: {reported.strip()}")
    return printed


# --- guide timings ---
#
# Timings of a guide played live: which were missed, by how much, and which differing rows they explain.


#: A lateness up to this, in time of the guide, counts as on time.
TOLERANCE: Final = 3 * SECOND
#: The reason of a differing row if no timing was late.
NO_REASON: Final = "no timing was missed, so this is a defect of batchyard; please report it"


class Timing(NamedTuple):
    """The lateness of a Job or a reading of a step, in time of the guide."""

    step: str
    what: str
    name: str
    late: Duration
    #: Whether it happened at all; if not, `late` is how long the guide waited.
    is_reached: bool = True

    def __str__(self) -> str:
        """The step, the subject and the lateness as one sentence."""
        subject = f"step {self.step}: {self.what} {self.name}"
        if not self.is_reached:
            return f"{subject} did not happen within {_age(self.late)} after it was due"
        return f"{subject} was {_age(self.late)} late"

    def document(self) -> Mapping[str, Any]:
        """The timing as a JSON object."""
        late = self.late / SECOND
        return {
            "step": self.step,
            "what": self.what,
            "name": self.name,
            "lateSeconds": late,
            "reached": self.is_reached,
        }


class DifferentRow(NamedTuple):
    """A row that differs from the simulation, with the reason."""

    name: str
    simulated: str
    live: str
    reason: str

    def __str__(self) -> str:
        """The row, both texts and the reason as one line."""
        return f"{self.name}: simulated {self.simulated}, live {self.live}; reason: {self.reason}"

    @property
    def is_explained(self) -> bool:
        """Whether a late timing explains the row."""
        return self.reason != NO_REASON


class Timings:
    """The lateness of each Job and reading of a guide's steps."""

    def __init__(self, steps: Sequence[str]) -> None:
        self._steps = steps
        self._noted: list[Timing] = []

    def note(self, timing: Timing) -> None:
        """Record a lateness; timings that were on time are dropped."""
        if timing.late > 0 or not timing.is_reached:
            self._noted.append(timing)

    @property
    def missed(self) -> Sequence[Timing]:
        """The timings that exceed the tolerance or did not happen."""
        return [timing for timing in self._noted if timing.late > TOLERANCE or not timing.is_reached]

    def speed_for(self, speed: float) -> float:
        """The speed at which the same delays are within the tolerance; half of `speed` if no delay is known."""
        latest = max((timing.late for timing in self.missed if timing.is_reached), default=0)
        return speed / 2 if latest == 0 else float(max(1, floor(speed * TOLERANCE / latest)))

    def differences(self, simulated: Mapping[str, str], live: Mapping[str, str]) -> Sequence[DifferentRow]:
        """The rows that differ from the simulation, each with the timing that explains it."""
        names = [name for name in dict.fromkeys((*simulated, *live)) if simulated.get(name) != live.get(name)]
        return [
            DifferentRow(name, simulated.get(name, "nothing"), live.get(name, "nothing"), self._reason(name))
            for name in names
        ]

    def _reason(self, row: str) -> str:
        """The largest lateness of the row's step and the steps before it; of all steps for a row without a step."""
        step, is_of_step, _ = row.partition(": ")
        steps = self._steps[: self._steps.index(step) + 1] if is_of_step else self._steps
        timings = [timing for timing in self._noted if timing.step in steps]
        if not timings:
            return NO_REASON
        latest = max(timings, key=lambda timing: timing.late)
        others = sum(timing.late > TOLERANCE for timing in timings) - 1
        return f"{latest}, and {others} more were late" if others > 0 else str(latest)


def _age(duration: Duration) -> str:
    """Format a duration, which may be shorter than a second."""
    return format_age(duration) if duration >= SECOND else f"{duration / SECOND:.2f}s"


_WORK: Final = ("Job", "JobSet")
#: The output format of kubectl for each created object.
_CAME: Final = 'jsonpath={.metadata.creationTimestamp}{"\\n"}'
#: How often the queues are read until their counts include every Workload.
_LOOKS_MAX: Final = 50
#: The interval between checks whether the platform's clock has stopped, in real time.
_ASKED_AGAIN: Final = 0.005  # seconds


class StartedPlatform(NamedTuple):
    """A platform in its own process."""

    folder: Path
    process: subprocess.Popen[bytes]
    #: An HTTP connection with the owner's credentials.
    connection: http.client.HTTPConnection
    speed: float


class GuideMoment(NamedTuple):
    """An instant, and the revision of the platform at that instant."""

    now: Instant
    revision: int


@contextmanager
def platform(
    cluster: Obj | None, speed: float, controllers: Sequence[str] = GROUPS, audit_log: Path | None = None
) -> Iterator[StartedPlatform]:
    """A platform that runs within the context; its data directory is temporary."""
    if shutil.which("kubectl") is None:
        output.fail("batchyard: kubectl not found; a live guide requires it")
    with TemporaryDirectory(prefix="batchyard-guide-") as name:
        folder, described = Path(name, "data"), Path(name, "cluster.json")
        described.write_text(json.dumps(cluster), "utf-8")
        prepare(folder)
        place = PlatformOptions(folder, sync=SyncMode.PROCESS, audit_log=audit_log, controllers=controllers)
        process, running = start_behind(UpOptions(place, described, speed))
        try:
            with closing(owner_connection(running, folder)) as connection:
                yield StartedPlatform(folder, process, connection, speed)
        finally:
            process.terminate()
            process.wait(ENDED_WITHIN)


#: A Job, and the instant at which it is due.
_Due: TypeAlias = tuple[Instant, dict[str, Any]]


class LiveGuide:
    """The guide on a running platform; with `time_waits` the clock stops for its Jobs and readings."""

    def __init__(self, planned: Guide, started: StartedPlatform, *, time_waits: bool = False) -> None:
        self._files = planned.files
        self._cluster = planned.cluster
        self._started = started
        self._kubectl = Kubectl(started.folder / KUBECONFIG)
        self._time_waits = time_waits
        #: The moment of the latest reading.
        self._stood = self._present()
        self.initial: Mapping[str, int] = {}
        #: The instant at which the guide began; the first step is due relative to it.
        self.began: Instant = 0
        #: The lateness of Jobs, readings and rows.
        self.timings = Timings([])

    def play(self, steps: Sequence[GuideStep]) -> Iterator[GuideObservation]:
        """Play each step and read the queues and nodes after it."""
        self.timings = Timings([step.name for step in steps])
        self._kubectl.run("apply", "-f", "-", sent="\n".join(map(json.dumps, self._documents_of(BEFORE))))
        sending = self._prepared(steps[0])
        self.began = self._first_minute()
        for step, following in zip_longest(steps, steps[1:]):
            last = self._last_of(step, sending)
            now, queues = self._settled_queues(step, last + parse_duration(step.looks.queues))
            sending = self._prepared(following)
            due = last + parse_duration(step.looks.nodes)
            self._stood = self._moment(due)
            self._note_look(step, "nodes", self._stood.now - due)
            yield GuideObservation(step, now, queues, self._stood.now, self.objects(scheme.NODE))

    def now(self) -> Instant:
        """The instant of the latest reading."""
        return self._stood.now

    def objects(self, kind: str) -> Sequence[Obj]:
        """All objects of a kind at the latest reading."""
        return self._objects_at(self._stood, kind)

    def _first_minute(self) -> Instant:
        """The next whole minute since the Cluster's creation; the nodes that are ready now are recorded as initial."""
        self._stood = self._present()
        self.initial = ready_by_pool(self.objects(scheme.NODE))
        (cluster,) = self.objects(scheme.CLUSTER)
        made = parse_time(cluster["metadata"]["creationTimestamp"])
        return made - (made - self._present().now) // MINUTE * MINUTE

    def _objects_at(self, moment: GuideMoment, kind: str) -> Sequence[Obj]:
        """All objects of a kind at a moment."""
        info = scheme.kind_info(kind)
        group = f"apis/{info.group}" if info.group else "api"
        asked = f"resourceVersion={moment.revision}&resourceVersionMatch=Exact"
        path = f"/{group}/{info.storage_version}/{info.plural}?{asked}"
        described = {"apiVersion": info.api_version, "kind": info.kind}  # list items omit these fields
        return [{**described, **item} for item in self._answer(path)["items"]]

    def _note_look(self, step: GuideStep, what: str, late: Duration) -> None:
        self.timings.note(Timing(step.name, "reading of", f"the {what}", late))

    def _settled_queues(self, step: GuideStep, due: Instant) -> tuple[Instant, Sequence[Obj]]:
        """The ClusterQueues when they are due, or as soon after as their counts include every Workload."""
        for look in range(_LOOKS_MAX):
            moment = self._moment(due + look * SECOND)
            queues = self._objects_at(moment, scheme.CLUSTER_QUEUE)
            workloads = self._objects_at(moment, scheme.WORKLOAD)
            if sum(map(_counted, queues)) == sum(not is_true(each, "Finished") for each in workloads):
                self._note_look(step, "queues", moment.now - due)
                break
        else:
            what = "figures of", "the ClusterQueues, which do not count every Workload,"
            self.timings.note(Timing(step.name, *what, moment.now - due, is_reached=False))
        return moment.now, queues

    def _prepared(self, step: GuideStep | None) -> KubectlStream | None:
        """A kubectl that creates what a step's Jobs need, ready to create the Jobs."""
        if step is None or step.folder is None:
            return None
        sending = self._kubectl.sending("create", "-f", "-", "-o", _CAME)
        for document in self._documents_of(step.name):
            if document["kind"] not in _WORK:
                sending.give(document)
        return sending

    def _last_of(self, step: GuideStep, sending: KubectlStream | None) -> Instant:
        """Create a step's Jobs, each when it is due, or wait for the end; return when that was done."""
        if sending is None:
            return self._end_of_all(step)
        files = self._files[step.name]
        work = [(self.began + at, each) for path, at in files for each in _documents(path) if each["kind"] in _WORK]
        came = (self._send_in_stops if self._time_waits else self._send)(step, work, sending)
        late = {each["metadata"]["name"]: at - due for (due, each), at in zip(work, came, strict=True)}
        for name, duration in late.items():
            self.timings.note(Timing(step.name, "Job", name, duration))
        return max(work[-1][0], *came)

    def _send_in_stops(self, step: GuideStep, work: Sequence[_Due], sending: KubectlStream) -> Sequence[Instant]:
        """Create each Job while the clock is stopped at its due instant; return the creation times."""
        self._answer(CLOCK, {"until": work[0][0]})
        for _ in range(len(self._documents_of(step.name)) - len(work)):
            sending.next_line()  # the objects that the Jobs need
        came = []
        for due, document in work:
            came.append(self._moment(due).now)
            sending.give(_timed(document, step.runtime, self._cluster))
            sending.next_line()
        sending.end()
        return came

    def _send(self, step: GuideStep, work: Sequence[_Due], sending: KubectlStream) -> Sequence[Instant]:
        """Create each Job when it is due, by one reading of the clock; return the creation times."""
        began, asked_at = self._moment(self.began + step.starts_at).now, wall_clock()
        for due, document in work:
            self._wait(due - began - int((wall_clock() - asked_at) * self._started.speed))
            sending.give(_timed(document, step.runtime, self._cluster))
        return [parse_time(text) for text in sending.end().split()][-len(work) :]  # the Jobs were created last

    def _documents_of(self, step: str) -> Sequence[dict[str, Any]]:
        return [document for path, _ in self._files[step] for document in _documents(path)]

    def _end_of_all(self, step: GuideStep) -> Instant:
        """Wait until all Jobs have ended and the added nodes are removed, in whole minutes; return that instant."""
        due = began = self.began + step.starts_at
        while (left := unfinished_of(self._objects_at(self._moment(due), scheme.JOB))) and due < self.began + LONGEST:
            due += MINUTE
        for job in left:
            self.timings.note(Timing(step.name, "end of Job", job["metadata"]["name"], due - began, is_reached=False))
        latest, few = due + SHRINKING_MAX, sum(self.initial.values())
        began = due
        while (count := len(self._objects_at(self._moment(due), scheme.NODE))) > few and due < latest:
            due += MINUTE
        if count > few:
            left_over = "end of", f"{count - few} of the nodes that were added"
            self.timings.note(Timing(step.name, *left_over, due - began, is_reached=False))
        return due

    def _moment(self, instant: Instant) -> GuideMoment:
        """Wait for an instant and return its moment; it can be later if the clock runs on and the machine is slow."""
        if self._time_waits:
            self._answer(CLOCK, {"until": instant})
        while (moment := self._present()).now < instant:
            self._wait(instant - moment.now)
        while self._time_waits and not self._answer(CLOCK)["hasStopped"]:
            self._wait(int(_ASKED_AGAIN * SECOND * self._started.speed))
        return self._present() if self._time_waits else moment

    def _present(self) -> GuideMoment:
        reported = self._answer(STATUS)
        return GuideMoment(reported["instant"], reported["revision"])

    def _answer(self, path: str, put: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Send a request as the owner; reconnect once if the connection broke."""
        connection = self._started.connection
        try:
            return answer_to_owner(connection, path, put)
        except (OSError, http.client.HTTPException):
            self._wait(0)  # ends the command if the platform has ended
            connection.close()
            return answer_to_owner(connection, path, put)

    def _wait(self, duration: Duration) -> None:
        """Wait for a duration of platform time; ends the command if the platform ends meanwhile."""
        try:
            self._started.process.wait(duration / SECOND / self._started.speed)
        except subprocess.TimeoutExpired:
            return
        reported = (self._started.folder / LOG).read_text("utf-8", "replace")
        output.fail(f"{reported}batchyard: the platform ended before the guide did")


def _counted(queue: Obj) -> int:
    """The number of Workloads that the status of a ClusterQueue counts."""
    status = queue.get("status") or {}
    counted: int = status.get("pendingWorkloads", 0) + status.get("reservingWorkloads", 0)
    return counted


def _documents(path: Path) -> Sequence[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [document for document in yaml.safe_load_all(file) if document]


def _timed(document: dict[str, Any], runtime: str, cluster: Obj | None) -> dict[str, Any]:
    """Set a document's run time, unless the document or the Cluster sets one."""
    if is_timed(document, cluster):
        return document
    metadata = document["metadata"]
    annotations = {**(metadata.get("annotations") or {}), well_known.RUNTIME: runtime}
    return {**document, "metadata": {**metadata, "annotations": annotations}}
