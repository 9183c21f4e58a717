"""The command `batchyard guide --live`: runs the reference architecture's guide with kubectl on a live platform.

The platform runs in its own process. Its virtual clock runs to the due time of the next Job or reading (of queues or
nodes). The clock stops there until kubectl has created the Job or the objects have been read. A slow machine then
changes no result. The clock does not stop at real-time speed, nor if operators run beside the platform, because they
could be in the middle of a reconcile. Jobs and readings can then be late; `Timings` records by how much.

The kubectl process of each step starts during the previous step and creates the objects that the Jobs need. Objects are
read at the platform's revision at the due time of the reading.

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
from batchyard.cli.background import END_TIMEOUT_SECONDS, UpOptions, start_in_background
from batchyard.cli.commands.status import open_owner_connection, request_as_owner
from batchyard.controller_groups import GROUPS
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.platform.clock_control import CLOCK_PATH
from batchyard.server.platform.data_dir import KUBECONFIG_FILE, LOG_FILE, PlatformOptions, prepare_data_dir
from batchyard.server.platform.status_report import STATUS_REPORT_PATH
from batchyard.sim.guide import (
    PLATFORM_FILES,
    RUN_LENGTH_MAX,
    SHRINKING_TIME_MAX,
    Guide,
    GuideObservation,
    GuideStep,
    find_unfinished_jobs,
    has_run_time,
    ready_by_pool,
)
from batchyard.store.journal import SyncMode

#: The number of bytes that kubectl reads from standard input before it processes any of them.
#: Source: k8s.io/cli-runtime, pkg/resource/visitor.go (StreamVisitor).
_KUBECTL_BUFFER_SIZE: Final = 4096


class Kubectl:
    """Runs the user's kubectl with a kubeconfig, as a subprocess."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig

    def run(self, *arguments: str, input_text: str = "") -> str:
        """Run kubectl with a text as standard input and return its output; the command exits if kubectl fails."""
        return _read_output(self._start(arguments), arguments, input_text)

    def start_stream(self, *arguments: str) -> "KubectlStream":
        """Start a kubectl process that handles each YAML document as soon as it is written to its standard input."""
        return KubectlStream(self._start(arguments), arguments)

    def _start(self, arguments: tuple[str, ...]) -> "subprocess.Popen[str]":
        return subprocess.Popen(  # noqa: S603 - kubectl with fixed arguments
            ["kubectl", "--kubeconfig", str(self._kubeconfig), *arguments],  # noqa: S607 - the user's kubectl
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


class KubectlStream:
    """A running kubectl process that handles each YAML document as soon as it is written to its standard input."""

    def __init__(self, process: "subprocess.Popen[str]", arguments: tuple[str, ...]) -> None:
        self._process = process
        self._arguments = arguments
        self._is_first = True

    def write_document(self, document: dict[str, Any]) -> None:
        """Write the next document to kubectl's standard input; the command exits if kubectl has failed."""
        text = json.dumps(document)
        if self._is_first:
            text = text[0] + " " * _KUBECTL_BUFFER_SIZE + text[1:]
            self._is_first = False
        stdin: IO[str] | None = self._process.stdin
        assert stdin is not None, "kubectl is started with pipes"
        try:
            stdin.write(f"{text}\n")
            stdin.flush()
        except BrokenPipeError:
            self.end()  # prints kubectl's error and exits

    def next_line(self) -> str:
        """Return kubectl's next output line, or '' after the last one; the command exits if kubectl fails first."""
        stdout: IO[str] | None = self._process.stdout
        assert stdout is not None, "kubectl is started with pipes"
        line = stdout.readline()
        return line.rstrip("\n") if line else self.end()

    def end(self) -> str:
        """Close kubectl's standard input and return the remaining output; the command exits if kubectl failed."""
        return _read_output(self._process, self._arguments, "")


def _read_output(process: "subprocess.Popen[str]", arguments: tuple[str, ...], input_text: str) -> str:
    stdout, stderr = process.communicate(input_text)
    if process.returncode:
        output.fail(f"batchyard: kubectl {' '.join(arguments)}: {stderr.strip()}")
    return stdout


# The lateness of Jobs and readings in a live guide, which can explain rows that differ from the simulation.


#: The maximum lateness, in virtual time, that is not reported as a missed timing. A shorter one can change rows too: a
#: Job that is one second late can meet another cycle of the scheduler or autoscaler.
LATENESS_TOLERANCE: Final = 3 * SECOND
#: The reason that is given if a row differs although no Job or reading was late.
UNEXPLAINED_REASON: Final = "no Job or reading was late, so this is a bug in batchyard; please report it"


class Timing(NamedTuple):
    """The lateness, in virtual time, of an event in a step, such as the creation of a Job or a reading of nodes."""

    step: str
    event_kind: str
    name: str
    lateness: Duration
    #: Whether the event happened; if not, `lateness` is how long the guide waited for it.
    is_reached: bool = True

    def __str__(self) -> str:
        """Return the step, the late event and its lateness as one sentence."""
        subject = f"step {self.step}: {self.event_kind} {self.name}"
        if not self.is_reached:
            return f"{subject} did not happen within {_format_lateness(self.lateness)} of its due time"
        return f"{subject} was {_format_lateness(self.lateness)} late"

    def document(self) -> Mapping[str, Any]:
        """Return the event and its lateness in seconds as a JSON object."""
        late_seconds = self.lateness / SECOND
        event = {"step": self.step, "what": self.event_kind, "name": self.name}
        return {**event, "lateSeconds": late_seconds, "reached": self.is_reached}


class DifferentRow(NamedTuple):
    """An output row of the guide that differs between the live platform and the simulation, with the reason."""

    name: str
    simulated: str
    live: str
    reason: str

    def __str__(self) -> str:
        """Return the row name, its text in the simulation and on the live platform, and the reason as one line."""
        return f"{self.name}: simulated {self.simulated}, live {self.live}; reason: {self.reason}"

    @property
    def is_explained(self) -> bool:
        """Whether an event of the guide that was late on the live platform explains the difference."""
        return self.reason != UNEXPLAINED_REASON


class Timings:
    """The late events of a guide that runs on a live platform."""

    def __init__(self, steps: Sequence[str]) -> None:
        self._steps = steps
        self._recorded: list[Timing] = []

    def record(self, timing: Timing) -> None:
        """Record the timing of an event that was late, by any duration, or did not happen."""
        if timing.lateness > 0 or not timing.is_reached:
            self._recorded.append(timing)

    @property
    def missed_timings(self) -> Sequence[Timing]:
        """The recorded timings that exceed the tolerated lateness, or whose event did not happen."""
        return [timing for timing in self._recorded if timing.lateness > LATENESS_TOLERANCE or not timing.is_reached]

    def tolerable_speed(self, speed: float) -> float:
        """Return the highest whole speed, at least 1, at which the delays measured at `speed` would be tolerable.

        Without measured delays, return half of `speed`.
        """
        max_lateness = max((timing.lateness for timing in self.missed_timings if timing.is_reached), default=0)
        return speed / 2 if max_lateness == 0 else float(max(1, floor(speed * LATENESS_TOLERANCE / max_lateness)))

    def explain_differences(
        self, expected_rows: Mapping[str, str], live_rows: Mapping[str, str]
    ) -> Sequence[DifferentRow]:
        """Return the rows that differ from the simulation, each with the late event that explains it, if any."""
        names = [
            name
            for name in dict.fromkeys((*expected_rows, *live_rows))
            if expected_rows.get(name) != live_rows.get(name)
        ]
        return [
            DifferentRow(
                name,
                expected_rows.get(name, "nothing"),
                live_rows.get(name, "nothing"),
                self._reason_for_difference(name),
            )
            for name in names
        ]

    def _reason_for_difference(self, row_name: str) -> str:
        """Return why a row differs: the event with the largest lateness, or UNEXPLAINED_REASON if no event was late.

        Any lateness explains a difference, also one within the tolerance, because it can change the decisions.
        For a row `STEP: ...`, only the events up to this step are considered; for others (of a Job), those of all
        steps.
        """
        step, separator, _ = row_name.partition(": ")
        steps_so_far = self._steps[: self._steps.index(step) + 1] if separator else self._steps
        step_timings = [timing for timing in self._recorded if timing.step in steps_so_far]
        if not step_timings:
            return UNEXPLAINED_REASON
        latest_timing = max(step_timings, key=lambda timing: timing.lateness)
        other_late_count = sum(timing.lateness > LATENESS_TOLERANCE for timing in step_timings) - 1
        return f"{latest_timing}, and {other_late_count} more were late" if other_late_count > 0 else str(latest_timing)


def _format_lateness(duration: Duration) -> str:
    return format_age(duration) if duration >= SECOND else f"{duration / SECOND:.2f}s"


_JOB_KINDS: Final = ("Job", "JobSet")
#: The kubectl output format for each created object: its creation time.
_CREATION_TIME_FORMAT: Final = 'jsonpath={.metadata.creationTimestamp}{"\\n"}'
#: The maximum number of readings until the queues' counts include every Workload.
_QUEUE_READINGS_MAX: Final = 50
#: The real-time interval between checks of whether the platform's clock has stopped.
_CLOCK_POLL_INTERVAL: Final = 0.005  # seconds


class StartedPlatform(NamedTuple):
    """A live platform that runs in its own process, with an HTTP connection to it."""

    folder: Path
    process: subprocess.Popen[bytes]
    #: An HTTP connection with the owner's credentials.
    connection: http.client.HTTPConnection
    speed: float


class GuideMoment(NamedTuple):
    """A virtual time of the guide's run, and the revision (resourceVersion) of the platform's objects at that time."""

    now: Instant
    revision: int


@contextmanager
def run_platform_process(
    cluster: Obj | None, speed: float, controllers: Sequence[str] = GROUPS, audit_log: Path | None = None
) -> Iterator[StartedPlatform]:
    """Run a platform in its own process, with a temporary data directory, until the end of the `with` block.

    The command exits if kubectl is not installed or the start fails.
    """
    if shutil.which("kubectl") is None:
        output.fail("batchyard: kubectl not found on the PATH; install it, or run the guide without --live")
    with TemporaryDirectory(prefix="batchyard-guide-") as name:
        folder, cluster_file = Path(name, "data"), Path(name, "cluster.json")
        cluster_file.write_text(json.dumps(cluster), "utf-8")
        prepare_data_dir(folder)
        options = PlatformOptions(folder, sync=SyncMode.PROCESS, audit_log=audit_log, controllers=controllers)
        process, platform_process = start_in_background(UpOptions(options, cluster_file, speed))
        try:
            with closing(open_owner_connection(platform_process, folder)) as connection:
                yield StartedPlatform(folder, process, connection, speed)
        finally:
            process.terminate()
            process.wait(END_TIMEOUT_SECONDS)


#: The instant at which to create a Job, and the Job's manifest.
_DueJob: TypeAlias = tuple[Instant, dict[str, Any]]


class LiveGuide:
    """Runs a guide on a live platform.

    With `stops_clock`, the virtual clock is stopped at the time of each Job's creation and at each time when the state
    of the platform is read.
    """

    def __init__(self, guide: Guide, live_platform: StartedPlatform, *, stops_clock: bool = False) -> None:
        self._files = guide.files
        self._cluster = guide.cluster
        self._platform = live_platform
        self._kubectl = Kubectl(live_platform.folder / KUBECONFIG_FILE)
        self._stops_clock = stops_clock
        #: The moment of the latest reading of the nodes.
        self._last_reading = self._current_moment()
        self.initial_node_counts: Mapping[str, int] = {}
        #: The instant at which the guide began; the times of the steps are relative to it.
        self.start_time: Instant = 0
        #: The Jobs and readings that were late.
        self.timings = Timings([])

    def play(self, steps: Sequence[GuideStep]) -> Iterator[GuideObservation]:
        """Run the guide's steps one by one; yield the queues and nodes after each step."""
        self.timings = Timings([step.name for step in steps])
        self._kubectl.run("apply", "-f", "-", input_text="\n".join(map(json.dumps, self._documents_of(PLATFORM_FILES))))
        kubectl_stream = self._prepare_step(steps[0])
        self.start_time = self._start_instant()
        for step, next_step in zip_longest(steps, steps[1:]):
            finished_at = self._create_jobs_or_wait(step, kubectl_stream)
            now, queues = self._read_settled_queues(step, finished_at + parse_duration(step.looks.queues))
            kubectl_stream = self._prepare_step(next_step)
            nodes_due_at = finished_at + parse_duration(step.looks.nodes)
            self._last_reading = self._wait_for_moment(nodes_due_at)
            self._record_reading(step, "nodes", self._last_reading.now - nodes_due_at)
            yield GuideObservation(step, now, queues, self._last_reading.now, self.objects(scheme.NODE))

    def now(self) -> Instant:
        """Return the virtual time at which the nodes were last read."""
        return self._last_reading.now

    def objects(self, kind: str) -> Sequence[Obj]:
        """Return all objects of a kind as they were at the latest reading of the nodes."""
        return self._objects_at(self._last_reading, kind)

    def _start_instant(self) -> Instant:
        """Record each pool's initial ready nodes; return the next full minute, counted from the Cluster's creation."""
        self._last_reading = self._current_moment()
        self.initial_node_counts = ready_by_pool(self.objects(scheme.NODE))
        (cluster,) = self.objects(scheme.CLUSTER)
        created_at = parse_time(cluster["metadata"]["creationTimestamp"])
        return created_at - (created_at - self._current_moment().now) // MINUTE * MINUTE

    def _objects_at(self, moment: GuideMoment, kind: str) -> Sequence[Obj]:
        served_kind = scheme.kind_info(kind)
        api_path = f"apis/{served_kind.group}" if served_kind.group else "api"
        revision_query = f"resourceVersion={moment.revision}&resourceVersionMatch=Exact"
        path = f"/{api_path}/{served_kind.storage_version}/{served_kind.plural}?{revision_query}"
        type_fields = {"apiVersion": served_kind.api_version, "kind": served_kind.kind}  # list items omit these fields
        return [{**type_fields, **item} for item in self._request(path)["items"]]

    def _record_reading(self, step: GuideStep, subject: str, lateness: Duration) -> None:
        self.timings.record(Timing(step.name, "reading of", f"the {subject}", lateness))

    def _read_settled_queues(self, step: GuideStep, due_at: Instant) -> tuple[Instant, Sequence[Obj]]:
        for attempt in range(_QUEUE_READINGS_MAX):
            moment = self._wait_for_moment(due_at + attempt * SECOND)
            queues = self._objects_at(moment, scheme.CLUSTER_QUEUE)
            workloads = self._objects_at(moment, scheme.WORKLOAD)
            if sum(map(_counted_workloads, queues)) == sum(not is_true(workload, "Finished") for workload in workloads):
                self._record_reading(step, "queues", moment.now - due_at)
                break
        else:
            event_and_subject = "figures of", "the ClusterQueues, which do not count every Workload,"
            self.timings.record(Timing(step.name, *event_and_subject, moment.now - due_at, is_reached=False))
        return moment.now, queues

    def _prepare_step(self, step: GuideStep | None) -> KubectlStream | None:
        if step is None or step.folder is None:
            return None
        kubectl_stream = self._kubectl.start_stream("create", "-f", "-", "-o", _CREATION_TIME_FORMAT)
        for document in self._documents_of(step.name):
            if document["kind"] not in _JOB_KINDS:
                kubectl_stream.write_document(document)
        return kubectl_stream

    def _create_jobs_or_wait(self, step: GuideStep, kubectl_stream: KubectlStream | None) -> Instant:
        if kubectl_stream is None:
            return self._wait_until_idle(step)
        manifest_files = self._files[step.name]
        due_jobs = [
            (self.start_time + instant, document)
            for path, instant in manifest_files
            for document in _read_documents(path)
            if document["kind"] in _JOB_KINDS
        ]
        creation_times = (self._create_with_stopped_clock if self._stops_clock else self._create_with_running_clock)(
            step, due_jobs, kubectl_stream
        )
        jobs_and_times = zip(due_jobs, creation_times, strict=True)
        lateness = {document["metadata"]["name"]: instant - due_at for (due_at, document), instant in jobs_and_times}
        for name, duration in lateness.items():
            self.timings.record(Timing(step.name, "Job", name, duration))
        return max(due_jobs[-1][0], *creation_times)

    def _create_with_stopped_clock(
        self, step: GuideStep, due_jobs: Sequence[_DueJob], kubectl_stream: KubectlStream
    ) -> Sequence[Instant]:
        self._request(CLOCK_PATH, {"until": due_jobs[0][0]})
        for _ in range(len(self._documents_of(step.name)) - len(due_jobs)):
            kubectl_stream.next_line()  # the objects that the Jobs need
        creation_times = []
        for due_at, document in due_jobs:
            creation_times.append(self._wait_for_moment(due_at).now)
            kubectl_stream.write_document(_with_run_time(document, step.runtime, self._cluster))
            kubectl_stream.next_line()
        kubectl_stream.end()
        return creation_times

    def _create_with_running_clock(
        self, step: GuideStep, due_jobs: Sequence[_DueJob], kubectl_stream: KubectlStream
    ) -> Sequence[Instant]:
        started_at, wall_started_at = self._wait_for_moment(self.start_time + step.starts_at).now, wall_clock()
        for due_at, document in due_jobs:
            self._wait_for_duration(due_at - started_at - int((wall_clock() - wall_started_at) * self._platform.speed))
            kubectl_stream.write_document(_with_run_time(document, step.runtime, self._cluster))
        return [parse_time(text) for text in kubectl_stream.end().split()][
            -len(due_jobs) :
        ]  # the Jobs were created last

    def _documents_of(self, step: str) -> Sequence[dict[str, Any]]:
        return [document for path, _ in self._files[step] for document in _read_documents(path)]

    def _wait_until_idle(self, step: GuideStep) -> Instant:
        instant = started_at = self.start_time + step.starts_at
        while (
            unfinished_jobs := find_unfinished_jobs(self._objects_at(self._wait_for_moment(instant), scheme.JOB))
        ) and instant < self.start_time + RUN_LENGTH_MAX:
            instant += MINUTE
        for job in unfinished_jobs:
            name = job["metadata"]["name"]
            self.timings.record(Timing(step.name, "end of Job", name, instant - started_at, is_reached=False))
        deadline, initial_node_count = instant + SHRINKING_TIME_MAX, sum(self.initial_node_counts.values())
        started_at = instant
        while (
            count := len(self._objects_at(self._wait_for_moment(instant), scheme.NODE))
        ) > initial_node_count and instant < deadline:
            instant += MINUTE
        if count > initial_node_count:
            event_and_subject = "end of", f"{count - initial_node_count} of the nodes that were added"
            self.timings.record(Timing(step.name, *event_and_subject, instant - started_at, is_reached=False))
        return instant

    def _wait_for_moment(self, instant: Instant) -> GuideMoment:
        """Wait until the virtual time `instant`; the returned moment can be later if the clock does not stop there."""
        if self._stops_clock:
            self._request(CLOCK_PATH, {"until": instant})
        while (moment := self._current_moment()).now < instant:
            self._wait_for_duration(instant - moment.now)
        while self._stops_clock and not self._request(CLOCK_PATH)["hasStopped"]:
            self._wait_for_duration(int(_CLOCK_POLL_INTERVAL * SECOND * self._platform.speed))
        return self._current_moment() if self._stops_clock else moment

    def _current_moment(self) -> GuideMoment:
        status = self._request(STATUS_REPORT_PATH)
        return GuideMoment(status["instant"], status["revision"])

    def _request(self, path: str, put: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        connection = self._platform.connection
        try:
            return request_as_owner(connection, path, put)
        except (OSError, http.client.HTTPException):
            self._wait_for_duration(0)  # ends the command if the platform has ended
            connection.close()
            return request_as_owner(connection, path, put)

    def _wait_for_duration(self, duration: Duration) -> None:
        """Wait for a duration in virtual time; the command exits if the platform ends meanwhile."""
        try:
            self._platform.process.wait(duration / SECOND / self._platform.speed)
        except subprocess.TimeoutExpired:
            return
        log_text = (self._platform.folder / LOG_FILE).read_text("utf-8", "replace")
        output.fail(f"{log_text}batchyard: the platform ended before the guide; its log is above")


def _counted_workloads(queue: Obj) -> int:
    status = queue.get("status") or {}
    workload_count: int = status.get("pendingWorkloads", 0) + status.get("reservingWorkloads", 0)
    return workload_count


def _read_documents(path: Path) -> Sequence[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [document for document in yaml.safe_load_all(file) if document]


def _with_run_time(document: dict[str, Any], runtime: str, cluster: Obj | None) -> dict[str, Any]:
    if has_run_time(document, cluster):
        return document
    metadata = document["metadata"]
    annotations = {**(metadata.get("annotations") or {}), well_known.RUNTIME: runtime}
    return {**document, "metadata": {**metadata, "annotations": annotations}}
