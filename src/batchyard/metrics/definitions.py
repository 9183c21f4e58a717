"""The definitions of all served metrics: names, types, help texts, labels and histogram buckets.

Names, labels and buckets are those of Kueue (pkg/metrics), controller-runtime (pkg/metrics,
pkg/internal/controller/metrics, pkg/webhook/internal/metrics), k8s.io/apiserver (pkg/endpoints/metrics),
kube-state-metrics and dcgm-exporter (default counters). Metrics of batchyard begin with `batchyard_`.
"""

from collections.abc import Mapping
from itertools import accumulate, repeat
from operator import mul
from typing import Final

from batchyard.metrics.registry import COUNTER, GAUGE, HISTOGRAM, Metric


def _geometric_buckets(start: float, factor: float, count: int) -> tuple[float, ...]:
    return tuple(start * factor**power for power in range(count))


#: Kueue's buckets: 1, then 2.5, doubling each time.
_LONG_DURATION_BUCKETS: Final = (1.0, *_geometric_buckets(2.5, 2, 15))
_SHORT_DURATION_BUCKETS: Final = _LONG_DURATION_BUCKETS[:14]
_DEFAULT_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
#: Buckets multiplied step by step, as in client_golang, which gives rounded values such as 9.99e-06.
_WORK_DURATION_BUCKETS: Final = tuple(accumulate(repeat(10.0, 11), mul, initial=10e-9))
_RECONCILE_BUCKETS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    *(1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0),
    *(40.0, 50.0, 60.0),
)
_REQUEST_BUCKETS: Final = (
    *(0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0),
    *(30.0, 45.0, 60.0),
)
_COMMIT_BUCKETS: Final = _geometric_buckets(0.0005, 2, 14)
#: Buckets for forked query processes; the last one is their timeout.
_FORK_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0)

_ROLE_LABEL: Final = "replica_role"
_CQ_LABELS: Final = ("cluster_queue", _ROLE_LABEL)
_CQ_PRIORITY_LABELS: Final = ("cluster_queue", "priority_class", _ROLE_LABEL)
_CQ_STATUS_LABELS: Final = ("cluster_queue", "status", _ROLE_LABEL)
_CQ_QUOTA_LABELS: Final = ("cohort", "cluster_queue", "flavor", "resource", _ROLE_LABEL)
_LQ_LABELS: Final = ("name", "namespace", _ROLE_LABEL)
_LQ_CLASS_LABELS: Final = ("name", "namespace", "priority_class", _ROLE_LABEL)
_LQ_USAGE_LABELS: Final = ("name", "namespace", "flavor", "resource", _ROLE_LABEL)
_FLOW_LABELS: Final = ("priority_level", "flow_schema")
_REASON_LABELS: Final = ("reason", "underlying_cause")
_COHORT_USAGE_LABELS: Final = ("cohort", "flavor", "resource", _ROLE_LABEL)

