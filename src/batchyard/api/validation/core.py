"""Validation of ConfigMaps, Secrets, Events, Nodes, Namespaces, PriorityClasses, volume claims and StorageClasses.

Source: Kubernetes's pkg/apis/core/validation.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import pods, rules

DATA_BYTES_MAX: Final = 1024 * 1024
#: The required keys of Secrets by type.
_REQUIRED_KEYS_BY_SECRET_TYPE: Final[Mapping[str, tuple[str, ...]]] = {
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}
_SERVICE_ACCOUNT_ANNOTATION: Final = "kubernetes.io/service-account.name"


def config_map_errors(config_map: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a ConfigMap: its keys, unique in data and binaryData, and at most 1 MiB of data."""
    yield from rules.metadata_errors(config_map)
    data, binary_data = config_map.get("data") or {}, config_map.get("binaryData") or {}
    yield from _data_key_errors(data, "data")
    yield from _data_key_errors(binary_data, "binaryData")
    for key in binary_data:
        if key in data:
            remedy = "remove the key from data or from binaryData"
            yield rules.invalid(f"data[{key}]", key, "duplicate of key present in binaryData", remedy)
    if sum(len(value.encode()) for value in data.values()) + _decoded_bytes_count(binary_data) > DATA_BYTES_MAX:
        yield _data_too_large("")


