"""Rules of Pods and pod templates that a batch platform depends on.

Source: Kubernetes's pkg/apis/core/validation.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.schema import completed, meaning_of
from batchyard.api.validation import containers, rules

# --- volumes ---
#
# Rules of the volumes of pods: one source each, and paths that stay within the volume.
#
# Source: Kubernetes's pkg/apis/core/validation (ValidateVolumes).


_HOST_PATH_TYPES: Final = (
    *("", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"),
)
_PATH_REMEDY: Final = "name the file"
_TOKEN_SECONDS_MIN: Final = 600
_TOKEN_SECONDS_MAX: Final = 2**32


def volume_faults(volumes: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """Volumes have unique names and one source each."""
    seen: dict[str, None] = {}
    for i, volume in enumerate(volumes):
        at, name = f"{path}[{i}]", volume.get("name") or ""
        if not name:
            yield rules.required(f"{at}.name", "", "name the volume")
        for message in rules.dns_label(name) if name else ():
            yield rules.invalid(f"{at}.name", name, message, "use lower case letters, digits and '-'")
        if name in seen:
            yield rules.duplicate(f"{at}.name", name, "give each volume a name of its own")
        seen[name] = None
        sources = [field for field, source in volume.items() if field != "name" and source is not None]
        if not sources:
            yield rules.required(at, "must specify a volume type", "say what the volume is, such as emptyDir: {}")
        for field in sources[1:]:
            message = "may not specify more than 1 volume type"
            yield rules.forbidden(f"{at}.{field}", message, f"leave one of {', '.join(sources)}")
        for field in sources[:1]:
            yield from _source_faults(field, volume[field], f"{at}.{field}")


def _source_faults(field: str, source: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    match field:
        case "hostPath":
            yield from _host_path_faults(source, path)
        case "secret" | "configMap":
            name = "secretName" if field == "secret" else "name"
            if not source.get(name):
                yield rules.required(f"{path}.{name}", "", f"name the {'Secret' if field == 'secret' else 'ConfigMap'}")
            yield from rules.mode_faults(source.get("defaultMode"), f"{path}.defaultMode")
            yield from _item_faults(source.get("items") or (), f"{path}.items")
        case "downwardAPI":
            yield from rules.mode_faults(source.get("defaultMode"), f"{path}.defaultMode")
            for item in source.get("items") or ():
                yield from _file_faults(item, path)
        case "projected":
            yield from rules.mode_faults(source.get("defaultMode"), f"{path}.defaultMode")
            yield from _projection_faults(source.get("sources") or (), path)
        case "persistentVolumeClaim" if not source.get("claimName"):
            yield rules.required(f"{path}.claimName", "", "name the claim")


def _host_path_faults(source: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    folder, kind = source.get("path") or "", source.get("type") or ""
    if not folder:
        yield rules.required(f"{path}.path", "", "name the folder of the node")
        return
    yield from rules.step_faults(folder, f"{path}.path")
    if kind not in _HOST_PATH_TYPES:
        yield rules.unsupported(f"{path}.type", kind, _HOST_PATH_TYPES)


def _item_faults(items: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """Items have keys and valid paths."""
    for i, item in enumerate(items):
        at = f"{path}[{i}]"
        if not item.get("key"):
            yield rules.required(f"{at}.key", "", "name the key")
        yield from _file_faults(item, at)


def _file_faults(item: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    if not item.get("path"):
        yield rules.required(f"{path}.path", "", _PATH_REMEDY)
    yield from rules.file_faults(item.get("path") or "", f"{path}.path")
    yield from rules.mode_faults(item.get("mode"), f"{path}.mode")


def _projection_faults(sources: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """Each source has one type, and no two sources write the same file."""
    files: set[str] = set()
    for i, source in enumerate(sources):
        at = f"{path}.sources[{i}]"
        given = [field for field, part in source.items() if part is not None]
        for field in given[1:]:
            yield rules.forbidden(f"{at}.{field}", "may not specify more than 1 volume type", "use a source for each")
        for field in ("secret", "configMap", "downwardAPI"):
            part = source.get(field) or {}
            for j, item in enumerate(part.get("items") or ()):
                place = f"{at}.{field}" if field == "downwardAPI" else f"{at}.{field}.items[{j}]"
                if field != "downwardAPI" and not item.get("key"):
                    yield rules.required(f"{place}.key", "", "name the key")
                yield from _file_faults(item, place)
                if (file := item.get("path") or "") and file in files:
                    yield rules.invalid(path, part.get("name") or file, "conflicting duplicate paths", _PATH_REMEDY)
                files.add(file)
        if (token := source.get("serviceAccountToken")) is not None:
            yield from _token_faults(token, path, f"{at}.serviceAccountToken")


def _token_faults(token: Mapping[str, Any], path: str, at: str) -> Iterator[FieldError]:
    seconds = token.get("expirationSeconds")
    if seconds is not None and seconds < _TOKEN_SECONDS_MIN:
        message = "may not specify a duration less than 10 minutes"
        yield rules.invalid(f"{at}.expirationSeconds", seconds, message, "give 600 or more seconds")
    if seconds is not None and seconds > _TOKEN_SECONDS_MAX:
        message = "may not specify a duration larger than 2^32 seconds"
        yield rules.invalid(f"{at}.expirationSeconds", seconds, message, "give less")
    if not token.get("path"):
        yield rules.required(f"{path}.path", "", _PATH_REMEDY)
    yield from rules.file_faults(token.get("path") or "", f"{path}.path")


# --- node constraints ---
#
# Rules of scheduling constraints: affinity, spreading, taints, tolerations.
#
# Source: Kubernetes's pkg/apis/core/validation.


_WHEN_UNSATISFIABLE: Final = ("DoNotSchedule", "ScheduleAnyway")
_POLICIES: Final = ("Honor", "Ignore")


def affinity_faults(affinity: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Validate `affinity`."""
    yield from _node_affinity_faults(affinity.get("nodeAffinity") or {}, f"{path}.nodeAffinity")
    for field in ("podAffinity", "podAntiAffinity"):
        yield from _pod_affinity_faults(affinity.get(field) or {}, f"{path}.{field}")


