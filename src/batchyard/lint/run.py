"""Lint run: reads manifests and reports unreadable files, invalid objects, and the findings of the rules.

An invalid object is repaired as far as possible and then checked too, so that one fault does not hide others.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.decode import decode
from batchyard.api.errors import FieldError
from batchyard.api.manifests import Manifest, ManifestFault, Manifests, read_manifests
from batchyard.api.meta import Key, Obj, group_kind, key_of
from batchyard.api.scheme import KINDS
from batchyard.api.views.workload import WorkloadView
from batchyard.api.yaml_documents import DocumentLines
from batchyard.cloud.cluster_objects import catalog_faults, pool_faults
from batchyard.jobframework.workloads import GenericJob, workload_spec
from batchyard.jobs.job.integration import JobIntegration
from batchyard.jobs.jobset.integration import JobSetIntegration
from batchyard.lint.configuration import Configuration
from batchyard.lint.findings import LintFinding, Severity
from batchyard.lint.registry import BY_NAME, check
from batchyard.lint.workloads import LintedWork
from batchyard.scheduling.limit_ranges import combine_limit_ranges, with_default_resources
from batchyard.scheduling.workload.priority import MissingClass, Priority, class_key, resolve_priority
from batchyard.sim.files import Source, read_sources
from batchyard.sim.scenario import FileFault
from batchyard.sim.state_manifests import manifest_texts

# --- repair ---
#
# Repair of an invalid object: the same object without its invalid fields.
#
# The rules can then check the rest of the document, and the report can show a valid form of it.


_STEP: Final = re.compile(r"\[([^\]]*+)(?:\]|\Z)|([^.\[\]]+)")
#: A repair can reveal the next fault; this limits the rounds per document.
_ROUNDS_MAX: Final = 6


def repaired(value: Any) -> tuple[Mapping[str, Any], dict[str, Any]] | None:
    """The object as a valid manifest and in its decoded form; None if it cannot be repaired."""
    for _ in range(_ROUNDS_MAX):
        if not isinstance(value, Mapping):
            return None
        decoded = decode(value)
        if decoded.obj is not None:
            return value, decoded.obj
        mended = value
        for fault in decoded.faults:
            mended = _mended(mended, fault)
        if mended == value:
            return None
        value = mended
    return None


def _mended(obj: Mapping[str, Any], fault: FieldError) -> Mapping[str, Any]:
    steps = [key or name for key, name in _STEP.findall(fault.path)]
    if not steps or steps == ["kind"]:
        return obj
    if steps == ["apiVersion"]:
        served = [info.api_version for info in KINDS if info.kind == obj.get("kind")]
        return {**obj, "apiVersion": served[0]} if served else obj
    if fault.problem.startswith("Required value") and steps[-1] == "coveredResources":
        changed: Mapping[str, Any] = _changed(obj, steps[:-1], _covering)
        return changed
    kept: Mapping[str, Any] = _changed(obj, steps[:-1], lambda holder: _without(holder, steps[-1]))
    return kept


def _changed(value: Any, steps: Sequence[str], change: Any) -> Any:
    """The value with the element at the path `steps` changed; unchanged if the path does not exist."""
    if not steps:
        return change(value)
    step, rest = steps[0], steps[1:]
    if isinstance(value, Mapping) and step in value:
        return {**value, step: _changed(value[step], rest, change)}
    if isinstance(value, list) and step.isdecimal() and int(step) < len(value):
        index = int(step)
        return [*value[:index], _changed(value[index], rest, change), *value[index + 1 :]]
    return value


def _without(holder: Any, step: str) -> Any:
    if isinstance(holder, Mapping):
        return {key: value for key, value in holder.items() if str(key) != step}
    if isinstance(holder, list) and step.isdecimal():
        return [item for index, item in enumerate(holder) if index != int(step)]
    return holder


def _covering(group: Any) -> Any:
    """A resource group that covers all resources for which its flavors have quota."""
    if not isinstance(group, Mapping) or not isinstance(group.get("flavors"), list):
        return group
    lists = [flavor.get("resources") for flavor in group["flavors"] if isinstance(flavor, Mapping)]
    named = [row.get("name") for rows in lists if isinstance(rows, list) for row in rows if isinstance(row, Mapping)]
    names = list(dict.fromkeys(name for name in named if isinstance(name, str)))
    return {**group, "coveredResources": names} if names else group


_INTEGRATIONS: Final[Mapping[str, GenericJob]] = {
    scheme.JOB: JobIntegration(),
    scheme.JOB_SET: JobSetIntegration(),
}
#: The consequence of each kind of fault.
_CONSEQUENCES: Final = {
    "invalid-yaml": "nothing of the document is applied",
    "unknown-kind": "the object is not applied",
    "unknown-field": "kubectl rejects the object, and without its check the field is dropped and does nothing",
    "missing-field": "the API rejects the object",
    "invalid-value": "the API rejects the object",
}
#: The prefix of a decoding warning that the rule queue-name-not-a-label reports with a fix.
_QUEUE_ANNOTATION: Final = f"metadata.annotations[{well_known.QUEUE_NAME}]"
_SEVERITIES: Final = tuple(Severity)


class LintReport(NamedTuple):
    """The findings in the order of the files, and the number of documents."""

    findings: Sequence[LintFinding]
    documents: int

    def count(self, severity: Severity) -> int:
        """The number of findings of a severity."""
        return sum(finding.severity is severity for finding in self.findings)


def lint(sources: Iterable[Source], rules: Collection[str] = ()) -> LintReport:
    """Check files, folders, texts and objects; `rules` limits the rules if not empty."""
    unread: list[FileFault] = []
    texts = list(manifest_texts(read_sources(sources, unread)))
    manifests = read_manifests(texts)
    mended = [(broken, whole) for broken in manifests.broken if (whole := repaired(broken.value))]
    repairs = [Manifest(obj, broken.source, broken.document, broken.at) for broken, (_, obj) in mended]
    objects = _in_order([*manifests.objects, *repairs], [source for source, _ in texts])
    written = {(broken.source, broken.document, broken.at): value for broken, (value, _) in mended}
    found = [*map(_of_file, unread), *_of_reading(manifests, written), *_of_clusters(objects)]
    found = [finding for finding in found if not rules or finding.rule in rules]
    found += check(configuration_of(objects), rules)
    order = {source: number for number, (source, _) in enumerate(texts)}
    placed = _with_lines(found, manifests)
    placed.sort(key=lambda f: (order.get(f.source, -1), f.document, f.line, _SEVERITIES.index(f.severity)))
    return LintReport(placed, len(manifests.texts))


def configuration_of(objects: Sequence[Manifest]) -> Configuration:
    """The objects as a Configuration for the rules."""
    reader = _Objects(objects)
    works = [work for manifest in objects for work in _works_of(manifest, reader)]
    scenarios = [manifest.obj.get("spec") or {} for manifest in objects if group_kind(manifest.obj) == scheme.SCENARIO]
    stated = [manifest.obj for manifest in objects if group_kind(manifest.obj) == scheme.CONFIGURATION]
    return Configuration(objects, works, fair_sharing=any(spec.get("fairSharing") for spec in [*scenarios, *stated]))


def _in_order(objects: list[Manifest], sources: Sequence[str]) -> list[Manifest]:
    """Sort by position: of several versions of an object the last counts."""
    order = {source: number for number, source in enumerate(sources)}
    return sorted(objects, key=lambda manifest: (order[manifest.source], manifest.document))


class _Objects:
    """Object lookups for controller code."""

    def __init__(self, objects: Sequence[Manifest]) -> None:
        self._objects = {key_of(m.obj): m.obj for m in objects if m.obj["metadata"].get("name")}
        self._kinds: dict[str, list[Obj]] = {}
        for obj in self._objects.values():
            self._kinds.setdefault(group_kind(obj), []).append(obj)

    def get(self, key: Key) -> Obj | None:
        """The object with a key."""
        return self._objects.get(key)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """The objects of a kind, optionally of one namespace."""
        found = self._kinds.get(kind, [])
        return found if namespace is None else [o for o in found if o["metadata"].get("namespace") == namespace]

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """Return no objects: nothing has been created yet."""
        del uid, namespace
        return ()


def _works_of(manifest: Manifest, reader: _Objects) -> Iterator[LintedWork]:
    """The work of a Job, JobSet or Workload that is or could be queued."""
    obj = manifest.obj
    kind = group_kind(obj)
    if kind == scheme.WORKLOAD:
        paths = [f"spec.podSets[{index}].template" for index in range(len(obj["spec"]["podSets"]))]
        ref = obj["spec"].get("priorityClassRef") or {}
        yield _work(manifest, obj["spec"], paths, reader, (ref.get("kind", ""), ref.get("name", "")))
    integration = _INTEGRATIONS.get(kind)
    if integration is None:
        return
    templates = integration.templates(obj)
    key = class_key(obj, templates)
    priority = resolve_priority(obj, templates, reader)
    value = Priority(0, None) if isinstance(priority, MissingClass) else priority
    spec = workload_spec(obj, integration.pod_sets(obj), value)
    jobs = obj["spec"].get("replicatedJobs") or ()
    paths = [f"spec.replicatedJobs[{index}].template.spec.template" for index in range(len(jobs))]
    class_of = (key.kind.partition(".")[0], key.name) if key else ("", "")
    yield _work(manifest, spec, paths if kind == scheme.JOB_SET else ["spec.template"], reader, class_of)


def _work(
    manifest: Manifest, spec: Mapping[str, Any], paths: Sequence[str], reader: _Objects, class_of: tuple[str, str]
) -> LintedWork:
    metadata = manifest.obj["metadata"]
    namespace = metadata.get("namespace", "")
    name = metadata.get("name") or metadata.get("generateName", "")
    ranges = reader.list(scheme.LIMIT_RANGE, namespace)
    asked = {"metadata": {"name": name, "namespace": namespace}, "spec": spec}
    workload = with_default_resources(asked, combine_limit_ranges(ranges)) if ranges else asked
    return LintedWork(manifest, workload, WorkloadView(workload), paths, *class_of)


# --- what reading finds ---


def _of_file(fault: FileFault) -> LintFinding:
    return _finding("unreadable-file", fault.source, 0, ("", ""), fault.error)


def _of_reading(
    manifests: Manifests, written: Mapping[tuple[str, int, str], Mapping[str, Any]]
) -> Iterator[LintFinding]:
    """Findings for faults of documents, with a repaired object if possible, and for remarks of the reader."""
    strangers = {(broken.source, broken.document) for broken in manifests.broken if _is_no_manifest(broken.value)}
    for source, document in sorted(strangers):
        error = FieldError(
            "", "this is not a manifest: it is ignored", "move it elsewhere if it is not meant to be one"
        )
        yield _finding("not-a-manifest", source, document, ("", ""), error)
    for manifest in manifests.objects:
        if group_kind(manifest.obj) == scheme.PLATFORM:
            error = FieldError(
                "", "a Platform is not applied but rendered: it is ignored", "check it with `batchyard platform plan`"
            )
            yield _finding(
                "not-a-manifest",
                manifest.source,
                manifest.document,
                ("Platform", manifest.obj["metadata"]["name"]),
                error,
            )
    for fault in manifests.faults:
        if (fault.source, fault.document) in strangers:
            continue
        at = next((at for at in written if at[:2] == fault[:2] and fault.error.path.startswith(at[2])), None)
        finding = _finding(_rule_of(fault), fault.source, fault.document, (fault.kind, fault.name), fault.error)
        yield replace(finding, patches=(written[at],)) if at else finding
    for odd in manifests.odd:
        if odd.error.problem.startswith(_QUEUE_ANNOTATION):
            continue
        rule = "deprecated-version" if "deprecated" in odd.error.problem else "without-effect"
        remedy = "use the served version" if rule == "deprecated-version" else "leave it out"
        yield _finding(rule, odd.source, odd.document, (odd.kind, odd.name), odd.error._replace(remedy=remedy))


def _of_clusters(objects: Sequence[Manifest]) -> Iterator[LintFinding]:
    """Findings for Clusters and NodePools that request something missing from the catalogue."""
    clusters = [manifest for manifest in objects if group_kind(manifest.obj) == scheme.CLUSTER]
    faults = [manifest.fault(fault) for manifest in clusters for fault in catalog_faults(manifest.obj)]
    cluster = clusters[0].obj if clusters else None
    pools = [manifest for manifest in objects if group_kind(manifest.obj) == scheme.NODE_POOL]
    faults += [pool.fault(fault) for pool in pools for fault in pool_faults(pool.obj, cluster)]
    for fault in faults:
        yield _finding("invalid-value", fault.source, fault.document, (fault.kind, fault.name), fault.error)


def _rule_of(fault: ManifestFault) -> str:
    path, problem, _, _ = fault.error
    if path.startswith("line ") or "(line " in problem:
        return "invalid-yaml"
    if path.rpartition(".")[2] in {"kind", "apiVersion"} or (not path and "is no object" in problem):
        return "unknown-kind"
    if problem.startswith("unknown field"):
        return "unknown-field"
    return "missing-field" if problem.startswith("Required value") else "invalid-value"


def _is_no_manifest(value: object) -> bool:
    """Whether a document has none of the fields that every object has."""
    return not isinstance(value, Mapping) or not {"apiVersion", "kind", "metadata", "spec"} & set(value)


def _finding(rule: str, source: str, document: int, who: tuple[str, str], error: FieldError) -> LintFinding:
    message = f"{error.problem}: {_CONSEQUENCES[rule]}" if rule in _CONSEQUENCES else error.problem
    return LintFinding(
        rule, BY_NAME[rule].severity, source, document, who[0], "", who[1], error.path, message, error.remedy
    )


# --- lines ---


def _with_lines(findings: Sequence[LintFinding], manifests: Manifests) -> list[LintFinding]:
    """Add the line numbers to the findings; only documents with findings are parsed for that."""
    places = {(finding.source, finding.document): None for finding in findings}
    lines = {place: DocumentLines(*manifests.texts[place]) for place in places if place in manifests.texts}
    return [replace(f, line=_line(f, lines.get((f.source, f.document)))) for f in findings]


def _line(finding: LintFinding, lines: DocumentLines | None) -> int:
    message = finding.path.removeprefix("line ")
    if message != finding.path and message.isdecimal():
        return int(message)
    return 0 if lines is None else lines.of(finding.path)
