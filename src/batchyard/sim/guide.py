"""Simulates Google's guide to its GKE batch reference architecture step by step, with the guide's published figures.

`guide.json` contains the guide's times and figures. In a step, the Job files are applied in rounds: one file of each
team, half a second apart, and another second after each round. The guide's authors read the queues when a step had
settled and none of its Jobs had ended. They read the nodes when the cluster had grown. Rows that follow from quota
arithmetic alone are exact and must be equal in the simulation; other rows depend on the time of the reading. The
manifests do not contain run times. Without an annotation, pods run as long as the guide's Jobs did on their nodes.
Machines boot in their typical times, so that the figures do not depend on random numbers.
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
from batchyard.cloud.catalog.pool_properties import with_typical_times
from batchyard.jobs.job.spec import is_finished
from batchyard.kubelet.simulated.durations import named_runtime
from batchyard.package_data import find_folder
from batchyard.sim.scenario import FileFault, InvalidScenario, Scenario, files_below, make_scenario, read_sources
from batchyard.sim.world import EPOCH, World

#: The name for the files of the platform, which are applied before the first step.
PLATFORM_FILES: Final = "platform"
#: The folders of the platform's files, in the order in which they are applied at the start.
PLATFORM_FOLDERS: Final = ("teams", "priorityclass", "kueue")
CLUSTER_FILE: Final = "cluster.yaml"
#: The file with Kueue's Configuration in a rendered platform.
CONFIGURATION_FILE: Final = "configuration.yaml"
#: The folder to which `batchyard platform render` writes manifests, and its subfolders that are not simulated.
RENDERED_FOLDER: Final = "manifests"
NOT_APPLIED_FOLDERS: Final = frozenset({"00-engine", "70-monitoring"})
#: The time of the first step. The autoscaler, which runs every ten seconds, then runs between two rounds of Jobs.
FIRST_STEP_AT: Final = MINUTE + 2 * SECOND
APPLY_INTERVAL: Final = SECOND // 2
ROUND_INTERVAL: Final = SECOND
#: The name in the guide's tables for the pools that are created for compactly placed Jobs.
AUTO_PROVISIONED: Final = "auto-provisioned-compact"
#: The maximum time to wait until the cluster has shrunk after the last Job.
SHRINKING_TIME_MAX: Final = 30 * MINUTE
#: The maximum length of a run of the guide, about twice its usual length.
RUN_LENGTH_MAX: Final = 24 * 60 * MINUTE


_JOB_KINDS: Final = ("Job", "JobSet")


class GuideRow(NamedTuple):
    """A row of a table in the guide: the numbers of pending and admitted Workloads of a ClusterQueue."""

    pending: int = 0
    admitted: int = 0


class AppliedFile(NamedTuple):
    """A manifest file of the guide, and when it is applied, counted from the start of the simulation."""

    path: Path
    at: Duration


class ObservationTimes(msgspec.Struct, frozen=True):
    """How long after the last manifest of a step the guide's authors recorded the queues and nodes, as durations."""

    queues: str
    nodes: str


class GuideStep(msgspec.Struct, frozen=True, rename="camel"):
    """A step of the simulated guide: its manifests, start and observation times, and the results in the guide."""

    name: str
    #: None: the step applies no files.
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
        """When the first file of the step is applied, counted from the start of the simulation."""
        return FIRST_STEP_AT + parse_duration(self.starts_after)

    def published_row(self, queue: str) -> GuideRow:
        """Return the figures that the guide shows for a ClusterQueue; zeros if the guide does not list it."""
        return GuideRow(**self.cluster_queues.get(queue, {}))

    def has_exact_row(self, queue: str) -> bool:
        """Return whether the guide's figures for a ClusterQueue follow from quota alone, regardless of timing."""
        return self.every_row_is_exact or queue in self.exact_rows


class _GuideFile(msgspec.Struct, frozen=True):
    steps: tuple[GuideStep, ...]


@dataclass(frozen=True, slots=True)
class GuideObservation:
    """The simulated state after a step: the ClusterQueues at one instant, and the nodes at a later instant."""

    step: GuideStep
    now: Instant
    cluster_queues: Sequence[Obj]
    nodes_now: Instant
    nodes: Sequence[Obj]

    @property
    def pools(self) -> Mapping[str, int]:
        """The number of ready nodes by node pool."""
        return ready_by_pool(self.nodes)

    @property
    def rows(self) -> Mapping[str, GuideRow]:
        """The simulated figures of all ClusterQueues, by name."""
        return {obj["metadata"]["name"]: _row_of(obj) for obj in self.cluster_queues}

    @property
    def queues_with_exact_rows(self) -> Sequence[str]:
        """The ClusterQueues whose figures must equal the guide's, because quota alone determines them."""
        names = dict.fromkeys([*self.rows, *self.step.exact_rows])
        return [name for name in names if self.step.has_exact_row(name)]

    @property
    def queues_with_wrong_rows(self) -> Sequence[str]:
        """The ClusterQueues whose figures must equal the guide's, but differ in the simulation."""
        return [
            name
            for name in self.queues_with_exact_rows
            if self.rows.get(name, GuideRow()) != self.step.published_row(name)
        ]