def config_map_update_errors(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a ConfigMap: with `immutable: true`, its data cannot change."""
    yield from config_map_errors(new)
    yield from _immutable_errors(new, old, ("data", "binaryData"))


def secret_errors(secret: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a Secret: its keys, the keys and annotation that its type requires, and at most 1 MiB of data."""
    yield from rules.metadata_errors(secret)
    data = secret.get("data") or {}
    yield from _data_key_errors(data, "data")
    if _decoded_bytes_count(data) > DATA_BYTES_MAX:
        yield _data_too_large("data")
    kind = secret.get("type") or "Opaque"
    for key in _REQUIRED_KEYS_BY_SECRET_TYPE.get(kind, ()):
        if key not in data:
            yield rules.required(f"data[{key}]", "", f"add the key {key}, or remove the type {kind}")
    if kind == "kubernetes.io/basic-auth" and not ("username" in data or "password" in data):
        for key in ("username", "password"):
            yield rules.required(f"data[{key}]", "", "add the key username or the key password")
    service_account_name = (secret["metadata"].get("annotations") or {}).get(_SERVICE_ACCOUNT_ANNOTATION)
    if kind == "kubernetes.io/service-account-token" and not service_account_name:
        remedy = "set the annotation to the name of the ServiceAccount"
        yield rules.required(f"metadata.annotations[{_SERVICE_ACCOUNT_ANNOTATION}]", "", remedy)


def secret_update_errors(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a Secret: its type is immutable; with `immutable: true`, its data cannot change."""
    yield from secret_errors(new)
    if (new.get("type") or "Opaque") != (old.get("type") or "Opaque"):
        yield rules.immutable("type", new.get("type"))
    yield from _immutable_errors(new, old, ("data",))


def _data_key_errors(data: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    for key in data:
        for message in rules.config_key_errors(key):
            yield rules.invalid(f"{path}[{key}]", key, message, "use letters, digits, '-', '_' and '.'")


def _decoded_bytes_count(encoded_data: Mapping[str, str]) -> int:
    return sum(len(value) * 3 // 4 - value.count("=") for value in encoded_data.values())


def _data_too_large(path: str) -> FieldError:
    return rules.too_long(path, DATA_BYTES_MAX, "split the object into several, or store large content in a volume")


def _immutable_errors(new: Mapping[str, Any], old: Mapping[str, Any], fields: tuple[str, ...]) -> Iterator[FieldError]:
    if not old.get("immutable"):
        return
    message, remedy = "field is immutable when `immutable` is set", "delete the object and recreate it"
    if not new.get("immutable"):
        yield rules.forbidden("immutable", message, remedy)
    for field in fields:
        if (new.get(field) or {}) != (old.get(field) or {}):
            yield rules.forbidden(field, message, remedy)


# Rules of Events. Source: Kubernetes's pkg/apis/core/validation/events.go.
#
# An Event must be in the namespace of its object. Events with an `eventTime` are in the newer form (events.k8s.io),
# which has more required fields.


#: The namespaces for Events about cluster-scoped objects, in the older and the newer form.
_CLUSTER_EVENT_NAMESPACES: Final = ("default",)
_CLUSTER_EVENT_NAMESPACES_V1: Final = ("default", "kube-system")
#: The maximum lengths of the required texts and of the message in the newer form.
_EVENT_FIELD_LENGTH_MAX: Final = 128
_NOTE_LENGTH_MAX: Final = 1024
_EVENT_TYPES: Final = ("Normal", "Warning")
#: Fields of the older form, which must be unset in the newer form.
_DEPRECATED_EVENT_FIELDS: Final = ("firstTimestamp", "lastTimestamp", "count", "source")
_IMMUTABLE_EVENT_FIELDS: Final = (
    *("involvedObject", "reason", "message", *_DEPRECATED_EVENT_FIELDS, "type", "eventTime"),
    *("action", "related", "reportingComponent", "reportingInstance"),
)


def event_errors(event: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an Event: its namespace and, if it has an eventTime, the fields that events.k8s.io requires."""
    yield from rules.metadata_errors(event)
    is_newer = bool(event.get("eventTime"))
    object_namespace = (event.get("involvedObject") or {}).get("namespace") or ""
    namespace = event["metadata"].get("namespace", "")
    if not object_namespace:
        is_valid_namespace = namespace in (_CLUSTER_EVENT_NAMESPACES_V1 if is_newer else _CLUSTER_EVENT_NAMESPACES)
    else:
        is_valid_namespace = is_newer or object_namespace == namespace
    if not is_valid_namespace:
        remedy = "create the Event in the namespace of the object; for cluster-scoped objects, in `default`"
        yield rules.invalid("involvedObject.namespace", object_namespace, "does not match event.namespace", remedy)
    if is_newer:
        yield from _events_v1_field_errors(event)


def events_v1_errors(event: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a new Event of the API group `events.k8s.io` by the additional rules of this group."""
    yield from _event_series_errors(event)
    if not event.get("eventTime"):
        yield rules.required("eventTime", "", "specify the time of the event")
    if event.get("type") not in _EVENT_TYPES:
        yield rules.invalid("type", "", f"has invalid value: {event.get('type') or ''}", "use Normal or Warning")
    for field in _DEPRECATED_EVENT_FIELDS:
        if event.get(field):
            yield rules.invalid(field, "", "needs to be unset", f"remove {field}")


def events_v1_update_errors(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of an Event of the API group `events.k8s.io`: besides metadata, only its series may change."""
    if new.get("series") != old.get("series"):
        yield from _event_series_errors(new)
    for field in _IMMUTABLE_EVENT_FIELDS:
        if (new.get(field) or None) != (old.get(field) or None):
            yield rules.immutable(field, new.get(field))


def _event_series_errors(event: Mapping[str, Any]) -> Iterator[FieldError]:
    event_series = event.get("series")
    if event_series is None:
        return
    if (event_series.get("count") or 0) < 2:
        yield rules.invalid("series.count", "", "should be at least 2", "remove series if the event occurred once")
    if not event_series.get("lastObservedTime"):
        yield rules.required("series.lastObservedTime", "", "specify the time of the last occurrence")


def _events_v1_field_errors(event: Mapping[str, Any]) -> Iterator[FieldError]:
    component = event.get("reportingComponent") or ""
    if not component:
        yield rules.required("reportingComponent", "", "specify the name of the component that reports the event")
    for message in rules.qualified_name_errors(component):
        yield rules.invalid("reportingComponent", component, message, "use a name such as kubernetes.io/kubelet")
    for field in ("reportingInstance", "action", "reason"):
        text = event.get(field) or ""
        if not text:
            yield rules.required(field, "", f"set {field}")
        if len(text.encode()) > _EVENT_FIELD_LENGTH_MAX:
            yield rules.invalid(field, "", f"can have at most {_EVENT_FIELD_LENGTH_MAX} characters", f"shorten {field}")
    if len((event.get("message") or "").encode()) > _NOTE_LENGTH_MAX:
        yield rules.invalid("message", "", f"can have at most {_NOTE_LENGTH_MAX} characters", "shorten the message")


# Rules of Nodes. Source: Kubernetes's pkg/apis/core/validation.


#: Fields of a Node that are immutable once set, and their names in Kubernetes's message.
_IMMUTABLE_NODE_FIELDS: Final = (("podCIDRs", "podCIDR"), ("providerID", "providerID"))


def node_errors(node: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a Node: its taints, capacity and allocatable resources."""
    spec, status = node.get("spec") or {}, node.get("status") or {}
    yield from rules.metadata_errors(node)
    yield from pods.taint_errors(spec.get("taints") or (), "spec.taints")
    for field in ("capacity", "allocatable"):
        for name, value in (status.get(field) or {}).items():
            yield from rules.amount_errors(value, f"status.{field}[{name}]")


def node_update_errors(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a Node: its provider ID and its pod CIDRs are immutable once set."""
    yield from node_errors(new)
    spec, old_spec = new.get("spec") or {}, old.get("spec") or {}
    for field, shown_name in _IMMUTABLE_NODE_FIELDS:
        if old_spec.get(field) and spec.get(field) != old_spec[field]:
            message = f'node updates may not change {shown_name} except from "" to valid'
            yield rules.forbidden(f"spec.{field}", message, f"keep the value {rules.format_json(old_spec[field])}")


# Rules of Namespaces. Source: Kubernetes's pkg/apis/core/validation.


def namespace_errors(namespace: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a Namespace: its metadata and finalizers; the name must be a DNS label, as it is part of host names."""
    yield from rules.metadata_errors(namespace)
    yield from rules.finalizer_errors((namespace.get("spec") or {}).get("finalizers") or (), "spec.finalizers")


# Rules of PriorityClasses. Source: Kubernetes's pkg/apis/scheduling/validation.


USER_PRIORITY_MAX: Final = 1_000_000_000
#: The built-in PriorityClasses, with their values.
SYSTEM_CLASSES: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_PREEMPTION_POLICIES: Final = ("PreemptLowerPriority", "Never")


def priority_class_errors(priority_class: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a PriorityClass: its value, its preemption policy and the reserved names system-*."""
    yield from rules.metadata_errors(priority_class)
    name, value = priority_class["metadata"].get("name") or "", priority_class.get("value", 0)
    if name.startswith("system-"):
        yield from _system_class_errors(priority_class, name)
    elif value > USER_PRIORITY_MAX:
        message = f"maximum allowed value of a user defined priority is {USER_PRIORITY_MAX}"
        yield rules.forbidden("value", message, f"set value to at most {USER_PRIORITY_MAX}")
    preemption_policy = priority_class.get("preemptionPolicy")
    if preemption_policy is not None and preemption_policy not in _PREEMPTION_POLICIES:
        yield rules.unsupported("preemptionPolicy", preemption_policy, _PREEMPTION_POLICIES)


def _system_class_errors(priority_class: Mapping[str, Any], name: str) -> Iterator[FieldError]:
    value = SYSTEM_CLASSES.get(name)
    if value is None:
        reason = f"{name} is not a known system priority class"
    elif priority_class.get("value", 0) != value:
        reason = f"value of {name} PriorityClass must be {value}"
    elif priority_class.get("globalDefault"):
        reason = f"globalDefault of {name} PriorityClass must be false"
    else:
        return
    prefix_message = "priority class names with 'system-' prefix are reserved for system use only"
    remedy = "use a name without the prefix system-"
    yield rules.forbidden("metadata.name", f"{prefix_message}. error: {reason}", remedy)


def priority_class_update_errors(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a PriorityClass: its value and preemption policy are immutable."""
    yield from priority_class_errors(new)
    if new.get("value", 0) != old.get("value", 0):
        yield rules.forbidden("value", "may not be changed in an update.", "delete the PriorityClass and recreate it")
    new_policy, old_policy = (obj.get("preemptionPolicy") or "PreemptLowerPriority" for obj in (new, old))
    if new_policy != old_policy:
        yield rules.immutable("preemptionPolicy", new_policy)


# Validation of PersistentVolumeClaims and StorageClasses. Sources: pkg/apis/{core,storage}/validation of Kubernetes.


_ACCESS_MODES: Final = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
_CLAIM_STORAGE_PATH: Final = "spec.resources[storage]"
#: The fields of a claim's spec that may change: the binding sets the first two.
_MUTABLE_CLAIM_FIELDS: Final = frozenset({"volumeName", "storageClassName", "resources", "volumeAttributesClassName"})


def claim_errors(obj: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a PersistentVolumeClaim: its access modes, its size and its volume mode."""
    yield from rules.metadata_errors(obj)
    spec = obj.get("spec") or {}
    modes = spec.get("accessModes") or ()
    if not modes:
        yield rules.required("spec.accessModes", "at least 1 access mode is required", "add ReadWriteOnce")
    for mode in modes:
        if mode not in _ACCESS_MODES:
            yield rules.unsupported("spec.accessModes", mode, _ACCESS_MODES)
    if "ReadWriteOncePod" in modes and len(modes) > 1:
        message = "may not use ReadWriteOncePod with other access modes"
        yield rules.forbidden("spec.accessModes", message, "remove the other access modes")
    storage = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    if storage is None:
        yield rules.required(_CLAIM_STORAGE_PATH, "", "set spec.resources.requests.storage")
    elif (rules.parse_nano_amount(storage) or 0) <= 0:
        text = rules.canonical_quantity_or_text(storage)
        yield rules.invalid(_CLAIM_STORAGE_PATH, text, "must be greater than zero", "request more storage")
    if spec.get("volumeMode", "Filesystem") not in {"Block", "Filesystem"}:
        yield rules.unsupported("spec.volumeMode", spec["volumeMode"], ("Block", "Filesystem"))


def claim_update_errors(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a PersistentVolumeClaim: only requests change, and the volume name once."""
    yield from claim_errors(new)
    spec, old_spec = new.get("spec") or {}, old.get("spec") or {}
    fields = [field for field in dict.fromkeys((*spec, *old_spec)) if spec.get(field) != old_spec.get(field)]
    is_forbidden = any(field not in _MUTABLE_CLAIM_FIELDS for field in fields)
    is_forbidden |= bool(old_spec.get("volumeName")) and "volumeName" in fields
    is_forbidden |= old_spec.get("storageClassName") is not None and "storageClassName" in fields
    if is_forbidden:
        message = (
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
        )
        yield rules.forbidden("spec", message, "create another claim")


def storage_class_errors(obj: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a StorageClass: its provisioner, reclaim policy and binding mode."""
    yield from rules.metadata_errors(obj)
    if not obj.get("provisioner"):
        yield rules.required("provisioner", "", "use batchyard.dev/folder, or the name of another provisioner")
    if obj.get("reclaimPolicy", "Delete") not in {"Delete", "Retain"}:
        yield rules.unsupported("reclaimPolicy", obj["reclaimPolicy"], ("Delete", "Retain"))
    if obj.get("volumeBindingMode", "Immediate") not in {"Immediate", "WaitForFirstConsumer"}:
        yield rules.unsupported("volumeBindingMode", obj["volumeBindingMode"], ("Immediate", "WaitForFirstConsumer"))
    for term in obj.get("allowedTopologies") or ():
        yield from _topology_term_errors(term.get("matchLabelExpressions") or ())


def _topology_term_errors(expressions: Sequence[Mapping[str, Any]]) -> Iterator[FieldError]:
    """Validate a term of `allowedTopologies`; the paths are those of Kubernetes, without the index of the term."""
    repeated_indexes = rules.repeated_indexes([expression.get("key") or "" for expression in expressions])
    for index, expression in enumerate(expressions):
        path = f"allowedTopologies.matchLabelExpressions[{index}]"
        key, values = expression.get("key") or "", expression.get("values") or ()
        if not values:
            yield rules.required(f"{path}.values", "", "name at least one value")
        for value_index in sorted(rules.repeated_indexes(values)):
            yield rules.duplicate(f"{path}.values[{value_index}]", values[value_index], "remove it")
        for message in rules.qualified_name_errors(key):
            yield rules.invalid(f"{path}.key", key, message, "use a label key such as topology.kubernetes.io/zone")
        if index in repeated_indexes:
            yield rules.duplicate(f"{path}.key", key, "name each label once")


def storage_class_update_errors(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a StorageClass: its parameters, provisioner, policy and binding mode are immutable."""
    yield from storage_class_errors(new)
    if (new.get("parameters") or {}) != (old.get("parameters") or {}):
        yield rules.forbidden("parameters", "updates to parameters are forbidden.", "create another StorageClass")
    if new.get("provisioner") != old.get("provisioner"):
        yield rules.forbidden("provisioner", "updates to provisioner are forbidden.", "create another StorageClass")
    if new.get("reclaimPolicy") != old.get("reclaimPolicy"):
        yield rules.forbidden("reclaimPolicy", "updates to reclaimPolicy are forbidden.", "create another StorageClass")
    if new.get("volumeBindingMode") != old.get("volumeBindingMode"):
        yield rules.immutable("volumeBindingMode", new.get("volumeBindingMode"), "create another StorageClass")
