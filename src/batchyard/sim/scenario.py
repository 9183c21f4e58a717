"""Scenarios: manifests with annotations for the time at which each object is applied and deleted; reading of files.

An optional document of kind Scenario configures the run. The annotations `batchyard.dev/submit-at` and
`batchyard.dev/delete-at` of any object give times, counted from the start. A second document of an object is an update.
Namespaces are applied before other objects of the same time; Namespaces without a document exist from the start. A
document of kind Cluster describes the nodes; without a Cluster, pods start at once and need no node.
"""

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import msgspec

from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.manifests import Manifest, ManifestFault, Manifests, as_user_manifests
from batchyard.api.meta import Key, Obj, annotation, group_kind, key_of, parse_integer
from batchyard.api.validation import rules
from batchyard.api.validation.queues import resource_weight_errors
from batchyard.base.instant import HOUR, SECOND, Duration, parse_duration
from batchyard.cloud.catalog.machine_types import catalog_of
from batchyard.cloud.cluster_objects import catalog_errors, initial_objects, pool_errors
from batchyard.kubelet.simulated import external_controllers
from batchyard.placement.gpu_policies import GpuPlacement
from batchyard.scheduling import kueue_configuration
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.kueue_configuration import (
    SIMULATION_SETTINGS,
    KueueSettings,
    parse_admission_fair_sharing,
    parse_kueue_settings,
    unsupported_field_errors,
)
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy
from batchyard.sim.faults import (
    Conflicts,
    Drain,
    Fail,
    ReclaimSpot,
    Restart,
    ScheduledFault,
    SlowBoot,
    Stockout,
    read_faults,
)

# Annotations of simulated pods: run time, exit code and checkpoint interval. A Pod, a Job, a JobSet or a Workload may
# have them, and also the templates within.


_EXIT_CODE_MAX: Final = 255


def annotation_errors(obj: Obj) -> Iterator[FieldError]:
    """Yield the errors in the annotations of an object and its pod templates that control the simulation."""
    for path, metadata in _metadata_with_paths(obj, ""):
        for name, text in (metadata.get("annotations") or {}).items():
            field_path = f"{path}metadata.annotations[{name}]"
            if name in {well_known.RUNTIME, well_known.CHECKPOINT_EVERY, well_known.RESTART_TIME}:
                yield from _duration_errors(field_path, text, can_be_zero=name != well_known.CHECKPOINT_EVERY)
            elif name == well_known.EXIT_CODE and not 0 <= _parse_number(text) <= _EXIT_CODE_MAX:
                remedy = f"use a number from 0 to {_EXIT_CODE_MAX}"
                yield FieldError(field_path, f"{text!r} is not a valid exit code", remedy)
            elif name in {well_known.CHECKS, well_known.PODS_READY}:
                yield from external_controllers.plan_errors(obj, field_path, name, text)