def guide_steps() -> tuple[GuideStep, ...]:
    """Return the steps of the guide in order; the last step has no files."""
    return _load_guide_file().steps


def guide_steps_up_to(last_step_name: str | None = None) -> tuple[GuideStep, ...]:
    """Return the steps of the guide up to and including the step `last_step_name`; None: all steps.

    Raise ValueError if the guide has no step of this name.
    """
    steps = guide_steps()
    names = [step.name for step in steps]
    return tuple(steps if last_step_name is None else steps[: names.index(last_step_name) + 1])


def examples_folder() -> Path | None:
    """Return the folder of batchyard's copy of the reference architecture; None if it is not installed."""
    return find_folder("examples/refarch")


def ready_by_pool(nodes: Sequence[Obj]) -> dict[str, int]:
    """Return the number of ready nodes by node pool; all pools created for placement groups count as one."""
    count_by_pool: dict[str, int] = {}
    for node in nodes:
        pool = pool_of(node)
        if pool is not None and is_true(node, "Ready"):
            count_by_pool[pool] = count_by_pool.get(pool, 0) + 1
    return count_by_pool


def pool_of(node: Obj) -> str | None:
    """Return the node pool of a node as the guide's tables name it; None if it belongs to no pool."""
    return AUTO_PROVISIONED if label(node, well_known.PLACEMENT_GROUP) else label(node, well_known.NODE_POOL)


class Guide:
    """A simulation of the guide that is run step by step."""

    def __init__(self, folder: Path, steps: Sequence[GuideStep], platform: Path | None = None) -> None:
        """Read the manifests of the steps in `folder`; the platform's files come from `platform` or else `folder`.

        Raise InvalidScenario with all errors.
        """
        if not folder.is_dir():
            raise InvalidScenario([_missing_folder_fault(folder)])
        self._steps = steps
        guide_plan = _GuidePlan(folder, platform)
        for step in steps:
            if step.folder is not None:
                guide_plan.add(step)
        #: The files of the platform (PLATFORM_FILES) and of each step, in order.
        self.files: Mapping[str, Sequence[AppliedFile]] = guide_plan.files
        scenario, self.warnings = guide_plan.scenario()
        #: The Cluster object of the simulated world.
        self.cluster = scenario.cluster
        self.world = World(scenario)
        #: The node counts by pool before the first step.
        self.initial_node_counts: Mapping[str, int] = {}

    def play(self) -> Iterator[GuideObservation]:
        """Run each step of the guide, and yield the simulated ClusterQueues and nodes after the step."""
        world = self.world
        world.run_until(FIRST_STEP_AT - SECOND)
        self.initial_node_counts = ready_by_pool(world.objects(scheme.NODE))
        for step in self._steps:
            if step.folder is None:
                self._wait_for_all(step)
                last_applied_at = world.now()
            else:
                last_applied_at = self.files[step.name][-1].at
            world.run_until(last_applied_at + parse_duration(step.looks.queues))
            world.flush_batched_writes()
            now, queues = world.kernel.now(), world.objects(scheme.CLUSTER_QUEUE)
            world.run_until(last_applied_at + parse_duration(step.looks.nodes))
            yield GuideObservation(step, now, queues, world.kernel.now(), world.objects(scheme.NODE))

    def _wait_for_all(self, step: GuideStep) -> None:
        world = self.world
        world.run_until(step.starts_at)
        while self.unfinished_jobs() and world.now() < RUN_LENGTH_MAX:
            world.run_until(world.now() + MINUTE)
        deadline = world.now() + SHRINKING_TIME_MAX
        while len(world.objects(scheme.NODE)) > sum(self.initial_node_counts.values()) and world.now() < deadline:
            world.run_until(world.now() + MINUTE)

    def objects(self, kind: str) -> Sequence[Obj]:
        """Return all stored objects of a kind."""
        return self.world.objects(kind)

    def now(self) -> Instant:
        """Return the current virtual time."""
        return self.world.kernel.now()

    @property
    def start_time(self) -> Instant:
        """The start time of the simulated world."""
        return EPOCH

    def unfinished_jobs(self) -> Sequence[Obj]:
        """Return the stored Jobs that have neither completed nor failed."""
        return find_unfinished_jobs(self.objects(scheme.JOB))


def has_run_time(obj: Obj, cluster: Obj | None) -> bool:
    """Return whether a Job or JobSet has a run time, by an annotation or in the Cluster object."""
    metadata = obj["metadata"]
    name = f"{metadata.get('namespace') or ''}/{metadata['name']}"
    return annotation(obj, well_known.RUNTIME) is not None or named_runtime(cluster, [name]) is not None


def find_unfinished_jobs(jobs: Sequence[Obj]) -> Sequence[Obj]:
    """Return the Jobs that have neither completed nor failed."""
    return [job for job in jobs if not is_finished(job)]


