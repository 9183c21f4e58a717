"""Validation of Pods, pod templates and their updates: volumes, affinity, spread, taints and tolerations.

Source: Kubernetes's pkg/apis/core/validation.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.schema import fill_defaults, semantic_equality
from batchyard.api.validation import containers, rules

# Rules of the volumes of pods: each has one source, and file paths stay within the volume.
#
# Source: Kubernetes's pkg/apis/core/validation (ValidateVolumes).


_HOST_PATH_TYPES: Final = (
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
)
_FILE_PATH_REMEDY: Final = "set path to the name of the file in the volume"
_TOKEN_SECONDS_MIN: Final = 600
_TOKEN_SECONDS_MAX: Final = 2**32


def volume_errors(volumes: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """Report volumes of a pod with an invalid or duplicate name, or without exactly one valid source."""
    seen_volume_names: dict[str, None] = {}
    for i, volume in enumerate(volumes):
        item_path, name = f"{path}[{i}]", volume.get("name") or ""
        if not name:
            yield rules.required(f"{item_path}.name", "", "set the name of the volume")
        for message in rules.dns_label_errors(name) if name else ():
            yield rules.invalid(f"{item_path}.name", name, message, "use lowercase letters, digits and '-'")
        if name in seen_volume_names:
            yield rules.duplicate(f"{item_path}.name", name, "give each volume a unique name")
        seen_volume_names[name] = None
        source_fields = [field for field, source in volume.items() if field != "name" and source is not None]
        if not source_fields:
            yield rules.required(item_path, "must specify a volume type", "add a source, such as emptyDir: {}")
        for field in source_fields[1:]:
            message = "may not specify more than 1 volume type"
            yield rules.forbidden(f"{item_path}.{field}", message, f"keep only one of {', '.join(source_fields)}")
        for field in source_fields[:1]:
            yield from _volume_source_errors(field, volume[field], f"{item_path}.{field}")


def _volume_source_errors(field: str, source: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    match field:
        case "hostPath":
            yield from _host_path_errors(source, path)
        case "secret" | "configMap":
            name = "secretName" if field == "secret" else "name"
            if not source.get(name):
                yield rules.required(
                    f"{path}.{name}", "", f"specify the name of a {'Secret' if field == 'secret' else 'ConfigMap'}"
                )
            yield from rules.file_mode_errors(source.get("defaultMode"), f"{path}.defaultMode")
            yield from _key_to_path_errors(source.get("items") or (), f"{path}.items")
        case "downwardAPI":
            yield from rules.file_mode_errors(source.get("defaultMode"), f"{path}.defaultMode")
            for item in source.get("items") or ():
                yield from _volume_file_errors(item, path)
        case "projected":
            yield from rules.file_mode_errors(source.get("defaultMode"), f"{path}.defaultMode")
            yield from _projected_source_errors(source.get("sources") or (), path)
        case "persistentVolumeClaim" if not source.get("claimName"):
            yield rules.required(f"{path}.claimName", "", "specify the name of a PersistentVolumeClaim")


def _host_path_errors(source: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    host_path, kind = source.get("path") or "", source.get("type") or ""
    if not host_path:
        yield rules.required(f"{path}.path", "", "specify a path on the node, such as /var/data")
        return
    yield from rules.path_component_errors(host_path, f"{path}.path")
    if kind not in _HOST_PATH_TYPES:
        yield rules.unsupported(f"{path}.type", kind, _HOST_PATH_TYPES)


def _key_to_path_errors(items: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    for i, item in enumerate(items):
        item_path = f"{path}[{i}]"
        if not item.get("key"):
            yield rules.required(f"{item_path}.key", "", "specify a key of the Secret or ConfigMap")
        yield from _volume_file_errors(item, item_path)


def _volume_file_errors(item: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    if not item.get("path"):
        yield rules.required(f"{path}.path", "", _FILE_PATH_REMEDY)
    yield from rules.volume_file_path_errors(item.get("path") or "", f"{path}.path")
    yield from rules.file_mode_errors(item.get("mode"), f"{path}.mode")


def _projected_source_errors(sources: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    file_paths: set[str] = set()
    for i, source in enumerate(sources):
        item_path = f"{path}.sources[{i}]"
        projection_fields = [field for field, projection in source.items() if projection is not None]
        for field in projection_fields[1:]:
            yield rules.forbidden(
                f"{item_path}.{field}", "may not specify more than 1 volume type", "add a separate source for each type"
            )
        for field in ("secret", "configMap", "downwardAPI"):
            projection = source.get(field) or {}
            for j, item in enumerate(projection.get("items") or ()):
                file_path = f"{item_path}.{field}" if field == "downwardAPI" else f"{item_path}.{field}.items[{j}]"
                if field != "downwardAPI" and not item.get("key"):
                    yield rules.required(f"{file_path}.key", "", "specify a key of the Secret or ConfigMap")
                yield from _volume_file_errors(item, file_path)
                if (file := item.get("path") or "") and file in file_paths:
                    remedy = f"give the files different paths: {file} occurs twice"
                    yield rules.invalid(path, projection.get("name") or file, "conflicting duplicate paths", remedy)
                file_paths.add(file)
        if (token := source.get("serviceAccountToken")) is not None:
            yield from _service_account_token_errors(token, path, f"{item_path}.serviceAccountToken")


def _service_account_token_errors(token: Mapping[str, Any], path: str, item_path: str) -> Iterator[FieldError]:
    expiration_seconds = token.get("expirationSeconds")
    if expiration_seconds is not None and expiration_seconds < _TOKEN_SECONDS_MIN:
        message = "may not specify a duration less than 10 minutes"
        yield rules.invalid(f"{item_path}.expirationSeconds", expiration_seconds, message, "use 600 seconds or more")
    if expiration_seconds is not None and expiration_seconds > _TOKEN_SECONDS_MAX:
        message = "may not specify a duration larger than 2^32 seconds"
        yield rules.invalid(f"{item_path}.expirationSeconds", expiration_seconds, message, "reduce expirationSeconds")
    if not token.get("path"):
        yield rules.required(f"{path}.path", "", _FILE_PATH_REMEDY)
    yield from rules.volume_file_path_errors(token.get("path") or "", f"{path}.path")


# Rules of node affinity, pod affinity and topology spread constraints.
#
# Source: Kubernetes's pkg/apis/core/validation.


_UNSATISFIABLE_ACTIONS: Final = ("DoNotSchedule", "ScheduleAnyway")
_NODE_INCLUSION_POLICIES: Final = ("Honor", "Ignore")


def affinity_errors(affinity: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Validate the `affinity` of a pod: node affinity, pod affinity and pod anti-affinity."""
    yield from _node_affinity_errors(affinity.get("nodeAffinity") or {}, f"{path}.nodeAffinity")
    for field in ("podAffinity", "podAntiAffinity"):
        yield from _pod_affinity_errors(affinity.get(field) or {}, f"{path}.{field}")