_KUEUE_METRICS: Final = (
    # the scheduler
    Metric(
        "admission_attempts_total",
        COUNTER,
        "Scheduling cycles, by whether a Workload was admitted",
        ("result", _ROLE_LABEL),
    ),
    Metric(
        "admission_attempt_duration_seconds",
        HISTOGRAM,
        "Duration of scheduling cycles in real time",
        ("result", _ROLE_LABEL),
        _DEFAULT_BUCKETS,
    ),
    Metric(
        "admission_cycle_preemption_skips",
        GAUGE,
        "Preemptions that the last cycle skipped in favor of other Workloads",
        _CQ_LABELS,
    ),
    Metric(
        "preemption_target_recomputations_total",
        COUNTER,
        "Repeated searches for preemption targets after another Workload took them in the same cycle",
        ("cluster_queue", "result", _ROLE_LABEL),
    ),
    Metric(
        "preempted_workloads_total",
        COUNTER,
        "Preempted Workloads, by preempting ClusterQueue and reason",
        ("preempting_cluster_queue", "reason", _ROLE_LABEL),
    ),
    # pending Workloads
    Metric("pending_workloads", GAUGE, "Pending Workloads: active (queued) or inadmissible", _CQ_STATUS_LABELS),
    Metric("pending_scheduling_hashes", GAUGE, "Distinct shapes of pending Workloads", _CQ_STATUS_LABELS),
    Metric(
        "cluster_queue_resource_pending",
        GAUGE,
        "Requests of pending Workloads",
        ("cluster_queue", "resource", _ROLE_LABEL),
    ),
    Metric(
        "unadmitted_workloads",
        GAUGE,
        "Workloads not admitted, by reason",
        ("cluster_queue", *_REASON_LABELS, _ROLE_LABEL),
    ),
    Metric("local_queue_pending_workloads", GAUGE, "Pending Workloads", ("name", "namespace", "status", _ROLE_LABEL)),
    Metric(
        "local_queue_unadmitted_workloads",
        GAUGE,
        "Workloads not admitted, by reason",
        ("name", "namespace", "cluster_queue", *_REASON_LABELS, _ROLE_LABEL),
    ),
    # life cycle of Workloads
    Metric("quota_reserved_workloads_total", COUNTER, "Workloads with newly reserved quota", _CQ_PRIORITY_LABELS),
    Metric("admitted_workloads_total", COUNTER, "Workloads admitted", _CQ_PRIORITY_LABELS),
    Metric("finished_workloads_total", COUNTER, "Workloads finished", _CQ_PRIORITY_LABELS),
    Metric("finished_workloads", GAUGE, "Finished Workloads that are not deleted yet", _CQ_LABELS),
    Metric(
        "quota_reserved_wait_time_seconds",
        HISTOGRAM,
        "Time from creation or requeueing to quota reservation",
        _CQ_PRIORITY_LABELS,
        _SHORT_DURATION_BUCKETS,
    ),
    Metric(
        "admission_wait_time_seconds",
        HISTOGRAM,
        "Time from creation or requeueing to admission",
        _CQ_PRIORITY_LABELS,
        _LONG_DURATION_BUCKETS,
    ),
    Metric(
        "admission_checks_wait_time_seconds",
        HISTOGRAM,
        "Time from quota reservation to admission",
        _CQ_PRIORITY_LABELS,
        _SHORT_DURATION_BUCKETS,
    ),
    Metric(
        "execution_time_seconds",
        HISTOGRAM,
        "Total time for which finished Workloads were admitted",
        _CQ_PRIORITY_LABELS,
        _LONG_DURATION_BUCKETS,
    ),
    Metric(
        "local_queue_quota_reserved_workloads_total", COUNTER, "Workloads with newly reserved quota", _LQ_CLASS_LABELS
    ),
    Metric("local_queue_admitted_workloads_total", COUNTER, "Workloads admitted", _LQ_CLASS_LABELS),
    Metric("local_queue_finished_workloads_total", COUNTER, "Workloads finished", _LQ_CLASS_LABELS),
    Metric("local_queue_finished_workloads", GAUGE, "Finished Workloads that are not deleted yet", _LQ_LABELS),
    Metric(
        "local_queue_quota_reserved_wait_time_seconds",
        HISTOGRAM,
        "Time from creation or requeueing to quota reservation",
        _LQ_CLASS_LABELS,
        _SHORT_DURATION_BUCKETS,
    ),
    Metric(
        "local_queue_admission_wait_time_seconds",
        HISTOGRAM,
        "Time from creation or requeueing to admission",
        _LQ_CLASS_LABELS,
        _SHORT_DURATION_BUCKETS,
    ),
    Metric(
        "local_queue_admission_checks_wait_time_seconds",
        HISTOGRAM,
        "Time from quota reservation to admission",
        _LQ_CLASS_LABELS,
        _SHORT_DURATION_BUCKETS,
    ),
    Metric(
        "local_queue_execution_time_seconds",
        HISTOGRAM,
        "Total time for which finished Workloads were admitted",
        _LQ_CLASS_LABELS,
        _LONG_DURATION_BUCKETS,
    ),
    Metric(
        "workload_creation_latency_seconds",
        HISTOGRAM,
        "Time from the creation of a job to the creation of its Workload",
        ("job_kind", _ROLE_LABEL),
        _geometric_buckets(0.01, 2, 11),
    ),
    Metric(
        "replaced_workload_slices_total",
        COUNTER,
        "Workload slices of elastic jobs that other slices replaced",
        ("cluster_queue", _ROLE_LABEL),
    ),
    Metric(
        "pod_scheduling_gate_removal_seconds",
        HISTOGRAM,
        "Time from the admission of a Workload to the removal of a scheduling gate from one of its pods",
        ("name", "cluster_queue", "is_group", _ROLE_LABEL),
        _DEFAULT_BUCKETS,
    ),
    # evictions
    Metric(
        "evicted_workloads_total",
        COUNTER,
        "Evictions",
        ("cluster_queue", *_REASON_LABELS, "priority_class", _ROLE_LABEL),
    ),
    Metric(
        "evicted_workloads_once_total",
        COUNTER,
        "Workloads evicted for a reason for the first time",
        ("cluster_queue", *_REASON_LABELS, "priority_class", _ROLE_LABEL),
    ),
    Metric(
        "local_queue_evicted_workloads_total",
        COUNTER,
        "Evictions",
        ("name", "namespace", *_REASON_LABELS, "priority_class", _ROLE_LABEL),
    ),
    Metric(
        "pods_ready_to_evicted_time_seconds",
        HISTOGRAM,
        "Time from ready pods to the eviction",
        ("cluster_queue", *_REASON_LABELS, _ROLE_LABEL),
        _SHORT_DURATION_BUCKETS,
    ),
    Metric(
        "workload_eviction_latency_seconds",
        HISTOGRAM,
        "Time from an eviction until the quota is released",
        ("cluster_queue", "reason", _ROLE_LABEL),
        _SHORT_DURATION_BUCKETS,
    ),
    # ready pods
    *(
        Metric(f"{prefix}{name}_wait_time_seconds", HISTOGRAM, text, labels, _SHORT_DURATION_BUCKETS)
        for prefix, labels in (("", _CQ_PRIORITY_LABELS), ("local_queue_", _LQ_CLASS_LABELS))
        for name, text in (
            ("ready", "Time from creation or requeueing to ready pods"),
            ("admitted_until_ready", "Time from admission to ready pods"),
        )
    ),
    *(
        Metric(
            f"{prefix}workload_recovery_wait_time_seconds",
            HISTOGRAM,
            "Time from the loss of ready pods to their recovery",
            labels,
            _SHORT_DURATION_BUCKETS,
        )
        for prefix, labels in (("", _CQ_LABELS), ("local_queue_", _LQ_LABELS))
    ),
    # state of queues
    Metric("reserving_active_workloads", GAUGE, "Workloads with reserved quota", _CQ_LABELS),
    Metric("admitted_active_workloads", GAUGE, "Admitted Workloads that are not finished", _CQ_LABELS),
    Metric(
        "cluster_queue_status",
        GAUGE,
        "1 for the current status of a ClusterQueue, 0 for other values",
        _CQ_STATUS_LABELS,
    ),
    Metric(
        "cluster_queue_info",
        GAUGE,
        "Parent and root Cohort of a ClusterQueue",
        ("cluster_queue", "parent_cohort", "root_cohort", _ROLE_LABEL),
    ),
    Metric("cluster_queue_nominal_quota", GAUGE, "Nominal quota", _CQ_QUOTA_LABELS),
    Metric("cluster_queue_borrowing_limit", GAUGE, "Borrowing limit; +Inf if unset", _CQ_QUOTA_LABELS),
    Metric("cluster_queue_lending_limit", GAUGE, "Lending limit; +Inf if unset", _CQ_QUOTA_LABELS),
    Metric("cluster_queue_resource_reservation", GAUGE, "Quota reserved by Workloads", _CQ_QUOTA_LABELS),
    Metric("cluster_queue_resource_usage", GAUGE, "Quota used by admitted Workloads", _CQ_QUOTA_LABELS),
    Metric(
        "cluster_queue_weighted_share",
        GAUGE,
        "Borrowed quota divided by lendable quota and by weight, in thousandths; NaN for a borrower of weight 0",
        ("cluster_queue", "cohort", _ROLE_LABEL),
    ),
    Metric("local_queue_reserving_active_workloads", GAUGE, "Workloads with reserved quota", _LQ_LABELS),
    Metric("local_queue_admitted_active_workloads", GAUGE, "Admitted Workloads that are not finished", _LQ_LABELS),
    Metric(
        "local_queue_status",
        GAUGE,
        "1 for the status of a LocalQueue's Active condition, 0 for other values",
        ("name", "namespace", "active", _ROLE_LABEL),
    ),
    Metric("local_queue_resource_reservation", GAUGE, "Quota reserved by Workloads", _LQ_USAGE_LABELS),
    Metric("local_queue_resource_usage", GAUGE, "Quota used by admitted Workloads", _LQ_USAGE_LABELS),
    Metric(
        "local_queue_admission_fair_sharing_usage",
        GAUGE,
        "Consumed resources and pending penalties, weighted by resource and divided by the LocalQueue's weight",
        ("name", "namespace", "cluster_queue", _ROLE_LABEL),
    ),
    # Cohorts
    Metric(
        "cohort_info", GAUGE, "Parent and root of a Cohort", ("cohort", "parent_cohort", "root_cohort", _ROLE_LABEL)
    ),
    Metric("cohort_subtree_quota", GAUGE, "Nominal quota in the Cohort's subtree", _COHORT_USAGE_LABELS),
    Metric(
        "cohort_subtree_resource_reservations",
        GAUGE,
        "Quota reserved by Workloads in the Cohort's subtree",
        _COHORT_USAGE_LABELS,
    ),
    Metric(
        "cohort_subtree_admitted_active_workloads",
        GAUGE,
        "Admitted, unfinished Workloads in the Cohort's subtree",
        ("cohort", _ROLE_LABEL),
    ),
    Metric(
        "cohort_subtree_admitted_workloads_total",
        COUNTER,
        "Workloads admitted in the Cohort's subtree",
        ("cohort", "priority_class", _ROLE_LABEL),
    ),
    Metric(
        "cohort_weighted_share",
        GAUGE,
        "Borrowed quota divided by lendable quota and by weight, in thousandths; NaN for a borrower of weight 0",
        ("cohort", _ROLE_LABEL),
    ),
    Metric(
        "build_info",
        GAUGE,
        "Version of batchyard; labels that apply only to Go programs are empty",
        ("git_version", "git_commit", "build_date", "go_version", "compiler", "platform"),
    ),
)

