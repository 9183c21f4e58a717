"""Scenarios: ordinary manifests, with annotations for when they are applied and deleted.

Format: an optional first document of kind Scenario configures the run. `batchyard.dev/submit-at` and
`batchyard.dev/delete-at` on any object give the times, counted from the start. A later document of an existing object
is an update. Namespaces come first in their moment; those that are used but not given exist from the start. A document
of kind Cluster describes the nodes; without one, pods start at once and need no node.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from os import SEEK_END
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.manifests import Manifest, ManifestFault, Manifests
from batchyard.api.meta import Key, Obj, annotation, group_kind, key_of, whole_number
from batchyard.api.validation import rules
from batchyard.base.instant import HOUR, SECOND, Duration, parse_duration
from batchyard.cloud.catalog.machine_types import catalog_of
from batchyard.cloud.cluster_objects import catalog_faults, initial_objects, pool_faults
from batchyard.scheduling import kueue_configuration
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.kueue_configuration import (
    SIMULATED,
    KueueSettings,
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

# --- annotations ---
#
# Annotations of simulated pods: their run time, their exit code, and their checkpoint interval. They may be on a Pod, a
# Job, a JobSet or a Workload, and on the templates within.


_EXIT_CODE_MAX: Final = 255


def annotation_faults(obj: Obj) -> Iterator[FieldError]:
    """Yield the errors in these annotations of an object and its templates."""
    for path, metadata in _annotated(obj, ""):
        for name, text in (metadata.get("annotations") or {}).items():
            place = f"{path}metadata.annotations[{name}]"
            if name in {well_known.RUNTIME, well_known.CHECKPOINT_EVERY}:
                yield from _duration_faults(place, text, can_be_zero=name == well_known.RUNTIME)
            elif name == well_known.EXIT_CODE and not 0 <= _number(text) <= _EXIT_CODE_MAX:
                yield FieldError(place, f"{text!r} is not an exit code", f"give a number from 0 to {_EXIT_CODE_MAX}")


def _annotated(obj: Obj, path: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Yield the metadata of an object and of the templates within, each with its path prefix."""
    yield path, obj.get("metadata") or {}
    spec = obj.get("spec") or {}
    if isinstance(spec.get("template"), dict):
        yield from _annotated(spec["template"], f"{path}spec.template.")
    for number, replicated in enumerate(spec.get("replicatedJobs") or ()):
        yield from _annotated(replicated["template"], f"{path}spec.replicatedJobs[{number}].template.")


def _duration_faults(place: str, text: str, *, can_be_zero: bool) -> Iterator[FieldError]:
    try:
        duration = parse_duration(text)
    except ValueError as error:
        problem, _, remedy = str(error).partition("; ")
        yield FieldError(place, problem, remedy)
        return
    if not duration and not can_be_zero:
        yield FieldError(place, "the checkpoint interval cannot be 0", "give a duration such as 5m, or leave it out")


def _number(text: str) -> int:
    value = whole_number(text)
    return -1 if value is None else value


# --- fault targets ---
#
# Checks the targets of a scenario's faults against the Cluster: a fault without a target would never happen.


class Targets(NamedTuple):
    """The possible targets of faults, at any time of the scenario."""

    #: All versions of the Cluster: the initial one, and later changes.
    clusters: Sequence[Obj]
    has_nodes: bool

    def pools(self) -> dict[str, Any]:
        """Return the pools by name; a pool that ever has Spot machines counts as Spot."""
        rows = [row for cluster in self.clusters for row in cluster["spec"].get("nodePools") or ()]
        return {row["name"]: row for row in sorted(rows, key=lambda row: row.get("provisioning") == "spot")}

    def makes_pools(self) -> bool:
        """Whether pools can be created automatically, with names that are not known yet."""
        settings = [cluster["spec"].get("autoscaling") or {} for cluster in self.clusters]
        return any("autoProvisioning" in each for each in settings)


def target_faults(faults: Sequence[ScheduledFault], targets: Targets) -> Iterator[FieldError]:
    """Yield the faults whose target does not exist, with its path."""
    for fault in faults:
        path, action = fault.path, fault.action
        if isinstance(action, Conflicts | Restart):
            continue
        if not targets.clusters:
            if not (isinstance(action, Drain) and targets.has_nodes):
                remedy = "add a document of kind Cluster, or drop the fault"
                yield FieldError(path, "without a Cluster the fault has no target", remedy)
            continue
        yield from _found_faults(action, path, targets)


