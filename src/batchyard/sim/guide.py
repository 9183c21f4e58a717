"""The guide of the batch reference architecture, played step by step, beside what its authors saw.

Spacing and figures are the guide's (`guide.json`). Within a step, for job 0 to 3, for team a to d: apply, half a second
apart, and a second after each round. The authors looked at the queues when a step had settled and nothing of it had
ended yet, and at the nodes when the cluster had grown. Rows of queues that quota arithmetic alone decides are exact:
they must be the same here; all others depend on when one looks. What the training programs take is not in the
manifests: unless an annotation says it, pods run as long as the guide's Jobs did once they had their nodes. Machines
take their typical times, so that what is to be seen hangs on no chance, in a simulation or live.
"""

import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from batchyard.api import scheme, well_known
from batchyard.api.conditions import is_true
from batchyard.api.errors import FieldError
from batchyard.api.manifests import Manifests, read_manifests
from batchyard.api.meta import Obj, annotation, group_kind, label, with_path
from batchyard.base.instant import MINUTE, SECOND, Duration, Instant, parse_duration
from batchyard.cloud.catalog.prices import in_typical_times, named_runtime
from batchyard.package_data import find_folder
from batchyard.sim.files import files_below, read_sources
from batchyard.sim.scenario import FileFault, Scenario, make_scenario
from batchyard.sim.world import EPOCH, World

#: What is applied before the first step.
BEFORE: Final = "platform"
#: The platform is applied at the start; its folders in this order.
PLATFORM: Final = ("teams", "priorityclass", "kueue")
CLUSTER_FILE: Final = "cluster.yaml"
#: What Kueue decides by, of a platform that is rendered.
CONFIGURATION_FILE: Final = "configuration.yaml"
#: Where `batchyard platform render` puts manifests, and which of its folders are not for a simulation.
RENDERED: Final = "manifests"
NOT_APPLIED: Final = frozenset({"00-engine", "70-monitoring"})
#: When the first step comes. The autoscaler looks every ten seconds, and then in the middle between two rounds of Jobs:
#: at the very instant of one it would be nobody's to say which of both was first.
START: Final = MINUTE + 2 * SECOND
BETWEEN_APPLIES: Final = SECOND // 2
BETWEEN_ROUNDS: Final = SECOND
#: What the guide's tables call the pools that are made for compactly placed Jobs.
AUTO_PROVISIONED: Final = "auto-provisioned-compact"
#: How long the cluster may take to shrink when all is done.
SHRINKING_MAX: Final = 30 * MINUTE
#: A run of the guide is over by then, and twice over.
LONGEST: Final = 24 * 60 * MINUTE


_WORK: Final = ("Job", "JobSet")


class Row(NamedTuple):
    """How many Workloads wait in a ClusterQueue, and how many are admitted."""

    pending: int = 0
    admitted: int = 0


class Applied(NamedTuple):
    """A file, and when it is applied, from the start of the world."""

    path: Path
    at: Duration


class Looks(msgspec.Struct, frozen=True):
    """How long after a step's last apply the authors looked at the queues, and at the nodes."""

    queues: str
    nodes: str


class GuideStep(msgspec.Struct, frozen=True, rename="camel"):
    """A step of the guide: its folder (None: nothing is applied), when it comes, and what the authors saw."""

    name: str
    folder: str | None
    starts_after: str
    looks: Looks
    #: How long the pods of the step run, where their manifests do not say it.
    runtime: str
    #: How many nodes the authors saw in each pool; None where they show none.
    nodes: dict[str, int] | None
    every_row_is_exact: bool
    exact_rows: tuple[str, ...]
    cluster_queues: dict[str, dict[str, int]]

    @property
    def starts_at(self) -> Duration:
        """When its first apply comes, from the start of the world."""
        return START + parse_duration(self.starts_after)

    def saw(self, queue: str) -> Row:
        """What the authors saw of a ClusterQueue; what they do not list was empty."""
        return Row(**self.cluster_queues.get(queue, {}))

    def is_exact(self, queue: str) -> bool:
        """Whether quota arithmetic alone decides the row."""
        return self.every_row_is_exact or queue in self.exact_rows