_QUEUE_LABELS: Final = ("name", "controller")
_CONTROLLER_LABELS: Final = ("controller",)
_WEBHOOK_LABELS: Final = ("webhook",)
_REQUEST_LABELS: Final = ("verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component")
#: Source of the names and labels: k8s.io/apiserver, pkg/admission/metrics/metrics.go.
_CRD_LABELS: Final = ("crd_name", "from_version", "to_version", "succeeded")
_CRD_BUCKETS: Final = _geometric_buckets(0.001, 2, 15)
_RESULT_LABELS: Final = ("result", "failure_type")
_CALL_BUCKETS: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0)
_ADMISSION_WEBHOOK_LABELS: Final = ("name", "type", "operation")
_CALL_LABELS: Final = (*_ADMISSION_WEBHOOK_LABELS, "code", "rejected")
_MATCH_CONDITION_LABELS: Final = ("name", "kind", "type", "operation")
_PROGRAM_METRICS: Final = (
    # metrics of controller-runtime
    Metric("workqueue_depth", GAUGE, "Queued keys", _QUEUE_LABELS),
    Metric("workqueue_adds_total", COUNTER, "Keys added to the queue", _QUEUE_LABELS),
    Metric("workqueue_retries_total", COUNTER, "Keys requeued after a failure", _QUEUE_LABELS),
    Metric(
        "workqueue_work_duration_seconds",
        HISTOGRAM,
        "Duration of the reconciliation of a key",
        _QUEUE_LABELS,
        _WORK_DURATION_BUCKETS,
    ),
    Metric(
        "workqueue_unfinished_work_seconds",
        GAUGE,
        "Always 0: a scrape never runs during a reconciliation",
        _QUEUE_LABELS,
    ),
    Metric(
        "workqueue_longest_running_processor_seconds",
        GAUGE,
        "Always 0: a scrape never runs during a reconciliation",
        _QUEUE_LABELS,
    ),
    Metric("controller_runtime_reconcile_total", COUNTER, "Reconciliations, by result", ("controller", "result")),
    Metric("controller_runtime_reconcile_errors_total", COUNTER, "Reconciliations that failed", _CONTROLLER_LABELS),
    Metric(
        "controller_runtime_reconcile_time_seconds",
        HISTOGRAM,
        "Duration of reconciliations, without their writes",
        _CONTROLLER_LABELS,
        _RECONCILE_BUCKETS,
    ),
    Metric(
        "controller_runtime_max_concurrent_reconciles",
        GAUGE,
        "Always 1: keys are reconciled one at a time",
        _CONTROLLER_LABELS,
    ),
    Metric(
        "controller_runtime_active_workers",
        GAUGE,
        "Always 0: a scrape never runs during a reconciliation",
        _CONTROLLER_LABELS,
    ),
    Metric("controller_runtime_webhook_requests_total", COUNTER, "Answered requests to webhooks", ("webhook", "code")),
    Metric(
        "controller_runtime_webhook_latency_seconds",
        HISTOGRAM,
        "Duration of requests to webhooks",
        _WEBHOOK_LABELS,
        _WORK_DURATION_BUCKETS,
    ),
    Metric("controller_runtime_webhook_requests_in_flight", GAUGE, "Requests to webhooks in flight", _WEBHOOK_LABELS),
    Metric("leader_election_master_status", GAUGE, "1 on the leader, 0 elsewhere", ("name",)),
    Metric("rest_client_requests_total", COUNTER, "Responses to writes", ("code", "method")),
    Metric("batchyard_writes_waiting", GAUGE, "Writes that wait for the rate limit or the server", ("priority",)),
    Metric("batchyard_writes_in_flight", GAUGE, "Writes that were sent and have no response"),
    Metric("batchyard_events_dropped_total", COUNTER, "Events that were not written because too many waited"),
    # metrics of the API server
    Metric("apiserver_request_total", COUNTER, "Answered requests", (*_REQUEST_LABELS, "code")),
    Metric("apiserver_flowcontrol_dispatched_requests_total", COUNTER, "Executed requests", _FLOW_LABELS),
    Metric("apiserver_flowcontrol_rejected_requests_total", COUNTER, "Rejected requests", (*_FLOW_LABELS, "reason")),
    Metric("apiserver_flowcontrol_nominal_limit_seats", GAUGE, "Seats of a priority level", _FLOW_LABELS[:1]),
    Metric("apiserver_flowcontrol_current_executing_seats", GAUGE, "Seats in use", _FLOW_LABELS[:1]),
    Metric("apiserver_flowcontrol_current_inqueue_seats", GAUGE, "Requests that wait for a seat", _FLOW_LABELS[:1]),
    Metric(
        "apiserver_request_duration_seconds",
        HISTOGRAM,
        "Time from a request to its durable response; for a watch, until it starts",
        _REQUEST_LABELS,
        _REQUEST_BUCKETS,
    ),
    Metric(
        "apiserver_admission_webhook_admission_duration_seconds",
        HISTOGRAM,
        "Duration of calls to admission webhooks",
        (*_ADMISSION_WEBHOOK_LABELS, "rejected"),
        (0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0),
    ),
    Metric("apiserver_admission_webhook_request_total", COUNTER, "Calls to admission webhooks", _CALL_LABELS),
    Metric(
        "apiserver_admission_webhook_rejection_count",
        COUNTER,
        "Requests that admission webhooks, or their failures, rejected",
        (*_ADMISSION_WEBHOOK_LABELS, "error_type", "rejection_code"),
    ),
    Metric("apiserver_admission_webhook_fail_open_count", COUNTER, "Ignored failures of webhooks", ("name", "type")),
    *(
        Metric(f"apiserver_admission_match_condition_{name}_total", COUNTER, text, _MATCH_CONDITION_LABELS)
        for name, text in (
            ("evaluation_errors", "Match conditions of webhooks whose evaluation failed"),
            ("exclusions", "Requests that a match condition excluded from a webhook"),
        )
    ),
    Metric(
        "apiserver_crd_conversion_webhook_duration_seconds", HISTOGRAM, "Conversion time", _CRD_LABELS, _CRD_BUCKETS
    ),
    Metric("apiserver_conversion_webhook_request_total", COUNTER, "Calls to conversion webhooks", _RESULT_LABELS),
    Metric("apiserver_conversion_webhook_duration_seconds", HISTOGRAM, "Call time", _RESULT_LABELS, _CALL_BUCKETS),
    # metrics of the process
    Metric("process_cpu_seconds_total", COUNTER, "Seconds of CPU used"),
    Metric("process_resident_memory_bytes", GAUGE, "Memory in use"),
    Metric("process_virtual_memory_bytes", GAUGE, "Address space in use"),
    Metric("process_start_time_seconds", GAUGE, "Start time of the process, in seconds since 1970"),
    Metric("process_open_fds", GAUGE, "Open files"),
    Metric("process_max_fds", GAUGE, "Maximum of open files"),
    Metric("python_info", GAUGE, "The interpreter", ("implementation", "major", "minor", "patchlevel", "version")),
    Metric("python_gc_collections_total", COUNTER, "Garbage collections", ("generation",)),
    Metric("python_gc_objects_collected_total", COUNTER, "Objects freed by garbage collection", ("generation",)),
)

