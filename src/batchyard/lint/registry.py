"""All rules, in the order of their documentation."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.manifests import Manifest, ManifestFault, Manifests, decode, read_manifests
from batchyard.api.meta import Key, Obj, group_kind, key_of
from batchyard.api.scheme import KINDS
from batchyard.api.views.workload import WorkloadView
from batchyard.api.yaml_documents import DocumentLines
from batchyard.cloud.cluster_objects import catalog_faults, pool_faults
from batchyard.jobframework.workloads import GenericJob, workload_spec
from batchyard.jobs.job.integration import JobIntegration
from batchyard.jobs.jobset.integration import JobSetIntegration
from batchyard.lint import capacity, flavors, queues, references
from batchyard.lint.configuration import Configuration
from batchyard.lint.findings import LintFinding, LintRule, Severity, finding_of
from batchyard.lint.workloads import LintedWork
from batchyard.scheduling.workload.adjustments import (
    MissingClass,
    Priority,
    class_key,
    combine_limit_ranges,
    resolve_priority,
    with_default_resources,
)
from batchyard.sim.scenario import FileFault, Source, read_sources
from batchyard.sim.state_document import manifest_texts

_ERROR, _WARNING, _NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE

#: Rules that are checked while documents are read.
READING: Final = (
    LintRule("unreadable-file", _ERROR, "a file cannot be read"),
    LintRule("invalid-yaml", _ERROR, "a document is not valid YAML"),
    LintRule("not-a-manifest", _NOTE, "a document is not a Kubernetes object"),
    LintRule("unknown-kind", _ERROR, "the kind of a document is not served"),
    LintRule("unknown-field", _ERROR, "a field exists in no version"),
    LintRule("missing-field", _ERROR, "a required field is missing"),
    LintRule("invalid-value", _ERROR, "a value violates the rules of its kind"),
    LintRule("deprecated-version", _NOTE, "an API version that will be removed"),
    LintRule("without-effect", _NOTE, "an object of a kind that batchyard stores"),
)
_QUEUES: Final = (
    LintRule("null-namespace-selector", _ERROR, "a ClusterQueue selects no namespace", queues.null_namespace_selector),
    LintRule(
        "namespace-not-selected", _ERROR, "a ClusterQueue does not select the namespace", queues.namespace_not_selected
    ),
    LintRule("queue-stopped", _WARNING, "work for a stopped queue", queues.queue_stopped),
    LintRule(
        "queue-without-local-queue", _NOTE, "a ClusterQueue without a LocalQueue", queues.queue_without_local_queue
    ),
    LintRule("strict-fifo-blocking", _WARNING, "the head of the queue blocks others", queues.strict_fifo_blocking),
    LintRule("tiny-memory-quota", _ERROR, "a memory quota without a unit", queues.tiny_memory_quota),
)
_NAMES: Final = (
    LintRule(
        "unknown-local-queue", _ERROR, "work for a LocalQueue that does not exist", references.unknown_local_queue
    ),
    LintRule(
        "unknown-cluster-queue",
        _ERROR,
        "a LocalQueue whose ClusterQueue does not exist",
        references.unknown_cluster_queue,
    ),
    LintRule("unknown-flavor", _ERROR, "quota in a flavor that does not exist", references.unknown_flavor),
    LintRule(
        "unknown-admission-check", _ERROR, "an admission check that does not exist", references.unknown_admission_check
    ),
    LintRule(
        "unknown-provisioning-config",
        _ERROR,
        "the `parameters` of a check name no ProvisioningRequestConfig",
        references.unknown_provisioning_config,
    ),
    LintRule("unknown-topology", _ERROR, "a flavor with a topology that does not exist", references.unknown_topology),
    LintRule(
        "unknown-priority-class",
        _ERROR,
        "work with a priority class that does not exist",
        references.unknown_priority_class,
    ),
    LintRule("unknown-node-pool", _ERROR, "pods for a node pool that does not exist", references.unknown_node_pool),
    LintRule("cohort-cycle", _ERROR, "a Cohort is its own ancestor", references.cohort_cycle),
    LintRule("defined-twice", _NOTE, "an object is defined twice", references.defined_twice),
)
_LABELS: Final = (
    LintRule("queue-name-not-a-label", _ERROR, "a queue name that is ignored", flavors.queue_name_not_a_label),
    LintRule("misplaced-label", _WARNING, "a label that is ignored where it is", flavors.misplaced_label),
    LintRule("unknown-kueue-key", _WARNING, "a key that Kueue does not have", flavors.unknown_kueue_key),
    LintRule("job-without-queue", _WARNING, "a job outside all quota", flavors.job_without_queue),
    LintRule(
        "namespace-without-queue",
        _WARNING,
        "a namespace with jobs and without a LocalQueue",
        flavors.namespace_without_queue,
    ),
    LintRule("not-suspended", _NOTE, "a JobSet with a queue sets `suspend: false`", flavors.not_suspended),
)
_FLAVORS: Final = (
    LintRule("unused-flavor", _WARNING, "no queue has quota of the flavor", flavors.unused_flavor),
    LintRule("flavor-without-nodes", _ERROR, "no machine matches the flavor", flavors.flavor_without_nodes),
    LintRule(
        "flavor-without-quota",
        _WARNING,
        "the whole cohort has no quota of a covered resource",
        flavors.flavor_without_quota,
    ),
    LintRule("shadowed-flavor", _NOTE, "an earlier flavor has quota for all jobs", flavors.shadowed_flavor),
    LintRule(
        "untolerated-flavor",
        _WARNING,
        "neither the flavor nor any job in its queues tolerates the flavor's taint",
        flavors.untolerated_flavor,
    ),
    LintRule(
        "undeclared-taint", _WARNING, "nodes have a taint that their flavor does not declare", flavors.undeclared_taint
    ),
)
_SIZES: Final = (
    LintRule("quota-above-capacity", _ERROR, "more quota than capacity", capacity.quota_above_capacity),
    LintRule("uncovered-resource", _ERROR, "a resource that the queue does not cover", queues.uncovered_resource),
    LintRule("exceeds-quota", _ERROR, "work larger than the quota can ever be", queues.exceeds_quota),
    LintRule("no-matching-flavor", _ERROR, "no flavor suits the work", queues.no_matching_flavor),
    LintRule("asks-for-nothing", _WARNING, "work that requests nothing", queues.asks_for_nothing),
    LintRule("beyond-limit-range", _ERROR, "a LimitRange rejects the pods", queues.beyond_limit_range),
    LintRule(
        "pod-larger-than-node",
        _ERROR,
        "a pod requests more than the allocatable capacity of any node",
        queues.pod_larger_than_node,
    ),
    LintRule("no-such-node", _ERROR, "a pod selects labels that no node has", queues.no_such_node),
    LintRule("untolerated-taint", _ERROR, "a pod does not tolerate the taints of its nodes", queues.untolerated_taint),
    LintRule("too-few-nodes", _ERROR, "more pods than the nodes have room for", queues.too_few_nodes),
    LintRule(
        "tpu-topology-mismatch",
        _ERROR,
        "the pods of one Job have in total another number of chips",
        flavors.tpu_topology_mismatch,
    ),
    LintRule("tpu-chips-left", _WARNING, "pods request fewer chips than their machine has", flavors.tpu_chips_left),
    LintRule(
        "accelerator-mismatch",
        _ERROR,
        "the selected machine type and accelerator do not match",
        flavors.accelerator_mismatch,
    ),
)
_TERMS: Final = (
    LintRule("grace-beyond-spot", _WARNING, "a grace period longer than Spot allows", references.grace_beyond_spot),
    LintRule("no-retries-on-spot", _WARNING, "the first lost machine ends the work", references.no_retries_on_spot),
    LintRule(
        "queued-pool-without-check",
        _ERROR,
        "pods can only run on a pool of queued provisioning",
        references.queued_pool_without_check,
    ),
    LintRule("run-time-beyond-limit", _ERROR, "a requested run time over 7 days", references.run_time_beyond_limit),
    LintRule(
        "check-without-resource",
        _WARNING,
        "the `managedResources` of a check contain no resource",
        references.check_without_resource,
    ),
)
_PREEMPTION: Final = (
    LintRule("preemption-loop", _WARNING, "two Workloads preempt each other for ever", queues.preemption_loop),
    LintRule("contradicting-priorities", _WARNING, "two contradicting orders", queues.contradicting_priorities),
    LintRule(
        "priority-without-preemption",
        _WARNING,
        "quota prevents a preemption between pods",
        queues.priority_without_preemption,
    ),
    LintRule(
        "reclaim-without-cohort",
        _NOTE,
        "`reclaimWithinCohort` in a queue without a cohort",
        queues.reclaim_without_cohort,
    ),
    LintRule(
        "borrowing-without-lender",
        _WARNING,
        "a `borrowingLimit` in a flavor of which no other member",
        queues.borrowing_without_lender,
    ),
    LintRule("nothing-lent", _WARNING, "every member of the cohort has a `lendingLimit` of 0", queues.nothing_lent),
    LintRule("zero-weight", _WARNING, "a fair sharing weight of 0 makes the share infinite", queues.zero_weight),
    LintRule(
        "borrowing-ignored",
        _WARNING,
        "`borrowWithinCohort` has no effect with fair sharing",
        queues.borrowing_ignored,
    ),
)

RULES: Final = (*READING, *_QUEUES, *_NAMES, *_LABELS, *_FLAVORS, *_SIZES, *_TERMS, *_PREEMPTION)
BY_NAME: Final = {rule.name: rule for rule in RULES}


def check(config: Configuration, names: Collection[str] = ()) -> Iterator[LintFinding]:
    """The findings of the named rules; of all rules if none is named."""
    for rule in RULES:
        if rule.check is not None and (not names or rule.name in names):
            for found in rule.check(config):
                yield finding_of(rule, found)


# --- repair ---
#
# Repair of an invalid object: the same object without its invalid fields.
#
# The rules can then check the rest of the document, and the report can show a valid form of it.


_STEP: Final = re.compile(r"\[([^\]]*+)(?:\]|\Z)|([^.\[\]]+)")
# --- run ---
#
# Lint run: reads manifests and reports unreadable files, invalid objects, and the findings of the rules.
#
# An invalid object is repaired as far as possible and then checked too, so that one fault does not hide others.


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


# --- findings from reading the manifests ---


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