class _Figures(msgspec.Struct, frozen=True):
    steps: tuple[GuideStep, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """What is to be seen after a step: the ClusterQueues at an instant, and the nodes at a later one."""

    step: GuideStep
    now: Instant
    cluster_queues: Sequence[Obj]
    nodes_now: Instant
    nodes: Sequence[Obj]

    @property
    def pools(self) -> Mapping[str, int]:
        """How many nodes are ready in each pool."""
        return ready_by_pool(self.nodes)

    @property
    def rows(self) -> Mapping[str, Row]:
        """Every ClusterQueue's row by its name."""
        return {obj["metadata"]["name"]: _row(obj) for obj in self.cluster_queues}

    @property
    def exact(self) -> Sequence[str]:
        """The ClusterQueues whose row is exact in the guide, whether they are here or not."""
        names = dict.fromkeys([*self.rows, *self.step.exact_rows])
        return [name for name in names if self.step.is_exact(name)]

    @property
    def wrong(self) -> Sequence[str]:
        """The ClusterQueues whose row is exact in the guide and another one here."""
        return [name for name in self.exact if self.rows.get(name, Row()) != self.step.saw(name)]


def guide_steps() -> tuple[GuideStep, ...]:
    """The steps of the guide in order; the last one applies nothing."""
    return _figures().steps


def played_steps(last: str | None = None) -> tuple[GuideStep, ...]:
    """The steps that are played, up to and including one of them."""
    steps = guide_steps()
    names = [step.name for step in steps]
    return tuple(steps if last is None else steps[: names.index(last) + 1])


def examples_folder() -> Path | None:
    """Our own reference architecture, where the package has it."""
    return find_folder("examples/refarch")


def ready_by_pool(nodes: Sequence[Obj]) -> dict[str, int]:
    """How many nodes are ready in each pool; those of pools made for placement groups count together."""
    counts: dict[str, int] = {}
    for node in nodes:
        pool = pool_of(node)
        if pool is not None and is_true(node, "Ready"):
            counts[pool] = counts.get(pool, 0) + 1
    return counts


def pool_of(node: Obj) -> str | None:
    """What the guide's tables call the pool of a node; None where it has none."""
    return AUTO_PROVISIONED if label(node, well_known.PLACEMENT_GROUP) else label(node, well_known.NODE_POOL)


class Guide:
    """The guide in a world of its own, one step after the other."""

    def __init__(self, folder: Path, steps: Sequence[GuideStep], platform: Path | None = None) -> None:
        """A folder with a folder for each step; `platform` is where one is rendered, in place of the folder's own."""
        self._steps = steps
        plan = _Plan(folder, platform)
        for step in steps:
            if step.folder is not None:
                plan.add(step)
        #: What is applied for the platform (BEFORE) and for each step, in order.
        self.files: Mapping[str, Sequence[Applied]] = plan.files
        scenario, self.warnings = plan.scenario()
        #: What it is played on.
        self.cluster = scenario.cluster
        self.world = World(scenario)
        #: How many nodes there are in each pool before the first step.
        self.initial: Mapping[str, int] = {}

    def play(self) -> Iterator[Seen]:
        """Play each step, and look."""
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
            yield Seen(step, now, queues, world.kernel.now(), world.objects(scheme.NODE))

    def _wait_for_all(self, step: GuideStep) -> None:
        """Let time pass until the authors looked for the last time, and until everything is over and nodes are gone."""
        world = self.world
        world.run_until(step.starts_at)
        while self.unfinished() and world.now() < LONGEST:
            world.run_until(world.now() + MINUTE)
        latest = world.now() + SHRINKING_MAX
        while len(world.objects(scheme.NODE)) > sum(self.initial.values()) and world.now() < latest:
            world.run_until(world.now() + MINUTE)

    def objects(self, kind: str) -> Sequence[Obj]:
        """All objects of a kind."""
        return self.world.objects(kind)

    def now(self) -> Instant:
        """What time it is in the guide."""
        return self.world.kernel.now()

    @property
    def began(self) -> Instant:
        """When it began."""
        return EPOCH

    def unfinished(self) -> Sequence[Obj]:
        """The Jobs that have not succeeded."""
        return unfinished_of(self.objects(scheme.JOB))


def is_timed(obj: Obj, cluster: Obj | None) -> bool:
    """Whether a Job or JobSet, or the Cluster for it, says how long its pods run."""
    metadata = obj["metadata"]
    name = f"{metadata.get('namespace') or ''}/{metadata['name']}"
    return annotation(obj, well_known.RUNTIME) is not None or named_runtime(cluster, [name]) is not None


def unfinished_of(jobs: Sequence[Obj]) -> Sequence[Obj]:
    """Those of some Jobs that have not succeeded."""
    return [job for job in jobs if not (job.get("status") or {}).get("completionTime")]


class _Plan:
    """What is applied when, read from a folder laid out as the reference architecture."""

    def __init__(self, folder: Path, platform: Path | None) -> None:
        self._folder = folder
        self._unread: list[FileFault] = []
        self._manifests = Manifests()
        self._read(cluster_file(platform or folder), 0)
        if platform and (platform / CONFIGURATION_FILE).is_file():
            self._read(platform / CONFIGURATION_FILE, 0)
        #: What is applied, for the platform and for each step.
        self.files: dict[str, list[Applied]] = {
            BEFORE: [Applied(path, 0) for path in (_rendered(platform) if platform else self._written(folder))]
        }
        for applied in self.files[BEFORE]:
            self._read(*applied)
        if platform:
            self._manifests.odd.clear()  # kinds that do nothing here are nobody's slip: a cluster needs them

    def add(self, step: GuideStep) -> None:
        """Plan a step."""
        assert step.folder is not None
        at = step.starts_at
        folder = self._folder / step.folder
        needed = [Applied(path, at) for path in sorted(folder.glob("*.yaml"))]
        work = []
        for paths in self._rounds(folder / "workloads"):
            for path in paths:
                work.append(Applied(path, at))
                at += BETWEEN_APPLIES
            at += BETWEEN_ROUNDS
        for applied in needed:
            self._read(*applied)
        for applied in work:
            self._read(*applied, step.runtime)
        self.files[step.name] = [*needed, *work]

    def _cluster(self) -> Obj | None:
        """The Cluster, which is read first."""
        objects = (manifest.obj for manifest in self._manifests.objects)
        return next((obj for obj in objects if group_kind(obj) == scheme.CLUSTER), None)

    def scenario(self) -> tuple[Scenario, Sequence[str]]:
        """All of it, and what is to be said about it; InvalidScenario with every fault."""
        return make_scenario(self._manifests, self._unread), self._manifests.warnings

    def _written(self, folder: Path) -> list[Path]:
        """The manifests of a platform that is written by hand."""
        return [path for name in PLATFORM for path in self._files(folder / "platform" / name)]

    def _rounds(self, folder: Path) -> Iterator[Sequence[Path]]:
        """For each number of a job, its file of every team."""
        files = self._files(folder)
        teams = [[path for path in files if path.parent == team] for team in dict.fromkeys(p.parent for p in files)]
        for number in range(max(map(len, teams), default=0)):
            yield [team[number] for team in teams if number < len(team)]

    def _files(self, folder: Path) -> list[Path]:
        found = files_below(folder) if folder.is_dir() else []
        if not found:
            remedy = "name a folder laid out as the reference architecture: platform/ and a folder for each step"
            self._unread.append(FileFault(str(folder), FieldError("", "no manifests are there", remedy)))
        return found

    def _read(self, path: Path, at: Duration, runtime: str | None = None) -> None:
        """Read a file that is applied at a moment, whatever it says itself; its Jobs run so long unless they say it."""
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
    """The manifests of a platform that is rendered, in order: what decides and who watches come with the simulator."""
    folder = platform / RENDERED
    found = [path for path in files_below(folder) if path.name != "kustomization.yaml"]
    return [path for path in found if path.relative_to(folder).parts[0] not in NOT_APPLIED]


def cluster_file(folder: Path) -> Path:
    """The cluster of a folder; where it has none, that of our example, which is the guide's."""
    own, example = folder / CLUSTER_FILE, examples_folder()
    return own if own.is_file() or example is None else example / CLUSTER_FILE


def _row(obj: Obj) -> Row:
    status = obj.get("status") or {}
    return Row(status.get("pendingWorkloads", 0), status.get("admittedWorkloads", 0))
