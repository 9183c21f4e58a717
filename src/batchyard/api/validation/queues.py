"""Rules of Kueue's kinds except Workloads and Topologies: quotas, shares, queues, flavors, checks, configuration.

Source: Kueue's ClusterQueue and Cohort webhooks and the rules in their CRDs.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.errors import FieldError
from batchyard.api.schema import meaning_of
from batchyard.api.schema.violations import nearest
from batchyard.api.validation import pods, rules
from batchyard.api.well_known import FINAL_SHARE, GATES, INITIAL_SHARE

Groups = Sequence[Mapping[str, Any]]
PATH: Final = "spec.resourceGroups"


def group_faults(groups: Groups, *, kind: str, parent: str) -> Iterator[FieldError]:
    """Validate `spec.resourceGroups`.

    `kind` is ClusterQueue or Cohort; `parent` is its cohort or parent cohort, '' if it has none.
    """
    resources: dict[str, str] = {}
    flavors: dict[str, str] = {}
    for i, group in enumerate(groups):
        path = f"{PATH}[{i}]"
        yield from _covered_faults(group["coveredResources"], path, resources)
        if any(len(flavor["resources"]) != len(group["coveredResources"]) for flavor in group["flavors"]):
            message = "flavors must have the same number of resources as the coveredResources"
            remedy = f"give each flavor exactly these resources: {', '.join(group['coveredResources'])}"
            yield rules.broken_rule(path, "object", message, remedy)
        for j, flavor in enumerate(group["flavors"]):
            at = f"{path}.flavors[{j}]"
            yield from _flavor_faults(flavor, group["coveredResources"], at, kind=kind, parent=parent)
            yield from _taken(f"{at}.name", flavor["name"], flavors, "a flavor belongs to one group only")


def _covered_faults(covered: Sequence[str], path: str, seen: dict[str, str]) -> Iterator[FieldError]:
    """Covered resources are resource names, each in one group only."""
    for j, resource in enumerate(covered):
        at = f"{path}.coveredResources[{j}]"
        yield from rules.label_key_faults(resource, at)
        yield from _taken(at, resource, seen, "a resource belongs to one group only")


def _taken(path: str, name: str, seen: dict[str, str], rule: str) -> Iterator[FieldError]:
    """Report a name that was seen before, else record it."""
    if name in seen:
        yield rules.duplicate(path, name, f"drop it here: {rule}, and {name} is at {seen[name]} already")
    else:
        seen[name] = path


def _flavor_faults(
    flavor: Mapping[str, Any], covered: Sequence[str], path: str, *, kind: str, parent: str
) -> Iterator[FieldError]:
    """A flavor has the covered resources in the same order, with valid quotas."""
    for i, (quota, expected) in enumerate(zip(flavor["resources"], covered, strict=False)):
        at = f"{path}.resources[{i}]"
        if quota["name"] != expected:
            message = "must match the name in coveredResources"
            remedy = f"put {expected} here: resources stand in the order of coveredResources"
            yield rules.invalid(f"{at}.name", quota["name"], message, remedy)
        for field in ("nominalQuota", "borrowingLimit", "lendingLimit"):
            if (value := quota.get(field)) is not None:
                yield from rules.amount_faults(value, f"{at}.{field}")
        if not parent:
            yield from _limit_faults(quota, at, kind)
        yield from _lending_faults(quota, at, kind)


def _limit_faults(quota: Mapping[str, Any], path: str, kind: str) -> Iterator[FieldError]:
    """Borrowing and lending limits require a cohort or parent."""
    absent, remedy = {
        "ClusterQueue": ("cohort", "drop the limit, or give spec.cohortName"),
        "Cohort": ("parent", "drop the limit, or give spec.parentName"),
    }[kind]
    for field in ("borrowingLimit", "lendingLimit"):
        if (value := quota.get(field)) is not None:
            message = f"must be nil when {absent} is empty"
            yield rules.invalid(f"{path}.{field}", rules.shown(value), message, remedy)


def _lending_faults(quota: Mapping[str, Any], path: str, kind: str) -> Iterator[FieldError]:
    """The lending limit of a ClusterQueue is at most its nominal quota; a Cohort may lend what its members have."""
    limit, nominal = quota.get("lendingLimit"), quota.get("nominalQuota", 0)
    if kind == "ClusterQueue" and limit is not None and rules.exceeds(limit, nominal):
        message = "must be less than or equal to the nominalQuota"
        remedy = f"give at most {rules.shown(nominal)}"
        yield rules.invalid(f"{path}.lendingLimit", rules.shown(limit), message, remedy)


def total_faults(groups: Groups) -> Iterator[FieldError]:
    """A ClusterQueue has at most 256 flavors, 256 resources, and 512 pairs of them in a group."""
    for what, field in (("flavors", "flavors"), ("covered resources", "coveredResources")):
        total = sum(len(group[field]) for group in groups)
        if total > 256:
            message = f"total number of {what} across all resourceGroups must be ≤ 256, got {total}"
            yield rules.invalid(PATH, total, message, f"spread the {what} over several ClusterQueues of one cohort")
    for i, group in enumerate(groups):
        pairs = sum(len(flavor["resources"]) for flavor in group["flavors"])
        if pairs > 512:
            message = f"number of flavor-resource combinations in a resourceGroup must be ≤ 512, got {pairs}"
            yield rules.invalid(f"{PATH}[{i}]", pairs, message, "spread the flavors over several ClusterQueues")


def fair_sharing_faults(fair_sharing: Mapping[str, Any] | None) -> Iterator[FieldError]:
    """A weight is 0 or more than 1n."""
    weight = (fair_sharing or {}).get("weight")
    if weight is None:
        return
    yield from rules.amount_faults(weight, "spec.fairSharing")
    if rules.nano(weight) == 1:
        message = "When not 0, weight must be > 10e-9"
        yield rules.invalid("spec.fairSharing", rules.shown(weight), message, "give 0, or more than 1n")


# --- cluster queue ---
#
# Rules of ClusterQueues.
#
# Source: Kueue's ClusterQueue webhook at its default feature gates, and the rules in its CRD.


WEBHOOK: Final = "vclusterqueue.kb.io"
_CHECKS: Final = "spec.admissionChecksStrategy.admissionChecks"


def cluster_queue_faults(queue: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a ClusterQueue."""
    yield from rules.metadata_faults(queue)
    yield from rules.denied_by(WEBHOOK, _spec_faults(queue))
    yield from rules.denied_by(WEBHOOK, _on_flavors_faults(queue.get("spec") or {}, {}))