def _found_faults(action: object, path: str, targets: Targets) -> Iterator[FieldError]:
    match action:
        case Fail(pool=pool, slice=whole) if pool or whole:
            yield from _pool_faults(pool or whole, f"{path}.fail.{'pool' if pool else 'slice'}", targets)
        case ReclaimSpot(pool=pool):
            yield from _pool_faults(pool, f"{path}.reclaimSpot.pool", targets)
            yield from _spot_faults(pool, f"{path}.reclaimSpot.pool", targets)
        case Stockout(machine=machine, zone=zone):
            yield from _machine_faults(machine, f"{path}.stockout.machine", targets)
            zones = {each: None for cluster in targets.clusters for each in cluster["spec"]["zones"]}
            if zone and zone not in zones:
                yield _unknown(f"{path}.stockout.zone", "zone", zone, zones)
        case SlowBoot(machine=machine):
            yield from _machine_faults(machine, f"{path}.slowBoot.machine", targets)


def _pool_faults(name: str, path: str, targets: Targets) -> Iterator[FieldError]:
    if name not in targets.pools() and not targets.makes_pools():
        yield _unknown(path, "node pool", name, targets.pools())


def _spot_faults(name: str, path: str, targets: Targets) -> Iterator[FieldError]:
    pool = targets.pools().get(name)
    if pool is not None and pool.get("provisioning") != "spot":
        provisioning = pool.get("provisioning", "standard")
        problem = f"the machines of {name!r} are {provisioning}; only Spot machines are reclaimed"
        yield FieldError(path, problem, "name a pool with `provisioning: spot`, or use fail")


def _machine_faults(name: str, path: str, targets: Targets) -> Iterator[FieldError]:
    known = {machine: None for cluster in targets.clusters for machine in catalog_of(cluster).machines}
    if name not in known:
        yield _unknown(path, "machine type", name, known)


def _unknown(path: str, what: str, name: str, known: Collection[str]) -> FieldError:
    close = get_close_matches(name, list(known), 1)
    hint = f"did you mean {close[0]!r}?" if close else f"name one that the Cluster has, such as {min(known)!r}"
    return FieldError(path, f"unknown {what} {name!r}", hint if known else "the Cluster has none")


# --- wait for pods ready ---
#
# A scenario's `waitForPodsReady`: as in Kueue's Configuration, but off by default.


PATH: Final = "spec.waitForPodsReady"


def pods_ready_policy(asked: Mapping[str, Any] | None) -> PodsReadyPolicy | None:
    """Return the policy for pods that are not ready in time; None without a time limit."""
    return kueue_configuration.pods_ready_policy(asked) if asked is not None and asked["enable"] else None


def pods_ready_faults(asked: Mapping[str, Any] | None) -> Iterator[FieldError]:
    """Yield the errors beyond the schema: with a timeout of 0 every Workload would be evicted."""
    if asked is not None and not parse_duration(asked["timeout"]):
        remedy = "give a time such as 5m, or set enable to false"
        yield rules.invalid(f"{PATH}.timeout", asked["timeout"], "must be greater than 0", remedy)


#: The maximum length of a run.
VIRTUAL_TIME_MAX: Final = 10 * 365 * 24 * HOUR


class ScenarioStep(NamedTuple):
    """The actions of one moment: objects to apply in order, then objects to delete."""

    at: Duration
    apply: Sequence[Obj]
    delete: Sequence[Key]


@dataclass(frozen=True, slots=True)
class Scenario:
    """The steps, the faults and the configuration of a run."""

    steps: Sequence[ScenarioStep]
    name: str = ""
    #: The part of Kueue's Configuration that affects scheduling.
    kueue: KueueSettings = SIMULATED
    #: The end of the run at the latest; None: when no more events are scheduled.
    horizon: Duration | None = None
    #: The injected faults.
    faults: Sequence[ScheduledFault] = ()
    #: Whether gangs that lost a machine take machines of gangs of lower priority.
    hotswap: bool = True
    #: The Cluster on which pods run; None: anywhere.
    cluster: Obj | None = None
    #: The run time of pods that have no other one; None: that of the Cluster.
    runtime: Duration | None = None
    #: The number of applied objects by kind.
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def fair_sharing(self) -> bool:
        """Whether fair sharing is on."""
        return self.kueue.policy.fair_sharing

    @property
    def pods_ready(self) -> PodsReadyPolicy | None:
        """Return the policy for pods that are not ready in time; None without a time limit."""
        return self.kueue.pods_ready


