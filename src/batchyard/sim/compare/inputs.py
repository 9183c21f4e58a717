"""The inputs of a comparison: two configurations and the load that both run, read from manifests.

Work means Jobs, JobSets, Pods and Workloads. A configuration consists of all other objects: queues, Cohorts, flavors,
priorities, a Cluster, a Scenario. If a separate load is given, the configurations must not contain work. Otherwise both
must contain the same work, so that only the configurations differ.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.manifests import Manifest, ManifestFault, Manifests, read_manifests
from batchyard.api.meta import annotation, group_kind
from batchyard.base.instant import Duration
from batchyard.sim.scenario import FileFault, InvalidScenario, Scenario, Source, make_scenario, read_sources
from batchyard.sim.state_document import StatePart, manifest_texts

#: The kinds that are work.
WORK_KINDS: Final = (scheme.JOB, scheme.JOB_SET, scheme.POD, scheme.WORKLOAD)
_NO_WORK: Final = "it contains no Job, JobSet, Pod or Workload"


class ComparedConfiguration(NamedTuple):
    """One of the two compared configurations: its name and the sources of its manifests."""

    name: str
    sources: Sequence[Source]


class ConfigurationPair(NamedTuple):
    """The scenarios of both compared configurations, and the warnings about their manifests."""

    a: Scenario
    b: Scenario
    warnings: Sequence[str]


def read_pair(
    a: ComparedConfiguration, b: ComparedConfiguration, load: Sequence[Source] = (), horizon: Duration | None = None
) -> ConfigurationPair:
    """Read both configurations as scenarios, each with the work in `load`; raise InvalidScenario if one is invalid.

    Unless `horizon` replaces them, the horizons of both scenarios must be equal.
    """
    source_errors: list[FileFault] = []
    load_manifests = (
        read_manifests(manifest_texts(read_sources(load, source_errors), StatePart.WORK)) if load else Manifests()
    )
    state_part = StatePart.CONFIGURATION if load else StatePart.ALL
    side_manifests = [
        read_manifests(manifest_texts(read_sources(side.sources, source_errors), state_part)) for side in (a, b)
    ]
    faults: list[ManifestFault | FileFault] = []
    if load:
        for side in side_manifests:
            faults += _forbidden_work_faults(side)
        if not (_work_manifests(load_manifests) or load_manifests.faults or source_errors):
            remedy = "pass a load with Jobs, JobSets, Pods or Workloads"
            faults.append(FileFault(", ".join(map(str, load)), FieldError("", _NO_WORK, remedy)))
    scenarios = [_make_side_scenario(side, load_manifests, faults) for side in side_manifests]
    known_scenarios = [scenario for scenario in scenarios if scenario is not None]
    if not (faults or source_errors):
        faults += () if load else _work_difference(a, b, *map(_work_manifests, side_manifests))
        faults += _horizon_difference(a, b, known_scenarios, horizon)
    if faults or source_errors:
        raise InvalidScenario([*source_errors, *dict.fromkeys(faults)])
    warnings = dict.fromkeys([*load_manifests.warnings, *side_manifests[0].warnings, *side_manifests[1].warnings])
    return ConfigurationPair(known_scenarios[0], known_scenarios[1], list(warnings))


def _work_manifests(manifests: Manifests) -> list[Manifest]:
    return [manifest for manifest in manifests.objects if group_kind(manifest.obj) in WORK_KINDS]


def _forbidden_work_faults(side_manifests: Manifests) -> Iterator[ManifestFault]:
    for manifest in _work_manifests(side_manifests)[:1]:
        problem = "with --trace, a configuration must not contain Jobs, JobSets, Pods or Workloads"
        yield manifest.fault(FieldError("", problem, "move this object to the load of --trace, or omit --trace"))


def _make_side_scenario(side: Manifests, load: Manifests, faults: list[ManifestFault | FileFault]) -> Scenario | None:
    all_manifests = Manifests([*side.objects, *load.objects], [*side.faults, *load.faults])
    try:
        return make_scenario(all_manifests)
    except InvalidScenario as invalid:
        faults += invalid.faults
        return None


def _work_difference(
    a: ComparedConfiguration, b: ComparedConfiguration, work_a: Sequence[Manifest], work_b: Sequence[Manifest]
) -> Iterator[FileFault]:
    unmatched_work = {_describe_object(manifest): manifest for manifest in work_b}
    remedy = "use the same work in both configurations, or pass one load for both with --trace"
    for manifest in work_a:
        name = _describe_object(manifest)
        counterpart = unmatched_work.pop(name, None)
        if counterpart is None:
            yield FileFault(manifest.location(), FieldError("", f"{name} is in {a.name}, but not in {b.name}", remedy))
            return
        path = _first_difference(manifest.obj, counterpart.obj)
        if path is not None:
            problem = f"this field of {name} differs between {a.name} and {b.name}"
            yield FileFault(manifest.location(path), FieldError(path, problem, remedy))
            return
    for name, manifest in unmatched_work.items():
        yield FileFault(manifest.location(), FieldError("", f"{name} is in {b.name}, but not in {a.name}", remedy))
        return
    if not work_a:
        yield FileFault(f"{a.name}, {b.name}", FieldError("", _NO_WORK, "pass a load for both with --trace"))


def _describe_object(manifest: Manifest) -> str:
    """Return the kind, name and submission time of a manifest, because one object may be applied several times."""
    metadata = manifest.obj["metadata"]
    name = metadata.get("name") or f"{metadata.get('generateName', '')}*"
    at = annotation(manifest.obj, well_known.SUBMIT_AT)
    return f"{manifest.obj['kind']} {metadata.get('namespace', '')}/{name}{f' at {at}' if at else ''}"


def _first_difference(a: Any, b: Any, path: str = "") -> str | None:
    if a == b:
        return None
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for name in sorted({**a, **b}):
            difference_path = _first_difference(a.get(name), b.get(name), f"{path}.{name}" if path else name)
            if difference_path is not None:
                return difference_path
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for index, items in enumerate(zip(a, b, strict=True)):
            difference_path = _first_difference(*items, f"{path}[{index}]")
            if difference_path is not None:
                return difference_path
    return path


def _horizon_difference(
    a: ComparedConfiguration, b: ComparedConfiguration, scenarios: Sequence[Scenario], horizon: Duration | None
) -> Iterator[FileFault]:
    horizon_a, horizon_b = [scenario.horizon for scenario in scenarios]
    if horizon is None and horizon_a != horizon_b:
        error = FieldError("spec.horizon", "the scenarios have different horizons", "set --until")
        yield FileFault(f"{a.name}, {b.name}", error)
