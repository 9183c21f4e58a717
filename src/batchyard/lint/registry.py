"""All rules, in the order of their documentation."""

from collections.abc import Collection, Iterator
from typing import Final

from batchyard.lint import accelerators, capacity, flavors, preemption, queues, references, terms
from batchyard.lint import flavors as labels
from batchyard.lint import queues as sizes
from batchyard.lint.configuration import Configuration
from batchyard.lint.findings import LintFinding, LintRule, Severity, finding_of

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
    LintRule("queue-name-not-a-label", _ERROR, "a queue name that is ignored", labels.queue_name_not_a_label),
    LintRule("misplaced-label", _WARNING, "a label that is ignored where it is", labels.misplaced_label),
    LintRule("unknown-kueue-key", _WARNING, "a key that Kueue does not have", labels.unknown_kueue_key),
    LintRule("job-without-queue", _WARNING, "a job outside all quota", labels.job_without_queue),
    LintRule(
        "namespace-without-queue",
        _WARNING,
        "a namespace with jobs and without a LocalQueue",
        labels.namespace_without_queue,
    ),
    LintRule("not-suspended", _NOTE, "a JobSet with a queue sets `suspend: false`", labels.not_suspended),
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
    LintRule("uncovered-resource", _ERROR, "a resource that the queue does not cover", sizes.uncovered_resource),
    LintRule("exceeds-quota", _ERROR, "work larger than the quota can ever be", sizes.exceeds_quota),
    LintRule("no-matching-flavor", _ERROR, "no flavor suits the work", sizes.no_matching_flavor),
    LintRule("asks-for-nothing", _WARNING, "work that requests nothing", sizes.asks_for_nothing),
    LintRule("beyond-limit-range", _ERROR, "a LimitRange rejects the pods", sizes.beyond_limit_range),
    LintRule(
        "pod-larger-than-node",
        _ERROR,
        "a pod requests more than the allocatable capacity of any node",
        sizes.pod_larger_than_node,
    ),
    LintRule("no-such-node", _ERROR, "a pod selects labels that no node has", sizes.no_such_node),
    LintRule("untolerated-taint", _ERROR, "a pod does not tolerate the taints of its nodes", sizes.untolerated_taint),
    LintRule("too-few-nodes", _ERROR, "more pods than the nodes have room for", sizes.too_few_nodes),
    LintRule(
        "tpu-topology-mismatch",
        _ERROR,
        "the pods of one Job have in total another number of chips",
        accelerators.tpu_topology_mismatch,
    ),
    LintRule(
        "tpu-chips-left", _WARNING, "pods request fewer chips than their machine has", accelerators.tpu_chips_left
    ),
    LintRule(
        "accelerator-mismatch",
        _ERROR,
        "the selected machine type and accelerator do not match",
        accelerators.accelerator_mismatch,
    ),
)
_TERMS: Final = (
    LintRule("grace-beyond-spot", _WARNING, "a grace period longer than Spot allows", terms.grace_beyond_spot),
    LintRule("no-retries-on-spot", _WARNING, "the first lost machine ends the work", terms.no_retries_on_spot),
    LintRule(
        "queued-pool-without-check",
        _ERROR,
        "pods can only run on a pool of queued provisioning",
        terms.queued_pool_without_check,
    ),
    LintRule("run-time-beyond-limit", _ERROR, "a requested run time over 7 days", terms.run_time_beyond_limit),
    LintRule(
        "check-without-resource",
        _WARNING,
        "the `managedResources` of a check contain no resource",
        terms.check_without_resource,
    ),
)
_PREEMPTION: Final = (
    LintRule("preemption-loop", _WARNING, "two Workloads preempt each other for ever", preemption.preemption_loop),
    LintRule("contradicting-priorities", _WARNING, "two contradicting orders", preemption.contradicting_priorities),
    LintRule(
        "priority-without-preemption",
        _WARNING,
        "quota prevents a preemption between pods",
        preemption.priority_without_preemption,
    ),
    LintRule(
        "reclaim-without-cohort",
        _NOTE,
        "`reclaimWithinCohort` in a queue without a cohort",
        preemption.reclaim_without_cohort,
    ),
    LintRule(
        "borrowing-without-lender",
        _WARNING,
        "a `borrowingLimit` in a flavor of which no other member",
        preemption.borrowing_without_lender,
    ),
    LintRule("nothing-lent", _WARNING, "every member of the cohort has a `lendingLimit` of 0", preemption.nothing_lent),
    LintRule("zero-weight", _WARNING, "a fair sharing weight of 0 makes the share infinite", preemption.zero_weight),
    LintRule(
        "borrowing-ignored",
        _WARNING,
        "`borrowWithinCohort` has no effect with fair sharing",
        preemption.borrowing_ignored,
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
