"""Lint rules on PreemptionConfigs: names, feature gate, rules that never match, and preemption without end."""

from collections.abc import Iterator, Mapping
from itertools import combinations, islice
from typing import Any, Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.manifests import Manifest
from batchyard.api.meta import Obj, Selector, annotation
from batchyard.api.views.preemption import (
    CandidateSelector,
    ConfiguredPreemptionRule,
    PreemptionConfigView,
    PriorityClassNames,
    preemption_config_view,
)
from batchyard.lint.findings import LintRule, RuleResult, Severity
from batchyard.lint.linted_manifests import LintedManifests
from batchyard.lint.references import ObjectReference, report_missing
from batchyard.lint.workloads import LintedJob
from batchyard.scheduling.cluster_queue import AdmittedWorkload, ClusterQueue
from batchyard.scheduling.preemption.context import PreemptionContext, selecting_rules

_ANNOTATION_PATH: Final = f"metadata.annotations[{well_known.PREEMPTION_CONFIG_NAME}]"
#: The most pairs of jobs that are compared.
_PAIRS_MAX: Final = 10_000


def unknown_preemption_config(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each ClusterQueue that names a PreemptionConfig that does not exist."""
    for manifest, name in _references(linted):
        consequence = "no rule selects further victims for the ClusterQueue"
        reference = ObjectReference(manifest, _ANNOTATION_PATH, scheme.PREEMPTION_CONFIG, name, consequence)
        yield from report_missing(linted, reference)


def preemption_config_ignored(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each ClusterQueue that names a PreemptionConfig while the feature gate of these rules is off."""
    if _is_gate_enabled(linted):
        return
    for manifest, name in _references(linted):
        problem = (
            f"the rules of PreemptionConfig {name} have no effect: the feature gate"
            f" {well_known.CONFIGURABLE_PREEMPTIONS} is off"
        )
        fix = f"set `featureGates: {{{well_known.CONFIGURABLE_PREEMPTIONS}: true}}` in Kueue's Configuration"
        yield RuleResult(manifest, _ANNOTATION_PATH, problem, fix)


def unmatched_preemption_rule(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each rule or selector of a PreemptionConfig that matches no Workload, and each unused PreemptionConfig."""
    used_names = {name for _, name in _references(linted)}
    for manifest, config in _configs(linted):
        if config.name not in used_names and linted.queues:
            problem = f"no ClusterQueue names PreemptionConfig {config.name}, so its rules never apply"
            fix = f"name it in the annotation {well_known.PREEMPTION_CONFIG_NAME} of a ClusterQueue"
            yield RuleResult(manifest, "metadata.name", problem, fix)
        for index, rule in enumerate(config.rules):
            for path, problem in _rule_problems(linted, rule, f"spec.rules[{index}]"):
                yield RuleResult(manifest, path, problem, "change the selector, or remove the rule")


def mutual_preemption(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report two jobs that rules of PreemptionConfigs let preempt each other, and that do not fit together."""
    configs = {config.name: (manifest, config) for manifest, config in _configs(linted)}
    entrants = [each for each in (_entrant(linted, job, configs) for job in linted.jobs) if each is not None]
    reported: dict[tuple[str, str], None] = {}
    for first, second in islice(combinations(entrants, 2), _PAIRS_MAX):
        config_names = first.config.name, second.config.name
        if config_names in reported or not (first.may_preempt(second) and second.may_preempt(first)):
            continue
        if not _compete(first, second):
            continue
        reported[config_names] = None
        rules = " and ".join(dict.fromkeys([first.may_preempt(second), second.may_preempt(first)]))
        problem = (
            f"{first.job.view.key} and {second.job.view.key} do not fit together, and the rules ({rules}) let each"
            " preempt the other: the two can preempt each other forever"
        )
        fix = "compare priorities or numeric labels with LessThan, so that only one of the two is a candidate"
        yield RuleResult(configs[first.config.name][0], "spec.rules", problem, fix)


RULES: Final = (
    LintRule(
        "unknown-preemption-config",
        Severity.ERROR,
        "a ClusterQueue names a PreemptionConfig that does not exist",
        unknown_preemption_config,
    ),
    LintRule(
        "preemption-config-ignored",
        Severity.WARNING,
        "a ClusterQueue names a PreemptionConfig while the feature gate is off",
        preemption_config_ignored,
    ),
    LintRule(
        "unmatched-preemption-rule",
        Severity.WARNING,
        "a rule of a PreemptionConfig can never match",
        unmatched_preemption_rule,
    ),
    LintRule(
        "mutual-preemption",
        Severity.WARNING,
        "rules of PreemptionConfigs let two jobs preempt each other forever",
        mutual_preemption,
    ),
)


def _references(linted: LintedManifests) -> list[tuple[Manifest, str]]:
    """Return the ClusterQueues that name a PreemptionConfig, with its name."""
    manifests = linted.latest_versions(scheme.CLUSTER_QUEUE)
    names = [(each, annotation(each.obj, well_known.PREEMPTION_CONFIG_NAME)) for each in manifests]
    return [(manifest, name) for manifest, name in names if name]


def _configs(linted: LintedManifests) -> list[tuple[Manifest, PreemptionConfigView]]:
    manifests = linted.latest_versions(scheme.PREEMPTION_CONFIG)
    return [(manifest, preemption_config_view(manifest.obj)) for manifest in manifests]


def _is_gate_enabled(linted: LintedManifests) -> bool:
    """Return whether a Configuration or a Scenario in the manifests enables the rules of PreemptionConfigs."""
    configurations = [each.obj for each in linted.all_versions(scheme.CONFIGURATION)]
    scenarios: list[Mapping[str, Any]] = [each.obj.get("spec") or {} for each in linted.all_versions(scheme.SCENARIO)]
    return any(
        (each.get("featureGates") or {}).get(well_known.CONFIGURABLE_PREEMPTIONS)
        for each in [*configurations, *scenarios]
    )


# Rules that match no Workload.


def _rule_problems(linted: LintedManifests, rule: ConfiguredPreemptionRule, path: str) -> Iterator[tuple[str, str]]:
    if not rule.candidate_selectors:
        yield f"{path}.candidateSelectors", f"rule {rule.name} has no candidateSelectors, so it selects no victims"
    class_problem = _class_problem(linted, rule.preemptor_class_names)
    if class_problem:
        yield f"{path}.preemptorPriorityClassSelector", f"rule {rule.name} concerns no Workload: {class_problem}"
    label_problem = _label_problem(linted, rule.preemptor_selector)
    if label_problem:
        yield f"{path}.preemptorSelector", f"rule {rule.name} concerns no Workload: {label_problem}"
    for index, selector in enumerate(rule.candidate_selectors):
        problem = _class_problem(linted, selector.class_names) or _queue_problem(linted, selector)
        problem = problem or _label_problem(linted, selector.label_selector)
        if problem:
            yield f"{path}.candidateSelectors[{index}]", f"rule {rule.name} selects no victim here: {problem}"


def _class_problem(linted: LintedManifests, names: PriorityClassNames) -> str:
    """Return why no priority class has the required names; '' if one may."""
    if not names.matching:
        return ""
    remaining = [name for name in names.matching if name not in names.not_matching]
    if not remaining:
        return "notMatchNames excludes all names of matchNames"
    kinds = (scheme.WORKLOAD_PRIORITY_CLASS, scheme.PRIORITY_CLASS)
    is_known = all(linted.has_kind(kind) for kind in kinds) or linted.has_kind(scheme.WORKLOAD_PRIORITY_CLASS)
    if is_known and not any(linted.find(kind, name) for kind in kinds for name in remaining):
        return f"no priority class has the name {' or '.join(remaining)}"
    return ""


def _label_problem(linted: LintedManifests, selector: Selector | None) -> str:
    """Return why no Workload has the labels that a selector requires; '' if one may, or if that is unknown."""
    if selector is None or not _is_gate_enabled(linted):
        return ""
    integrations = [each.obj.get("integrations") or {} for each in linted.all_versions(scheme.CONFIGURATION)]
    known_keys = [key for each in integrations for key in each.get("labelKeysToCopy") or ()]
    known_keys += [key for job in linted.jobs for key in _labels(job.obj) if not job.is_job]
    for requirement in selector.requirements:
        if requirement.operator in {"In", "Exists"} and requirement.key not in {*known_keys, well_known.JOB_UID}:
            return f"no Workload has the label {requirement.key}: integrations.labelKeysToCopy does not list it"
    return ""


def _queue_problem(linted: LintedManifests, selector: CandidateSelector) -> str:
    """Return why the selector matches no ClusterQueue; '' if it matches one."""
    if selector.queue_selector is None or not linted.queues:
        return ""
    labels = [_labels(manifest.obj) for manifest, _ in linted.queues.values()]
    return "" if any(map(selector.queue_selector.matches, labels)) else "clusterQueueSelector matches no ClusterQueue"


# Jobs that preempt each other.


class _Entrant(NamedTuple):
    """A job whose ClusterQueue has a PreemptionConfig, as preemptor and as candidate."""

    job: LintedJob
    config: PreemptionConfigView
    context: PreemptionContext
    candidate: AdmittedWorkload
    requests: Mapping[str, int]

    def may_preempt(self, other: "_Entrant") -> str:
        """Return the rules by which this job may preempt another; '' if there is none."""
        return selecting_rules(self.config, self.context, other.candidate)


def _entrant(
    linted: LintedManifests, job: LintedJob, configs: Mapping[str, tuple[Manifest, PreemptionConfigView]]
) -> _Entrant | None:
    queue = linted.cluster_queue_of(job)
    settings = None if queue is None else queue.view.preemption_settings
    if queue is None or settings is None or settings.config_name not in configs:
        return None
    snapshot, view = linted.snapshot, job.view
    if not snapshot.preemption.queue_labels:
        labels_by_queue = {name: _labels(manifest.obj) for name, (manifest, _) in linted.queues.items()}
        snapshot.preemption.queue_labels.update(labels_by_queue)
    requests: dict[str, int] = {}
    for pod_set in linted.charged_pod_sets(job):
        for resource, amount in pod_set.template.requests:
            requests[resource] = requests.get(resource, 0) + amount * pod_set.count
    candidate = AdmittedWorkload(view.key, view.uid, queue, (), priority=view.priority, local_queue=view.queue)
    candidate.obj = job.workload
    context = PreemptionContext(view, queue, snapshot, (), ())
    return _Entrant(job, configs[settings.config_name][1], context, candidate, requests)


def _compete(first: _Entrant, second: _Entrant) -> bool:
    """Return whether each of two jobs fits its queue alone, but the cohort lacks quota for both."""
    queues = first.candidate.queue, second.candidate.queue
    if queues[0].node.path[0] is not queues[1].node.path[0]:
        return False
    fits_alone = all(
        amount <= _potential(each.candidate.queue, resource)
        for each in (first, second)
        for resource, amount in each.requests.items()
    )
    common = [resource for resource in first.requests if resource in second.requests]
    return fits_alone and any(
        first.requests[r] + second.requests[r] > max(_potential(queue, r) for queue in queues) for r in common
    )


def _potential(queue: ClusterQueue, resource: str) -> int:
    """Return how much of a resource a ClusterQueue could use in all its flavors together."""
    ids = [fr for group in queue.coverage.groups for fr in group.ids.get(resource, ())]
    return sum([queue.node.potential_quota[fr] for fr in ids])


def _labels(obj: Obj) -> Mapping[str, str]:
    return (obj.get("metadata") or {}).get("labels") or {}