def cluster_queue_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a ClusterQueue.

    References to missing flavors that were stored before the rule existed may stay, as upstream allows.
    """
    spec, old_spec = new.get("spec") or {}, old.get("spec") or {}
    yield from rules.metadata_faults(new)
    yield from rules.denied_by(WEBHOOK, _spec_faults(new))
    kept = _on_flavors(old_spec) if _flavors(spec).keys() == _flavors(old_spec).keys() else {}
    yield from rules.denied_by(WEBHOOK, _on_flavors_faults(spec, kept))
    if spec.get("concurrentAdmissionPolicy") != old_spec.get("concurrentAdmissionPolicy"):
        kept_policy = rules.immutable("spec.concurrentAdmissionPolicy", spec.get("concurrentAdmissionPolicy"))
        yield from rules.denied_by(WEBHOOK, [kept_policy])


def _spec_faults(queue: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate the rules that new and updated ClusterQueues share."""
    spec = queue.get("spec") or {}
    groups = spec.get("resourceGroups") or ()
    yield from group_faults(groups, kind="ClusterQueue", parent=spec.get("cohortName") or "")
    yield from rules.selector_faults(spec.get("namespaceSelector"), "spec.namespaceSelector")
    yield from _preemption_faults(spec.get("preemption") or {})
    yield from _fungibility_faults(spec.get("flavorFungibility") or {})
    yield from fair_sharing_faults(spec.get("fairSharing"))
    yield from total_faults(groups)


def _flavors(spec: Mapping[str, Any]) -> dict[str, None]:
    """Return the flavors of a ClusterQueue, in order."""
    return {flavor["name"]: None for group in spec.get("resourceGroups") or () for flavor in group["flavors"]}


