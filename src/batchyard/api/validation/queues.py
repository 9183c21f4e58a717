"""Validation of Kueue's kinds except Workloads and Topologies, of its Configuration, and of ProvisioningRequests.

Sources: Kueue's webhooks and the rules in its CRDs, as noted at each section.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj, parse_selector
from batchyard.api.schema import semantic_equality
from batchyard.api.validation import pods, rules
from batchyard.api.validation.feature_gates import feature_gate_errors
from batchyard.api.well_known import (
    CHEAPEST,
    DISABLE_WAIT_FOR_PODS_READY,
    FINAL_SHARE,
    INITIAL_SHARE,
    PREEMPT_MIN_RUNTIME,
    RECLAIM_MIN_RUNTIME,
    UNSCHEDULED_TIMEOUT,
    VICTIMS,
)
from batchyard.base.instant import MINUTE, parse_duration

ResourceGroups = Sequence[Mapping[str, Any]]
_GROUPS_PATH: Final = "spec.resourceGroups"


def resource_group_errors(groups: ResourceGroups, *, kind: str, parent: str) -> Iterator[FieldError]:
    """Validate the resource groups of a ClusterQueue or Cohort (`kind`).

    `parent` is the name of the ClusterQueue's cohort or of the Cohort's parent, '' if it has none.
    """
    path_by_resource: dict[str, str] = {}
    path_by_flavor: dict[str, str] = {}
    for i, group in enumerate(groups):
        path = f"{_GROUPS_PATH}[{i}]"
        yield from _covered_resources_errors(group["coveredResources"], path, path_by_resource)
        if any(len(flavor["resources"]) != len(group["coveredResources"]) for flavor in group["flavors"]):
            message = "flavors must have the same number of resources as the coveredResources"
            remedy = f"give each flavor exactly these resources: {', '.join(group['coveredResources'])}"
            yield rules.schema_rule_fault(path, "object", message, remedy)
        for j, flavor in enumerate(group["flavors"]):
            item_path = f"{path}.flavors[{j}]"
            yield from _flavor_errors(flavor, group["coveredResources"], item_path, kind=kind, parent=parent)
            yield from _duplicate_name_errors(
                f"{item_path}.name", flavor["name"], path_by_flavor, "a flavor can be in one resource group only"
            )


def _covered_resources_errors(
    resources: Sequence[str], path: str, path_by_name: dict[str, str]
) -> Iterator[FieldError]:
    for j, resource in enumerate(resources):
        item_path = f"{path}.coveredResources[{j}]"
        yield from rules.label_key_errors(resource, item_path)
        yield from _duplicate_name_errors(
            item_path, resource, path_by_name, "a resource can be in one resource group only"
        )


def _duplicate_name_errors(
    path: str, name: str, path_by_name: dict[str, str], uniqueness_rule: str
) -> Iterator[FieldError]:
    """Report a flavor or resource name that is already in `path_by_name`; else add it."""
    if name in path_by_name:
        yield rules.duplicate(
            path, name, f"remove this one: {uniqueness_rule}, and {name} is already at {path_by_name[name]}"
        )
    else:
        path_by_name[name] = path


def _flavor_errors(flavor: Obj, resources: Sequence[str], path: str, *, kind: str, parent: str) -> Iterator[FieldError]:
    for i, (quota, expected) in enumerate(zip(flavor["resources"], resources, strict=False)):
        item_path = f"{path}.resources[{i}]"
        if quota["name"] != expected:
            message = "must match the name in coveredResources"
            remedy = f"move {expected} here: the order must be that of coveredResources"
            yield rules.invalid(f"{item_path}.name", quota["name"], message, remedy)
        for field in ("nominalQuota", "borrowingLimit", "lendingLimit"):
            if (value := quota.get(field)) is not None:
                yield from rules.amount_errors(value, f"{item_path}.{field}")
        if not parent:
            yield from _quota_limit_errors(quota, item_path, kind)
        yield from _lending_limit_errors(quota, item_path, kind)


def _quota_limit_errors(quota: Mapping[str, Any], path: str, kind: str) -> Iterator[FieldError]:
    absent_lender, remedy = {
        "ClusterQueue": ("cohort", "remove the limit, or set spec.cohortName"),
        "Cohort": ("parent", "remove the limit, or set spec.parentName"),
    }[kind]
    for field in ("borrowingLimit", "lendingLimit"):
        if (value := quota.get(field)) is not None:
            message = f"must be nil when {absent_lender} is empty"
            yield rules.invalid(f"{path}.{field}", rules.canonical_quantity_or_text(value), message, remedy)


def _lending_limit_errors(quota: Mapping[str, Any], path: str, kind: str) -> Iterator[FieldError]:
    """Report a ClusterQueue's lending limit above its nominal quota.

    A Cohort may have a higher limit, because it also lends the quota of its members.
    """
    limit, nominal_quota = quota.get("lendingLimit"), quota.get("nominalQuota", 0)
    if kind == "ClusterQueue" and limit is not None and rules.exceeds_limit(limit, nominal_quota):
        message = "must be less than or equal to the nominalQuota"
        remedy = f"use at most {rules.canonical_quantity_or_text(nominal_quota)}"
        yield rules.invalid(f"{path}.lendingLimit", rules.canonical_quantity_or_text(limit), message, remedy)


def quota_count_errors(groups: ResourceGroups) -> Iterator[FieldError]:
    """Report more than 256 flavors or resources in a ClusterQueue, or 512 flavor-resource pairs in a resource group."""
    for subject, field in (("flavors", "flavors"), ("covered resources", "coveredResources")):
        total = sum(len(group[field]) for group in groups)
        if total > 256:
            message = f"total number of {subject} across all resourceGroups must be ≤ 256, got {total}"
            yield rules.invalid(
                _GROUPS_PATH, total, message, f"distribute the {subject} over ClusterQueues of one cohort"
            )
    for i, group in enumerate(groups):
        pair_count = sum(len(flavor["resources"]) for flavor in group["flavors"])
        if pair_count > 512:
            message = f"number of flavor-resource combinations in a resourceGroup must be ≤ 512, got {pair_count}"
            yield rules.invalid(
                f"{_GROUPS_PATH}[{i}]", pair_count, message, "distribute the flavors over several ClusterQueues"
            )


def fair_sharing_errors(fair_sharing: Mapping[str, Any] | None) -> Iterator[FieldError]:
    """Report a fair sharing weight that is negative, not a quantity, or 1n: it must be 0 or more than 1n."""
    weight = (fair_sharing or {}).get("weight")
    if weight is None:
        return
    yield from rules.amount_errors(weight, "spec.fairSharing")
    if rules.parse_nano_amount(weight) == 1:
        message = "When not 0, weight must be > 10e-9"
        yield rules.invalid(
            "spec.fairSharing", rules.canonical_quantity_or_text(weight), message, "use 0 or more than 1n"
        )


# Rules of ClusterQueues.
#
# Source: Kueue's ClusterQueue webhook at its default feature gates, and the rules in its CRD.


_CLUSTER_QUEUE_WEBHOOK: Final = "vclusterqueue.kb.io"
_ADMISSION_CHECKS_PATH: Final = "spec.admissionChecksStrategy.admissionChecks"


def cluster_queue_errors(queue: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a ClusterQueue: its metadata, quotas, selector, preemption and other policies."""
    yield from rules.metadata_errors(queue)
    yield from _preemption_annotation_errors(queue)
    yield from rules.attribute_to_webhook(_CLUSTER_QUEUE_WEBHOOK, _cluster_queue_spec_errors(queue))
    yield from rules.attribute_to_webhook(_CLUSTER_QUEUE_WEBHOOK, _check_flavor_errors(queue.get("spec") or {}, {}))


