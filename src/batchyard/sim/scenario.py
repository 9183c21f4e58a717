"""Scenarios: ordinary manifests, with annotations that say when they are applied and deleted.

Format: an optional first document of kind Scenario configures the run; `batchyard.dev/submit-at` and
`batchyard.dev/delete-at` on any object say when, counted from the start. A later document of an object that is there
already is an update. Of one moment Namespaces come first; those that are used but not given exist from the start. A
document of kind Cluster describes the nodes; without one, pods run anywhere at once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.manifests import Fault, Manifest, Manifests
from batchyard.api.meta import Key, Obj, annotation, group_kind, key_of
from batchyard.base.instant import HOUR, SECOND, Duration, parse_duration
from batchyard.cloud.cluster_objects import catalog_faults, initial_objects, pool_faults
from batchyard.core.cycle import Policy
from batchyard.core.kueue_settings import SIMULATED, KueueSettings, not_done, settings_of
from batchyard.core.lifecycle.pods_ready import PodsReadyPolicy
from batchyard.sim.annotated import annotation_faults
from batchyard.sim.fault_targets import Targets, target_faults
from batchyard.sim.faults import ScheduledFault, read_faults
from batchyard.sim.wait_for_pods_ready import pods_ready_faults, pods_ready_policy

#: No run goes on for longer, whatever keeps happening in it.
VIRTUAL_TIME_MAX: Final = 10 * 365 * 24 * HOUR


class Step(NamedTuple):
    """Something that is done at a moment: objects applied in order, then objects deleted."""

    at: Duration
    apply: Sequence[Obj]
    delete: Sequence[Key]


@dataclass(frozen=True, slots=True)
class Scenario:
    """What happens when, and how the run is configured."""

    steps: Sequence[Step]
    name: str = ""
    #: What Kueue's Configuration says about decisions.
    kueue: KueueSettings = SIMULATED
    #: Stop here at the latest; None: when nothing is left to happen.
    horizon: Duration | None = None
    #: What goes wrong.
    faults: Sequence[ScheduledFault] = ()
    #: Whether gangs that lost a machine get those of others of lower priority.
    hotswap: bool = True
    #: Where pods run; None: anywhere.
    cluster: Obj | None = None
    #: How long pods run for which nothing else gives a run time; None: as the Cluster has it.
    runtime: Duration | None = None
    #: How many objects of each kind are applied.
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def fair_sharing(self) -> bool:
        """Whether queues share what they lend fairly."""
        return self.kueue.policy.fair_sharing

    @property
    def pods_ready(self) -> PodsReadyPolicy | None:
        """How long pods may take to be ready; None: as long as they like."""
        return self.kueue.pods_ready


class FileFault(NamedTuple):
    """What is wrong with a file as a whole."""

    source: str
    error: FieldError

    def __str__(self) -> str:
        """`file: what is wrong; what would be right`."""
        return f"{self.source}: {self.error}"


class InvalidScenario(Exception):  # noqa: N818 - named like the API's Invalid
    """The manifests cannot be run; `faults` says why, all of it."""

    def __init__(self, faults: Sequence[Fault | FileFault]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = faults


def make_scenario(manifests: Manifests, unread: Sequence[FileFault] = (), there: Obj | None = None) -> Scenario:
    """The scenario of a set of manifests; InvalidScenario with every fault at once, those of unread files included.

    `there` is the Cluster that is there when it begins: another of its name changes it.
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
    steps = [Step(at, sorted(applied.get(at, ()), key=_is_content), deleted.get(at, ())) for at in moments]
    return Scenario(steps, counts=counts, cluster=cluster, **config)


def _is_content(obj: Obj) -> bool:
    """Whether it comes after the Namespaces of its moment."""
    return group_kind(obj) != scheme.NAMESPACE


def _platform_faults(objects: Iterable[Manifest]) -> Iterator[Fault]:
    """A Platform is what manifests are made of, and none itself."""
    remedy = "write what it comes to with `batchyard platform render`, and give that"
    error = FieldError("", "a Platform is not simulated itself", remedy)
    return (manifest.fault(error) for manifest in objects if group_kind(manifest.obj) == scheme.PLATFORM)