_NODE_LABELS: Final = ("node",)
_POD_LABELS: Final = ("namespace", "pod", "uid")
_JOB_LABELS: Final = ("namespace", "job_name")
_CONTAINER_LABELS: Final = ("namespace", "pod", "uid", "container", "node", "resource", "unit")
_OBJECT_METRICS: Final = (
    Metric(
        "kube_node_info",
        GAUGE,
        "Information about a node",
        (
            *("node", "kernel_version", "os_image", "container_runtime_version", "kubelet_version"),
            *("kubeproxy_version", "provider_id", "pod_cidr", "system_uuid", "internal_ip"),
        ),
    ),
    Metric("kube_node_created", GAUGE, "Creation time, in seconds since 1970", _NODE_LABELS),
    Metric("kube_node_spec_unschedulable", GAUGE, "Whether the node is cordoned", _NODE_LABELS),
    Metric("kube_node_spec_taint", GAUGE, "A taint of the node", ("node", "key", "value", "effect")),
    Metric("kube_node_status_condition", GAUGE, "A condition of the node", ("node", "condition", "status")),
    Metric("kube_node_status_capacity", GAUGE, "Capacity of the node", ("node", "resource", "unit")),
    Metric("kube_node_status_allocatable", GAUGE, "Resources available to pods", ("node", "resource", "unit")),
    Metric(
        "kube_pod_info",
        GAUGE,
        "Information about a pod",
        (
            *_POD_LABELS,
            "host_ip",
            "pod_ip",
            "node",
            "created_by_kind",
            "created_by_name",
            "priority_class",
            "host_network",
        ),
    ),
    Metric(
        "kube_pod_status_phase",
        GAUGE,
        "1 for the current phase of the pod, 0 for other phases",
        (*_POD_LABELS, "phase"),
    ),
    Metric("kube_pod_container_resource_requests", GAUGE, "Requests of a container", _CONTAINER_LABELS),
    Metric("kube_pod_container_resource_limits", GAUGE, "Limits of a container", _CONTAINER_LABELS),
    Metric("kube_job_status_active", GAUGE, "Pods that are pending or running", _JOB_LABELS),
    Metric("kube_job_status_succeeded", GAUGE, "Pods that succeeded", _JOB_LABELS),
    Metric(
        "kube_job_status_failed",
        GAUGE,
        "Pods that failed, with the reason of the Job's failure",
        (*_JOB_LABELS, "reason"),
    ),
    Metric("kube_job_status_start_time", GAUGE, "Start time, in seconds since 1970", _JOB_LABELS),
    Metric("kube_job_status_completion_time", GAUGE, "Completion time, in seconds since 1970", _JOB_LABELS),
    Metric("kube_job_status_suspended", GAUGE, "Whether the Job is suspended", _JOB_LABELS),
    Metric("kube_job_complete", GAUGE, "Whether the Job is complete", (*_JOB_LABELS, "condition")),
    Metric("kube_job_failed", GAUGE, "Whether the Job failed", (*_JOB_LABELS, "condition")),
)