def _metadata_with_paths(obj: Obj, path: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    yield path, obj.get("metadata") or {}
    spec = obj.get("spec") or {}
    if isinstance(spec.get("template"), dict):
        yield from _metadata_with_paths(spec["template"], f"{path}spec.template.")
    for number, replicated in enumerate(spec.get("replicatedJobs") or ()):
        yield from _metadata_with_paths(replicated["template"], f"{path}spec.replicatedJobs[{number}].template.")


def _duration_errors(field_path: str, text: str, *, can_be_zero: bool) -> Iterator[FieldError]:
    try:
        duration = parse_duration(text)
    except ValueError as error:
        problem, _, remedy = str(error).partition("; ")
        yield FieldError(field_path, problem, remedy)
        return
    if not duration and not can_be_zero:
        remedy = "use a duration such as 5m, or remove the annotation"
        yield FieldError(field_path, "the checkpoint interval must be greater than 0", remedy)


def _parse_number(text: str) -> int:
    value = parse_integer(text)
    return -1 if value is None else value


# Validation of the targets of a scenario's faults: a fault without a target would have no effect.


class PossibleFaultTargets(NamedTuple):
    """What faults may target at any time of a scenario: the Cluster objects and their node pools."""

    #: All versions of the Cluster: the initial version, and later changes.
    clusters: Sequence[Obj]
    #: Whether the scenario has manifests of Nodes.
    has_nodes: bool

    def pools(self) -> dict[str, Any]:
        """Return the node pools of all Cluster versions by name; a pool that ever has Spot machines counts as Spot."""
        node_pools = [row for cluster in self.clusters for row in cluster["spec"].get("nodePools") or ()]
        return {row["name"]: row for row in sorted(node_pools, key=lambda row: row.get("provisioning") == "spot")}

    def may_create_pools(self) -> bool:
        """Return whether auto-provisioning may create further node pools, whose names are unknown in advance."""
        settings = [cluster["spec"].get("autoscaling") or {} for cluster in self.clusters]
        return any("autoProvisioning" in each for each in settings)


def find_missing_targets(faults: Sequence[ScheduledFault], targets: PossibleFaultTargets) -> Iterator[FieldError]:
    """Yield errors for faults whose pool, machine type or zone is unknown or unsuitable, or that lack a Cluster."""
    for fault in faults:
        path, action = fault.path, fault.action
        if isinstance(action, Conflicts | Restart):
            continue
        if not targets.clusters:
            if not (isinstance(action, Drain) and targets.has_nodes):
                remedy = "add a document of kind Cluster, or remove the fault"
                yield FieldError(path, "the fault has no target, because the scenario has no Cluster", remedy)
            continue
        yield from _missing_target_errors(action, path, targets)


def _missing_target_errors(action: object, path: str, targets: PossibleFaultTargets) -> Iterator[FieldError]:
    match action:
        case Fail(pool=pool, slice=slice_name) if pool or slice_name:
            yield from _pool_errors(pool or slice_name, f"{path}.fail.{'pool' if pool else 'slice'}", targets)
        case ReclaimSpot(pool=pool):
            yield from _pool_errors(pool, f"{path}.reclaimSpot.pool", targets)
            yield from _spot_errors(pool, f"{path}.reclaimSpot.pool", targets)
        case Stockout(machine=machine, zone=zone):
            yield from _machine_errors(machine, f"{path}.stockout.machine", targets)
            zones = {each: None for cluster in targets.clusters for each in cluster["spec"]["zones"]}
            if zone and zone not in zones:
                yield _unknown_target(f"{path}.stockout.zone", "zone", zone, zones)
        case SlowBoot(machine=machine):
            yield from _machine_errors(machine, f"{path}.slowBoot.machine", targets)


def _pool_errors(name: str, path: str, targets: PossibleFaultTargets) -> Iterator[FieldError]:
    if name not in targets.pools() and not targets.may_create_pools():
        yield _unknown_target(path, "node pool", name, targets.pools())


def _spot_errors(name: str, path: str, targets: PossibleFaultTargets) -> Iterator[FieldError]:
    pool = targets.pools().get(name)
    if pool is not None and pool.get("provisioning") != "spot":
        provisioning = pool.get("provisioning", "standard")
        problem = f"the machines of pool {name!r} are {provisioning}, but only Spot machines can be reclaimed"
        yield FieldError(path, problem, "name a pool with `provisioning: spot`, or use fail")


def _machine_errors(name: str, path: str, targets: PossibleFaultTargets) -> Iterator[FieldError]:
    known_machine_types = {machine: None for cluster in targets.clusters for machine in catalog_of(cluster).machines}
    if name not in known_machine_types:
        yield _unknown_target(path, "machine type", name, known_machine_types)


def _unknown_target(path: str, kind: str, name: str, known_names: Collection[str]) -> FieldError:
    remedy = f"add a {kind} to the Cluster, which has none"
    if close_matches := get_close_matches(name, list(known_names), 1):
        remedy = f"did you mean {close_matches[0]!r}?"
    elif known_names:
        remedy = f"use a {kind} of the Cluster, such as {min(known_names)!r}"
    return FieldError(path, f"unknown {kind} {name!r}", remedy)


# The field `waitForPodsReady` of a Scenario: as in Kueue's Configuration, but off by default.


PODS_READY_PATH: Final = "spec.waitForPodsReady"


def pods_ready_policy(
    wait_for_pods_ready: Mapping[str, Any] | None, gates: Mapping[str, bool] = well_known.GATES
) -> PodsReadyPolicy | None:
    """Return the policy for pods that are not ready in time, from `waitForPodsReady`; None if that is unset or off."""
    if wait_for_pods_ready is None or not wait_for_pods_ready["enable"]:
        return None
    return kueue_configuration.pods_ready_policy(wait_for_pods_ready, gates)


def pods_ready_errors(wait_for_pods_ready: Mapping[str, Any] | None) -> Iterator[FieldError]:
    """Yield an error if `waitForPodsReady` is on with a timeout of 0, which would evict every Workload."""
    if wait_for_pods_ready is None or not wait_for_pods_ready["enable"]:
        return
    if not parse_duration(wait_for_pods_ready["timeout"]):
        remedy = "use a time such as 5m, or set enable to false"
        timeout = wait_for_pods_ready["timeout"]
        yield rules.invalid(f"{PODS_READY_PATH}.timeout", timeout, "must be greater than 0", remedy)


#: The maximum length of a run in virtual time.
VIRTUAL_TIME_MAX: Final = 10 * 365 * 24 * HOUR


class ScenarioStep(NamedTuple):
    """A step of a scenario: at one time, objects to apply in order, then objects to delete."""

    at: Duration
    apply: Sequence[Obj]
    delete: Sequence[Key]


@dataclass(frozen=True, slots=True)
class Scenario:
    """The input of a simulation: steps, faults, and the configuration of the platform."""

    steps: Sequence[ScenarioStep]
    name: str = ""
    #: The part of Kueue's Configuration that affects scheduling.
    kueue: KueueSettings = SIMULATION_SETTINGS
    #: The time at which the run ends; None: when no more events are scheduled.
    horizon: Duration | None = None
    #: The injected faults.
    faults: Sequence[ScheduledFault] = ()
    #: Whether gangs that lost a machine may take machines from gangs of lower priority.
    hotswap: bool = True
    #: How nodes and GPUs are chosen for pods; None: as the Cluster's profile says.
    gpu_placement: GpuPlacement | None = None
    #: The Cluster on which pods run; None: pods need no nodes.
    cluster: Obj | None = None
    #: The run time of pods without another run time; None: the default of the Cluster.
    runtime: Duration | None = None
    #: The number of applied manifests by kind; Clusters are not counted.
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def fair_sharing(self) -> bool:
        """Whether the scheduler uses fair sharing."""
        return self.kueue.policy.fair_sharing

    @property
    def pods_ready(self) -> PodsReadyPolicy | None:
        """The policy for pods that are not ready in time; None if waitForPodsReady is off."""
        return self.kueue.pods_ready


class FileFault(NamedTuple):
    """An error in a source of manifests or a CSV file, such as a missing file."""

    #: The name of the file, with line and column if they are known.
    source: str
    error: FieldError

    def __str__(self) -> str:
        """Return the error as a text: `file: problem; remedy`."""
        return f"{self.source}: {self.error}"


class InvalidScenario(Exception):  # noqa: N818 - named like the API's Invalid
    """The manifests of a scenario are invalid; `faults` contains all errors."""

    def __init__(self, faults: Sequence[ManifestFault | FileFault]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = faults


def make_scenario(
    manifests: Manifests, source_errors: Sequence[FileFault] = (), existing_cluster: Obj | None = None
) -> Scenario:
    """Build the scenario that `manifests` describe.

    Raise InvalidScenario with all errors, including `source_errors`, those of unreadable sources. `existing_cluster`
    exists at the start; a document with the same name changes it.
    """
    objects = list(as_user_manifests(manifests.objects))
    faults = [*manifests.faults, *_platform_errors(objects)]
    scenario_fields: dict[str, Any] = {}
    settings: Manifest | None = None
    objects_by_time: dict[Duration, list[Obj]] = {}
    deleted_keys_by_time: dict[Duration, list[Key]] = {}
    count_by_kind: dict[str, int] = {}
    cluster = existing_cluster
    later_clusters, pools = list[Manifest](), list[Manifest]()
    for manifest in (each for each in objects if group_kind(each.obj) != scheme.CONFIGURATION):
        obj = manifest.obj
        if group_kind(obj) == scheme.SCENARIO:
            if settings is not None:
                faults.append(manifest.fault(_duplicate_error("Scenario")))
            settings = manifest
            scenario_fields = {"name": obj["metadata"].get("name") or "", **_scenario_settings(manifest, faults)}
            continue
        if group_kind(obj) == scheme.CLUSTER:
            faults += map(manifest.fault, [*catalog_errors(obj), *_cluster_deletion_errors(obj)])
            at = _time_annotation(manifest, well_known.SUBMIT_AT, faults) or 0
            if at or existing_cluster is not None:
                later_clusters.append(manifest)
                objects_by_time.setdefault(at, []).extend(initial_objects(obj))
                continue
            if cluster is not None:
                faults.append(manifest.fault(_duplicate_error("Cluster")))
            cluster = obj
            continue
        count_by_kind[obj["kind"]] = count_by_kind.get(obj["kind"], 0) + 1
        objects_by_time.setdefault(_time_annotation(manifest, well_known.SUBMIT_AT, faults) or 0, []).append(obj)
        faults += map(manifest.fault, annotation_errors(obj))
        deletion_time = _time_annotation(manifest, well_known.DELETE_AT, faults)
        if deletion_time is not None and _check_name(manifest, faults):
            deleted_keys_by_time.setdefault(deletion_time, []).append(key_of(obj))
        if group_kind(obj) == scheme.NODE_POOL:
            pools.append(manifest)
    scenario_fields |= _configuration_settings(objects, settings, faults)
    faults += _unknown_cluster_errors(later_clusters, cluster)
    faults += [pool.fault(fault) for pool in pools for fault in pool_errors(pool.obj, cluster)]
    for at, names in _removed_pools(cluster, objects_by_time):
        deleted_keys_by_time.setdefault(at, []).extend(names)
    if settings is not None:
        clusters = [*([] if cluster is None else [cluster]), *(manifest.obj for manifest in later_clusters)]
        possible_targets = PossibleFaultTargets(clusters, "Node" in count_by_kind)
        faults += map(settings.fault, find_missing_targets(scenario_fields["faults"], possible_targets))
    if faults or source_errors:
        raise InvalidScenario([*source_errors, *faults])
    initial_machines = [] if cluster is None or existing_cluster is not None else initial_objects(cluster)
    objects_by_time[0] = [*initial_machines, *objects_by_time.get(0, [])]
    steps = _make_steps(objects_by_time, deleted_keys_by_time, has_checks="AdmissionCheck" in count_by_kind)
    return Scenario(steps, counts=count_by_kind, cluster=cluster, **scenario_fields)


def _make_steps(
    objects_by_time: Mapping[Duration, Sequence[Obj]],
    deleted_keys_by_time: Mapping[Duration, Sequence[Key]],
    *,
    has_checks: bool,
) -> list[ScenarioStep]:
    if has_checks:
        objects_by_time = external_controllers.with_active_checks(objects_by_time)
    return [
        ScenarioStep(at, sorted(objects_by_time.get(at, ()), key=_apply_rank), deleted_keys_by_time.get(at, ()))
        for at in sorted({**dict.fromkeys(objects_by_time), **dict.fromkeys(deleted_keys_by_time)})
    ]


def _apply_rank(obj: Obj) -> int:
    return 0 if (kind := group_kind(obj)) == scheme.NAMESPACE else 1 if kind in scheme.EARLY_KINDS else 2


def _duplicate_error(kind: str) -> FieldError:
    return FieldError("", f"there is already a document of kind {kind}", "keep one of them")


def _platform_errors(objects: Iterable[Manifest]) -> Iterator[ManifestFault]:
    remedy = "render the Platform with `batchyard platform render`, and simulate the rendered folder"
    error = FieldError("", "an object of kind Platform cannot be simulated", remedy)
    return (manifest.fault(error) for manifest in objects if group_kind(manifest.obj) == scheme.PLATFORM)


def _unknown_cluster_errors(later_clusters: Iterable[Manifest], cluster: Obj | None) -> Iterator[ManifestFault]:
    name = None if cluster is None else cluster["metadata"]["name"]
    for manifest in later_clusters:
        if manifest.obj["metadata"]["name"] != name:
            problem = "a later Cluster must have the name of the Cluster at the start"
            remedy = f"use the same name, or remove {well_known.SUBMIT_AT}"
            yield manifest.fault(FieldError("metadata.name", problem, remedy))


def _cluster_deletion_errors(cluster: Obj) -> Iterator[FieldError]:
    if annotation(cluster, well_known.DELETE_AT) is not None:
        path = f"metadata.annotations[{well_known.DELETE_AT}]"
        remedy = "remove the annotation; spec.horizon of the Scenario ends the run"
        yield FieldError(path, "a Cluster cannot be deleted during a run", remedy)


def _removed_pools(
    cluster: Obj | None, objects_by_time: Mapping[Duration, Sequence[Obj]]
) -> Iterator[tuple[Duration, list[Key]]]:
    """Yield, for each later version of the Cluster, its time and the keys of the node pools that it no longer lists.

    A version of the Cluster without `nodePools` keeps all pools.
    """
    old_cluster = cluster
    for at in sorted(objects_by_time):
        clusters = [obj for obj in objects_by_time[at] if group_kind(obj) == scheme.CLUSTER]
        for new_cluster in (obj for obj in clusters if "nodePools" in obj["spec"]):
            kept_pool_keys = _pool_keys(new_cluster)
            yield at, [key for key in _pool_keys(old_cluster) if key not in kept_pool_keys]
            old_cluster = new_cluster


def _pool_keys(cluster: Obj | None) -> list[Key]:
    node_pools = () if cluster is None else cluster["spec"].get("nodePools") or ()
    return [Key(scheme.NODE_POOL, "", row["name"]) for row in node_pools]


def parse_run_duration(value: str | float) -> Duration:
    """Parse how long a simulation may last, as a text or in seconds; raise ValueError if the value is invalid."""
    duration = parse_duration(value) if isinstance(value, str) else value * SECOND
    if duration > VIRTUAL_TIME_MAX:
        raise ValueError(f"the run length {value} is more than ten years; use a shorter one")
    if not duration >= 0:  #  true for NaN as well
        raise ValueError(
            f"{value} is not a valid run length; use a number of seconds (0 or more), or a duration such as '2h'"
        )
    return round(duration)


def _scenario_settings(manifest: Manifest, faults: list[ManifestFault]) -> dict[str, Any]:
    spec = manifest.obj.get("spec") or {}
    text = spec.get("horizon")
    horizon = (
        None if text is None else _parse_duration_field(manifest, "spec.horizon", text, faults, parse_run_duration)
    )
    field_errors: list[FieldError] = []
    parsed_faults = read_faults(spec.get("faults") or (), field_errors)
    pods_ready_fields = spec.get("waitForPodsReady")
    field_errors += pods_ready_errors(pods_ready_fields)
    field_errors += resource_weight_errors(spec.get("admissionFairSharing") or {}, "spec.admissionFairSharing")
    gates = spec.get("featureGates") or {}
    field_errors += kueue_configuration.feature_gate_errors(gates, "spec.featureGates")
    faults += map(manifest.fault, field_errors)
    kueue_settings = replace(
        SIMULATION_SETTINGS,
        policy=SchedulingPolicy(fair_sharing=_has_fair_sharing(manifest)),
        pods_ready=pods_ready_policy(pods_ready_fields, {**well_known.GATES, **gates}),
        admission_fair_sharing=parse_admission_fair_sharing(
            spec.get("admissionFairSharing"), {**well_known.GATES, **gates}
        ),
    )
    return {
        "kueue": kueue_settings.with_gates(gates),
        "horizon": horizon,
        "faults": tuple(parsed_faults),
        "hotswap": bool(spec.get("hotswap", True)),
    }


def _configuration_settings(objects: Iterable[Manifest], settings: Manifest | None, faults: list[ManifestFault]) -> Obj:
    configurations = [manifest for manifest in objects if group_kind(manifest.obj) == scheme.CONFIGURATION]
    duplicate_error = FieldError("", "there is already a Kueue Configuration", "keep one of them")
    faults += [manifest.fault(duplicate_error) for manifest in configurations[1:]]
    faults += [manifest.fault(fault) for manifest in configurations for fault in unsupported_field_errors(manifest.obj)]
    if not configurations:
        return {}
    for name in ("waitForPodsReady", "admissionFairSharing", "featureGates"):
        if settings is not None and name in (settings.obj.get("spec") or {}):
            problem = f"{name} must not be set if there is a Kueue Configuration"
            faults.append(settings.fault(FieldError(f"spec.{name}", problem, "set it only in the Configuration")))
    kueue_settings = parse_kueue_settings(configurations[0].obj)
    return {"kueue": kueue_settings.with_fair_sharing() if _has_fair_sharing(settings) else kueue_settings}


def _has_fair_sharing(settings: Manifest | None) -> bool:
    return settings is not None and bool((settings.obj.get("spec") or {}).get("fairSharing"))


def _time_annotation(manifest: Manifest, name: str, faults: list[ManifestFault]) -> Duration | None:
    text = annotation(manifest.obj, name)
    return None if text is None else _parse_duration_field(manifest, f"metadata.annotations[{name}]", text, faults)


def _check_name(manifest: Manifest, faults: list[ManifestFault]) -> bool:
    """Return whether an object to delete has a name; if not, add an error to `faults`: generateName is random."""
    if manifest.obj["metadata"].get("name"):
        return True
    path = f"metadata.annotations[{well_known.DELETE_AT}]"
    remedy = "set metadata.name instead of generateName"
    faults.append(manifest.fault(FieldError(path, "an object with this annotation needs a name", remedy)))
    return False


def _parse_duration_field(
    manifest: Manifest,
    path: str,
    text: object,
    faults: list[ManifestFault],
    parse: Callable[[str], Duration] = parse_duration,
) -> Duration:
    try:
        return parse(str(text))
    except ValueError as error:
        problem, _, remedy = str(error).partition("; ")
        faults.append(manifest.fault(FieldError(path, problem, remedy)))
        return 0


# Reading of the user's manifests from files, folders and standard input. No other module of the simulator reads files.
#
# All unreadable sources are reported together, in the same format as errors in manifests.


SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})
STANDARD_INPUT: Final = "-"
#: The number of files of a folder whose names are compared with a missing one.
_SIBLINGS_MAX: Final = 1000
#: The least ratio of difflib at which the name of a file resembles a missing one.
_SIMILARITY_MIN: Final = 0.75
_SAVE_AS_UTF8: Final = "save the file as UTF-8, or remove the file"