def _changes_of_nothing(later: Iterable[Manifest], cluster: Obj | None) -> Iterator[Fault]:
    """A Cluster that is applied later must change the one there is."""
    name = None if cluster is None else cluster["metadata"]["name"]
    for manifest in later:
        if manifest.obj["metadata"]["name"] != name:
            problem = "there is no Cluster of this name from the start, which it could change"
            yield manifest.fault(FieldError("metadata.name", problem, "name that one, or leave out when it is applied"))


def _staying_faults(cluster: Obj) -> Iterator[FieldError]:
    if annotation(cluster, well_known.DELETE_AT) is not None:
        path = f"metadata.annotations[{well_known.DELETE_AT}]"
        yield FieldError(path, "a Cluster stays until the end of the run", "leave it out; spec.horizon ends the run")


def _dropped_pools(
    cluster: Obj | None, applied: Mapping[Duration, Sequence[Obj]]
) -> Iterator[tuple[Duration, list[Key]]]:
    """The pools that a changed Cluster does not list any more, with the moment at which they go.

    One that lists no pools at all has nothing to say of them.
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
    """How long a run goes on at most, from a text or from seconds; ValueError says why no run can be as long."""
    duration = parse_duration(given) if isinstance(given, str) else given * SECOND
    if duration > VIRTUAL_TIME_MAX:
        raise ValueError(f"{given} is more than ten years; stop earlier")
    if not duration >= 0:  # which NaN is not either
        raise ValueError(f"{given} is no length of a run; give seconds from 0 on, or a text such as '2h'")
    return round(duration)


def _config(manifest: Manifest, faults: list[Fault]) -> dict[str, Any]:
    spec = manifest.obj.get("spec") or {}
    text = spec.get("horizon")
    horizon = None if text is None else _duration(manifest, "spec.horizon", text, faults, run_length)
    wrong: list[FieldError] = []
    read = read_faults(spec.get("faults") or (), wrong)
    waits = spec.get("waitForPodsReady")
    wrong += pods_ready_faults(waits)
    faults += map(manifest.fault, wrong)
    policy = Policy(fair_sharing=_is_fair(manifest))
    return {
        "kueue": replace(SIMULATED, policy=policy, pods_ready=pods_ready_policy(waits)),
        "horizon": horizon,
        "faults": tuple(read),
        "hotswap": bool(spec.get("hotswap", True)),
    }


def _configured(objects: Iterable[Manifest], settings: Manifest | None, faults: list[Fault]) -> dict[str, Any]:
    """What Kueue's Configuration says, if there is one; queues share fairly if it says so or the Scenario."""
    found = [manifest for manifest in objects if group_kind(manifest.obj) == scheme.CONFIGURATION]
    again = FieldError("", "Kueue has a Configuration already", "keep one of them")
    faults += [manifest.fault(again) for manifest in found[1:]]
    faults += [manifest.fault(fault) for manifest in found for fault in not_done(manifest.obj)]
    if not found:
        return {}
    if settings is not None and "waitForPodsReady" in (settings.obj.get("spec") or {}):
        problem = "Kueue's Configuration says this already"
        faults.append(settings.fault(FieldError("spec.waitForPodsReady", problem, "keep one of them")))
    said = settings_of(found[0].obj)
    return {"kueue": said.sharing_fairly() if _is_fair(settings) else said}


def _is_fair(settings: Manifest | None) -> bool:
    return settings is not None and bool((settings.obj.get("spec") or {}).get("fairSharing"))


def _moment(manifest: Manifest, name: str, faults: list[Fault]) -> Duration | None:
    text = annotation(manifest.obj, name)
    return None if text is None else _duration(manifest, f"metadata.annotations[{name}]", text, faults)


def _is_named(manifest: Manifest, faults: list[Fault]) -> bool:
    """Whether what is to be deleted can be found again: a name that the API makes is not known beforehand."""
    if manifest.obj["metadata"].get("name"):
        return True
    path = f"metadata.annotations[{well_known.DELETE_AT}]"
    faults.append(manifest.fault(FieldError(path, "the object to delete has no name yet", "give it a name")))
    return False


def _duration(
    manifest: Manifest, path: str, text: object, faults: list[Fault], read: Callable[[str], Duration] = parse_duration
) -> Duration:
    try:
        return read(str(text))
    except ValueError as error:
        problem, _, remedy = str(error).partition("; ")
        faults.append(manifest.fault(FieldError(path, problem, remedy)))
        return 0