_GPU_LABELS: Final = (*("gpu", "UUID", "device", "modelName", "Hostname", "container", "namespace", "pod"), "source")
_GPU_METRICS: Final = (
    Metric("DCGM_FI_DEV_GPU_UTIL", GAUGE, "GPU utilization, in %", _GPU_LABELS),
    Metric("DCGM_FI_DEV_MEM_COPY_UTIL", GAUGE, "Memory utilization, in %", _GPU_LABELS),
    Metric("DCGM_FI_DEV_FB_USED", GAUGE, "Memory in use, in MiB", _GPU_LABELS),
    Metric("DCGM_FI_DEV_FB_FREE", GAUGE, "Memory free, in MiB", _GPU_LABELS),
    Metric("DCGM_FI_DEV_GPU_TEMP", GAUGE, "Temperature, in degrees Celsius", _GPU_LABELS),
    Metric("DCGM_FI_DEV_POWER_USAGE", GAUGE, "Power, in W", _GPU_LABELS),
)

_COST_LABELS: Final = ("team", "cluster_queue", "local_queue")
_BUDGET_LABELS: Final = ("namespace", "budget", "unit")
_BATCHYARD_METRICS: Final = (
    Metric("batchyard_cycle_phase_seconds_total", COUNTER, "Seconds of scheduling cycles, by phase", ("phase",)),
    Metric(
        "batchyard_protected_preemptions_total",
        COUNTER,
        "Scheduling cycles in which minimal run times kept Workloads from preemption by a ClusterQueue",
        ("cluster_queue",),
    ),
    Metric(
        "batchyard_partially_preempted_workloads_total",
        COUNTER,
        "Elastic jobs that were preempted down to their minimum number of pods",
        ("preempting_cluster_queue", "reason"),
    ),
    Metric("batchyard_preemption_loops_total", COUNTER, "Cohort trees in which Workloads preempt each other endlessly"),
    Metric("batchyard_failing_keys", GAUGE, "Keys whose last write failed", _CONTROLLER_LABELS),
    Metric("batchyard_defects_total", COUNTER, "Unexpected exceptions in controllers"),
    Metric("batchyard_objects", GAUGE, "Stored objects", ("kind",)),
    Metric("batchyard_revision", GAUGE, "Revision of the last change"),
    Metric("batchyard_time_seconds", GAUGE, "Time of the platform's clock, in seconds since 1970"),
    Metric("batchyard_speed", GAUGE, "Speed of the platform's clock, relative to real time"),
    Metric("batchyard_journal_bytes", GAUGE, "Size of the journal's files"),
    Metric("batchyard_journal_commit_seconds", HISTOGRAM, "Duration of journal transactions", (), _COMMIT_BUCKETS),
    Metric("batchyard_archive_lag_seconds", GAUGE, "Time since all changes were in the archive"),
    Metric("batchyard_archive_lag_revisions", GAUGE, "Revisions that are not in the archive yet"),
    Metric("batchyard_archive_failures_total", COUNTER, "Failed attempts to archive"),
    Metric("batchyard_archive_uploaded_bytes_total", COUNTER, "Bytes uploaded to the archive"),
    Metric("batchyard_watches", GAUGE, "Open watches and other streamed responses"),
    Metric("batchyard_nodes", GAUGE, "Nodes, by pool and readiness", ("pool", "status")),
    Metric("batchyard_instances", GAUGE, "Machines, by pool and phase", ("pool", "phase")),
    Metric("batchyard_instance_failures_total", COUNTER, "Machines that the cloud failed to provide", ("pool", "code")),
    Metric("batchyard_pods_unschedulable", GAUGE, "Pods that fit no node", ("namespace",)),
    Metric("batchyard_cost_dollars_total", COUNTER, "Cost of Workloads, in dollars", _COST_LABELS),
    Metric("batchyard_cost_accelerator_seconds_total", COUNTER, "Accelerator time of Workloads", _COST_LABELS),
    Metric("batchyard_cost_outcome_dollars_total", COUNTER, "Cost of ended pods, in dollars", (*_COST_LABELS, "use")),
    Metric("batchyard_cost_unused_dollars_total", COUNTER, "Cost of unused machine time, in dollars", ("pool", "use")),
    Metric("batchyard_budget_amount", GAUGE, "Amount that a Budget allows in its period", _BUDGET_LABELS),
    Metric("batchyard_budget_spent", GAUGE, "Amount used in the period", _BUDGET_LABELS),
    Metric("batchyard_budget_remaining", GAUGE, "Amount left in the period", _BUDGET_LABELS),
    Metric("batchyard_fork_questions_total", COUNTER, "Forecast queries for forked processes, by result", ("result",)),
    Metric(
        "batchyard_fork_duration_seconds", HISTOGRAM, "Duration of forked processes in real time", (), _FORK_BUCKETS
    ),
    Metric("batchyard_fork_cpu_seconds_total", COUNTER, "CPU time of forked processes"),
    Metric("batchyard_fork_waiting", GAUGE, "Forecast queries that wait for a forked process"),
    Metric("batchyard_fork_memory_bytes", GAUGE, "Peak memory of the last forked process, shared memory included"),
    Metric("batchyard_turns_total", COUNTER, "Reconciliations of throttled controllers, such as the scheduler"),
    Metric(
        "batchyard_turn_seconds_total",
        COUNTER,
        "Real time of throttled reconciliations and of the pauses after them",
        ("part",),
    ),
    Metric("batchyard_ledger_entries_total", COUNTER, "Entries of the decision ledger"),
    Metric("batchyard_ledger_lost_total", COUNTER, "Ledger entries that were lost because a write failed"),
    Metric("batchyard_ledger_waiting", GAUGE, "Ledger entries that are not written yet"),
    Metric("batchyard_spans_total", COUNTER, "Spans for the trace collector"),
    Metric("batchyard_spans_lost_total", COUNTER, "Spans that were lost because sending failed"),
    Metric("batchyard_lists_total", COUNTER, "List requests sent by the operator", ("kind",)),
    Metric("batchyard_watches_total", COUNTER, "Watch requests sent by the operator", ("kind",)),
    Metric("batchyard_shadow_decisions_total", COUNTER, "Decisions of Kueue that the shadow predicted", ("decision",)),
    Metric("batchyard_shadow_divergences_total", COUNTER, "Divergences of Kueue and the shadow", ("type",)),
    Metric("batchyard_shadow_late_total", COUNTER, "Decisions of Kueue that had already been counted as missing"),
    Metric("batchyard_shadow_alike_total", COUNTER, "Preemptions whose victims differ but are equivalent"),
    Metric("batchyard_shadow_reordered_total", COUNTER, "Matching decisions in a different order"),
    Metric("batchyard_shadow_unseen_total", COUNTER, "Decisions of Kueue that were not observed"),
    Metric("batchyard_shadow_waiting", GAUGE, "Changes that the shadow has not compared yet"),
)

#: The metrics by group; the query of a scrape can select groups.
GROUPS: Final[Mapping[str, tuple[Metric, ...]]] = {
    "kueue": tuple(metric._replace(name=f"kueue_{metric.name}") for metric in _KUEUE_METRICS),
    "program": _PROGRAM_METRICS,
    "objects": _OBJECT_METRICS,
    "gpus": _GPU_METRICS,
    "batchyard": _BATCHYARD_METRICS,
}
_METRICS_BY_NAME: Final = {metric.name: metric for group in GROUPS.values() for metric in group}


def metric(name: str) -> Metric:
    """Return the definition of the metric with this full name. Raises KeyError if there is none."""
    return _METRICS_BY_NAME[name]