def _checks(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the entries of the admission check strategy."""
    return (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or []


def _on_flavors(spec: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Return the flavors of each admission check."""
    return {check["name"]: frozenset(check.get("onFlavors") or ()) for check in _checks(spec)}


def _on_flavors_faults(spec: Mapping[str, Any], kept: Mapping[str, frozenset[str]]) -> Iterator[FieldError]:
    """An admission check applies to flavors of the ClusterQueue."""
    flavors = _flavors(spec)
    for i, check in enumerate(_checks(spec)):
        on_flavors = check.get("onFlavors") or ()
        if kept.get(check["name"]) == frozenset(on_flavors):
            continue
        for j, flavor in enumerate(on_flavors):
            if flavor not in flavors:
                yield rules.unsupported(f"{_CHECKS}[{i}].onFlavors[{j}]", flavor, flavors)


def _preemption_faults(preemption: Mapping[str, Any]) -> Iterator[FieldError]:
    """The policy borrowWithinCohort requires reclaimWithinCohort."""
    borrowing = (preemption.get("borrowWithinCohort") or {}).get("policy", "Never")
    if preemption.get("reclaimWithinCohort", "Never") == "Never" and borrowing != "Never":
        message = "reclaimWithinCohort=Never and borrowWithinCohort.Policy!=Never"
        remedy = "set reclaimWithinCohort to LowerPriority or Any, or borrowWithinCohort.policy to Never"
        yield rules.broken_rule("spec.preemption", "object", message, remedy)


def _fungibility_faults(fungibility: Mapping[str, Any]) -> Iterator[FieldError]:
    """A preference requires TryNextFlavor in both fields."""
    both = (fungibility.get("whenCanBorrow"), fungibility.get("whenCanPreempt"))
    if fungibility.get("preference") and both != ("TryNextFlavor", "TryNextFlavor"):
        message = "preference can only be set when both whenCanBorrow and whenCanPreempt are TryNextFlavor"
        remedy = "set both to TryNextFlavor, or drop the preference"
        yield rules.broken_rule("spec.flavorFungibility", "object", message, remedy)


# --- cohort ---
#
# Rules of Cohorts. Source: Kueue's Cohort webhook and the rules in its CRD.


_WEBHOOK: Final = "vcohort.kb.io"


def cohort_faults(cohort: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a Cohort."""
    spec = cohort.get("spec") or {}
    yield from rules.metadata_faults(cohort)
    yield from rules.denied_by(_WEBHOOK, fair_sharing_faults(spec.get("fairSharing")))
    parent = spec.get("parentName") or ""
    groups = group_faults(spec.get("resourceGroups") or (), kind="Cohort", parent=parent)
    yield from rules.denied_by(_WEBHOOK, groups)


# --- local queue ---
#
# Rules of LocalQueues. Source: the rules in Kueue's CRD; upstream has no webhook for them.


def local_queue_faults(queue: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a LocalQueue. Its weight may be any quantity: upstream does not check it."""
    yield from rules.metadata_faults(queue)


def local_queue_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a LocalQueue: its ClusterQueue is immutable."""
    yield from local_queue_faults(new)
    before, after = ((obj.get("spec") or {}).get("clusterQueue") for obj in (old, new))
    if before is not None and after is not None and before != after:
        remedy = f"keep {before}, or delete the LocalQueue and recreate it"
        yield rules.broken_rule("spec.clusterQueue", "string", rules.IMMUTABLE, remedy)


# --- resource flavor ---
#
# Rules of ResourceFlavors. Source: Kueue's ResourceFlavor webhook and the rules in its CRD.


_TOPOLOGY_KEPT: Final = "topologyName is immutable when topologyName is set"


def resource_flavor_faults(flavor: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a ResourceFlavor."""
    spec = flavor.get("spec") or {}
    yield from rules.metadata_faults(flavor)
    labels = rules.label_faults(spec.get("nodeLabels"), "spec.nodeLabels")
    yield from rules.denied_by("vresourceflavor.kb.io", labels)
    yield from pods.taint_faults(spec.get("nodeTaints") or (), "spec.nodeTaints")
    yield from pods.toleration_faults(spec.get("tolerations") or (), "spec.tolerations")
    if spec.get("topologyName") and not spec.get("nodeLabels"):
        message = "at least one nodeLabel is required when topology is set"
        yield rules.broken_rule("spec", "object", message, "give a label that the nodes of the topology have")


def resource_flavor_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a ResourceFlavor: its topology is immutable."""
    yield from resource_flavor_faults(new)
    before = (old.get("spec") or {}).get("topologyName")
    if before is not None and (new.get("spec") or {}).get("topologyName") != before:
        yield rules.broken_rule("spec", "object", _TOPOLOGY_KEPT, f"keep topologyName: {before}, or make a new flavor")


# --- admission check ---
#
# Rules of AdmissionChecks. Source: the rules in Kueue's CRD.


def admission_check_faults(check: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an AdmissionCheck."""
    yield from rules.metadata_faults(check)


def admission_check_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of an AdmissionCheck: its controller is immutable."""
    yield from admission_check_faults(new)
    before, after = ((obj.get("spec") or {}).get("controllerName") for obj in (old, new))
    if before is not None and after is not None and before != after:
        remedy = f"keep {before}, or make a new AdmissionCheck"
        yield rules.broken_rule("spec.controllerName", "string", rules.IMMUTABLE, remedy)


# --- multikueue ---
#
# Rules of MultiKueueConfigs and MultiKueueClusters. Source: the rules in Kueue's CRDs.


def multikueue_config_faults(config: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a MultiKueueConfig."""
    yield from rules.metadata_faults(config)
    clusters = (config.get("spec") or {}).get("clusters") or ()
    if len(dict.fromkeys(clusters)) < len(clusters):
        yield rules.broken_rule("spec.clusters", "array", "must be unique", "name each cluster once")


def multikueue_cluster_faults(cluster: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a MultiKueueCluster."""
    yield from rules.metadata_faults(cluster)
    source = (cluster.get("spec") or {}).get("clusterSource") or {}
    if (source.get("kubeConfig") is None) == (source.get("clusterProfileRef") is None):
        message = "exactly one of the fields in [kubeConfig clusterProfileRef] must be set"
        remedy = "say how to reach the cluster, in one way: kubeConfig, or clusterProfileRef"
        yield rules.broken_rule("spec.clusterSource", "object", message, remedy)


# --- provisioning request ---
#
# Rules of ProvisioningRequests. Source: the rules in the cluster autoscaler's CRD.


#: Immutable fields, each with its type as the API server shows it.
_KEPT: Final = {"parameters": "object", "podSets": "array", "provisioningClassName": "string"}


def provisioning_request_faults(request: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a ProvisioningRequest."""
    yield from rules.metadata_faults(request)


def provisioning_request_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a ProvisioningRequest: its spec is immutable."""
    yield from provisioning_request_faults(new)
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    meaning = meaning_of(scheme.PROVISIONING_REQUEST)
    for field, schema_type in _KEPT.items():
        is_given = field in before and field in spec
        if is_given and not meaning.is_same_field("ProvisioningRequest.spec", field, spec, before):
            remedy = "keep the value it has, or make a new ProvisioningRequest"
            yield rules.broken_rule(f"spec.{field}", schema_type, "Value is immutable", remedy)


# --- configuration ---
#
# Rules of Kueue's Configuration.
#
# Source: pkg/config/validation.go of Kueue.


_STRATEGIES: Final = ([FINAL_SHARE], [INITIAL_SHARE], [FINAL_SHARE, INITIAL_SHARE])


def configuration_faults(obj: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a Configuration; `waitForPodsReady` has no rules beyond its structure."""
    yield from _fair_sharing_faults(obj.get("fairSharing"))
    resources = obj.get("resources") or {}
    if resources.get("quotaCheckStrategy") == "IgnoreUndeclared" and resources.get("excludeResourcePrefixes"):
        path, message = "resources.quotaCheckStrategy", "excludeResourcePrefixes is not allowed when "
        message += "quotaCheckStrategy is IgnoreUndeclared"
        yield rules.invalid(path, "IgnoreUndeclared", message, "keep one of them")
    for name in obj.get("featureGates") or {}:
        if name not in GATES:
            close = nearest(name, GATES)
            remedy = f"did you mean {close}?" if close else "leave it out: Kueue 0.19 has no such gate"
            yield rules.invalid("featureGates", {name: obj["featureGates"][name]}, _unknown(name), remedy)


def _unknown(name: str) -> str:
    return f"unrecognized feature gate: {name}"


def _fair_sharing_faults(fair: Mapping[str, Any] | None) -> Iterator[FieldError]:
    if fair is None:
        return
    path, given = "fairSharing.preemptionStrategies", fair.get("preemptionStrategies")
    remedy = f"write [{FINAL_SHARE}, {INITIAL_SHARE}], which is what Kueue's own examples have"
    if not given:
        yield rules.required(path, "must be specified", remedy)
    elif given not in _STRATEGIES:
        supported = ", ".join(f'"{",".join(each)}"' for each in _STRATEGIES)
        yield FieldError(path, f"Unsupported value: {rules.printed(given)}: supported values: {supported}", remedy)