#: A path, the text of manifests, or one object.
Source: TypeAlias = str | Path | Mapping[str, Any]


def read_sources(sources: Iterable[Source], faults: list[FileFault]) -> Iterator[tuple[str, str]]:
    """Yield the display name and the text of each file, text and object in `sources`.

    For each unreadable file or folder, and for a folder without manifests, add an error to `faults`.
    """
    for number, source in enumerate(sources, 1):
        if isinstance(source, Mapping):
            yield f"<object {number}>", msgspec.json.encode(source).decode()
        elif isinstance(source, str) and is_manifest_text(source):
            yield f"<text {number}>", source
        elif source == STANDARD_INPUT:
            yield from _read_file("<stdin>", None, faults)
        else:
            for path in _manifest_paths(Path(source), faults):
                yield from _read_file(str(path), path, faults)


def read_folder(folder: Path, suffix: str, faults: list[FileFault]) -> list[tuple[str, str]]:
    """Return the path and text of each file in a folder whose name ends with `suffix`, sorted by path.

    For each unreadable file, and for an unreadable folder, add an error to `faults`.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == suffix and path.is_file())
    except (OSError, ValueError) as error:
        faults.append(_unreadable_fault(str(folder), error))
        return []
    return [text for path in paths for text in _read_file(str(path), path, faults)]


def is_manifest_text(source: str) -> bool:
    """Return whether a string is manifest text (multi-line YAML, or a JSON object), not a file name."""
    return "\n" in source or source.lstrip().startswith("{")


def files_below(folder: Path) -> list[Path]:
    """Return the paths of the manifest files in a folder and its subfolders, sorted, without hidden ones.

    Raise OSError if a folder cannot be read.
    """
    paths: list[Path] = []
    for parent, subfolders, names in os.walk(folder, onerror=_raise):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        paths += [Path(parent, name) for name in names if not name.startswith(".")]
    return sorted(path for path in paths if path.suffix in SUFFIXES and path.is_file())


def _raise(error: OSError) -> NoReturn:
    raise error


def _manifest_paths(path: Path, faults: list[FileFault]) -> list[Path]:
    try:
        if not path.is_dir():
            return [path]
        paths = files_below(path)
    except (OSError, ValueError) as error:
        faults.append(_unreadable_fault(str(path), error))
        return []
    if not paths:
        names = ", ".join(f"*{suffix}" for suffix in sorted(SUFFIXES))
        problem = f"the folder contains no manifests ({names})"
        faults.append(FileFault(str(path), FieldError("", problem, "use another folder")))
    return paths


def _read_file(name: str, path: Path | None, faults: list[FileFault]) -> Iterator[tuple[str, str]]:
    """Yield the name and text of a file (`path` None: standard input); add an error to `faults` if it is unreadable."""
    try:
        raw_content = sys.stdin.buffer.read() if path is None else path.read_bytes()
        yield name, raw_content.decode()
    except UnicodeDecodeError as error:
        problem = f"the file is not text: byte {error.start} is not UTF-8"
        faults.append(FileFault(name, FieldError("", problem, _SAVE_AS_UTF8)))
    except (OSError, ValueError) as error:
        faults.append(_unreadable_fault(name, error))


def _unreadable_fault(name: str, error: OSError | ValueError) -> FileFault:
    if not isinstance(error, OSError) or not error.strerror:
        return FileFault(name, FieldError("", f"cannot be read: {error}", "check the name and the permissions"))
    name = str(error.filename or name)
    remedy = "check the name and the permissions"
    if isinstance(error, PermissionError):
        remedy = "ask its owner for the permission to read it"
    elif near_names := _similar_file_names(Path(name)):
        remedy = f"did you mean {near_names[0]}?"
    return FileFault(name, FieldError("", f"cannot be read: {error.strerror}", remedy))


def _similar_file_names(path: Path) -> list[str]:
    try:
        names = [each.name for each in islice(path.parent.iterdir(), _SIBLINGS_MAX)]
    except OSError:
        return []
    return [str(path.with_name(name)) for name in get_close_matches(path.name, names, 1, _SIMILARITY_MIN)]
