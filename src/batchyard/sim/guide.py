"""The guide of the batch reference architecture: plays it step by step, and compares it with the published figures.

Spacing and figures are the guide's (`guide.json`). Within a step, for job 0 to 3 and for team a to d, each file is
applied half a second after the previous one, with a second after each round. The authors read the queues when a step
had settled and none of its Jobs had ended, and the nodes when the cluster had grown. Rows that follow from quota
arithmetic alone are exact and must be equal here; all others depend on the time of the reading. The manifests do not
contain the run times of the training programs. Unless an annotation gives one, pods run as long as the guide's Jobs
did once they had their nodes. Machines take their typical times, so that the figures do not depend on chance, in a
simulation or live.
"""

import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.manifests import Manifests, read_manifests
from batchyard.api.meta import Obj, annotation, group_kind, is_true, label, with_path
from batchyard.base.instant import MINUTE, SECOND, Duration, Instant, parse_duration
from batchyard.cloud.catalog.prices import in_typical_times
from batchyard.kubelet.simulated.durations import named_runtime
from batchyard.package_data import find_folder
from batchyard.sim.scenario import FileFault, Scenario, files_below, make_scenario, read_sources
from batchyard.sim.world import EPOCH, World

#: The name of the files that are applied before the first step.
BEFORE: Final = "platform"
#: The folders of the platform in the order of their application, all at the start.
PLATFORM: Final = ("teams", "priorityclass", "kueue")
CLUSTER_FILE: Final = "cluster.yaml"
#: Kueue's Configuration of a rendered platform.
CONFIGURATION_FILE: Final = "configuration.yaml"
#: The folder to which `batchyard platform render` writes manifests, and its subfolders that are not simulated.
RENDERED: Final = "manifests"
NOT_APPLIED: Final = frozenset({"00-engine", "70-monitoring"})
#: The time of the first step. The autoscaler runs every ten seconds, which is then midway between two rounds of Jobs.
#: At the same instant as a round the order of both would be undefined.
START: Final = MINUTE + 2 * SECOND
BETWEEN_APPLIES: Final = SECOND // 2
BETWEEN_ROUNDS: Final = SECOND
#: The name in the guide's tables for the pools that are created for compactly placed Jobs.
AUTO_PROVISIONED: Final = "auto-provisioned-compact"
#: The limit of the time in which the cluster shrinks after the last Job.
SHRINKING_MAX: Final = 30 * MINUTE
#: The limit of a run of the guide, about twice its length.
LONGEST: Final = 24 * 60 * MINUTE


_WORK: Final = ("Job", "JobSet")


class GuideRow(NamedTuple):
    """The numbers of pending and admitted Workloads of a ClusterQueue."""

    pending: int = 0
    admitted: int = 0


class AppliedFile(NamedTuple):
    """A file, and the time of its application from the start of the world."""

    path: Path
    at: Duration


class ObservationTimes(msgspec.Struct, frozen=True):
    """The times, after a step's last application, at which the authors read the queues and the nodes."""

    queues: str
    nodes: str


class GuideStep(msgspec.Struct, frozen=True, rename="camel"):
    """A step of the guide: its folder (None: applies nothing), its time, and the figures of the authors."""

    name: str
    folder: str | None
    starts_after: str
    looks: ObservationTimes
    #: The run time of the step's pods, unless their manifests give one.
    runtime: str
    #: The node counts by pool in the guide; None where it shows none.
    nodes: dict[str, int] | None
    every_row_is_exact: bool
    exact_rows: tuple[str, ...]
    cluster_queues: dict[str, dict[str, int]]

    @property
    def starts_at(self) -> Duration:
        """Return the time of its first application, from the start of the world."""
        return START + parse_duration(self.starts_after)

    def saw(self, queue: str) -> GuideRow:
        """Return the guide's row of a ClusterQueue; an unlisted one was empty."""
        return GuideRow(**self.cluster_queues.get(queue, {}))

    def is_exact(self, queue: str) -> bool:
        """Whether the row follows from quota arithmetic alone."""
        return self.every_row_is_exact or queue in self.exact_rows


class _Figures(msgspec.Struct, frozen=True):
    steps: tuple[GuideStep, ...]


