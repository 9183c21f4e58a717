"""The inputs of a comparison: two configurations, and their common load.

A configuration is everything except work: queues, cohorts, flavors, priorities, a Cluster, the settings of a Scenario.
Work is Jobs, JobSets, Pods and Workloads. If a separate load is given, neither configuration may contain work.
Otherwise both must contain the same work, because a difference in work would be compared as well.
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
WORK: Final = (scheme.JOB, scheme.JOB_SET, scheme.POD, scheme.WORKLOAD)
_NO_WORK: Final = "it contains no Job, JobSet, Pod or Workload"


class Variant(NamedTuple):
    """A configuration: its name and the sources of its manifests."""

    name: str
    sources: Sequence[Source]


class VariantPair(NamedTuple):
    """The scenarios of both, and the warnings about their manifests."""

    a: Scenario
    b: Scenario
    warnings: Sequence[str]


def read_pair(a: Variant, b: Variant, load: Sequence[Source] = (), until: Duration | None = None) -> VariantPair:
    """Read the scenarios of both with the load, to end at `until`; raises InvalidScenario with all errors."""
    unread: list[FileFault] = []
    common = read_manifests(manifest_texts(read_sources(load, unread), StatePart.WORK)) if load else Manifests()
    part = StatePart.CONFIGURATION if load else StatePart.ALL
    sides = [read_manifests(manifest_texts(read_sources(side.sources, unread), part)) for side in (a, b)]
    faults: list[ManifestFault | FileFault] = []
    if load:
        for side in sides:
            faults += _own_work(side)
        if not (_work(common) or common.faults or unread):
            faults.append(FileFault(", ".join(map(str, load)), FieldError("", _NO_WORK, "give the load of both")))
    scenarios = [_scenario(side, common, faults) for side in sides]
    found = [scenario for scenario in scenarios if scenario is not None]
    if not (faults or unread):
        faults += () if load else _unlike(a, b, *map(_work, sides))
        faults += _ends(a, b, found, until)
    if faults or unread:
        raise InvalidScenario([*unread, *dict.fromkeys(faults)])
    warnings = dict.fromkeys([*common.warnings, *sides[0].warnings, *sides[1].warnings])
    return VariantPair(found[0], found[1], list(warnings))


def _work(manifests: Manifests) -> list[Manifest]:
    return [manifest for manifest in manifests.objects if group_kind(manifest.obj) in WORK]


def _own_work(side: Manifests) -> Iterator[ManifestFault]:
    """Report work in a configuration if there is a separate load."""
    for manifest in _work(side)[:1]:
        problem = "a configuration may not contain work beside a load for both"
        yield manifest.fault(FieldError("", problem, "move it to the load, or leave out --trace"))


def _scenario(side: Manifests, common: Manifests, faults: list[ManifestFault | FileFault]) -> Scenario | None:
    together = Manifests([*side.objects, *common.objects], [*side.faults, *common.faults])
    try:
        return make_scenario(together)
    except InvalidScenario as invalid:
        faults += invalid.faults
        return None


def _unlike(a: Variant, b: Variant, work_a: Sequence[Manifest], work_b: Sequence[Manifest]) -> Iterator[FileFault]:
    """Report the first difference between the work of two configurations."""
    known = {_name(manifest): manifest for manifest in work_b}
    remedy = "give both the same work, or one load for both with --trace"
    for manifest in work_a:
        name = _name(manifest)
        other = known.pop(name, None)
        if other is None:
            yield FileFault(manifest.source, FieldError("", f"{name} is in {a.name}, and not in {b.name}", remedy))
            return
        path = _first_difference(manifest.obj, other.obj)
        if path is not None:
            yield FileFault(manifest.source, FieldError(path, f"{name} differs in {b.name}", remedy))
            return
    for name, manifest in known.items():
        yield FileFault(manifest.source, FieldError("", f"{name} is in {b.name}, and not in {a.name}", remedy))
        return
    if not work_a:
        yield FileFault(f"{a.name}, {b.name}", FieldError("", _NO_WORK, "give a load for both with --trace"))


def _name(manifest: Manifest) -> str:
    """Return the name and the time of an object, because an object may be applied again later."""
    metadata = manifest.obj["metadata"]
    name = metadata.get("name") or f"{metadata.get('generateName', '')}*"
    at = annotation(manifest.obj, well_known.SUBMIT_AT)
    return f"{manifest.obj['kind']} {metadata.get('namespace', '')}/{name}{f' at {at}' if at else ''}"


def _first_difference(one: Any, other: Any, path: str = "") -> str | None:
    """Return the path of the first field in which two values differ; None if they are equal."""
    if one == other:
        return None
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for name in sorted({**one, **other}):
            found = _first_difference(one.get(name), other.get(name), f"{path}.{name}" if path else name)
            if found is not None:
                return found
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, both in enumerate(zip(one, other, strict=True)):
            found = _first_difference(*both, f"{path}[{index}]")
            if found is not None:
                return found
    return path


def _ends(a: Variant, b: Variant, scenarios: Sequence[Scenario], until: Duration | None) -> Iterator[FileFault]:
    """Report different horizons: such runs cannot be compared."""
    first, second = [scenario.horizon for scenario in scenarios]
    if until is None and first != second:
        yield FileFault(
            f"{a.name}, {b.name}", FieldError("spec.horizon", "they end at different times", "give --until")
        )
