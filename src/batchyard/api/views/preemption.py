"""Parsed settings that change which Workloads are preempted, beyond `spec.preemption` of ClusterQueues.

The annotations of ClusterQueues and Cohorts under `batchyard.dev` are batchyard's own. KAI-Scheduler names the minimal
run times `preemptMinRuntime` and `reclaimMinRuntime`; KEP-9876 of Kueue describes the same protection.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj, Selector, parse_selector
from batchyard.api.well_known import CHEAPEST, PREEMPT_MIN_RUNTIME, PREEMPTION_CONFIG_NAME, RECLAIM_MIN_RUNTIME, VICTIMS
from batchyard.base.instant import Duration, parse_duration


class MinRuntimes(NamedTuple):
    """How long admitted Workloads run before they may be preempted, in microseconds; None inherits the value."""

    #: For preemptors of the same ClusterQueue.
    within_queue: Duration | None = None
    #: For preemptors of other ClusterQueues.
    from_other_queues: Duration | None = None


class PreemptionSettings(NamedTuple):
    """The preemption settings in the annotations of a ClusterQueue or a Cohort."""

    min_runtimes: MinRuntimes = MinRuntimes()
    #: Whether the victims whose restart costs least come first among those of equal priority.
    prefers_cheap_victims: bool = False
    #: The name of the PreemptionConfig whose rules apply; '' without one.
    config_name: str = ""


def preemption_settings_of(obj: Obj) -> PreemptionSettings | None:
    """Return the preemption settings in an object's annotations; None if there are none.

    Malformed values count as unset.
    """
    annotations = obj["metadata"].get("annotations")
    if not annotations:
        return None
    within_queue = _parse_min_runtime(annotations.get(PREEMPT_MIN_RUNTIME))
    from_other_queues = _parse_min_runtime(annotations.get(RECLAIM_MIN_RUNTIME))
    prefers_cheap_victims = annotations.get(VICTIMS) == CHEAPEST
    min_runtimes = MinRuntimes(within_queue, from_other_queues)
    settings = PreemptionSettings(min_runtimes, prefers_cheap_victims, annotations.get(PREEMPTION_CONFIG_NAME, ""))
    return None if settings == _NO_SETTINGS else settings


_NO_SETTINGS: Final = PreemptionSettings()


def _parse_min_runtime(text: str | None) -> Duration | None:
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError:
        return None


# The rules of PreemptionConfigs, with which Workloads are preempted beyond `spec.preemption` of ClusterQueues.
#
# Source: apis/kueue/v1alpha1/preemptionconfig_types.go of Kueue 0.20; KEP-13396.


#: The triggers of rules, in the order in which the rules are evaluated.
ALWAYS: Final = "Always"
INSUFFICIENT_QUOTA: Final = "InsufficientQuota"
INSUFFICIENT_TOPOLOGY: Final = "QuotaFeasibleAndInsufficientTopology"
TRIGGERS: Final = (ALWAYS, INSUFFICIENT_QUOTA, INSUFFICIENT_TOPOLOGY)


class NumericLabelRule(NamedTuple):
    """A condition on an integer label of a candidate, absolute or relative to the label of the preemptor."""

    key: str
    #: The value of Workloads without a valid label; None excludes such candidates.
    fallback_value: int | None
    #: How the candidate's value compares to the preemptor's, such as LessThan; '' without a comparison.
    comparison: str
    min_value: int | None
    max_value: int | None


class PriorityClassNames(NamedTuple):
    """The names of priority classes that a Workload must have (if there are any), and those that it must not have."""

    matching: tuple[str, ...] = ()
    not_matching: tuple[str, ...] = ()


class CandidateSelector(NamedTuple):
    """Selects the Workloads that a rule may preempt; all its conditions must be met. A selector of None is met."""

    #: The relation of the candidate's queue to that of the preemptor, such as WithinClusterQueue.
    scope: str
    queue_selector: Selector | None
    label_selector: Selector | None
    numeric_labels: tuple[NumericLabelRule, ...]
    #: How the candidate's priority compares to the preemptor's; '' without a comparison.
    priority_comparison: str
    #: Whether the compared priorities include boosts.
    is_priority_boosted: bool
    class_names: PriorityClassNames


class ConfiguredPreemptionRule(NamedTuple):
    """A rule of a PreemptionConfig: which preemptors it concerns, when it applies, and whom it lets them preempt."""

    name: str
    trigger: str
    preemptor_selector: Selector | None
    preemptor_class_names: PriorityClassNames
    candidate_selectors: tuple[CandidateSelector, ...]


class PreemptionConfigView(NamedTuple):
    """The parsed spec of a PreemptionConfig."""

    name: str
    rules: tuple[ConfiguredPreemptionRule, ...]


def preemption_config_view(obj: Obj) -> PreemptionConfigView:
    """Parse the spec of a PreemptionConfig."""
    rules = (obj.get("spec") or {}).get("rules") or ()
    return PreemptionConfigView(obj["metadata"]["name"], tuple(map(_parse_rule, rules)))


def _parse_rule(rule: Mapping[str, Any]) -> ConfiguredPreemptionRule:
    return ConfiguredPreemptionRule(
        rule["name"],
        rule["activationPolicy"]["trigger"],
        parse_selector(rule.get("preemptorSelector")),
        _parse_class_names(rule.get("preemptorPriorityClassSelector") or {}),
        tuple(map(_parse_candidate_selector, rule.get("candidateSelectors") or ())),
    )


def _parse_class_names(selector: Mapping[str, Any]) -> PriorityClassNames:
    return PriorityClassNames(tuple(selector.get("matchNames") or ()), tuple(selector.get("notMatchNames") or ()))


def _parse_candidate_selector(selector: Mapping[str, Any]) -> CandidateSelector:
    priority = selector.get("priority") or {}
    return CandidateSelector(
        selector["scope"],
        parse_selector(selector.get("clusterQueueSelector")),
        parse_selector(selector.get("labelSelector")),
        tuple(map(_parse_numeric_label, selector.get("numericLabels") or ())),
        priority.get("comparison") or "",
        priority.get("mode") == "Boosted",
        _parse_class_names(priority),
    )


def _parse_numeric_label(constraint: Mapping[str, Any]) -> NumericLabelRule:
    return NumericLabelRule(
        constraint["key"],
        constraint.get("fallbackValue"),
        constraint.get("comparison") or "",
        constraint.get("minValue"),
        constraint.get("maxValue"),
    )


# Preemption gates of a Workload.


def has_closed_gate(spec: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Return whether one of a Workload's preemption gates is closed; a gate without a state in the status is closed."""
    open_names = {each["name"] for each in status.get("preemptionGates") or () if each.get("position") == "Open"}
    return any(gate["name"] not in open_names for gate in spec.get("preemptionGates") or ())