class FileFault(NamedTuple):
    """An error of a file as a whole."""

    source: str
    error: FieldError

    def __str__(self) -> str:
        """Return `file: problem; remedy`."""
        return f"{self.source}: {self.error}"


class InvalidScenario(Exception):  # noqa: N818 - named like the API's Invalid
    """The manifests cannot be run; `faults` holds all errors."""

    def __init__(self, faults: Sequence[ManifestFault | FileFault]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = faults


def make_scenario(manifests: Manifests, unread: Sequence[FileFault] = (), there: Obj | None = None) -> Scenario:
    """Build the scenario of a set of manifests.

    Raises InvalidScenario with all errors at once, those of unread files included. `there` is a Cluster that exists at
    the
    start: a document of the same name changes it.
    """
    faults = [*manifests.faults, *_platform_faults(manifests.objects)]
    config: dict[str, Any] = {}
    settings: Manifest | None = None
    applied: dict[Duration, list[Obj]] = {}
    deleted: dict[Duration, list[Key]] = {}
    counts: dict[str, int] = {}
    cluster = there
    later: list[Manifest] = []
    pools: list[Manifest] = []
    for manifest in (each for each in manifests.objects if group_kind(each.obj) != scheme.CONFIGURATION):
        obj = manifest.obj
        if group_kind(obj) == scheme.SCENARIO:
            if settings is not None:
                faults.append(manifest.fault(FieldError("", "the run has a Scenario already", "keep one of them")))
            settings = manifest
            config = {"name": obj["metadata"].get("name") or "", **_config(manifest, faults)}
            continue
        if group_kind(obj) == scheme.CLUSTER:
            faults += map(manifest.fault, [*catalog_faults(obj), *_staying_faults(obj)])
            at = _moment(manifest, well_known.SUBMIT_AT, faults) or 0
            if at or there is not None:
                later.append(manifest)
                applied.setdefault(at, []).extend(initial_objects(obj))
                continue
            if cluster is not None:
                faults.append(manifest.fault(FieldError("", "there is a Cluster already", "keep one of them")))
            cluster = obj
            continue
        counts[obj["kind"]] = counts.get(obj["kind"], 0) + 1
        applied.setdefault(_moment(manifest, well_known.SUBMIT_AT, faults) or 0, []).append(obj)
        faults += map(manifest.fault, annotation_faults(obj))
        end = _moment(manifest, well_known.DELETE_AT, faults)
        if end is not None and _is_named(manifest, faults):
            deleted.setdefault(end, []).append(key_of(obj))
        if group_kind(obj) == scheme.NODE_POOL:
            pools.append(manifest)
    config |= _configured(manifests.objects, settings, faults)
    faults += _changes_of_nothing(later, cluster)
    faults += [pool.fault(fault) for pool in pools for fault in pool_faults(pool.obj, cluster)]
    for at, names in _dropped_pools(cluster, applied):
        deleted.setdefault(at, []).extend(names)
    if settings is not None:
        clusters = [manifest.obj for manifest in later] if cluster is None else [cluster, *[m.obj for m in later]]
        faults += map(settings.fault, target_faults(config["faults"], Targets(clusters, "Node" in counts)))
    if faults or unread:
        raise InvalidScenario([*unread, *faults])
    machines = [] if cluster is None or there is not None else initial_objects(cluster)
    applied[0] = [*machines, *applied.get(0, [])]
    moments = sorted({**dict.fromkeys(applied), **dict.fromkeys(deleted)})
    steps = [ScenarioStep(at, sorted(applied.get(at, ()), key=_is_content), deleted.get(at, ())) for at in moments]
    return Scenario(steps, counts=counts, cluster=cluster, **config)


def _is_content(obj: Obj) -> bool:
    """Whether it comes after the Namespaces of its moment."""
    return group_kind(obj) != scheme.NAMESPACE


def _platform_faults(objects: Iterable[Manifest]) -> Iterator[ManifestFault]:
    """Yield an error for each Platform: it has to be rendered to manifests first."""
    remedy = "render it with `batchyard platform render` and give the result"
    error = FieldError("", "a Platform cannot be simulated", remedy)
    return (manifest.fault(error) for manifest in objects if group_kind(manifest.obj) == scheme.PLATFORM)


def _changes_of_nothing(later: Iterable[Manifest], cluster: Obj | None) -> Iterator[ManifestFault]:
    """Yield an error for each later Cluster that does not change the initial one."""
    name = None if cluster is None else cluster["metadata"]["name"]
    for manifest in later:
        if manifest.obj["metadata"]["name"] != name:
            problem = "no Cluster of this name exists at the start"
            yield manifest.fault(
                FieldError("metadata.name", problem, "use the name of the initial one, or drop the time of the change")
            )


def _staying_faults(cluster: Obj) -> Iterator[FieldError]:
    if annotation(cluster, well_known.DELETE_AT) is not None:
        path = f"metadata.annotations[{well_known.DELETE_AT}]"
        yield FieldError(path, "a Cluster stays until the end of the run", "leave it out; spec.horizon ends the run")


def _dropped_pools(
    cluster: Obj | None, applied: Mapping[Duration, Sequence[Obj]]
) -> Iterator[tuple[Duration, list[Key]]]:
    """Yield the pools that a changed Cluster no longer lists, with the moment of their deletion.

    A change without a list of pools keeps all of them.
    """
    before = cluster
    for at in sorted(applied):
        clusters = [obj for obj in applied[at] if group_kind(obj) == scheme.CLUSTER]
        for changed in (obj for obj in clusters if "nodePools" in obj["spec"]):
            kept = _pool_keys(changed)
            yield at, [key for key in _pool_keys(before) if key not in kept]
            before = changed


def _pool_keys(cluster: Obj | None) -> list[Key]:
    rows = () if cluster is None else cluster["spec"].get("nodePools") or ()
    return [Key(scheme.NODE_POOL, "", row["name"]) for row in rows]


def run_length(given: str | float) -> Duration:
    """Return the maximum length of a run, given as a text or in seconds; ValueError if it is invalid."""
    duration = parse_duration(given) if isinstance(given, str) else given * SECOND
    if duration > VIRTUAL_TIME_MAX:
        raise ValueError(f"{given} is more than ten years; stop earlier")
    if not duration >= 0:  #  true for NaN as well
        raise ValueError(f"{given} is not a run length; give seconds from 0 on, or a text such as '2h'")
    return round(duration)


def _config(manifest: Manifest, faults: list[ManifestFault]) -> dict[str, Any]:
    spec = manifest.obj.get("spec") or {}
    text = spec.get("horizon")
    horizon = None if text is None else _duration(manifest, "spec.horizon", text, faults, run_length)
    wrong: list[FieldError] = []
    read = read_faults(spec.get("faults") or (), wrong)
    waits = spec.get("waitForPodsReady")
    wrong += pods_ready_faults(waits)
    faults += map(manifest.fault, wrong)
    policy = SchedulingPolicy(fair_sharing=_is_fair(manifest))
    return {
        "kueue": replace(SIMULATED, policy=policy, pods_ready=pods_ready_policy(waits)),
        "horizon": horizon,
        "faults": tuple(read),
        "hotswap": bool(spec.get("hotswap", True)),
    }


def _configured(objects: Iterable[Manifest], settings: Manifest | None, faults: list[ManifestFault]) -> dict[str, Any]:
    """Return the settings of Kueue's Configuration, if any; fair sharing is on if it or the Scenario says so."""
    found = [manifest for manifest in objects if group_kind(manifest.obj) == scheme.CONFIGURATION]
    again = FieldError("", "Kueue has a Configuration already", "keep one of them")
    faults += [manifest.fault(again) for manifest in found[1:]]
    faults += [manifest.fault(fault) for manifest in found for fault in unsupported_field_errors(manifest.obj)]
    if not found:
        return {}
    if settings is not None and "waitForPodsReady" in (settings.obj.get("spec") or {}):
        problem = "it is already set by Kueue's Configuration"
        faults.append(settings.fault(FieldError("spec.waitForPodsReady", problem, "keep one of them")))
    configured = parse_kueue_settings(found[0].obj)
    return {"kueue": configured.sharing_fairly() if _is_fair(settings) else configured}


def _is_fair(settings: Manifest | None) -> bool:
    return settings is not None and bool((settings.obj.get("spec") or {}).get("fairSharing"))


def _moment(manifest: Manifest, name: str, faults: list[ManifestFault]) -> Duration | None:
    text = annotation(manifest.obj, name)
    return None if text is None else _duration(manifest, f"metadata.annotations[{name}]", text, faults)


def _is_named(manifest: Manifest, faults: list[ManifestFault]) -> bool:
    """Whether an object to delete has a name; a name generated by the API is not known beforehand."""
    if manifest.obj["metadata"].get("name"):
        return True
    path = f"metadata.annotations[{well_known.DELETE_AT}]"
    faults.append(manifest.fault(FieldError(path, "the object to delete has no name yet", "give it a name")))
    return False


def _duration(
    manifest: Manifest,
    path: str,
    text: object,
    faults: list[ManifestFault],
    read: Callable[[str], Duration] = parse_duration,
) -> Duration:
    try:
        return read(str(text))
    except ValueError as error:
        problem, _, remedy = str(error).partition("; ")
        faults.append(manifest.fault(FieldError(path, problem, remedy)))
        return 0


# --- files ---
#
# Reads the user's manifests: files, whole folders, standard input. The only place where the simulator reads files.
#
# All unreadable sources are reported at once, in the same form as errors in readable ones.


SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})
STANDARD_INPUT: Final = "-"
#: The number of bytes at either end of a file that are read to detect its type.
_END: Final = 4096
_AS_TEXT: Final = "save it as UTF-8, or leave it out"