@dataclass(frozen=True, slots=True)
class GuideObservation:
    """The observed state after a step: the ClusterQueues at an instant, and the nodes at a later one."""

    step: GuideStep
    now: Instant
    cluster_queues: Sequence[Obj]
    nodes_now: Instant
    nodes: Sequence[Obj]

    @property
    def pools(self) -> Mapping[str, int]:
        """Return the number of ready nodes by pool."""
        return ready_by_pool(self.nodes)

    @property
    def rows(self) -> Mapping[str, GuideRow]:
        """Return the rows of all ClusterQueues by name."""
        return {obj["metadata"]["name"]: _row(obj) for obj in self.cluster_queues}

    @property
    def exact(self) -> Sequence[str]:
        """Return the ClusterQueues whose row is exact in the guide, whether they exist here or not."""
        names = dict.fromkeys([*self.rows, *self.step.exact_rows])
        return [name for name in names if self.step.is_exact(name)]

    @property
    def wrong(self) -> Sequence[str]:
        """Return the ClusterQueues whose row is exact in the guide but differs here."""
        return [name for name in self.exact if self.rows.get(name, GuideRow()) != self.step.saw(name)]


def guide_steps() -> tuple[GuideStep, ...]:
    """Return the steps of the guide in order; the last one applies nothing."""
    return _figures().steps


def played_steps(last: str | None = None) -> tuple[GuideStep, ...]:
    """Return the steps up to and including `last`."""
    steps = guide_steps()
    names = [step.name for step in steps]
    return tuple(steps if last is None else steps[: names.index(last) + 1])


def examples_folder() -> Path | None:
    """Return the folder of our own reference architecture, if the package contains it."""
    return find_folder("examples/refarch")


def ready_by_pool(nodes: Sequence[Obj]) -> dict[str, int]:
    """Return the number of ready nodes by pool; pools created for placement groups count together."""
    counts: dict[str, int] = {}
    for node in nodes:
        pool = pool_of(node)
        if pool is not None and is_true(node, "Ready"):
            counts[pool] = counts.get(pool, 0) + 1
    return counts


def pool_of(node: Obj) -> str | None:
    """Return the name of a node's pool in the guide's tables, or None without a pool."""
    return AUTO_PROVISIONED if label(node, well_known.PLACEMENT_GROUP) else label(node, well_known.NODE_POOL)


class Guide:
    """The guide in a simulated world, played step by step."""

    def __init__(self, folder: Path, steps: Sequence[GuideStep], platform: Path | None = None) -> None:
        """Read a folder with a folder for each step; a rendered `platform` replaces the folder's own."""
        self._steps = steps
        plan = _Plan(folder, platform)
        for step in steps:
            if step.folder is not None:
                plan.add(step)
        #: The files of the platform (BEFORE) and of each step, in order.
        self.files: Mapping[str, Sequence[AppliedFile]] = plan.files
        scenario, self.warnings = plan.scenario()
        #: The Cluster of the world.
        self.cluster = scenario.cluster
        self.world = World(scenario)
        #: The node counts by pool before the first step.
        self.initial: Mapping[str, int] = {}

    def play(self) -> Iterator[GuideObservation]:
        """Play each step, and yield the observed state."""
        world = self.world
        world.run_until(START - SECOND)
        self.initial = ready_by_pool(world.objects(scheme.NODE))
        for step in self._steps:
            if step.folder is None:
                self._wait_for_all(step)
                last = world.now()
            else:
                last = self.files[step.name][-1].at
            world.run_until(last + parse_duration(step.looks.queues))
            world.settle()
            now, queues = world.kernel.now(), world.objects(scheme.CLUSTER_QUEUE)
            world.run_until(last + parse_duration(step.looks.nodes))
            yield GuideObservation(step, now, queues, world.kernel.now(), world.objects(scheme.NODE))

    def _wait_for_all(self, step: GuideStep) -> None:
        """Run until every Job has ended and the nodes are removed, or until the limits."""
        world = self.world
        world.run_until(step.starts_at)
        while self.unfinished() and world.now() < LONGEST:
            world.run_until(world.now() + MINUTE)
        latest = world.now() + SHRINKING_MAX
        while len(world.objects(scheme.NODE)) > sum(self.initial.values()) and world.now() < latest:
            world.run_until(world.now() + MINUTE)

    def objects(self, kind: str) -> Sequence[Obj]:
        """Return all objects of a kind."""
        return self.world.objects(kind)

    def now(self) -> Instant:
        """Return the current virtual time."""
        return self.world.kernel.now()

    @property
    def began(self) -> Instant:
        """Return the start time."""
        return EPOCH

    def unfinished(self) -> Sequence[Obj]:
        """Return the Jobs that have not succeeded."""
        return unfinished_of(self.objects(scheme.JOB))


def is_timed(obj: Obj, cluster: Obj | None) -> bool:
    """Whether a Job or JobSet has a run time, by annotation or in the Cluster."""
    metadata = obj["metadata"]
    name = f"{metadata.get('namespace') or ''}/{metadata['name']}"
    return annotation(obj, well_known.RUNTIME) is not None or named_runtime(cluster, [name]) is not None


def unfinished_of(jobs: Sequence[Obj]) -> Sequence[Obj]:
    """Return the Jobs that have not succeeded."""
    return [job for job in jobs if not (job.get("status") or {}).get("completionTime")]


