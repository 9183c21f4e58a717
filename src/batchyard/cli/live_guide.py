"""`batchyard guide --live`: the guide's manifests, sent by kubectl to a platform in a process of its own.

A step begins when the guide's does, or later if the machine is slower than the time that it plays in. Its Jobs come as
fast as kubectl sends them, in the guide's order. What they need is sent while the step before is looked at: a second of
kubectl's is a minute of the platform's, and nothing is decided by when a ConfigMap comes.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import yaml

from batchyard.api import scheme, well_known
from batchyard.api.conditions import is_true
from batchyard.api.meta import Obj
from batchyard.api.times import parse_time
from batchyard.base.instant import MINUTE, SECOND, Duration, Instant, parse_duration
from batchyard.cli import output
from batchyard.cli.status import asked
from batchyard.cli.up import ENDED_WITHIN, Wanted, start_behind
from batchyard.live.folder import KUBECONFIG, LOG, Process, prepare
from batchyard.live.platform import Place
from batchyard.sim.guide import (
    BEFORE,
    LONGEST,
    SHRINKING_MAX,
    START,
    Guide,
    GuideStep,
    Seen,
    ready_by_pool,
    unfinished_of,
)

_WORK: Final = ("Job", "JobSet")
#: What kubectl prints of what it has sent.
_CAME: Final = 'jsonpath={.metadata.creationTimestamp}{"\\n"}'
#: How often queues are looked at until their figures are right.
_LOOKS_MAX: Final = 50


class Started(NamedTuple):
    """A platform in a process of its own."""

    folder: Path
    process: subprocess.Popen[bytes]
    running: Process
    speed: float


@contextmanager
def platform(cluster: Path, speed: float) -> Iterator[Started]:
    """A platform that runs as long as it is needed, and leaves nothing."""
    if shutil.which("kubectl") is None:
        output.fail("batchyard: there is no kubectl on this machine, which plays the guide live")
    with TemporaryDirectory(prefix="batchyard-guide-") as name:
        folder = Path(name)
        prepare(folder)
        process, running = start_behind(Wanted(Place(folder), cluster, speed))
        try:
            yield Started(folder, process, running, speed)
        finally:
            process.terminate()
            process.wait(ENDED_WITHIN)


class LiveGuide:
    """The guide as a platform that runs plays it."""

    def __init__(self, planned: Guide, started: Started) -> None:
        self._files = planned.files
        self._started = started
        self.initial: Mapping[str, int] = {}
        #: When the guide began, so that its first step comes when it is due.
        self.began: Instant = 0

    def play(self, steps: Sequence[GuideStep]) -> Iterator[Seen]:
        """Play each step, and look."""
        arrived = self.now()
        self._send("apply", self._documents_of(BEFORE))
        self._prepare(steps[0])
        self._wait_until(arrived + START)
        self.initial = ready_by_pool(self.objects(scheme.NODE))
        self.began = self.now() - START
        for step, following in zip_longest(steps, steps[1:]):
            last = self._last_of(step)
            self._wait_until(last + parse_duration(step.looks.queues))
            now, queues = self.now(), self._settled_queues()
            if following is not None:
                self._prepare(following)
            self._wait_until(last + parse_duration(step.looks.nodes))
            yield Seen(step, now, queues, self.now(), self.objects(scheme.NODE))

    def now(self) -> Instant:
        """What time it is for the platform."""
        return parse_time(asked(self._started.running, self._started.folder)["time"])

    def objects(self, kind: str) -> Sequence[Obj]:
        """All objects of a kind, as kubectl gets them."""
        info = scheme.kind_info(kind)
        named = f"{info.plural}.{info.group}" if info.group else info.plural
        found: dict[str, Any] = json.loads(self._kubectl("get", named, "-A", "-o", "json"))
        items: list[Obj] = found["items"]
        return items

    def _settled_queues(self) -> Sequence[Obj]:
        """The ClusterQueues, once their figures count every Workload, with which a busy machine is late."""
        for _ in range(_LOOKS_MAX):
            queues = self.objects(scheme.CLUSTER_QUEUE)
            if sum(map(_counted, queues)) == sum(
                not is_true(each, "Finished") for each in self.objects(scheme.WORKLOAD)
            ):
                break
            self._wait(SECOND)
        return queues

    def _prepare(self, step: GuideStep) -> None:
        """Send what a step's Jobs need."""
        self._send("create", [each for each in self._documents_of(step.name) if each["kind"] not in _WORK])

    def _last_of(self, step: GuideStep) -> Instant:
        """Send a step's Jobs, or wait for the end; when the last of them came, or all was over."""
        self._wait_until(self.began + step.starts_at)
        if step.folder is None:
            self._wait_for_all()
            return self.now()
        work = [each for each in self._documents_of(step.name) if each["kind"] in _WORK]
        came = self._send("create", [_timed(document, step.runtime) for document in work], "-o", _CAME)
        return max(map(parse_time, came.split()))

    def _documents_of(self, step: str) -> Sequence[dict[str, Any]]:
        return [document for path in self._files.get(step, ()) for document in _documents(path)]

    def _wait_for_all(self) -> None:
        """Let time pass until everything is over and the nodes are gone."""
        while unfinished_of(self.objects(scheme.JOB)) and self.now() < self.began + LONGEST:
            self._wait(MINUTE)
        latest = self.now() + SHRINKING_MAX
        while len(self.objects(scheme.NODE)) > sum(self.initial.values()) and self.now() < latest:
            self._wait(MINUTE)

    def _wait_until(self, instant: Instant) -> None:
        while (left := instant - self.now()) > 0:
            self._wait(left)

    def _wait(self, duration: Duration) -> None:
        """Let time pass for the platform, which must not end meanwhile."""
        try:
            self._started.process.wait(duration / SECOND / self._started.speed)
        except subprocess.TimeoutExpired:
            return
        told = (self._started.folder / LOG).read_text("utf-8", "replace")
        output.fail(f"{told}batchyard: the platform ended before the guide did")

    def _send(self, verb: str, documents: Sequence[dict[str, Any]], *arguments: str) -> str:
        """Let kubectl send documents, in order; what it prints."""
        sent = "\n".join(map(json.dumps, documents))
        return self._kubectl(verb, "-f", "-", *arguments, sent=sent) if documents else ""

    def _kubectl(self, *arguments: str, sent: str = "") -> str:
        kubeconfig = self._started.folder / KUBECONFIG
        done = subprocess.run(  # noqa: S603 - kubectl with words of ours
            ["kubectl", "--kubeconfig", str(kubeconfig), *arguments],  # noqa: S607 - the user's own
            input=sent,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            output.fail(f"batchyard: kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout


def _counted(queue: Obj) -> int:
    """How many Workloads the figures of a ClusterQueue count."""
    status = queue.get("status") or {}
    counted: int = status.get("pendingWorkloads", 0) + status.get("reservingWorkloads", 0)
    return counted


def _documents(path: Path) -> Sequence[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [document for document in yaml.safe_load_all(file) if document]


def _timed(document: dict[str, Any], runtime: str) -> dict[str, Any]:
    """A document whose pods run so long, if it does not say it itself."""
    metadata = document["metadata"]
    annotations = {well_known.RUNTIME: runtime, **(metadata.get("annotations") or {})}
    return {**document, "metadata": {**metadata, "annotations": annotations}}