#: A path, the text of manifests, or one object.
Source: TypeAlias = str | Path | Mapping[str, Any]


def read_sources(sources: Iterable[Source], faults: list[FileFault]) -> Iterator[tuple[str, str]]:
    """Yield every text with its display name, read on demand; sources that cannot be read are added to the faults."""
    for number, source in enumerate(sources, 1):
        if isinstance(source, Mapping):
            yield f"<object {number}>", msgspec.json.encode(source).decode()
        elif isinstance(source, str) and is_text(source):
            yield f"<text {number}>", source
        elif source == STANDARD_INPUT:
            yield from _read("<stdin>", None, faults)
        else:
            for path in _files(Path(source), faults):
                yield from _read(str(path), path, faults)


def read_folder(folder: Path, suffix: str, faults: list[FileFault]) -> list[tuple[str, str]]:
    """Return the texts of all files of a folder with that suffix, each with its name, sorted by name."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == suffix and path.is_file())
    except (OSError, ValueError) as wrong:
        faults.append(_unreadable(str(folder), wrong))
        return []
    return [text for path in paths for text in _read(str(path), path, faults)]


def is_text(source: str) -> bool:
    """Whether a string holds manifests rather than a file name: it has several lines, or is JSON."""
    return "\n" in source or source.lstrip().startswith("{")


def ends_of(path: Path) -> Sequence[str]:
    """Return the beginning and the end of a file's text; nothing if it cannot be read."""
    try:
        with path.open("rb") as file:
            first = file.read(_END)
            file.seek(0, SEEK_END)
            file.seek(max(0, file.tell() - _END))
            return first.decode(errors="replace"), file.read().decode(errors="replace")
    except (OSError, ValueError):
        return ()