def _node_affinity_errors(affinity: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    if (required := affinity.get(well_known.REQUIRED)) is not None:
        terms = required.get("nodeSelectorTerms")
        item_path = f"{path}.{well_known.REQUIRED}.nodeSelectorTerms"
        if not terms:
            message = "must have at least one node selector term"
            yield rules.required(item_path, message, f"add a term, or remove {well_known.REQUIRED}")
        for i, term in enumerate(terms or ()):
            yield from _node_term_errors(term, f"{item_path}[{i}]")
    for i, preferred in enumerate(affinity.get(well_known.PREFERRED) or ()):
        item_path = f"{path}.{well_known.PREFERRED}[{i}]"
        yield from _term_weight_errors(preferred, item_path)
        yield from _node_term_errors(preferred.get("preference") or {}, f"{item_path}.preference")


def _term_weight_errors(preferred_term: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    weight = preferred_term.get("weight", 0)
    if not 1 <= weight <= 100:
        yield rules.invalid(f"{path}.weight", weight, "must be in the range 1-100", "use a weight from 1 to 100")


def _node_term_errors(term: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    for i, expression in enumerate(term.get("matchExpressions") or ()):
        item_path = f"{path}.matchExpressions[{i}]"
        yield from _node_operator_errors(expression, item_path)
        yield from rules.label_key_errors(expression.get("key") or "", f"{item_path}.key")
    for i, field in enumerate(term.get("matchFields") or ()):
        item_path = f"{path}.matchFields[{i}]"
        if field.get("key") != "metadata.name":
            remedy = "use the key metadata.name"
            yield rules.invalid(f"{item_path}.key", field.get("key"), "not a valid field selector key", remedy)
        if len(field.get("values") or ()) != 1:
            message = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
            yield rules.required(f"{item_path}.values", message, "use the name of one node")


def _node_operator_errors(expression: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    operator, values = expression.get("operator") or "", expression.get("values") or ()
    item_path = f"{path}.values"
    if operator in {"In", "NotIn"}:
        if not values:
            message = "must be specified when `operator` is 'In' or 'NotIn'"
            yield rules.required(item_path, message, "add values, or use the operator Exists")
    elif operator in {"Exists", "DoesNotExist"}:
        if values:
            message = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield rules.forbidden(item_path, message, "remove the values, or use the operator In")
    elif operator in {"Gt", "Lt"}:
        if len(values) != 1:
            message = "must be specified single value when `operator` is 'Lt' or 'Gt'"
            yield rules.required(item_path, message, "use one value, which must be an integer")
    else:
        remedy = "use In, NotIn, Exists, DoesNotExist, Gt or Lt"
        yield rules.invalid(f"{path}.operator", operator, "not a valid selector operator", remedy)


def _pod_affinity_errors(affinity: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    for i, term in enumerate(affinity.get(well_known.REQUIRED) or ()):
        yield from _pod_affinity_term_errors(term, f"{path}.{well_known.REQUIRED}[{i}]")
    for i, preferred in enumerate(affinity.get(well_known.PREFERRED) or ()):
        item_path = f"{path}.{well_known.PREFERRED}[{i}]"
        yield from _term_weight_errors(preferred, item_path)
        yield from _pod_affinity_term_errors(preferred.get("podAffinityTerm") or {}, f"{item_path}.podAffinityTerm")


def _pod_affinity_term_errors(term: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    for field in ("labelSelector", "namespaceSelector"):
        yield from rules.selector_errors(term.get(field), f"{path}.{field}")
    yield from topology_key_errors(term.get("topologyKey") or "", f"{path}.topologyKey")
    for i, namespace in enumerate(term.get("namespaces") or ()):
        for message in rules.dns_label_errors(namespace):
            yield rules.invalid(f"{path}.namespaces[{i}]", namespace, message, "use the name of a namespace")
    yield from _pod_label_key_errors(term, "matchLabelKeys", path)
    yield from _pod_label_key_errors(term, "mismatchLabelKeys", path)
    for i, name in enumerate(term.get("matchLabelKeys") or ()):
        if name in (term.get("mismatchLabelKeys") or ()):
            message = "exists in both matchLabelKeys and mismatchLabelKeys"
            yield rules.invalid(
                f"{path}.matchLabelKeys[{i}]", name, message, "remove the key from one of the two lists"
            )


def topology_key_errors(key: str, path: str) -> Iterator[FieldError]:
    """Report a topology key that is empty or not a valid label key."""
    if key:
        yield from rules.label_key_errors(key, path)
    else:
        yield rules.required(path, "can not be empty", "use the key of a node label, such as kubernetes.io/hostname")


def _pod_label_key_errors(obj: Mapping[str, Any], field: str, path: str) -> Iterator[FieldError]:
    keys = obj.get(field) or ()
    if keys and obj.get("labelSelector") is None:
        message = "must not be specified when labelSelector is not set"
        yield rules.forbidden(f"{path}.{field}", message, "add a labelSelector; {} selects all pods")
    for i, key in enumerate(keys):
        yield from rules.label_key_errors(key, f"{path}.{field}[{i}]")


def spread_errors(constraints: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """Report a pod's topology spread constraints that are invalid or duplicate."""
    seen_constraints: dict[tuple[str, str], None] = {}
    for i, constraint in enumerate(constraints):
        item_path, unsatisfiable_action = f"{path}[{i}]", constraint.get("whenUnsatisfiable") or ""
        key, max_skew = constraint.get("topologyKey") or "", constraint.get("maxSkew", 0)
        if max_skew <= 0:
            yield rules.invalid(f"{item_path}.maxSkew", max_skew, "must be greater than zero", "use 1 or more")
        if not key:
            remedy = "use the key of a node label, such as kubernetes.io/hostname"
            yield rules.required(f"{item_path}.topologyKey", "can not be empty", remedy)
        if unsatisfiable_action not in _UNSATISFIABLE_ACTIONS:
            yield rules.unsupported(f"{item_path}.whenUnsatisfiable", unsatisfiable_action, _UNSATISFIABLE_ACTIONS)
        if (key, unsatisfiable_action) in seen_constraints:
            yield rules.duplicate(
                f"{item_path}.{{topologyKey, whenUnsatisfiable}}",
                f"{{{key}, {unsatisfiable_action}}}",
                "remove one of the two constraints",
            )
        seen_constraints[key, unsatisfiable_action] = None
        yield from rules.selector_errors(constraint.get("labelSelector"), f"{item_path}.labelSelector")
        yield from _pod_label_key_errors(constraint, "matchLabelKeys", item_path)
        yield from _spread_domain_errors(constraint, unsatisfiable_action, item_path)


def _spread_domain_errors(constraint: Mapping[str, Any], unsatisfiable_action: str, path: str) -> Iterator[FieldError]:
    min_domains = constraint.get("minDomains")
    if min_domains is not None and min_domains <= 0:
        yield rules.invalid(f"{path}.minDomains", min_domains, "must be greater than zero", "use 1 or more")
    if min_domains is not None and unsatisfiable_action != _UNSATISFIABLE_ACTIONS[0]:
        message = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {unsatisfiable_action}"
        yield rules.invalid(f"{path}.minDomains", min_domains, message, "remove minDomains, or use DoNotSchedule")
    for field in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        inclusion_policy = constraint.get(field)
        if inclusion_policy is not None and inclusion_policy not in _NODE_INCLUSION_POLICIES:
            yield rules.unsupported(f"{path}.{field}", inclusion_policy, _NODE_INCLUSION_POLICIES)


# Rules of taints and tolerations.
#
# Source: Kueue's ResourceFlavor webhook, the rules in its CRDs, and Kubernetes's validation of Pods and Nodes.


_TAINT_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_TOLERATION_OPERATORS: Final = ("Equal", "Exists")


def taint_errors(taints: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """Report taints with an invalid key, value or effect, and taints with the same key and effect."""
    path_by_taint: dict[tuple[str, str], str] = {}
    for i, taint in enumerate(taints):
        item_path, taint_key = f"{path}[{i}]", (taint["key"], taint["effect"])
        yield from rules.label_key_errors(taint["key"], f"{item_path}.key")
        value = taint.get("value") or ""
        for error in rules.label_value_errors(value):
            yield rules.invalid(f"{item_path}.value", value, error, "use at most 63 letters, digits, '-', '_' and '.'")
        if taint["effect"] not in _TAINT_EFFECTS:
            yield rules.unsupported(f"{item_path}.effect", taint["effect"], _TAINT_EFFECTS)
        if taint_key in path_by_taint:
            message = "taints must be unique by key and effect pair"
            remedy = f"remove this taint: {path_by_taint[taint_key]} has the same key and effect"
            yield FieldError(item_path, f"Duplicate value: {rules.format_json(taint)}: {message}", remedy)
        path_by_taint.setdefault(taint_key, item_path)


def toleration_errors(tolerations: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """Report tolerations with an invalid or contradictory key, operator, value, effect or tolerationSeconds."""
    for i, toleration in enumerate(tolerations):
        item_path, operator = f"{path}[{i}]", toleration.get("operator") or "Equal"
        if key := toleration.get("key"):
            yield from rules.label_key_errors(key, f"{item_path}.key")
        elif operator != "Exists":
            message = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            yield rules.invalid(f"{item_path}.operator", operator, message, "set a key, or set the operator to Exists")
        if operator not in _TOLERATION_OPERATORS:
            yield rules.unsupported(f"{item_path}.operator", operator, _TOLERATION_OPERATORS)
        yield from _toleration_value_errors(toleration, operator, item_path)
        yield from _toleration_effect_errors(toleration, item_path)


def _toleration_value_errors(toleration: Mapping[str, Any], operator: str, path: str) -> Iterator[FieldError]:
    value = toleration.get("value") or ""
    if operator == "Exists" and value:
        message = "value must be empty when `operator` is 'Exists'"
        yield rules.invalid(f"{path}.operator", operator, message, "remove the value, or set the operator to Equal")
    for message in rules.label_value_errors(value):
        yield rules.invalid(f"{path}.value", value, message, "use at most 63 letters, digits, '-', '_' and '.'")


def _toleration_effect_errors(toleration: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    effect = toleration.get("effect") or ""
    if effect and effect not in _TAINT_EFFECTS:
        yield rules.unsupported(f"{path}.effect", effect, _TAINT_EFFECTS)
    if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        message = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        yield rules.invalid(f"{path}.effect", effect, message, "use NoExecute, or remove tolerationSeconds")


_RESTART_POLICIES: Final = ("Always", "OnFailure", "Never")


def pod_errors(pod: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a Pod: its metadata and spec; nodeName and schedulingGates exclude each other."""
    yield from rules.metadata_errors(pod)
    spec = pod.get("spec") or {}
    yield from _pod_spec_errors(spec, "spec", ())
    if spec.get("nodeName") and spec.get("schedulingGates"):
        message = "cannot be set until all schedulingGates have been cleared"
        yield rules.forbidden("spec.nodeName", message, "remove schedulingGates or nodeName")


def pod_template_kind_errors(obj: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a PodTemplate: its metadata and the pod template that it contains."""
    yield from rules.metadata_errors(obj)
    yield from pod_template_errors(obj.get("template") or {}, "template")


def pod_template_errors(
    template: Mapping[str, Any], path: str, claim_names: Sequence[str] = ()
) -> Iterator[FieldError]:
    """Validate a pod template at a path of another object, which adds the volumes `claim_names` to the template."""
    template_metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    yield from rules.label_errors(template_metadata.get("labels"), f"{path}.metadata.labels")
    yield from rules.annotation_errors(template_metadata.get("annotations"), f"{path}.metadata.annotations")
    yield from _pod_spec_errors(spec, f"{path}.spec", claim_names)


def _pod_spec_errors(spec: Mapping[str, Any], path: str, claim_names: Sequence[str]) -> Iterator[FieldError]:
    """Validate the spec of a pod or pod template, to which its owner adds the volumes `claim_names`."""
    volumes = dict.fromkeys([*(volume.get("name") or "" for volume in spec.get("volumes") or ()), *claim_names])
    yield from volume_errors(spec.get("volumes") or (), f"{path}.volumes")
    yield from containers.containers_errors(spec, volumes, path)
    yield from rules.pod_resources_errors(spec.get("resources") or {}, f"{path}.resources")
    yield from rules.resources_errors({"limits": spec.get("overhead") or {}}, f"{path}.overhead")
    yield from rules.label_errors(spec.get("nodeSelector"), f"{path}.nodeSelector")
    yield from affinity_errors(spec.get("affinity") or {}, f"{path}.affinity")
    yield from toleration_errors(spec.get("tolerations") or (), f"{path}.tolerations")
    spread_constraints = spec.get("topologySpreadConstraints") or ()
    yield from spread_errors(spread_constraints, f"{path}.topologySpreadConstraints")
    yield from _scheduling_gate_errors(spec.get("schedulingGates") or (), f"{path}.schedulingGates")
    yield from containers.host_alias_and_dns_errors(spec, path)
    yield from containers.pod_security_errors(spec.get("securityContext") or {}, f"{path}.securityContext")
    for i, gate in enumerate(spec.get("readinessGates") or ()):
        yield from rules.label_key_errors(gate.get("conditionType") or "", f"{path}.readinessGates[{i}].conditionType")
    yield from _scalar_field_errors(spec, path)


def _scheduling_gate_errors(scheduling_gates: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    seen_names: dict[str, None] = {}
    for i, gate in enumerate(scheduling_gates):
        name = gate.get("name") or ""
        yield from rules.label_key_errors(name, f"{path}[{i}]")
        if name in seen_names:
            yield rules.duplicate(f"{path}[{i}]", name, "remove one of the two gates")
        seen_names[name] = None


def _scalar_field_errors(spec: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    restart_policy = spec.get("restartPolicy")
    if restart_policy and restart_policy not in _RESTART_POLICIES:
        yield rules.unsupported(f"{path}.restartPolicy", restart_policy, _RESTART_POLICIES)
    deadline_seconds = spec.get("activeDeadlineSeconds")
    if deadline_seconds is not None and not 1 <= deadline_seconds <= 2**31 - 1:
        message = "must be between 1 and 2147483647, inclusive"
        yield rules.invalid(f"{path}.activeDeadlineSeconds", deadline_seconds, message, "use 1 second or more")
    grace = spec.get("terminationGracePeriodSeconds")
    if grace is not None and grace < 0:
        yield rules.invalid(f"{path}.terminationGracePeriodSeconds", grace, rules.NEGATIVE_MESSAGE, "use 0 or more")
    for field, rule in (
        ("hostname", rules.dns_label_errors),
        ("subdomain", rules.dns_label_errors),
        ("priorityClassName", rules.dns_subdomain_errors),
        ("serviceAccountName", rules.dns_subdomain_errors),
        ("nodeName", rules.dns_subdomain_errors),
        ("runtimeClassName", rules.dns_subdomain_errors),
    ):
        for message in rule(spec[field]) if spec.get(field) else ():
            characters = "letters, digits and '-'" if rule is rules.dns_label_errors else "letters, digits, '-' and '.'"
            yield rules.invalid(f"{path}.{field}", spec[field], message, f"use lowercase {characters}")


# Rules of updates of Pods: most of the spec is immutable.
#
# Source: Kubernetes's pkg/apis/core/validation (ValidatePodUpdate).


SpecFields = Mapping[str, Any]

_POD_EQUALITY: Final = semantic_equality(scheme.POD)
_INT32_MAX: Final = 2**31 - 1
_IMMUTABLE_POD_MESSAGE: Final = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_RECREATE_REMEDY: Final = "delete the Pod and recreate it"
#: Fields whose changes have separate rules.
_SEPARATE_FIELDS: Final = ("containers", "initContainers", "activeDeadlineSeconds", "tolerations", "schedulingGates")


def pod_update_errors(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a Pod: most of its spec is immutable."""
    yield from pod_errors(new)
    spec, old_spec = new.get("spec") or {}, old.get("spec") or {}
    for field in ("containers", "initContainers"):
        if len(spec.get(field) or ()) != len(old_spec.get(field) or ()):
            yield rules.forbidden(f"spec.{field}", "pod updates may not add or remove containers", _RECREATE_REMEDY)
            return
    yield from _deadline_update_errors(spec.get("activeDeadlineSeconds"), old_spec.get("activeDeadlineSeconds"))
    yield from _toleration_update_errors(spec.get("tolerations") or (), old_spec.get("tolerations") or ())
    yield from _scheduling_gate_update_errors(spec.get("schedulingGates") or (), old_spec.get("schedulingGates") or ())
    if not _POD_EQUALITY.is_same("PodSpec", _immutable_fields(spec, old_spec), _immutable_fields(old_spec, old_spec)):
        yield rules.forbidden("spec", _IMMUTABLE_POD_MESSAGE, _RECREATE_REMEDY)


def _deadline_update_errors(new: int | None, old: int | None) -> Iterator[FieldError]:
    path = "spec.activeDeadlineSeconds"
    if new is None:
        if old is not None:
            yield rules.invalid(path, new, "must not update from a positive integer to nil value", f"keep {old}")
    elif not 0 <= new <= _INT32_MAX:
        message = f"must be between 0 and {_INT32_MAX}, inclusive"
        yield rules.invalid(path, new, message, "use 0 seconds or more")
    elif old is not None and new > old:
        message = "must be less than or equal to previous value"
        yield rules.invalid(path, new, message, f"use at most {old}")


def _toleration_update_errors(new: Sequence[SpecFields], old: Sequence[SpecFields]) -> Iterator[FieldError]:
    """Report removed and changed tolerations; added ones, and other tolerationSeconds for NoExecute, are allowed."""
    for toleration in old:
        is_no_execute = toleration.get("effect") == "NoExecute"
        matches_old = (
            _POD_EQUALITY.is_same("Toleration", new_toleration, toleration)
            or (
                is_no_execute
                and _POD_EQUALITY.is_same(
                    "Toleration", _without_toleration_seconds(new_toleration), _without_toleration_seconds(toleration)
                )
            )
            for new_toleration in new
        )
        if not any(matches_old):
            message = "existing toleration can not be modified except its tolerationSeconds"
            yield rules.forbidden("spec.tolerations", message, f"keep the toleration {rules.format_json(toleration)}")


def _without_toleration_seconds(toleration: SpecFields) -> SpecFields:
    return {field: value for field, value in toleration.items() if field != "tolerationSeconds"}


def _scheduling_gate_update_errors(new: Sequence[SpecFields], old: Sequence[SpecFields]) -> Iterator[FieldError]:
    for i, gate in enumerate(new):
        if gate not in old:
            message = f"only deletion is allowed, but found new scheduling gate '{gate.get('name', '')}'"
            yield rules.forbidden(f"spec.schedulingGates[{i}].name", message, "remove the gate, or recreate the Pod")


def _immutable_fields(spec: SpecFields, old: SpecFields) -> SpecFields:
    mutable = _SEPARATE_FIELDS if not old.get("schedulingGates") else (*_SEPARATE_FIELDS, "nodeSelector", "affinity")
    spec = fill_defaults("PodSpec", spec)
    immutable_fields = {field: value for field, value in spec.items() if field not in mutable}
    for field in ("containers", "initContainers"):
        immutable_fields[field] = [{k: v for k, v in c.items() if k != "image"} for c in spec.get(field) or ()]
    if (old.get("terminationGracePeriodSeconds") or 0) < 0 and spec.get("terminationGracePeriodSeconds") == 1:
        immutable_fields["terminationGracePeriodSeconds"] = old["terminationGracePeriodSeconds"]
    return immutable_fields