def cluster_queue_update_errors(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a ClusterQueue: its concurrentAdmissionPolicy is immutable.

    As upstream allows, unchanged references of admission checks to missing flavors are valid if the flavors of the
    ClusterQueue do not change.
    """
    spec, old_spec = new.get("spec") or {}, old.get("spec") or {}
    yield from rules.metadata_errors(new)
    yield from _preemption_annotation_errors(new)
    yield from rules.attribute_to_webhook(_CLUSTER_QUEUE_WEBHOOK, _cluster_queue_spec_errors(new))
    old_on_flavors = _flavors_by_check(old_spec) if _flavor_names(spec).keys() == _flavor_names(old_spec).keys() else {}
    yield from rules.attribute_to_webhook(_CLUSTER_QUEUE_WEBHOOK, _check_flavor_errors(spec, old_on_flavors))
    if spec.get("concurrentAdmissionPolicy") != old_spec.get("concurrentAdmissionPolicy"):
        policy_error = rules.immutable("spec.concurrentAdmissionPolicy", spec.get("concurrentAdmissionPolicy"))
        yield from rules.attribute_to_webhook(_CLUSTER_QUEUE_WEBHOOK, [policy_error])


def _preemption_annotation_errors(obj: Mapping[str, Any]) -> Iterator[FieldError]:
    """Report malformed preemption settings in the annotations of a ClusterQueue or Cohort."""
    annotations = obj["metadata"].get("annotations") or {}
    for name in (PREEMPT_MIN_RUNTIME, RECLAIM_MIN_RUNTIME):
        try:
            parse_duration(annotations.get(name, "0"))
        except ValueError as error:
            problem, _, remedy = str(error).partition("; ")
            yield FieldError(f"metadata.annotations[{name}]", problem, remedy)
    if annotations.get(VICTIMS, CHEAPEST) != CHEAPEST:
        yield rules.unsupported(f"metadata.annotations[{VICTIMS}]", annotations[VICTIMS], (CHEAPEST,))


def _cluster_queue_spec_errors(queue: Mapping[str, Any]) -> Iterator[FieldError]:
    spec = queue.get("spec") or {}
    groups = spec.get("resourceGroups") or ()
    yield from resource_group_errors(groups, kind="ClusterQueue", parent=spec.get("cohortName") or "")
    yield from rules.selector_errors(spec.get("namespaceSelector"), "spec.namespaceSelector")
    yield from _preemption_errors(spec.get("preemption") or {})
    yield from _fungibility_errors(spec.get("flavorFungibility") or {})
    yield from fair_sharing_errors(spec.get("fairSharing"))
    yield from quota_count_errors(groups)


def on_flavors_errors(queue: Mapping[str, Any]) -> Iterator[FieldError]:
    """Report each flavor in `onFlavors` of an admission check that the ClusterQueue does not have.

    Updates must pass this check if the feature gate RejectUpdatesToCQWithInvalidOnFlavors is enabled.
    """
    yield from rules.attribute_to_webhook(_CLUSTER_QUEUE_WEBHOOK, _check_flavor_errors(queue.get("spec") or {}, {}))


def _flavor_names(spec: Mapping[str, Any]) -> dict[str, None]:
    return {flavor["name"]: None for group in spec.get("resourceGroups") or () for flavor in group["flavors"]}


def _admission_checks(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or []


def _flavors_by_check(spec: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    return {check["name"]: frozenset(check.get("onFlavors") or ()) for check in _admission_checks(spec)}


def _check_flavor_errors(spec: Mapping[str, Any], old_on_flavors: Mapping[str, frozenset[str]]) -> Iterator[FieldError]:
    flavor_names = _flavor_names(spec)
    for i, check in enumerate(_admission_checks(spec)):
        check_flavors = check.get("onFlavors") or ()
        if old_on_flavors.get(check["name"]) == frozenset(check_flavors):
            continue
        for j, flavor in enumerate(check_flavors):
            if flavor not in flavor_names:
                yield rules.unsupported(f"{_ADMISSION_CHECKS_PATH}[{i}].onFlavors[{j}]", flavor, flavor_names)


def _preemption_errors(preemption: Mapping[str, Any]) -> Iterator[FieldError]:
    borrowing_policy = (preemption.get("borrowWithinCohort") or {}).get("policy", "Never")
    if preemption.get("reclaimWithinCohort", "Never") == "Never" and borrowing_policy != "Never":
        message = "reclaimWithinCohort=Never and borrowWithinCohort.Policy!=Never"
        remedy = "set reclaimWithinCohort to LowerPriority or Any, or borrowWithinCohort.policy to Never"
        yield rules.schema_rule_fault("spec.preemption", "object", message, remedy)


def _fungibility_errors(fungibility: Mapping[str, Any]) -> Iterator[FieldError]:
    both_settings = (fungibility.get("whenCanBorrow"), fungibility.get("whenCanPreempt"))
    if fungibility.get("preference") and both_settings != ("TryNextFlavor", "TryNextFlavor"):
        message = "preference can only be set when both whenCanBorrow and whenCanPreempt are TryNextFlavor"
        remedy = "set both fields to TryNextFlavor, or remove preference"
        yield rules.schema_rule_fault("spec.flavorFungibility", "object", message, remedy)


# Rules of Cohorts. Source: Kueue's Cohort webhook and the rules in its CRD.


_COHORT_WEBHOOK: Final = "vcohort.kb.io"


def cohort_errors(cohort: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a Cohort: its metadata, fair sharing weight and resource groups."""
    spec = cohort.get("spec") or {}
    yield from rules.metadata_errors(cohort)
    yield from _preemption_annotation_errors(cohort)
    yield from rules.attribute_to_webhook(_COHORT_WEBHOOK, fair_sharing_errors(spec.get("fairSharing")))
    parent = spec.get("parentName") or ""
    cohort_group_errors = resource_group_errors(spec.get("resourceGroups") or (), kind="Cohort", parent=parent)
    yield from rules.attribute_to_webhook(_COHORT_WEBHOOK, cohort_group_errors)


# Rules of PreemptionConfigs. Source: the rules in Kueue's CRD.


def preemption_config_errors(config: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate the rules of a PreemptionConfig: label selectors, comparisons and bounds of numeric labels."""
    yield from rules.metadata_errors(config)
    for i, rule in enumerate((config.get("spec") or {}).get("rules") or ()):
        path = f"spec.rules[{i}]"
        yield from rules.selector_errors(rule.get("preemptorSelector"), f"{path}.preemptorSelector")
        for j, selector in enumerate(rule.get("candidateSelectors") or ()):
            yield from _candidate_selector_errors(selector, f"{path}.candidateSelectors[{j}]")


def _candidate_selector_errors(selector: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    for name in ("clusterQueueSelector", "labelSelector"):
        yield from rules.selector_errors(selector.get(name), f"{path}.{name}")
    for k, label in enumerate(selector.get("numericLabels") or ()):
        if label.get("minValue", 0) > label.get("maxValue", label.get("minValue", 0)):
            message = "minValue must be less than or equal to maxValue"
            yield rules.schema_rule_fault(f"{path}.numericLabels[{k}]", "object", message, "lower minValue")
    priority = selector.get("priority") or {}
    if ("mode" in priority) != ("comparison" in priority):
        message = "mode and comparison must be specified together"
        yield rules.schema_rule_fault(f"{path}.priority", "object", message, "set both fields, or none of them")


# Rules of LocalQueues. Source: the rules in Kueue's CRD; upstream has no webhook for them.


def local_queue_errors(queue: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate the metadata of a LocalQueue; like Kueue, do not check its fair sharing weight."""
    yield from rules.metadata_errors(queue)


def local_queue_update_errors(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a LocalQueue: its ClusterQueue is immutable."""
    yield from local_queue_errors(new)
    old_cluster_queue, new_cluster_queue = ((obj.get("spec") or {}).get("clusterQueue") for obj in (old, new))
    if old_cluster_queue is not None and new_cluster_queue is not None and old_cluster_queue != new_cluster_queue:
        remedy = f"keep the value {old_cluster_queue}, or delete the LocalQueue and recreate it"
        yield rules.schema_rule_fault("spec.clusterQueue", "string", rules.IMMUTABLE_MESSAGE, remedy)


# Rules of ResourceFlavors. Source: Kueue's ResourceFlavor webhook and the rules in its CRD.


_TOPOLOGY_IMMUTABLE: Final = "topologyName is immutable when topologyName is set"


def resource_flavor_errors(flavor: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a ResourceFlavor: its node labels, taints and tolerations; a topology requires a label."""
    spec = flavor.get("spec") or {}
    yield from rules.metadata_errors(flavor)
    labels = rules.label_errors(spec.get("nodeLabels"), "spec.nodeLabels")
    yield from rules.attribute_to_webhook("vresourceflavor.kb.io", labels)
    yield from pods.taint_errors(spec.get("nodeTaints") or (), "spec.nodeTaints")
    yield from pods.toleration_errors(spec.get("tolerations") or (), "spec.tolerations")
    if spec.get("topologyName") and not spec.get("nodeLabels"):
        message = "at least one nodeLabel is required when topology is set"
        yield rules.schema_rule_fault("spec", "object", message, "add a label of its nodes to spec.nodeLabels")


def resource_flavor_update_errors(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a ResourceFlavor: its topology is immutable once set."""
    yield from resource_flavor_errors(new)
    old_name = (old.get("spec") or {}).get("topologyName")
    if old_name is not None and (new.get("spec") or {}).get("topologyName") != old_name:
        yield rules.schema_rule_fault(
            "spec", "object", _TOPOLOGY_IMMUTABLE, f"keep topologyName: {old_name}, or create another ResourceFlavor"
        )


# Rules of AdmissionChecks. Source: the rules in Kueue's CRD.


def admission_check_errors(check: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate the metadata of an AdmissionCheck; no other rules apply on creation."""
    yield from rules.metadata_errors(check)


def admission_check_update_errors(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of an AdmissionCheck: its controller is immutable."""
    yield from admission_check_errors(new)
    old_controller_name, new_name = ((obj.get("spec") or {}).get("controllerName") for obj in (old, new))
    if old_controller_name is not None and new_name is not None and old_controller_name != new_name:
        remedy = f"keep the value {old_controller_name}, or create another AdmissionCheck"
        yield rules.schema_rule_fault("spec.controllerName", "string", rules.IMMUTABLE_MESSAGE, remedy)


# Rules of MultiKueueConfigs and MultiKueueClusters. Source: the rules in Kueue's CRDs.


def multikueue_config_errors(config: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a MultiKueueConfig: its metadata, and that each cluster is listed once."""
    yield from rules.metadata_errors(config)
    cluster_names = (config.get("spec") or {}).get("clusters") or ()
    if len(dict.fromkeys(cluster_names)) < len(cluster_names):
        yield rules.schema_rule_fault("spec.clusters", "array", "must be unique", "list each cluster once")


def multikueue_cluster_errors(cluster: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a MultiKueueCluster: exactly one of kubeConfig and clusterProfileRef is set."""
    yield from rules.metadata_errors(cluster)
    cluster_source = (cluster.get("spec") or {}).get("clusterSource") or {}
    if (cluster_source.get("kubeConfig") is None) == (cluster_source.get("clusterProfileRef") is None):
        message = "exactly one of the fields in [kubeConfig clusterProfileRef] must be set"
        remedy = "set exactly one of kubeConfig and clusterProfileRef"
        yield rules.schema_rule_fault("spec.clusterSource", "object", message, remedy)


# Rules of ProvisioningRequests. Source: the rules in the cluster autoscaler's CRD.


#: The immutable fields of a ProvisioningRequest, each with its schema type, which the message shows.
_IMMUTABLE_FIELD_TYPES: Final = {"parameters": "object", "podSets": "array", "provisioningClassName": "string"}


def provisioning_request_errors(request: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate the metadata of a ProvisioningRequest; no other rules apply on creation."""
    yield from rules.metadata_errors(request)


def provisioning_request_update_errors(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a ProvisioningRequest: parameters, podSets and provisioningClassName are immutable."""
    yield from provisioning_request_errors(new)
    spec, old_spec = new.get("spec") or {}, old.get("spec") or {}
    field_equality = semantic_equality(scheme.PROVISIONING_REQUEST)
    for field, schema_type in _IMMUTABLE_FIELD_TYPES.items():
        is_in_both = field in old_spec and field in spec
        if is_in_both and not field_equality.is_same_field("ProvisioningRequest.spec", field, spec, old_spec):
            remedy = "keep the old value, or create another ProvisioningRequest"
            yield rules.schema_rule_fault(f"spec.{field}", schema_type, "Value is immutable", remedy)


# Rules of Kueue's Configuration.
#
# Source: pkg/config/validation.go of Kueue.


#: The timeout that replaces `waitForPodsReady.timeout: 0s`.
_DEFAULT_TIMEOUT: Final = 30 * MINUTE
_PODS: Final = "pods"
_RESERVED_NAME_MESSAGE: Final = "the key is reserved for internal kueue use"
_ALLOWED_STRATEGY_LISTS: Final = ([FINAL_SHARE], [INITIAL_SHARE], [FINAL_SHARE, INITIAL_SHARE])


def configuration_errors(obj: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate Kueue's Configuration: managed jobs, waitForPodsReady, fair sharing, resources and feature gates."""
    yield from _managed_jobs_errors(obj)
    yield from _pods_ready_errors(obj.get("waitForPodsReady") or {}, obj.get("featureGates") or {})
    yield from _fair_sharing_errors(obj.get("fairSharing"))
    yield from resource_weight_errors(obj.get("admissionFairSharing") or {}, "admissionFairSharing")
    resources, gates = obj.get("resources") or {}, obj.get("featureGates") or {}
    yield from _metrics_errors(obj.get("metrics") or {})
    yield from _transformation_errors(resources.get("transformations") or ())
    if gates.get("QuotaCheckStrategy", True) is False:
        resources = {}  # the strategy has no effect
    if resources.get("quotaCheckStrategy") == "IgnoreUndeclared" and resources.get("excludeResourcePrefixes"):
        path, message = "resources.quotaCheckStrategy", "excludeResourcePrefixes is not allowed when "
        message += "quotaCheckStrategy is IgnoreUndeclared"
        yield rules.invalid(path, "IgnoreUndeclared", message, "remove quotaCheckStrategy or excludeResourcePrefixes")
    yield from feature_gate_errors(gates)


def resource_weight_errors(admission_fair_sharing: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Report negative `resourceWeights` of admission fair sharing; `path` is the path of the settings."""
    for resource, weight in (admission_fair_sharing.get("resourceWeights") or {}).items():
        if weight < 0:
            message = "must be greater than or equal to 0"
            yield rules.invalid(f"{path}.resourceWeights[{resource}]", weight, message, "use 0 or more")


def _transformation_errors(transformations: Sequence[Mapping[str, Any]]) -> Iterator[FieldError]:
    """Report each use of `pods` in a transformation, as Kueue 0.20 does: Kueue counts pods under that name."""
    for i, transformation in enumerate(transformations):
        path = f"resources.transformations[{i}]"
        used_names = [(f"{path}.{field}", transformation.get(field)) for field in ("input", "multiplyBy")]
        used_names += [(f"{path}.outputs[{name}]", name) for name in transformation.get("outputs") or {}]
        for name_path, name in used_names:
            if name == _PODS:
                yield rules.invalid(name_path, name, _RESERVED_NAME_MESSAGE, "use another resource name")


_CUSTOM_LABELS_PATH: Final = "metrics.customLabels"
_CUSTOM_LABEL_NAME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_]*")
_WORKLOAD_KIND: Final = "Workload"
_CUSTOM_LABELS_MAX: Final = 20
_TRACKED_VALUES_MAX: Final = 16
_TRACKED_WORKLOAD_VALUES_MAX: Final = 12
#: The maximum number of custom labels for each source kind.
_CUSTOM_LABELS_MAX_BY_KIND: Final = {"ClusterQueue": 6, "Cohort": 6, "LocalQueue": 6, _WORKLOAD_KIND: 2}


def _metrics_errors(metrics: Mapping[str, Any]) -> Iterator[FieldError]:
    selector = (metrics.get("localQueueMetrics") or {}).get("localQueueSelector")
    yield from rules.selector_errors(selector, "metrics.localQueueMetrics.localQueueSelector")
    labels: Sequence[Mapping[str, Any]] = metrics.get("customLabels") or ()
    if len(labels) > _CUSTOM_LABELS_MAX:
        remedy = "remove some of them"
        yield rules.too_many_items_error(_CUSTOM_LABELS_PATH, len(labels), _CUSTOM_LABELS_MAX, remedy)
    names: list[str] = []
    for i, label in enumerate(labels):
        yield from _custom_label_errors(label, f"{_CUSTOM_LABELS_PATH}[{i}]", names)
        names.append(label["name"])
    kinds = [label.get("sourceKind") or "ClusterQueue" for label in labels]
    for kind, count_max in _CUSTOM_LABELS_MAX_BY_KIND.items():
        if kinds.count(kind) > count_max:
            message = (
                f"too many custom labels for source kind {kind}: found {kinds.count(kind)}, expected <= {count_max}"
            )
            yield rules.invalid(_CUSTOM_LABELS_PATH, list(labels), message, "remove some of them")


def _custom_label_errors(label: Mapping[str, Any], path: str, other_names: Sequence[str]) -> Iterator[FieldError]:
    name, label_key, annotation_key = label["name"], label.get("sourceLabelKey"), label.get("sourceAnnotationKey")
    if not _CUSTOM_LABEL_NAME.fullmatch(name):
        remedy = "begin the name with a letter, and use letters, digits and _"
        yield rules.invalid(f"{path}.name", name, "must match ^[a-zA-Z][a-zA-Z0-9_]*$", remedy)
    if name in other_names:
        yield rules.duplicate(f"{path}.name", name, "use each name once")
    if label_key and annotation_key:
        message = "sourceLabelKey and sourceAnnotationKey are mutually exclusive"
        yield rules.invalid(path, dict(label), message, "remove one of them")
    if label_key:
        yield from rules.label_key_errors(label_key, f"{path}.sourceLabelKey")
    elif annotation_key:
        yield from rules.label_key_errors(annotation_key, f"{path}.sourceAnnotationKey")
    else:
        yield from rules.label_key_errors(name, f"{path}.name")
    values, values_path = label.get("trackedValues") or [], f"{path}.trackedValues"
    if label.get("sourceKind") == _WORKLOAD_KIND:
        if not values:
            message = "must not be empty when sourceKind is 'Workload'"
            yield rules.invalid(values_path, values, message, "list the values to report")
        elif len(values) > _TRACKED_WORKLOAD_VALUES_MAX:
            message = f"must not be greater than {_TRACKED_WORKLOAD_VALUES_MAX} when sourceKind is 'Workload'"
            yield rules.invalid(values_path, values, message, "remove some of them")
    elif len(values) > _TRACKED_VALUES_MAX:
        yield rules.too_many_items_error(values_path, len(values), _TRACKED_VALUES_MAX, "remove some of them")
    if len(set(values)) < len(values):
        yield rules.invalid(values_path, values, "must not contain duplicates", "list each value once")


_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
#: The kinds of the job frameworks, as in `integrations.externalFrameworks`.
_FRAMEWORK_KINDS: Final = {
    "batch/job": "Job.v1.batch",
    "deployment": "Deployment.v1.apps",
    "jobset.x-k8s.io/jobset": "JobSet.v1alpha2.jobset.x-k8s.io",
    "kubeflow.org/jaxjob": "JAXJob.v1.kubeflow.org",
    "kubeflow.org/mpijob": "MPIJob.v2beta1.kubeflow.org",
    "kubeflow.org/paddlejob": "PaddleJob.v1.kubeflow.org",
    "kubeflow.org/pytorchjob": "PyTorchJob.v1.kubeflow.org",
    "kubeflow.org/tfjob": "TFJob.v1.kubeflow.org",
    "kubeflow.org/xgboostjob": "XGBoostJob.v1.kubeflow.org",
    "leaderworkerset.x-k8s.io/leaderworkerset": "LeaderWorkerSet.v1.leaderworkerset.x-k8s.io",
    "ray.io/raycluster": "RayCluster.v1.ray.io",
    "ray.io/rayjob": "RayJob.v1.ray.io",
    "ray.io/rayservice": "RayService.v1.ray.io",
    "sparkoperator.k8s.io/sparkapplication": "SparkApplication.v1beta2.sparkoperator.k8s.io",
    "statefulset": "StatefulSet.v1.apps",
    "trainer.kubeflow.org/trainjob": "TrainJob.v1alpha1.trainer.kubeflow.org",
    "workload.codeflare.dev/appwrapper": "AppWrapper.v1beta2.workload.codeflare.dev",
}


def _managed_jobs_errors(obj: Mapping[str, Any]) -> Iterator[FieldError]:
    integrations = obj.get("integrations") or {}
    frameworks = integrations.get("frameworks") or ("batch/job",)
    enabled_kinds = {_FRAMEWORK_KINDS.get(name, name): name for name in frameworks}
    for i, name in enumerate(integrations.get("externalFrameworks") or ()):
        path = f"integrations.externalFrameworks[{i}]"
        if name.count(".") < 2:
            remedy = "use a name such as AppWrapper.v1beta2.workload.codeflare.dev"
            yield rules.invalid(path, name, "must be format, 'Kind.version.group.com'", remedy)
        elif name in enabled_kinds:
            remedy = f"remove this entry, or {enabled_kinds[name]} from integrations.frameworks"
            yield FieldError(path, f"Duplicate value: {rules.format_json(name)}", remedy)
    path, selector_fields = "managedJobsNamespaceSelector", obj.get("managedJobsNamespaceSelector")
    selector = parse_selector(selector_fields)
    for namespace in ("kube-system", obj.get("namespace") or "kueue-system"):
        if selector is not None and selector.matches({_NAMESPACE_NAME: namespace}):
            message = f'should not match the "{namespace}" namespace'
            remedy = f"add {{key: {_NAMESPACE_NAME}, operator: NotIn, values: [{namespace}]}} to matchExpressions"
            yield rules.invalid(path, selector_fields, message, remedy)


def _pods_ready_errors(settings: Mapping[str, Any], gates: Mapping[str, bool]) -> Iterator[FieldError]:
    has_unscheduled_timeout = gates.get(UNSCHEDULED_TIMEOUT, False)
    if has_unscheduled_timeout and gates.get(DISABLE_WAIT_FOR_PODS_READY):
        message = f"{UNSCHEDULED_TIMEOUT} cannot be enabled together with {DISABLE_WAIT_FOR_PODS_READY}"
        yield rules.invalid("featureGates", {UNSCHEDULED_TIMEOUT: True}, message, "disable one of them")
    path, value = "waitForPodsReady.unscheduledTimeout", settings.get("unscheduledTimeout")
    if value is not None and not has_unscheduled_timeout:
        message = f"requires the feature gate {UNSCHEDULED_TIMEOUT}"
        yield rules.invalid(path, value, message, f"set featureGates: {{{UNSCHEDULED_TIMEOUT}: true}}")
    elif value is not None and parse_duration(value) > (parse_duration(settings["timeout"]) or _DEFAULT_TIMEOUT):
        yield rules.invalid(path, value, "must not exceed waitForPodsReady.timeout", "set a shorter time")


def _fair_sharing_errors(fair_sharing: Mapping[str, Any] | None) -> Iterator[FieldError]:
    if fair_sharing is None:
        return
    path, strategies = "fairSharing.preemptionStrategies", fair_sharing.get("preemptionStrategies")
    remedy = f"use [{FINAL_SHARE}, {INITIAL_SHARE}], for example"
    if not strategies:
        yield rules.required(path, "must be specified", remedy)
    elif strategies not in _ALLOWED_STRATEGY_LISTS:
        names = ", ".join(f'"{",".join(each)}"' for each in _ALLOWED_STRATEGY_LISTS)
        yield FieldError(path, f"Unsupported value: {rules.format_json(strategies)}: supported values: {names}", remedy)