def files_below(folder: Path) -> list[Path]:
    """Return the manifests in a folder and its subfolders, sorted by path; hidden ones are left out."""
    found = (path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    return sorted(path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def _files(path: Path, faults: list[FileFault]) -> list[Path]:
    """Return the file, or all manifests of the folder."""
    try:
        if not path.is_dir():
            return [path]
        found = files_below(path)
    except (OSError, ValueError) as wrong:
        faults.append(_unreadable(str(path), wrong))
        return []
    if not found:
        names = ", ".join(f"*{suffix}" for suffix in sorted(SUFFIXES))
        faults.append(FileFault(str(path), FieldError("", f"no manifests in this folder ({names})", "name another")))
    return found


def _read(name: str, path: Path | None, faults: list[FileFault]) -> Iterator[tuple[str, str]]:
    """Yield the text of a file, or of standard input."""
    try:
        content = sys.stdin.buffer.read() if path is None else path.read_bytes()
        yield name, content.decode()
    except UnicodeDecodeError as wrong:
        faults.append(FileFault(name, FieldError("", f"not a text: byte {wrong.start} is not UTF-8", _AS_TEXT)))
    except (OSError, ValueError) as wrong:
        faults.append(_unreadable(name, wrong))


def _unreadable(name: str, wrong: OSError | ValueError) -> FileFault:
    problem = wrong.strerror if isinstance(wrong, OSError) and wrong.strerror else str(wrong)
    return FileFault(name, FieldError("", f"cannot be read: {problem}", "check the name and the permissions"))
