"""Rules of metadata, common to all kinds: names, labels, annotations, finalizers, owners, label selectors.

Source: k8s.io/apimachinery/pkg/api/validation and pkg/apis/meta/v1/validation.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.errors import FieldError
from batchyard.api.meta import group_kind
from batchyard.api.schema.tables import is_native
from batchyard.api.validation import errors as faults
from batchyard.api.validation import names
from batchyard.api.well_known import FOREGROUND_FINALIZER, ORPHAN_FINALIZER

#: Kinds with stricter rules for names: names of Services are DNS labels, and those of clusters and pools become part of
#: the names of machines.
_NAME_RULES: Final[Mapping[str, names.NameRule]] = {
    scheme.NAMESPACE: names.dns_label,
    scheme.SERVICE: names.dns1035_label,
    scheme.PLATFORM: names.gke_name,
    scheme.CLUSTER: names.gke_name,
    scheme.NODE_POOL: names.gke_name,
    scheme.ROLE: names.path_segment,
    scheme.ROLE_BINDING: names.path_segment,
    scheme.CLUSTER_ROLE: names.path_segment,
    scheme.CLUSTER_ROLE_BINDING: names.path_segment,
}
ANNOTATIONS_BYTES_MAX: Final = 256 * 1024
#: Kubernetes's own kinds, whose metadata has stricter rules than that of custom kinds.
_OF_KUBERNETES: Final = frozenset(info.constant for info in scheme.KINDS if is_native(info))
#: Events are short-lived and must not be owners.
_EVENT: Final = scheme.kind_info(scheme.EVENT)
#: The finalizers without a prefix.
_STANDARD_FINALIZERS: Final = ("kubernetes", ORPHAN_FINALIZER, FOREGROUND_FINALIZER)
_LABEL_REMEDY: Final = "use letters, digits, '-', '_' and '.', at most 63, a letter or digit first and last"
_KEY_REMEDY: Final = f"write the key as [prefix/]name: {_LABEL_REMEDY}"


def metadata_faults(obj: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate `metadata`, with the kind's own rule for names."""
    metadata = obj["metadata"]
    yield from _name_faults(metadata, _NAME_RULES.get(group_kind(obj), names.dns_subdomain))
    namespace = metadata.get("namespace")
    if namespace and names.dns_label(namespace):
        for message in names.dns_label(namespace):
            yield faults.invalid("metadata.namespace", namespace, message, name_remedy(namespace, names.dns_label))
    yield from label_faults(metadata.get("labels"), "metadata.labels")
    yield from annotation_faults(metadata.get("annotations"), "metadata.annotations")
    if finalizers := metadata.get("finalizers"):
        is_of_kubernetes = group_kind(obj) in _OF_KUBERNETES
        yield from finalizer_faults(finalizers, "metadata.finalizers", is_of_kubernetes=is_of_kubernetes)
    yield from _owner_faults(metadata.get("ownerReferences") or ())


def _name_faults(metadata: Mapping[str, Any], name_rule: names.NameRule) -> Iterator[FieldError]:
    """The name, or the prefix for a generated one, follows the kind's rule."""
    name, prefix = metadata.get("name"), metadata.get("generateName")
    if not name and not prefix:
        yield faults.required("metadata.name", "name or generateName is required", "give the object a name")
    elif name:
        for message in name_rule(name):
            yield faults.invalid("metadata.name", name, message, name_remedy(name, name_rule))
    else:
        # A prefix may end with characters that a name must not end with, because a suffix follows.
        for message in name_rule(f"{prefix}a"):
            yield faults.invalid("metadata.generateName", prefix, message, name_remedy(prefix, name_rule))


def name_remedy(name: Any, name_rule: names.NameRule) -> str:
    """Return the remedy: a valid name close to the given one."""
    close = re.sub(r"[^a-z0-9]+", "-", str(name).lower()).strip("-")[: names.GKE_LENGTH_MAX].rstrip("-")
    return f"use a name such as {faults.printed(close if close and not name_rule(close) else 'my-name')}"


def label_faults(labels: Mapping[str, str] | None, path: str) -> Iterator[FieldError]:
    """Keys are qualified names, values are label values."""
    if not labels:
        return
    for key, value in labels.items():
        yield from label_key_faults(key, path)
        for message in names.label_value(value or ""):
            yield faults.invalid(path, value, message, f"for {key}, {_LABEL_REMEDY}")