class _Plan:
    """The files to apply and their times, read from a folder laid out as the reference architecture."""

    def __init__(self, folder: Path, platform: Path | None) -> None:
        self._folder = folder
        self._unread: list[FileFault] = []
        self._manifests = Manifests()
        self._read(cluster_file(platform or folder), 0)
        if platform and (platform / CONFIGURATION_FILE).is_file():
            self._read(platform / CONFIGURATION_FILE, 0)
        #: The files to apply, for the platform and for each step.
        self.files: dict[str, list[AppliedFile]] = {
            BEFORE: [AppliedFile(path, 0) for path in (_rendered(platform) if platform else self._written(folder))]
        }
        for applied in self.files[BEFORE]:
            self._read(*applied)
        if platform:
            self._manifests.odd.clear()  #  a rendered platform may contain kinds that are not simulated

    def add(self, step: GuideStep) -> None:
        """Add the files of a step."""
        assert step.folder is not None
        at = step.starts_at
        folder = self._folder / step.folder
        needed = [AppliedFile(path, at) for path in sorted(folder.glob("*.yaml"))]
        work = []
        for paths in self._rounds(folder / "workloads"):
            for path in paths:
                work.append(AppliedFile(path, at))
                at += BETWEEN_APPLIES
            at += BETWEEN_ROUNDS
        for applied in needed:
            self._read(*applied)
        for applied in work:
            self._read(*applied, step.runtime)
        self.files[step.name] = [*needed, *work]

    def _cluster(self) -> Obj | None:
        """Return the Cluster, which is read first."""
        objects = (manifest.obj for manifest in self._manifests.objects)
        return next((obj for obj in objects if group_kind(obj) == scheme.CLUSTER), None)

    def scenario(self) -> tuple[Scenario, Sequence[str]]:
        """Build the scenario and return it with the warnings; raises InvalidScenario with all errors."""
        return make_scenario(self._manifests, self._unread), self._manifests.warnings

    def _written(self, folder: Path) -> list[Path]:
        """Return the manifests of a platform that is written by hand."""
        return [path for name in PLATFORM for path in self._files(folder / "platform" / name)]

    def _rounds(self, folder: Path) -> Iterator[Sequence[Path]]:
        """Yield, for each job number, the file of each team."""
        files = self._files(folder)
        teams = [[path for path in files if path.parent == team] for team in dict.fromkeys(p.parent for p in files)]
        for number in range(max(map(len, teams), default=0)):
            yield [team[number] for team in teams if number < len(team)]

    def _files(self, folder: Path) -> list[Path]:
        found = files_below(folder) if folder.is_dir() else []
        if not found:
            remedy = "name a folder laid out as the reference architecture: platform/ and a folder for each step"
            self._unread.append(FileFault(str(folder), FieldError("", "it contains no manifests", remedy)))
        return found

    def _read(self, path: Path, at: Duration, runtime: str | None = None) -> None:
        """Read a file that is applied at a moment, overriding its own times; `runtime` is for Jobs that have none."""
        read, moment = read_manifests(read_sources([path], self._unread)), f"{at}us"
        for manifest in read.objects:
            obj = in_typical_times(manifest.obj) if group_kind(manifest.obj) == scheme.CLUSTER else manifest.obj
            obj = with_path(obj, ("metadata", "annotations", well_known.SUBMIT_AT), moment)
            if runtime is not None and obj["kind"] in _WORK and not is_timed(obj, self._cluster()):
                obj = with_path(obj, ("metadata", "annotations", well_known.RUNTIME), runtime)
            self._manifests.objects.append(replace(manifest, obj=obj))
        self._manifests.faults += read.faults
        self._manifests.odd += read.odd


@cache
def _figures() -> _Figures:
    content = pkgutil.get_data("batchyard.sim", "guide.json")
    assert content is not None, "the figures are part of the package"
    return msgspec.json.decode(content, type=_Figures)


def _rendered(platform: Path) -> list[Path]:
    """Return the manifests of a rendered platform in order, without the engine and monitoring."""
    folder = platform / RENDERED
    found = [path for path in files_below(folder) if path.name != "kustomization.yaml"]
    return [path for path in found if path.relative_to(folder).parts[0] not in NOT_APPLIED]


def cluster_file(folder: Path) -> Path:
    """Return the cluster file of a folder, or that of our example, which is the guide's."""
    own, example = folder / CLUSTER_FILE, examples_folder()
    return own if own.is_file() or example is None else example / CLUSTER_FILE


def _row(obj: Obj) -> GuideRow:
    status = obj.get("status") or {}
    return GuideRow(status.get("pendingWorkloads", 0), status.get("admittedWorkloads", 0))