def _node_affinity_faults(affinity: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Required terms exist; preferred ones have a weight; all expressions are valid."""
    if (required := affinity.get(well_known.REQUIRED)) is not None:
        terms = required.get("nodeSelectorTerms")
        at = f"{path}.{well_known.REQUIRED}.nodeSelectorTerms"
        if not terms:
            message = "must have at least one node selector term"
            yield rules.required(at, message, "give a term, or drop the required affinity")
        for i, term in enumerate(terms or ()):
            yield from _term_faults(term, f"{at}[{i}]")
    for i, preferred in enumerate(affinity.get(well_known.PREFERRED) or ()):
        at = f"{path}.{well_known.PREFERRED}[{i}]"
        yield from _weight_faults(preferred, at)
        yield from _term_faults(preferred.get("preference") or {}, f"{at}.preference")


def _weight_faults(preferred: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """The weight of a preference is 1 to 100."""
    weight = preferred.get("weight", 0)
    if not 1 <= weight <= 100:
        yield rules.invalid(f"{path}.weight", weight, "must be in the range 1-100", "give a weight from 1 to 100")


def _term_faults(term: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """The expressions of a term match labels or the node's name."""
    for i, expression in enumerate(term.get("matchExpressions") or ()):
        at = f"{path}.matchExpressions[{i}]"
        yield from _operator_faults(expression, at)
        yield from rules.label_key_faults(expression.get("key") or "", f"{at}.key")
    for i, field in enumerate(term.get("matchFields") or ()):
        at = f"{path}.matchFields[{i}]"
        if field.get("key") != "metadata.name":
            remedy = "select by metadata.name"
            yield rules.invalid(f"{at}.key", field.get("key"), "not a valid field selector key", remedy)
        if len(field.get("values") or ()) != 1:
            message = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
            yield rules.required(f"{at}.values", message, "give the name of one node")


def _operator_faults(expression: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Each operator has the number of values that it requires."""
    operator, values = expression.get("operator") or "", expression.get("values") or ()
    at = f"{path}.values"
    if operator in {"In", "NotIn"}:
        if not values:
            message = "must be specified when `operator` is 'In' or 'NotIn'"
            yield rules.required(at, message, "list the values, or use the operator Exists")
    elif operator in {"Exists", "DoesNotExist"}:
        if values:
            message = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield rules.forbidden(at, message, "drop the values, or use the operator In")
    elif operator in {"Gt", "Lt"}:
        if len(values) != 1:
            message = "must be specified single value when `operator` is 'Lt' or 'Gt'"
            yield rules.required(at, message, "give one whole number")
    else:
        remedy = "use In, NotIn, Exists, DoesNotExist, Gt or Lt"
        yield rules.invalid(f"{path}.operator", operator, "not a valid selector operator", remedy)


def _pod_affinity_faults(affinity: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Terms name a topology and have valid selectors; preferred ones have a weight."""
    for i, term in enumerate(affinity.get(well_known.REQUIRED) or ()):
        yield from _pod_term_faults(term, f"{path}.{well_known.REQUIRED}[{i}]")
    for i, preferred in enumerate(affinity.get(well_known.PREFERRED) or ()):
        at = f"{path}.{well_known.PREFERRED}[{i}]"
        yield from _weight_faults(preferred, at)
        yield from _pod_term_faults(preferred.get("podAffinityTerm") or {}, f"{at}.podAffinityTerm")


def _pod_term_faults(term: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """A term names a topology key, and selects pods and namespaces."""
    for field in ("labelSelector", "namespaceSelector"):
        yield from rules.selector_faults(term.get(field), f"{path}.{field}")
    yield from topology_key_faults(term.get("topologyKey") or "", f"{path}.topologyKey")
    for i, namespace in enumerate(term.get("namespaces") or ()):
        for message in rules.dns_label(namespace):
            yield rules.invalid(f"{path}.namespaces[{i}]", namespace, message, "give the name of a namespace")
    yield from _own_label_faults(term, "matchLabelKeys", path)
    yield from _own_label_faults(term, "mismatchLabelKeys", path)
    for i, name in enumerate(term.get("matchLabelKeys") or ()):
        if name in (term.get("mismatchLabelKeys") or ()):
            message = "exists in both matchLabelKeys and mismatchLabelKeys"
            yield rules.invalid(f"{path}.matchLabelKeys[{i}]", name, message, "leave it in one of them")


def topology_key_faults(key: str, path: str) -> Iterator[FieldError]:
    """A topology key is a label key."""
    if key:
        yield from rules.label_key_faults(key, path)
    else:
        yield rules.required(path, "can not be empty", "name a node label, such as kubernetes.io/hostname")


def _own_label_faults(obj: Mapping[str, Any], field: str, path: str) -> Iterator[FieldError]:
    """Keys of the pod's own labels narrow a label selector, which must exist."""
    keys = obj.get(field) or ()
    if keys and obj.get("labelSelector") is None:
        message = "must not be specified when labelSelector is not set"
        yield rules.forbidden(f"{path}.{field}", message, "add a labelSelector; {} selects all pods")
    for i, key in enumerate(keys):
        yield from rules.label_key_faults(key, f"{path}.{field}[{i}]")


def spread_faults(constraints: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """A constraint has a topology key and a skew of at least one; no two are equal."""
    seen: dict[tuple[str, str], None] = {}
    for i, constraint in enumerate(constraints):
        at, when = f"{path}[{i}]", constraint.get("whenUnsatisfiable") or ""
        key, skew = constraint.get("topologyKey") or "", constraint.get("maxSkew", 0)
        if skew <= 0:
            yield rules.invalid(f"{at}.maxSkew", skew, "must be greater than zero", "give 1 or more")
        if not key:
            yield rules.required(f"{at}.topologyKey", "can not be empty", "name a node label")
        if when not in _WHEN_UNSATISFIABLE:
            yield rules.unsupported(f"{at}.whenUnsatisfiable", when, _WHEN_UNSATISFIABLE)
        if (key, when) in seen:
            yield rules.duplicate(f"{at}.{{topologyKey, whenUnsatisfiable}}", f"{{{key}, {when}}}", "drop one of them")
        seen[key, when] = None
        yield from rules.selector_faults(constraint.get("labelSelector"), f"{at}.labelSelector")
        yield from _own_label_faults(constraint, "matchLabelKeys", at)
        yield from _domain_faults(constraint, when, at)


def _domain_faults(constraint: Mapping[str, Any], when: str, path: str) -> Iterator[FieldError]:
    """A minDomains is positive and requires DoNotSchedule; node policies are known."""
    least = constraint.get("minDomains")
    if least is not None and least <= 0:
        yield rules.invalid(f"{path}.minDomains", least, "must be greater than zero", "give 1 or more")
    if least is not None and when != _WHEN_UNSATISFIABLE[0]:
        message = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {when}"
        yield rules.invalid(f"{path}.minDomains", least, message, "drop it, or set whenUnsatisfiable to DoNotSchedule")
    for field in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        policy = constraint.get(field)
        if policy is not None and policy not in _POLICIES:
            yield rules.unsupported(f"{path}.{field}", policy, _POLICIES)


# --- tolerations ---
#
# Rules of taints and tolerations.
#
# Source: Kueue's ResourceFlavor webhook, the rules in its CRDs, and Kubernetes's validation of Pods and Nodes.


EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
OPERATORS: Final = ("Equal", "Exists")


def taint_faults(taints: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """Taints have valid keys, values and effects; each pair of key and effect is unique."""
    seen: dict[tuple[str, str], str] = {}
    for i, taint in enumerate(taints):
        at, pair = f"{path}[{i}]", (taint["key"], taint["effect"])
        yield from rules.label_key_faults(taint["key"], f"{at}.key")
        value = taint.get("value") or ""
        for message in rules.label_value(value):
            yield rules.invalid(f"{at}.value", value, message, "use a short text of letters, digits, '-', '_' and '.'")
        if taint["effect"] not in EFFECTS:
            yield rules.unsupported(f"{at}.effect", taint["effect"], EFFECTS)
        if pair in seen:
            message = "taints must be unique by key and effect pair"
            remedy = f"drop it: {seen[pair]} has the same key and effect"
            yield FieldError(at, f"Duplicate value: {rules.printed(taint)}: {message}", remedy)
        seen.setdefault(pair, at)


def toleration_faults(tolerations: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """Tolerations have valid keys, operators and effects, without contradictions."""
    for i, toleration in enumerate(tolerations):
        at, operator = f"{path}[{i}]", toleration.get("operator") or "Equal"
        if key := toleration.get("key"):
            yield from rules.label_key_faults(key, f"{at}.key")
        elif operator != "Exists":
            message = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            yield rules.invalid(f"{at}.operator", operator, message, "give a key, or set the operator to Exists")
        if operator not in OPERATORS:
            yield rules.unsupported(f"{at}.operator", operator, OPERATORS)
        yield from _value_faults(toleration, operator, at)
        yield from _effect_faults(toleration, at)


def _value_faults(toleration: Mapping[str, Any], operator: str, path: str) -> Iterator[FieldError]:
    """A value is a label value, and Exists has none."""
    value = toleration.get("value") or ""
    if operator == "Exists" and value:
        message = "value must be empty when `operator` is 'Exists'"
        yield rules.invalid(f"{path}.operator", operator, message, "drop the value, or set the operator to Equal")
    for message in rules.label_value(value):
        yield rules.invalid(f"{path}.value", value, message, "use a value a taint can have")


def _effect_faults(toleration: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Only NoExecute may have tolerationSeconds."""
    effect = toleration.get("effect") or ""
    if effect and effect not in EFFECTS:
        yield rules.unsupported(f"{path}.effect", effect, EFFECTS)
    if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        message = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        yield rules.invalid(f"{path}.effect", effect, message, "set the effect to NoExecute, or drop tolerationSeconds")


_RESTART_POLICIES: Final = ("Always", "OnFailure", "Never")


def pod_faults(pod: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a Pod."""
    yield from rules.metadata_faults(pod)
    spec = pod.get("spec") or {}
    yield from _spec_faults(spec, "spec", ())
    if spec.get("nodeName") and spec.get("schedulingGates"):
        message = "cannot be set until all schedulingGates have been cleared"
        yield rules.forbidden("spec.nodeName", message, "drop the gates, or the node")


def pod_template_kind_faults(obj: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a PodTemplate."""
    yield from rules.metadata_faults(obj)
    yield from pod_template_faults(obj.get("template") or {}, "template")


def pod_template_faults(template: Mapping[str, Any], path: str, claims: Sequence[str] = ()) -> Iterator[FieldError]:
    """Validate a pod template within another object, which adds volumes for the named claims."""
    meta, spec = template.get("metadata") or {}, template.get("spec") or {}
    yield from rules.label_faults(meta.get("labels"), f"{path}.metadata.labels")
    yield from rules.annotation_faults(meta.get("annotations"), f"{path}.metadata.annotations")
    yield from _spec_faults(spec, f"{path}.spec", claims)


def _spec_faults(spec: Mapping[str, Any], path: str, claims: Sequence[str]) -> Iterator[FieldError]:
    """Validate a pod's volumes, containers, resources and scheduling constraints."""
    volumes = dict.fromkeys([*(volume.get("name") or "" for volume in spec.get("volumes") or ()), *claims])
    yield from volume_faults(spec.get("volumes") or (), f"{path}.volumes")
    yield from containers.containers_faults(spec, volumes, path)
    yield from rules.pod_resources_faults(spec.get("resources") or {}, f"{path}.resources")
    yield from rules.resources_faults({"limits": spec.get("overhead") or {}}, f"{path}.overhead")
    yield from rules.label_faults(spec.get("nodeSelector"), f"{path}.nodeSelector")
    yield from affinity_faults(spec.get("affinity") or {}, f"{path}.affinity")
    yield from toleration_faults(spec.get("tolerations") or (), f"{path}.tolerations")
    constraints = spec.get("topologySpreadConstraints") or ()
    yield from spread_faults(constraints, f"{path}.topologySpreadConstraints")
    yield from _gate_faults(spec.get("schedulingGates") or (), f"{path}.schedulingGates")
    yield from containers.host_faults(spec, path)
    yield from containers.pod_security_faults(spec.get("securityContext") or {}, f"{path}.securityContext")
    for i, gate in enumerate(spec.get("readinessGates") or ()):
        yield from rules.label_key_faults(gate.get("conditionType") or "", f"{path}.readinessGates[{i}].conditionType")
    yield from _scalar_faults(spec, path)


def _gate_faults(gates: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """Scheduling gates are unique qualified names."""
    seen: dict[str, None] = {}
    for i, gate in enumerate(gates):
        name = gate.get("name") or ""
        yield from rules.label_key_faults(name, f"{path}[{i}]")
        if name in seen:
            yield rules.duplicate(f"{path}[{i}]", name, "name each gate once")
        seen[name] = None


def _scalar_faults(spec: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Validate single fields of a pod."""
    policy = spec.get("restartPolicy")
    if policy and policy not in _RESTART_POLICIES:
        yield rules.unsupported(f"{path}.restartPolicy", policy, _RESTART_POLICIES)
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= 2**31 - 1:
        message = "must be between 1 and 2147483647, inclusive"
        yield rules.invalid(f"{path}.activeDeadlineSeconds", deadline, message, "give 1 or more seconds")
    grace = spec.get("terminationGracePeriodSeconds")
    if grace is not None and grace < 0:
        yield rules.invalid(f"{path}.terminationGracePeriodSeconds", grace, rules.NEGATIVE, "give 0 or more seconds")
    for field, rule in (
        ("hostname", rules.dns_label),
        ("subdomain", rules.dns_label),
        ("priorityClassName", rules.dns_subdomain),
        ("serviceAccountName", rules.dns_subdomain),
        ("nodeName", rules.dns_subdomain),
        ("runtimeClassName", rules.dns_subdomain),
    ):
        for message in rule(spec[field]) if spec.get(field) else ():
            yield rules.invalid(f"{path}.{field}", spec[field], message, "use lower case letters, digits and '-'")


# --- pod updates ---
#
# Rules of updates of Pods: most of the spec is immutable.
#
# Source: Kubernetes's pkg/apis/core/validation (ValidatePodUpdate).


Spec = Mapping[str, Any]

_MEANING: Final = meaning_of(scheme.POD)
_INT32_MAX: Final = 2**31 - 1
_KEPT: Final = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_REMEDY: Final = "delete the Pod and recreate it"
#: Fields with separate rules.
_JUDGED: Final = ("containers", "initContainers", "activeDeadlineSeconds", "tolerations", "schedulingGates")


def pod_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a Pod."""
    yield from pod_faults(new)
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    for field in ("containers", "initContainers"):
        if len(spec.get(field) or ()) != len(before.get(field) or ()):
            yield rules.forbidden(f"spec.{field}", "pod updates may not add or remove containers", _REMEDY)
            return
    yield from _deadline_faults(spec.get("activeDeadlineSeconds"), before.get("activeDeadlineSeconds"))
    yield from _toleration_faults(spec.get("tolerations") or (), before.get("tolerations") or ())
    yield from _pod_updates_gate_faults(spec.get("schedulingGates") or (), before.get("schedulingGates") or ())
    if not _MEANING.is_same("PodSpec", _rest(spec, before), _rest(before, before)):
        yield rules.forbidden("spec", _KEPT, _REMEDY)


def _deadline_faults(new: int | None, old: int | None) -> Iterator[FieldError]:
    """A deadline may be set or shortened."""
    path = "spec.activeDeadlineSeconds"
    if new is None:
        if old is not None:
            yield rules.invalid(path, new, "must not update from a positive integer to nil value", f"keep {old}")
    elif not 0 <= new <= _INT32_MAX:
        message = f"must be between 0 and {_INT32_MAX}, inclusive"
        yield rules.invalid(path, new, message, "give 0 or more seconds")
    elif old is not None and new > old:
        message = "must be less than or equal to previous value"
        yield rules.invalid(path, new, message, f"give at most {old}")


def _toleration_faults(new: Sequence[Spec], old: Sequence[Spec]) -> Iterator[FieldError]:
    """Tolerations may be added; of existing ones only the seconds of NoExecute may change."""
    for toleration in old:
        is_timed = toleration.get("effect") == "NoExecute"
        alike = (
            _MEANING.is_same("Toleration", each, toleration)
            or (is_timed and _MEANING.is_same("Toleration", _timeless(each), _timeless(toleration)))
            for each in new
        )
        if not any(alike):
            message = "existing toleration can not be modified except its tolerationSeconds"
            yield rules.forbidden("spec.tolerations", message, f"keep {rules.printed(toleration)}")


def _timeless(toleration: Spec) -> Spec:
    return {field: value for field, value in toleration.items() if field != "tolerationSeconds"}


def _pod_updates_gate_faults(new: Sequence[Spec], old: Sequence[Spec]) -> Iterator[FieldError]:
    """Scheduling gates may only be removed."""
    for i, gate in enumerate(new):
        if gate not in old:
            message = f"only deletion is allowed, but found new scheduling gate '{gate.get('name', '')}'"
            yield rules.forbidden(f"spec.schedulingGates[{i}].name", message, "drop it")


def _rest(spec: Spec, old: Spec) -> Spec:
    """Return the immutable part of a spec. Scheduling directives of a gated Pod may change."""
    hidden = _JUDGED if not old.get("schedulingGates") else (*_JUDGED, "nodeSelector", "affinity")
    spec = completed("PodSpec", spec)
    rest = {field: value for field, value in spec.items() if field not in hidden}
    for field in ("containers", "initContainers"):
        rest[field] = [{k: v for k, v in c.items() if k != "image"} for c in spec.get(field) or ()]
    if (old.get("terminationGracePeriodSeconds") or 0) < 0 and spec.get("terminationGracePeriodSeconds") == 1:
        rest["terminationGracePeriodSeconds"] = old["terminationGracePeriodSeconds"]
    return rest