def label_key_faults(key: str, path: str) -> Iterator[FieldError]:
    """A label key is a qualified name."""
    for message in names.qualified_name(key):
        yield faults.invalid(path, key, message, _KEY_REMEDY)


def annotation_faults(annotations: Mapping[str, str] | None, path: str) -> Iterator[FieldError]:
    """Keys are qualified names in any case, and the total size is limited."""
    if not annotations:
        return
    for key in annotations:
        for message in names.qualified_name(key.lower()):
            yield faults.invalid(path, key, message, _KEY_REMEDY)
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > ANNOTATIONS_BYTES_MAX:
        yield faults.too_long(path, ANNOTATIONS_BYTES_MAX, "keep large content in a ConfigMap")


def finalizer_faults(finalizers: Sequence[str], path: str, *, is_of_kubernetes: bool = True) -> Iterator[FieldError]:
    """Finalizers are qualified names, on Kubernetes's own kinds with a prefix; foreground and orphan conflict."""
    for i, finalizer in enumerate(finalizers):
        for message in names.qualified_name(finalizer):
            yield faults.invalid(f"{path}[{i}]", finalizer, message, _KEY_REMEDY)
        if is_of_kubernetes and "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
            message = "name is neither a standard finalizer name nor is it fully qualified"
            yield faults.invalid(f"{path}[{i}]", finalizer, message, "write it as example.com/name")
    if ORPHAN_FINALIZER in finalizers and FOREGROUND_FINALIZER in finalizers:
        message = f"finalizer {ORPHAN_FINALIZER} and {FOREGROUND_FINALIZER} cannot be both set"
        yield faults.invalid(path, finalizers, message, "keep one of them")


def _owner_faults(owners: Sequence[Mapping[str, Any]]) -> Iterator[FieldError]:
    """Every owner reference is complete, and at most one is the controller."""
    for i, owner in enumerate(owners):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                path = f"metadata.ownerReferences[{i}].{field}"
                yield faults.invalid(path, owner.get(field) or "", f"{field} must not be empty", f"give the {field}")
        api_version = owner.get("apiVersion") or ""
        if api_version.endswith("/") or api_version.count("/") > 1:
            path = f"metadata.ownerReferences[{i}].apiVersion"
            yield faults.invalid(path, api_version, "version must not be empty", "write it as batch/v1")
        if owner.get("kind") == _EVENT.kind and api_version == _EVENT.api_version:
            message = f"/{api_version}, Kind={_EVENT.kind} is disallowed from being an owner"
            yield faults.invalid_here(f"metadata.ownerReferences[{i}]", message, "name what the Event is about")
    controllers = [owner.get("name", "") for owner in owners if owner.get("controller")]
    if len(controllers) > 1:
        message = f'Only one reference can have Controller set to true. Found "true" in references for {controllers}'
        yield faults.invalid_here("metadata.ownerReferences", message, "leave controller: true on one owner only")


def selector_faults(selector: Mapping[str, Any] | None, path: str) -> Iterator[FieldError]:
    """The labels of a selector are valid, and its expressions have the values that their operators require."""
    if not selector:
        return
    yield from label_faults(selector.get("matchLabels"), f"{path}.matchLabels")
    for i, expression in enumerate(selector.get("matchExpressions") or ()):
        at = f"{path}.matchExpressions[{i}]"
        yield from _expression_faults(expression, at)
        yield from label_key_faults(expression["key"], f"{at}.key")
        for j, value in enumerate(expression.get("values") or ()):
            for message in names.label_value(value):
                yield faults.invalid(f"{at}.values[{j}]", value, message, _LABEL_REMEDY)


def _expression_faults(expression: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """In and NotIn require values; Exists and DoesNotExist forbid them; other operators are invalid."""
    values, operator = expression.get("values"), expression["operator"]
    if operator in {"In", "NotIn"}:
        if not values:
            message = "must be specified when `operator` is 'In' or 'NotIn'"
            yield faults.required(f"{path}.values", message, "list the values, or use the operator Exists")
    elif operator in {"Exists", "DoesNotExist"}:
        if values:
            message = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield faults.forbidden(f"{path}.values", message, "drop the values, or use the operator In")
    else:
        remedy = "use In, NotIn, Exists or DoesNotExist"
        yield faults.invalid(f"{path}.operator", operator, "not a valid selector operator", remedy)
