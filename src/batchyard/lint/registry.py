"""All rules, in the order of their documentation."""

from collections.abc import Collection, Iterator
from typing import Final

from batchyard.lint import accelerators, capacity, flavors, preemption, queues, references, terms
from batchyard.lint import flavors as labels
from batchyard.lint import queues as sizes
from batchyard.lint.configuration import Configuration
from batchyard.lint.findings import Finding, Rule, Severity, finding_of

_ERROR, _WARNING, _NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE

#: Rules that are checked while documents are read.
READING: Final = (
    Rule("unreadable-file", _ERROR, "a file cannot be read"),
    Rule("invalid-yaml", _ERROR, "a document is not valid YAML"),
    Rule("not-a-manifest", _NOTE, "a document is not a Kubernetes object"),
    Rule("unknown-kind", _ERROR, "the kind of a document is not served"),
    Rule("unknown-field", _ERROR, "a field exists in no version"),
    Rule("missing-field", _ERROR, "a required field is missing"),
    Rule("invalid-value", _ERROR, "a value violates the rules of its kind"),
    Rule("deprecated-version", _NOTE, "an API version that will be removed"),
    Rule("without-effect", _NOTE, "an object of a kind that batchyard stores"),
)
_QUEUES: Final = (
    Rule("null-namespace-selector", _ERROR, "a ClusterQueue selects no namespace", queues.null_namespace_selector),
    Rule(
        "namespace-not-selected", _ERROR, "a ClusterQueue does not select the namespace", queues.namespace_not_selected
    ),
    Rule("queue-stopped", _WARNING, "work for a stopped queue", queues.queue_stopped),
    Rule("queue-without-local-queue", _NOTE, "a ClusterQueue without a LocalQueue", queues.queue_without_local_queue),
    Rule("strict-fifo-blocking", _WARNING, "the head of the queue blocks others", queues.strict_fifo_blocking),
    Rule("tiny-memory-quota", _ERROR, "a memory quota without a unit", queues.tiny_memory_quota),
)
_NAMES: Final = (
    Rule("unknown-local-queue", _ERROR, "work for a LocalQueue that does not exist", references.unknown_local_queue),
    Rule(
        "unknown-cluster-queue",
        _ERROR,
        "a LocalQueue whose ClusterQueue does not exist",
        references.unknown_cluster_queue,
    ),
    Rule("unknown-flavor", _ERROR, "quota in a flavor that does not exist", references.unknown_flavor),
    Rule(
        "unknown-admission-check", _ERROR, "an admission check that does not exist", references.unknown_admission_check
    ),
    Rule(
        "unknown-provisioning-config",
        _ERROR,
        "the `parameters` of a check name no ProvisioningRequestConfig",
        references.unknown_provisioning_config,
    ),
    Rule("unknown-topology", _ERROR, "a flavor with a topology that does not exist", references.unknown_topology),
    Rule(
        "unknown-priority-class",
        _ERROR,
        "work with a priority class that does not exist",
        references.unknown_priority_class,
    ),
    Rule("unknown-node-pool", _ERROR, "pods for a node pool that does not exist", references.unknown_node_pool),
    Rule("cohort-cycle", _ERROR, "a Cohort is its own ancestor", references.cohort_cycle),
    Rule("defined-twice", _NOTE, "an object is defined twice", references.defined_twice),
)
_LABELS: Final = (
    Rule("queue-name-not-a-label", _ERROR, "a queue name that is ignored", labels.queue_name_not_a_label),
    Rule("misplaced-label", _WARNING, "a label that is ignored where it is", labels.misplaced_label),
    Rule("unknown-kueue-key", _WARNING, "a key that Kueue does not have", labels.unknown_kueue_key),
    Rule("job-without-queue", _WARNING, "a job outside all quota", labels.job_without_queue),
    Rule(
        "namespace-without-queue",
        _WARNING,
        "a namespace with jobs and without a LocalQueue",
        labels.namespace_without_queue,
    ),
    Rule("not-suspended", _NOTE, "a JobSet with a queue sets `suspend: false`", labels.not_suspended),
)
_FLAVORS: Final = (
    Rule("unused-flavor", _WARNING, "no queue has quota of the flavor", flavors.unused_flavor),
    Rule("flavor-without-nodes", _ERROR, "no machine matches the flavor", flavors.flavor_without_nodes),
    Rule(
        "flavor-without-quota",
        _WARNING,
        "the whole cohort has no quota of a covered resource",
        flavors.flavor_without_quota,
    ),
    Rule("shadowed-flavor", _NOTE, "an earlier flavor has quota for all jobs", flavors.shadowed_flavor),
    Rule(
        "untolerated-flavor",
        _WARNING,
        "neither the flavor nor any job in its queues tolerates the flavor's taint",
        flavors.untolerated_flavor,
    ),
    Rule(
        "undeclared-taint", _WARNING, "nodes have a taint that their flavor does not declare", flavors.undeclared_taint
    ),
)
_SIZES: Final = (
    Rule("quota-above-capacity", _ERROR, "more quota than capacity", capacity.quota_above_capacity),
    Rule("uncovered-resource", _ERROR, "a resource that the queue does not cover", sizes.uncovered_resource),
    Rule("exceeds-quota", _ERROR, "work larger than the quota can ever be", sizes.exceeds_quota),
    Rule("no-matching-flavor", _ERROR, "no flavor suits the work", sizes.no_matching_flavor),
    Rule("asks-for-nothing", _WARNING, "work that requests nothing", sizes.asks_for_nothing),
    Rule("beyond-limit-range", _ERROR, "a LimitRange rejects the pods", sizes.beyond_limit_range),
    Rule(
        "pod-larger-than-node",
        _ERROR,
        "a pod requests more than the allocatable capacity of any node",
        sizes.pod_larger_than_node,
    ),
    Rule("no-such-node", _ERROR, "a pod selects labels that no node has", sizes.no_such_node),
    Rule("untolerated-taint", _ERROR, "a pod does not tolerate the taints of its nodes", sizes.untolerated_taint),
    Rule("too-few-nodes", _ERROR, "more pods than the nodes have room for", sizes.too_few_nodes),
    Rule(
        "tpu-topology-mismatch",
        _ERROR,
        "the pods of one Job have in total another number of chips",
        accelerators.tpu_topology_mismatch,
    ),
    Rule("tpu-chips-left", _WARNING, "pods request fewer chips than their machine has", accelerators.tpu_chips_left),
    Rule(
        "accelerator-mismatch",
        _ERROR,
        "the selected machine type and accelerator do not match",
        accelerators.accelerator_mismatch,
    ),
)
_TERMS: Final = (
    Rule("grace-beyond-spot", _WARNING, "a grace period longer than Spot allows", terms.grace_beyond_spot),
    Rule("no-retries-on-spot", _WARNING, "the first lost machine ends the work", terms.no_retries_on_spot),
    Rule(
        "queued-pool-without-check",
        _ERROR,
        "pods can only run on a pool of queued provisioning",
        terms.queued_pool_without_check,
    ),
    Rule("run-time-beyond-limit", _ERROR, "a requested run time over 7 days", terms.run_time_beyond_limit),
    Rule(
        "check-without-resource",
        _WARNING,
        "the `managedResources` of a check contain no resource",
        terms.check_without_resource,
    ),
)
_PREEMPTION: Final = (
    Rule("preemption-loop", _WARNING, "two Workloads preempt each other for ever", preemption.preemption_loop),
    Rule("contradicting-priorities", _WARNING, "two contradicting orders", preemption.contradicting_priorities),
    Rule(
        "priority-without-preemption",
        _WARNING,
        "quota prevents a preemption between pods",
        preemption.priority_without_preemption,
    ),
    Rule(
        "reclaim-without-cohort",
        _NOTE,
        "`reclaimWithinCohort` in a queue without a cohort",
        preemption.reclaim_without_cohort,
    ),
    Rule(
        "borrowing-without-lender",
        _WARNING,
        "a `borrowingLimit` in a flavor of which no other member",
        preemption.borrowing_without_lender,
    ),
    Rule("nothing-lent", _WARNING, "every member of the cohort has a `lendingLimit` of 0", preemption.nothing_lent),
    Rule("zero-weight", _WARNING, "a fair sharing weight of 0 makes the share infinite", preemption.zero_weight),
    Rule(
        "borrowing-ignored",
        _WARNING,
        "`borrowWithinCohort` has no effect with fair sharing",
        preemption.borrowing_ignored,
    ),
)

RULES: Final = (*READING, *_QUEUES, *_NAMES, *_LABELS, *_FLAVORS, *_SIZES, *_TERMS, *_PREEMPTION)
BY_NAME: Final = {rule.name: rule for rule in RULES}


def check(config: Configuration, names: Collection[str] = ()) -> Iterator[Finding]:
    """The findings of the named rules; of all rules if none is named."""
    for rule in RULES:
        if rule.check is not None and (not names or rule.name in names):
            for found in rule.check(config):
                yield finding_of(rule, found)
