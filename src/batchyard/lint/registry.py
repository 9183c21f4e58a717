"""Runs `batchyard lint`: reads manifests, repairs invalid objects as far as possible, runs all rules and reports."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.manifests import Manifest, ManifestFault, Manifests, as_user_manifests, read_manifests
from batchyard.api.meta import Key, Obj, group_kind, key_of
from batchyard.api.views.workload import WorkloadView
from batchyard.api.yaml_documents import DocumentLines
from batchyard.cloud.cluster_objects import catalog_errors, pool_errors
from batchyard.jobframework.workloads import workload_spec
from batchyard.lint import capacity, flavors, job_kinds, pods, preemption, queues, references
from batchyard.lint.findings import UNKNOWN_NAMESPACE, LintFinding, LintRule, Severity, make_finding
from batchyard.lint.linted_manifests import LintedManifests
from batchyard.lint.repair import repair_manifest
from batchyard.lint.workloads import LintedJob
from batchyard.scheduling.workload import adjustments
from batchyard.sim.scenario import FileFault, Source, read_sources
from batchyard.sim.state_document import is_state_text, manifest_texts

_ERROR, _WARNING, _NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE

_REFUSED_VERSION: Final = "this version is deprecated, and refused by Kueue 0.20"
_CONVERT_REMEDY: Final = "use v1beta2: `batchyard convert FILE` prints the manifests in this version"
_REMEDY_BY_WARNING_RULE: Final = {
    "deprecated-version": "use the served API version",
    "without-effect": "remove the field or object",
}
#: Rules that are checked while documents are read.
DOCUMENT_RULES: Final = (
    LintRule("unreadable-file", _ERROR, "a file cannot be read"),
    LintRule("invalid-yaml", _ERROR, "a document is not valid YAML"),
    LintRule("not-a-manifest", _NOTE, "a document is not a Kubernetes object"),
    LintRule("unknown-kind", _ERROR, "batchyard does not serve the kind of a document"),
    LintRule("unknown-field", _ERROR, "a field does not exist in any version of the kind"),
    LintRule("missing-field", _ERROR, "a required field is missing"),
    LintRule("invalid-value", _ERROR, "a value violates the rules of its kind"),
    LintRule("deprecated-version", _NOTE, "an object uses an API version that will be removed"),
    LintRule("without-effect", _NOTE, "batchyard stores an object but does not act on its kind"),
)
_QUEUE_RULES: Final = (
    LintRule(
        "null-namespace-selector", _ERROR, "a ClusterQueue has no namespaceSelector", queues.null_namespace_selector
    ),
    LintRule(
        "namespace-not-selected", _ERROR, "a ClusterQueue does not select the namespace", queues.namespace_not_selected
    ),
    LintRule("queue-stopped", _WARNING, "a job names a stopped queue", queues.queue_stopped),
    LintRule(
        "queue-without-local-queue", _NOTE, "no LocalQueue leads to a ClusterQueue", queues.queue_without_local_queue
    ),
    LintRule("strict-fifo-blocking", _WARNING, "the head of the queue blocks others", queues.strict_fifo_blocking),
    LintRule("tiny-memory-quota", _ERROR, "a memory quota has no unit", queues.tiny_memory_quota),
)
_REFERENCE_RULES: Final = (
    LintRule(
        "unknown-local-queue", _ERROR, "a job names a LocalQueue that does not exist", references.unknown_local_queue
    ),
    LintRule(
        "unknown-cluster-queue",
        _ERROR,
        "a LocalQueue names a ClusterQueue that does not exist",
        references.unknown_cluster_queue,
    ),
    LintRule(
        UNKNOWN_NAMESPACE,
        _WARNING,
        "the manifests use a Namespace that they do not define",
        references.unknown_namespace,
    ),
    LintRule(
        "unknown-flavor", _ERROR, "a ClusterQueue has quota in a flavor that does not exist", references.unknown_flavor
    ),
    LintRule(
        "unknown-admission-check",
        _ERROR,
        "a ClusterQueue names an AdmissionCheck that does not exist",
        references.unknown_admission_check,
    ),
    LintRule(
        "unknown-provisioning-config",
        _ERROR,
        "the parameters of an AdmissionCheck do not name an existing ProvisioningRequestConfig",
        references.unknown_provisioning_config,
    ),
    LintRule(
        "unknown-dependency", _WARNING, "a job waits for a job that does not exist", references.unknown_dependency
    ),
    LintRule(
        "dependency-cycle", _ERROR, "jobs wait for each other, so none of them starts", references.dependency_cycle
    ),
    LintRule("unknown-topology", _ERROR, "a flavor names a Topology that does not exist", references.unknown_topology),
    LintRule(
        "unknown-priority-class",
        _ERROR,
        "a job names a priority class that does not exist",
        references.unknown_priority_class,
    ),
    LintRule("unknown-node-pool", _ERROR, "pods select a node pool that does not exist", references.unknown_node_pool),
    LintRule("node-pool-without-cluster", _ERROR, "a NodePool has no Cluster", references.node_pool_without_cluster),
    LintRule("cohort-cycle", _ERROR, "a Cohort is its own ancestor", references.cohort_cycle),
    LintRule("defined-twice", _NOTE, "an object is defined twice", references.defined_twice),
)
_JOB_KIND_RULES: Final = (
    LintRule("invalid-expression", _ERROR, "an expression of a JobKind is invalid", job_kinds.invalid_expression),
    LintRule("undescribed-job", _ERROR, "a job does not fit the description of its kind", job_kinds.undescribed_job),
    LintRule("no-simulated-status", _NOTE, "a JobKind has no `simulatedStatus`", job_kinds.no_simulated_status),
)
_LABEL_RULES: Final = (
    LintRule(
        "queue-name-not-a-label",
        _ERROR,
        "a queue name is an annotation, or a label of the pod template",
        flavors.queue_name_not_a_label,
    ),
    LintRule("misplaced-label", _WARNING, "a label is on an object on which it has no effect", flavors.misplaced_label),
    LintRule(
        "unknown-kueue-key",
        _WARNING,
        "a label or annotation has a key that Kueue does not have",
        flavors.unknown_kueue_key,
    ),
    LintRule("job-without-queue", _WARNING, "a job names no queue", flavors.job_without_queue),
    LintRule(
        "namespace-without-queue", _WARNING, "a namespace has jobs but no LocalQueue", flavors.namespace_without_queue
    ),
    LintRule("not-suspended", _NOTE, "a JobSet with a queue sets `suspend: false`", flavors.not_suspended),
)
_FLAVOR_RULES: Final = (
    LintRule("unused-flavor", _WARNING, "no queue has quota for the flavor", flavors.unused_flavor),
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
_SIZE_RULES: Final = (
    LintRule(
        "quota-above-capacity",
        _ERROR,
        "queues have more quota than their machines have capacity",
        capacity.quota_above_capacity,
    ),
    LintRule(
        "uncovered-resource",
        _ERROR,
        "pods request a resource that their queue does not cover",
        queues.uncovered_resource,
    ),
    LintRule("exceeds-quota", _ERROR, "a job requests more than its queue could ever use", queues.exceeds_quota),
    LintRule("no-matching-flavor", _ERROR, "no flavor of the queue matches the job", queues.no_matching_flavor),
    LintRule(
        "asks-for-nothing",
        _WARNING,
        "a job requests none of the resources that its queue covers",
        queues.asks_for_nothing,
    ),
    LintRule("beyond-limit-range", _ERROR, "a LimitRange of the namespace rejects the pods", queues.beyond_limit_range),
    LintRule(
        "pod-larger-than-node",
        _ERROR,
        "a pod requests more than the allocatable capacity of any node",
        queues.pod_larger_than_node,
    ),
    LintRule("no-such-node", _ERROR, "a pod selects labels that no node has", queues.no_such_node),
    LintRule(
        "untolerated-taint",
        _ERROR,
        "a pod does not tolerate the taints of the nodes that it selects",
        queues.untolerated_taint,
    ),
    LintRule("too-few-nodes", _ERROR, "a job has more pods than the nodes have room for", queues.too_few_nodes),
    LintRule(
        "tpu-topology-mismatch",
        _ERROR,
        "the pods of one Job request a different total number of chips than the TPU topology has",
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
_PROVISIONING_RULES: Final = (
    LintRule(
        "grace-beyond-spot",
        _WARNING,
        "pods have a longer grace period than Spot machines allow",
        references.grace_beyond_spot,
    ),
    LintRule(
        "no-retries-on-spot", _WARNING, "the first loss of a Spot machine ends the job", references.no_retries_on_spot
    ),
    LintRule(
        "queued-pool-without-check",
        _ERROR,
        "pods can only run on a pool of queued provisioning",
        references.queued_pool_without_check,
    ),
    LintRule(
        "run-time-beyond-limit",
        _ERROR,
        "a ProvisioningRequest requests a run time of more than 7 days",
        references.run_time_beyond_limit,
    ),
    LintRule(
        "check-without-resource",
        _WARNING,
        "the managedResources of an AdmissionCheck contain no resource that the pods request",
        references.check_without_resource,
    ),
)
_PREEMPTION_RULES: Final = (
    LintRule("preemption-loop", _WARNING, "two Workloads preempt each other forever", queues.preemption_loop),
    LintRule(
        "contradicting-priorities",
        _WARNING,
        "two kinds of priority class order jobs differently",
        queues.contradicting_priorities,
    ),
    LintRule(
        "priority-without-preemption",
        _WARNING,
        "missing quota prevents a preemption between pods",
        queues.priority_without_preemption,
    ),
    LintRule("reclaim-without-cohort", _NOTE, "reclaimWithinCohort has no effect", queues.reclaim_without_cohort),
    LintRule(
        "borrowing-without-lender",
        _WARNING,
        "a queue has a borrowingLimit in a flavor of which no other member of the cohort lends",
        queues.borrowing_without_lender,
    ),
    LintRule("nothing-lent", _WARNING, "every member of the cohort has a `lendingLimit` of 0", queues.nothing_lent),
    LintRule("zero-weight", _WARNING, "a fair sharing weight of 0 makes the share infinite", queues.zero_weight),
    LintRule("usage-order-ignored", _NOTE, "admission fair sharing has no effect", queues.usage_order_ignored),
    LintRule(
        "borrowing-ignored", _WARNING, "`borrowWithinCohort` has no effect with fair sharing", queues.borrowing_ignored
    ),
)

RULES: Final = (
    *DOCUMENT_RULES,
    *_QUEUE_RULES,
    *_REFERENCE_RULES,
    *_JOB_KIND_RULES,
    *(*_LABEL_RULES, *pods.RULES),
    *_FLAVOR_RULES,
    *_SIZE_RULES,
    *capacity.TOPOLOGY_RULES,
    *_PROVISIONING_RULES,
    *(*_PREEMPTION_RULES, *preemption.RULES),
)
RULES_BY_NAME: Final = {rule.name: rule for rule in RULES}


def run_rules(linted: LintedManifests, names: Collection[str] = ()) -> Iterator[LintFinding]:
    """Run the checks of the lint rules in `names` (of all if empty), in the order of RULES, and yield the findings."""
    for rule in RULES:
        if rule.check is not None and (not names or rule.name in names):
            for result in rule.check(linted):
                yield make_finding(rule, result)


# Reads manifests and reports unreadable files, invalid objects, and the findings of the rules.


#: The consequence of an invalid document, by rule.
_CONSEQUENCE_BY_RULE: Final = {
    "invalid-yaml": "no part of the document is applied",
    "unknown-kind": "the object is not applied",
    "unknown-field": "kubectl rejects the object; without kubectl's check, the API server drops the field",
    "missing-field": "the API server rejects the object",
    "invalid-value": "the API server rejects the object",
}
#: The prefix of the decoder warnings that the rule queue-name-not-a-label already reports with a fix.
_QUEUE_ANNOTATION: Final = f"metadata.annotations[{well_known.QUEUE_NAME}]"
_SEVERITIES: Final = tuple(Severity)


class LintReport(NamedTuple):
    """The findings of a lint run, ordered by file and position, and the number of documents that were checked."""

    findings: Sequence[LintFinding]
    document_count: int

    def count(self, severity: Severity) -> int:
        """Return the number of findings with a severity."""
        return sum(finding.severity is severity for finding in self.findings)


def lint(sources: Iterable[Source], rules: Collection[str] = ()) -> LintReport:
    """Check the manifests in `sources` with the lint rules named in `rules` (all if empty) and return a report."""
    unreadable_files: list[FileFault] = []
    texts = list(read_sources(sources, unreadable_files))
    names = [name for name, _ in texts]
    state_names = {name for name, text in texts if is_state_text(text)}
    return lint_manifests(read_manifests(manifest_texts(texts)), names, unreadable_files, rules, state_names)


def lint_manifests(
    manifests: Manifests,
    source_names: Sequence[str],
    unreadable_files: Sequence[FileFault] = (),
    rules: Collection[str] = (),
    state_names: Collection[str] = (),
) -> LintReport:
    """Check parsed manifests with the lint rules named in `rules` (all if empty) and return a report.

    `state_names` are the names of the sources that are cluster states. The Namespaces of objects in these sources count
    as existing, even without manifests.
    """
    doc_repairs = [(doc, repair) for doc in manifests.invalid_documents if (repair := repair_manifest(doc.value))]
    repairs = [Manifest(obj, doc.source, doc.document, doc.item_path) for doc, (_, obj) in doc_repairs]
    sorted_manifests = _sort_by_position([*as_user_manifests([*manifests.objects, *repairs])], source_names)
    valid_forms = {(doc.source, doc.document, doc.item_path): value for doc, (value, _) in doc_repairs}
    findings = [*map(_file_finding, unreadable_files), *_document_findings(manifests, valid_forms)]
    findings += _cluster_findings(sorted_manifests)
    findings = [finding for finding in findings if not rules or finding.rule in rules]
    existing_namespaces = {
        each.obj["metadata"].get("namespace", "")
        for each in manifests.objects
        if each.source in state_names or each.obj["metadata"].get("resourceVersion")
    }
    findings += run_rules(index_manifests(sorted_manifests, existing_namespaces), rules)
    position_by_source = {source: position for position, source in enumerate(source_names)}
    located_findings = _add_line_numbers(findings, manifests)
    located_findings.sort(
        key=lambda f: (position_by_source.get(f.source, -1), f.document, f.line, _SEVERITIES.index(f.severity))
    )
    return LintReport(located_findings, len(manifests.texts))


def index_manifests(manifests: Sequence[Manifest], existing_namespaces: Collection[str] = ()) -> LintedManifests:
    """Return manifests with the indexes that the lint rules need."""
    reader = _ObjectReader(manifests)
    groups = pods.groups_by_first_member(manifests)
    jobs = [job for manifest in manifests for job in _linted_jobs_of(manifest, reader, groups)]
    scenarios = [
        manifest.obj.get("spec") or {} for manifest in manifests if group_kind(manifest.obj) == scheme.SCENARIO
    ]
    configurations = [manifest.obj for manifest in manifests if group_kind(manifest.obj) == scheme.CONFIGURATION]
    fair_sharing = any(spec.get("fairSharing") for spec in [*scenarios, *configurations])
    return LintedManifests(manifests, jobs, fair_sharing=fair_sharing, existing_namespaces=existing_namespaces)


def _sort_by_position(manifests: list[Manifest], sources: Sequence[str]) -> list[Manifest]:
    """Return manifests in the order of file and document, because rules use the last definition of an object."""
    position_by_source = {source: position for position, source in enumerate(sources)}
    return sorted(manifests, key=lambda manifest: (position_by_source[manifest.source], manifest.document))


class _ObjectReader:
    """Reader of manifest objects with the read methods of an API client, for code shared with the controllers."""

    def __init__(self, manifests: Sequence[Manifest]) -> None:
        self._objects = {key_of(m.obj): m.obj for m in manifests if m.obj["metadata"].get("name")}
        self._kinds: dict[str, list[Obj]] = {}
        for obj in self._objects.values():
            self._kinds.setdefault(group_kind(obj), []).append(obj)

    def get(self, key: Key) -> Obj | None:
        return self._objects.get(key)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        objects = self._kinds.get(kind, [])
        return objects if namespace is None else [o for o in objects if o["metadata"].get("namespace") == namespace]

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """Return no objects, because only controllers create owned objects, and lint runs none."""
        del uid, namespace
        return ()


def _linted_jobs_of(
    manifest: Manifest, reader: _ObjectReader, groups: Mapping[int, pods.LintedPodGroup]
) -> Iterator[LintedJob]:
    obj = manifest.obj
    kind = group_kind(obj)
    if kind == scheme.POD:
        group = groups.get(id(manifest))
        if group is not None:
            yield _make_linted_pods(group, reader)
        return
    if kind == scheme.WORKLOAD:
        paths = [f"spec.podSets[{index}].template" for index in range(len(obj["spec"]["podSets"]))]
        ref = obj["spec"].get("priorityClassRef") or {}
        yield _make_linted_work(manifest, obj["spec"], paths, reader, (ref.get("kind", ""), ref.get("name", "")))
    parts = job_kinds.job_parts(obj, reader)
    if parts is None:
        return
    yield _make_linted_job(manifest, parts, reader)


def _make_linted_pods(group: pods.LintedPodGroup, reader: _ObjectReader) -> LintedJob:
    """Return a pod or a group of pods as a job: its manifest is that of the first pod, its pod sets are the roles."""
    first = group.members[0]
    pod_class = adjustments.first_priority_class((first.obj,))
    parts = job_kinds.JobParts(pod_class, group.pod_sets, [""] * len(group.pod_sets))
    return _make_linted_job(first, parts, reader)


def _make_linted_job(manifest: Manifest, parts: job_kinds.JobParts, reader: _ObjectReader) -> LintedJob:
    key = adjustments.priority_class_key(manifest.obj, parts.pod_class)
    priority = adjustments.resolve_priority(manifest.obj, parts.pod_class, reader)
    value = (
        adjustments.WorkloadPriority(0, None) if isinstance(priority, adjustments.MissingPriorityClass) else priority
    )
    spec = workload_spec(manifest.obj, parts.pod_sets, value)
    priority_class = (key.kind.partition(".")[0], key.name) if key else ("", "")
    return _make_linted_work(manifest, spec, parts.template_paths, reader, priority_class)


def _make_linted_work(
    manifest: Manifest,
    spec: Mapping[str, Any],
    paths: Sequence[str],
    reader: _ObjectReader,
    priority_class: tuple[str, str],
) -> LintedJob:
    metadata = manifest.obj["metadata"]
    namespace = metadata.get("namespace", "")
    name = metadata.get("name") or metadata.get("generateName", "")
    limit_ranges = reader.list(scheme.LIMIT_RANGE, namespace)
    requested_workload = {"metadata": {"name": name, "namespace": namespace}, "spec": spec}
    workload = (
        adjustments.with_default_resources(requested_workload, adjustments.combine_limit_ranges(limit_ranges))
        if limit_ranges
        else requested_workload
    )
    return LintedJob(manifest, workload, WorkloadView(workload), paths, *priority_class)


def _file_finding(fault: FileFault) -> LintFinding:
    return _make_finding("unreadable-file", fault.source, 0, ("", ""), fault.error)


def _document_findings(manifests: Manifests, valid_forms: Mapping[tuple[str, int, str], Obj]) -> Iterator[LintFinding]:
    non_manifests = {(doc.source, doc.document) for doc in manifests.invalid_documents if _is_not_manifest(doc.value)}
    for source, document in sorted(non_manifests):
        error = FieldError(
            "", "the document is not a Kubernetes manifest and is ignored", "move the file out of the linted folder"
        )
        yield _make_finding("not-a-manifest", source, document, ("", ""), error)
    for manifest in manifests.objects:
        if group_kind(manifest.obj) == scheme.PLATFORM:
            error = FieldError("", "lint ignores a Platform", "check the Platform with `batchyard platform plan FILE`")
            yield _make_finding(
                "not-a-manifest",
                manifest.source,
                manifest.document,
                ("Platform", manifest.obj["metadata"]["name"]),
                error,
            )
    for fault in manifests.faults:
        if (fault.source, fault.document) in non_manifests:
            continue
        location = next(
            (
                location
                for location in valid_forms
                if location[:2] == fault[:2] and fault.error.path.startswith(location[2])
            ),
            None,
        )
        rule = _rule_of_fault(fault)
        finding = _make_finding(rule, fault.source, fault.document, (fault.kind, fault.name), fault.error)
        yield replace(finding, patches=(valid_forms[location],)) if location else finding
    for warning in manifests.located_warnings:
        if warning.error.problem.startswith(_QUEUE_ANNOTATION):
            continue
        rule = "deprecated-version" if "deprecated" in warning.error.problem else "without-effect"
        is_refused = warning.error.problem == scheme.KUEUE_DEPRECATION and warning.kind != "Configuration"
        error = warning.error._replace(
            problem=_REFUSED_VERSION if is_refused else warning.error.problem,
            remedy=_CONVERT_REMEDY if is_refused else _REMEDY_BY_WARNING_RULE[rule],
        )
        yield _make_finding(rule, warning.source, warning.document, (warning.kind, warning.name), error)


def _cluster_findings(manifests: Sequence[Manifest]) -> Iterator[LintFinding]:
    clusters = [manifest for manifest in manifests if group_kind(manifest.obj) == scheme.CLUSTER]
    faults = [manifest.fault(fault) for manifest in clusters for fault in catalog_errors(manifest.obj)]
    pools = [manifest for manifest in manifests if clusters and group_kind(manifest.obj) == scheme.NODE_POOL]
    faults += [pool.fault(fault) for pool in pools for fault in pool_errors(pool.obj, clusters[0].obj)]
    for fault in faults:
        yield _make_finding("invalid-value", fault.source, fault.document, (fault.kind, fault.name), fault.error)


def _rule_of_fault(fault: ManifestFault) -> str:
    path, problem = fault.error.path, fault.error.problem
    if fault.error.line:
        return "invalid-yaml"
    if path.rpartition(".")[2] in {"kind", "apiVersion"} or (not path and "is no object" in problem):
        return "unknown-kind"
    if problem.startswith("unknown field"):
        return "unknown-field"
    return "missing-field" if problem.startswith("Required value") else "invalid-value"


def _is_not_manifest(value: object) -> bool:
    return not isinstance(value, Mapping) or not {"apiVersion", "kind", "metadata", "spec"} & set(value)


def _make_finding(rule: str, source: str, document: int, subject: tuple[str, str], error: FieldError) -> LintFinding:
    problem_text = f"{error.problem}: {_CONSEQUENCE_BY_RULE[rule]}" if rule in _CONSEQUENCE_BY_RULE else error.problem
    return LintFinding(
        rule,
        RULES_BY_NAME[rule].severity,
        source,
        document,
        subject[0],
        "",
        subject[1],
        error.path,
        problem_text,
        error.remedy,
        line=error.line,
    )


def _add_line_numbers(findings: Sequence[LintFinding], manifests: Manifests) -> list[LintFinding]:
    documents = {(finding.source, finding.document): None for finding in findings}
    source_texts = manifests.texts
    lines = {location: DocumentLines(*source_texts[location]) for location in documents if location in source_texts}
    return [replace(f, line=_line_of_finding(f, lines.get((f.source, f.document)))) for f in findings]


def _line_of_finding(finding: LintFinding, lines: DocumentLines | None) -> int:
    return finding.line or (0 if lines is None else lines.line_of(finding.path))