class _GuidePlan:
    def __init__(self, folder: Path, platform: Path | None) -> None:
        self._folder = folder
        self._source_errors: list[FileFault] = []
        self._manifests = Manifests()
        self._read_file(cluster_file(platform or folder), 0)
        if platform and (platform / CONFIGURATION_FILE).is_file():
            self._read_file(platform / CONFIGURATION_FILE, 0)
        #: The files of the platform (PLATFORM_FILES) and of each step, in order.
        self.files: dict[str, list[AppliedFile]] = {
            PLATFORM_FILES: [
                AppliedFile(path, 0)
                for path in (_rendered_files(platform) if platform else self._platform_files(folder))
            ]
        }
        for applied_file in self.files[PLATFORM_FILES]:
            self._read_file(*applied_file)
        if platform:
            # No warnings: a rendered platform contains kinds that are not simulated.
            self._manifests.located_warnings.clear()

    def add(self, step: GuideStep) -> None:
        assert step.folder is not None
        at = step.starts_at
        folder = self._folder / step.folder
        setup_files = [AppliedFile(path, at) for path in sorted(folder.glob("*.yaml"))]
        job_files = []
        for paths in self._job_file_rounds(folder / "workloads"):
            for path in paths:
                job_files.append(AppliedFile(path, at))
                at += APPLY_INTERVAL
            at += ROUND_INTERVAL
        for applied_file in setup_files:
            self._read_file(*applied_file)
        for applied_file in job_files:
            self._read_file(*applied_file, step.runtime)
        self.files[step.name] = [*setup_files, *job_files]

    def _find_cluster(self) -> Obj | None:
        objects = (manifest.obj for manifest in self._manifests.objects)
        return next((obj for obj in objects if group_kind(obj) == scheme.CLUSTER), None)

    def scenario(self) -> tuple[Scenario, Sequence[str]]:
        return make_scenario(self._manifests, self._source_errors), self._manifests.warnings

    def _platform_files(self, folder: Path) -> list[Path]:
        return [path for name in PLATFORM_FOLDERS for path in self._manifest_files(folder / "platform" / name)]

    def _job_file_rounds(self, folder: Path) -> Iterator[Sequence[Path]]:
        """Yield the Job files in rounds: the first file of each team, then the second of each, and so on."""
        files = self._manifest_files(folder)
        teams = [[path for path in files if path.parent == team] for team in dict.fromkeys(p.parent for p in files)]
        for number in range(max(map(len, teams), default=0)):
            yield [team[number] for team in teams if number < len(team)]

    def _manifest_files(self, folder: Path) -> list[Path]:
        if not folder.is_dir():
            self._source_errors.append(_missing_folder_fault(folder))
            return []
        paths = files_below(folder)
        if not paths:
            self._source_errors.append(_folder_fault(folder, "the folder contains no manifests"))
        return paths

    def _read_file(self, path: Path, at: Duration, runtime: str | None = None) -> None:
        manifests, submit_time = read_manifests(read_sources([path], self._source_errors)), f"{at}us"
        for manifest in manifests.objects:
            obj = with_typical_times(manifest.obj) if group_kind(manifest.obj) == scheme.CLUSTER else manifest.obj
            obj = with_path(obj, ("metadata", "annotations", well_known.SUBMIT_AT), submit_time)
            if runtime is not None and obj["kind"] in _JOB_KINDS and not has_run_time(obj, self._find_cluster()):
                obj = with_path(obj, ("metadata", "annotations", well_known.RUNTIME), runtime)
            self._manifests.objects.append(replace(manifest, obj=obj))
        self._manifests.faults += manifests.faults
        self._manifests.located_warnings += manifests.located_warnings


def _missing_folder_fault(folder: Path) -> FileFault:
    return _folder_fault(folder, "this is not a folder" if folder.exists() else "the folder does not exist")


def _folder_fault(folder: Path, problem: str) -> FileFault:
    remedy = "use a folder like examples/refarch, with platform/ and a folder for each step"
    return FileFault(str(folder), FieldError("", problem, remedy))


@cache
def _load_guide_file() -> _GuideFile:
    guide_content = pkgutil.get_data("batchyard.sim", "guide.json")
    assert guide_content is not None, "the file guide.json is missing: reinstall the package batchyard"
    return msgspec.json.decode(guide_content, type=_GuideFile)


def _rendered_files(platform: Path) -> list[Path]:
    folder = platform / RENDERED_FOLDER
    paths = [path for path in files_below(folder) if path.name != "kustomization.yaml"]
    return [path for path in paths if path.relative_to(folder).parts[0] not in NOT_APPLIED_FOLDERS]


def cluster_file(folder: Path) -> Path:
    """Return the path of `cluster.yaml` in a folder; if that does not exist, the path in an installed example."""
    path, examples_path = folder / CLUSTER_FILE, examples_folder()
    return path if path.is_file() or examples_path is None else examples_path / CLUSTER_FILE


def _row_of(obj: Obj) -> GuideRow:
    status = obj.get("status") or {}
    return GuideRow(status.get("pendingWorkloads", 0), status.get("admittedWorkloads", 0))
