"""Validation rules that many kinds share: error constructors, quantities, names, metadata, selectors, resources.

Source: k8s.io/apimachinery/pkg/api/validation and pkg/apis/meta/v1/validation.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Final, TypeAlias

import msgspec

from batchyard.api import meta, scheme
from batchyard.api.errors import FieldError
from batchyard.api.meta import group_kind
from batchyard.api.scheme import is_native
from batchyard.api.well_known import FOREGROUND_FINALIZER, ORPHAN_FINALIZER
from batchyard.base.primitives import memoized_if_short

# Constructors for FieldErrors of the types of the Kubernetes API, with a remedy. Source: apimachinery's package field.


#: How the messages of x-kubernetes-validations rules start: they show the type of the value.
_TYPE_MESSAGE_STARTS: Final = ('Invalid value: "object": ', 'Invalid value: "array": ')
NEGATIVE_MESSAGE: Final = "must be greater than or equal to 0"
IMMUTABLE_MESSAGE: Final = "field is immutable"
_SHOWN_VALUE_LENGTH_MAX: Final = 200


def format_json(value: Any) -> str:
    """Format a value for an error message as JSON, cut after 200 characters."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN_VALUE_LENGTH_MAX else f"{text[:_SHOWN_VALUE_LENGTH_MAX]}..."


def attribute_to_webhook(webhook: str, errors: Iterable[FieldError]) -> Iterator[FieldError]:
    """Yield the errors, marked as reported by the named webhook, except errors of CEL rules in the schema.

    The text of such an error starts with the type of the value, `object` or `array`, instead of the value.
    """
    for fault in errors:
        yield fault if fault.problem.startswith(_TYPE_MESSAGE_STARTS) else fault._replace(webhook=webhook)


def invalid(path: str, value: Any, message: str, remedy: str) -> FieldError:
    """Return the FieldError for an invalid value; its text contains the value."""
    return FieldError(path, f"Invalid value: {format_json(value)}: {message}", remedy)


def invalid_without_value(path: str, message: str, remedy: str) -> FieldError:
    """Return the FieldError for an invalid value; its text does not contain the value."""
    return FieldError(path, f"Invalid value: {message}", remedy)


def schema_rule_fault(path: str, schema_type: str, message: str, remedy: str) -> FieldError:
    """Return the FieldError for a violated x-kubernetes-validations rule; its text shows only the type of the value."""
    return invalid(path, schema_type, message, remedy)


def immutable(path: str, value: Any, remedy: str = "") -> FieldError:
    """Return the FieldError for a change of an immutable field; `value` is the new value."""
    return invalid(path, value, IMMUTABLE_MESSAGE, remedy or "keep the old value, or delete the object and recreate it")


def required(path: str, message: str, remedy: str) -> FieldError:
    """Return the FieldError for a missing required field."""
    return FieldError(path, f"Required value: {message}" if message else "Required value", remedy)


def forbidden(path: str, message: str, remedy: str) -> FieldError:
    """Return the FieldError for a field or change that is forbidden."""
    return FieldError(path, f"Forbidden: {message}", remedy)


def duplicate(path: str, value: Any, remedy: str) -> FieldError:
    """Return the FieldError for a value that occurs twice but must be unique."""
    return FieldError(path, f"Duplicate value: {format_json(value)}", remedy)


def repeated_indexes(values: Sequence[str]) -> set[int]:
    """Return the indexes of the values that occur at an earlier index too, in linear time."""
    index_by_value: dict[str, int] = {}
    return {index for index, value in enumerate(values) if index_by_value.setdefault(value, index) != index}


def not_found(path: str, value: Any, remedy: str) -> FieldError:
    """Return the FieldError for a reference to an object that does not exist."""
    return FieldError(path, f"Not found: {format_json(value)}", remedy)


def unsupported(path: str, value: Any, supported_values: Iterable[str], remedy: str = "") -> FieldError:
    """Return the FieldError for a value that is not one of the supported values."""
    shown_values = ", ".join(format_json(each) for each in supported_values)
    used_remedy = remedy or (
        f"use one of {shown_values}" if shown_values else "remove the field: no value is supported"
    )
    return FieldError(path, f"Unsupported value: {format_json(value)}: supported values: {shown_values}", used_remedy)


def too_long(path: str, bytes_max: int, remedy: str) -> FieldError:
    """Return the FieldError for a text of more than `bytes_max` bytes."""
    return FieldError(path, f"Too long: may not be more than {bytes_max} bytes", remedy)


def too_many_items_error(path: str, count: int, count_max: int, remedy: str) -> FieldError:
    """Return the FieldError for a list with more than `count_max` items."""
    return FieldError(path, f"Too many: {count}: must have at most {count_max} items", remedy)


# Rules of quantities.


def parse_nano_amount(value: str | int | float) -> int | None:
    """Parse a resource quantity to an integer in billionths; None if it is malformed."""
    return (
        None if isinstance(value, str) and len(value) > meta.QUANTITY_LENGTH_MAX else _parse_nano_amount_cached(value)
    )


@lru_cache(maxsize=65536)
def _parse_nano_amount_cached(value: str | int | float) -> int | None:
    try:
        return meta.parse_quantity(value)
    except ValueError:
        return None


def amount_errors(value: Any, path: str) -> Iterator[FieldError]:
    """Report a value that is not a resource quantity, or is negative."""
    nano_amount = parse_nano_amount(value)
    if nano_amount is None:
        message = "must be a quantity: a number with an optional suffix"
        yield invalid(path, value, message, "write it as 500m, 2, 1.5, 10Gi or 1e3")
    elif nano_amount < 0:
        yield invalid(path, meta.canonical_quantity(value), NEGATIVE_MESSAGE, "use 0 or more")


def exceeds_limit(value: Any, limit: Any) -> bool:
    """Return whether a resource quantity exceeds a limit; False if one of them is malformed."""
    nano_amount, nano_limit = parse_nano_amount(value), parse_nano_amount(limit)
    return nano_amount is not None and nano_limit is not None and nano_amount > nano_limit


def canonical_quantity_or_text(value: Any) -> str:
    """Return a resource quantity in Kubernetes's canonical form; a malformed one is returned as it is."""
    return str(value) if parse_nano_amount(value) is None else meta.canonical_quantity(value)


# Validation of names, label keys and label values: each function returns Kubernetes's messages, none if valid.


MessageTuple: TypeAlias = tuple[str, ...]
NameRule: TypeAlias = Callable[[str], MessageTuple]

LABEL_LENGTH_MAX: Final = 63
GKE_LENGTH_MAX: Final = 40
SUBDOMAIN_LENGTH_MAX: Final = 253
PORT_LENGTH_MAX: Final = 15

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_UNDERSCORED_LABEL_PATTERN: Final = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SEARCH_DOMAIN: Final = rf"{_UNDERSCORED_LABEL_PATTERN}(\.{_UNDERSCORED_LABEL_PATTERN})*"
_DNS1035_LABEL_PATTERN: Final = "[a-z]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED_NAME: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_VALUE: Final = f"({_QUALIFIED_NAME})?"
_CONFIG_KEY_PATTERN: Final = "[-._a-zA-Z0-9]+"
_DOMAIN_PATH_PATTERN: Final = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+"

_LABEL_RULE: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character"
)
_SUBDOMAIN_RULE: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character"
)
_SEARCH_RULE: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must "
    "start and end with an alphanumeric character"
)
_DNS1035_RULE: Final = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character"
)
_QUALIFIED_NAME_RULE: Final = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
)
_LABEL_VALUE_RULE: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character"
)
_NAME_EXAMPLES: Final = ("MyName", "my.name", "123-abc")
_CONFIG_KEY_RULE: Final = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"


def _matches(pattern: str, text: str) -> bool:
    return _compile_pattern(pattern).fullmatch(text) is not None


@cache
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


def _check_length(text: str, length_max: int) -> MessageTuple:
    """Return an error message if a text has more than `length_max` bytes, else ()."""
    return (f"must be no more than {length_max} characters",) if len(text.encode()) > length_max else ()


def _check_pattern(text: str, pattern: str, rule_text: str, *examples: str) -> MessageTuple:
    if _matches(pattern, text):
        return ()
    shown_examples = ",  or ".join(f"'{example}'" for example in examples)
    return (
        f"{rule_text} ({f'e.g. {shown_examples}, ' if shown_examples else ''}regex used for validation is '{pattern}')",
    )


@memoized_if_short(maxsize=65536)
def dns_label_errors(text: str) -> MessageTuple:
    """Return the errors of a text that must be an RFC 1123 label, at most 63 characters; () if valid."""
    return _check_length(text, LABEL_LENGTH_MAX) + _check_pattern(text, _LABEL, _LABEL_RULE, "my-name", "123-abc")


@memoized_if_short(maxsize=65536)
def dns_subdomain_errors(text: str) -> MessageTuple:
    """Return the errors of a text that must be an RFC 1123 subdomain, as the names of most objects; () if valid."""
    return _check_length(text, SUBDOMAIN_LENGTH_MAX) + _check_pattern(text, _SUBDOMAIN, _SUBDOMAIN_RULE, "example.com")


def search_domain_errors(text: str) -> MessageTuple:
    """Return the errors of a DNS search domain: a subdomain whose labels may have underscores; () if valid."""
    return _check_length(text, SUBDOMAIN_LENGTH_MAX) + _check_pattern(text, _SEARCH_DOMAIN, _SEARCH_RULE, "example.com")


def port_name_errors(text: str) -> MessageTuple:
    """Return the errors of an IANA port name: at most 15 characters, at least one letter; () if valid."""
    messages = _check_length(text, PORT_LENGTH_MAX)
    if not _matches("[-a-z0-9]+", text):
        messages += ("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",)
    if not any("a" <= character <= "z" for character in text):
        messages += ("must contain at least one letter (a-z)",)
    if "--" in text:
        messages += ("must not contain consecutive hyphens",)
    if text.startswith("-") or text.endswith("-"):
        messages += ("must not begin or end with a hyphen",)
    return messages


def header_name_errors(text: str) -> MessageTuple:
    """Return the errors of an HTTP header name: letters, digits and '-'; () if valid."""
    rule_text = "a valid HTTP header must consist of alphanumeric characters or '-'"
    return _check_pattern(text, "[-A-Za-z0-9]+", rule_text, "X-Header-Name")


def is_printable_without_spaces(text: str) -> bool:
    """Return whether a text is printable and has no spaces."""
    return text.isprintable() and " " not in text


@memoized_if_short(maxsize=65536)
def dns1035_label_errors(text: str) -> MessageTuple:
    """Return the errors of an RFC 1035 label, which starts with a letter, as a Service name; () if valid."""
    return _check_length(text, LABEL_LENGTH_MAX) + _check_pattern(
        text, _DNS1035_LABEL_PATTERN, _DNS1035_RULE, "my-name", "abc-123"
    )


@memoized_if_short(maxsize=65536)
def gke_name_errors(text: str) -> MessageTuple:
    """Return the errors of a GKE cluster or node pool name: an RFC 1035 label of at most 40 characters; () if valid."""
    return _check_length(text, GKE_LENGTH_MAX) + _check_pattern(
        text, _DNS1035_LABEL_PATTERN, _DNS1035_RULE, "my-name", "abc-123"
    )


@memoized_if_short(maxsize=65536)
def qualified_name_errors(text: str) -> MessageTuple:
    """Return the errors of a label key, annotation key or resource name: `[prefix/]name`; () if valid."""
    domain_prefix, slash, name = text.rpartition("/")
    if "/" in domain_prefix:
        rule_text = f"a qualified name {_QUALIFIED_NAME_RULE}"
        example = " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        return tuple(message + example for message in _check_pattern("", _QUALIFIED_NAME, rule_text, *_NAME_EXAMPLES))
    messages: MessageTuple = ()
    if slash and not domain_prefix:
        messages = ("prefix part must be non-empty",)
    elif slash:
        messages = tuple(f"prefix part {message}" for message in dns_subdomain_errors(domain_prefix))
    if not name:
        return (*messages, "name part must be non-empty")
    messages += tuple(f"name part {message}" for message in _check_length(name, LABEL_LENGTH_MAX))
    return messages + _check_pattern(name, _QUALIFIED_NAME, f"name part {_QUALIFIED_NAME_RULE}", *_NAME_EXAMPLES)


@memoized_if_short(maxsize=65536)
def label_value_errors(text: str) -> MessageTuple:
    """Return the errors of a label value: at most 63 characters, possibly empty; () if valid."""
    examples = ("MyValue", "my_value", "12345")
    return _check_length(text, LABEL_LENGTH_MAX) + _check_pattern(text, _LABEL_VALUE, _LABEL_VALUE_RULE, *examples)


def config_key_errors(text: str) -> MessageTuple:
    """Return the errors of a ConfigMap or Secret key, which becomes a file name in a volume; () if valid."""
    messages = _check_length(text, SUBDOMAIN_LENGTH_MAX)
    messages += _check_pattern(text, _CONFIG_KEY_PATTERN, _CONFIG_KEY_RULE, "key.name", "KEY_NAME", "key-name")
    if text in {".", ".."}:
        return (*messages, f"must not be '{text}'")
    return (*messages, "must not start with '..'") if text.startswith("..") else messages


def env_name_errors(text: str) -> MessageTuple:
    """Return the errors of an environment variable's name: printable ASCII without '='; () if valid."""
    if text and all(" " <= character <= "~" and character != "=" for character in text):
        return ()
    return ("a valid environment variable name must consist only of printable ASCII characters other than '='",)


def domain_path_errors(text: str) -> MessageTuple:
    """Return the errors of a domain-prefixed path such as `acme.io/foo` (`managedBy`, admission gates); () if valid."""
    domain, slash, path = text.partition("/")
    if not slash or not domain or not path:
        return ('must be a domain-prefixed path (such as "acme.io/foo")',)
    return dns_subdomain_errors(domain) + _check_pattern(path, _DOMAIN_PATH_PATTERN, "Invalid path")


def path_segment_errors(text: str) -> MessageTuple:
    """Return the errors of an RBAC role or binding name, which must be a single URL path segment; () if valid."""
    if text in {".", ".."}:
        return (f"may not be '{text}'",)
    return tuple(f"may not contain '{character}'" for character in "/%" if character in text)


# Rules of paths of files and directories. Source: Kubernetes's pkg/apis/core/validation.


_FILE_MODE_MAX: Final = 0o777
_MODE_MESSAGE: Final = "must be a number between 0 and 0777 (octal), both inclusive"
_RELATIVE_PATH_REMEDY: Final = "use a relative path without '..'"


def local_path_errors(path: str, field_path: str) -> Iterator[FieldError]:
    """Report a file path that is not relative, or contains NUL or a component '..'."""
    if path.startswith("/"):
        yield invalid(field_path, path, "must be a relative path", _RELATIVE_PATH_REMEDY)
    yield from path_component_errors(path, field_path)


def path_component_errors(path: str, field_path: str) -> Iterator[FieldError]:
    """Report a file path that contains NUL or a component '..'."""
    if ".." in path.split("/"):
        yield invalid(field_path, path, "must not contain '..'", "use a path without '..'")
    if "\0" in path:
        yield invalid(field_path, path, "must not contain NUL", "remove the NUL character")


def volume_file_path_errors(path: str, field_path: str) -> Iterator[FieldError]:
    """Report a file path in a volume that is not relative, starts with '..', or contains NUL or a component '..'."""
    yield from local_path_errors(path, field_path)
    if path.startswith("..") and not path.startswith("../"):
        yield invalid(field_path, path, "must not start with '..'", "use a name that does not start with '..'")


def file_mode_errors(mode: int | None, field_path: str) -> Iterator[FieldError]:
    """Report file permission bits that are not from 0 to 0777 (octal)."""
    if mode is not None and not 0 <= mode <= _FILE_MODE_MAX:
        yield invalid(field_path, mode, _MODE_MESSAGE, "use 420, which is octal 0644, or another number from 0 to 511")


#: Kinds whose names follow other rules than DNS subdomains.
_NAME_RULES: Final[Mapping[str, NameRule]] = {
    scheme.NAMESPACE: dns_label_errors,
    scheme.SERVICE: dns1035_label_errors,
    scheme.PLATFORM: gke_name_errors,
    scheme.CLUSTER: gke_name_errors,
    scheme.NODE_POOL: gke_name_errors,
    scheme.ROLE: path_segment_errors,
    scheme.ROLE_BINDING: path_segment_errors,
    scheme.CLUSTER_ROLE: path_segment_errors,
    scheme.CLUSTER_ROLE_BINDING: path_segment_errors,
}
ANNOTATIONS_BYTES_MAX: Final = 256 * 1024
#: Kubernetes's own kinds, whose finalizers have stricter rules than those of custom kinds.
_NATIVE_KINDS: Final = frozenset(served_kind.constant for served_kind in scheme.KINDS if is_native(served_kind))
#: The kind Event: Events must not be owners of objects.
_EVENT_KIND: Final = scheme.kind_info(scheme.EVENT)
#: The finalizers without a prefix.
_STANDARD_FINALIZERS: Final = ("kubernetes", ORPHAN_FINALIZER, FOREGROUND_FINALIZER)
_LABEL_REMEDY: Final = "use at most 63 letters, digits, '-', '_' and '.', and start and end with a letter or digit"
_KEY_REMEDY: Final = f"write the key as [prefix/]name: {_LABEL_REMEDY}"


def metadata_errors(obj: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate the metadata of an object: name, namespace, labels, annotations, finalizers and owner references."""
    metadata = obj["metadata"]
    yield from _name_errors(metadata, _NAME_RULES.get(group_kind(obj), dns_subdomain_errors))
    namespace = metadata.get("namespace")
    if namespace and dns_label_errors(namespace):
        for message in dns_label_errors(namespace):
            yield invalid("metadata.namespace", namespace, message, name_remedy(namespace, dns_label_errors))
    yield from label_errors(metadata.get("labels"), "metadata.labels")
    yield from annotation_errors(metadata.get("annotations"), "metadata.annotations")
    if finalizers := metadata.get("finalizers"):
        is_native_kind = group_kind(obj) in _NATIVE_KINDS
        yield from finalizer_errors(finalizers, "metadata.finalizers", is_native_kind=is_native_kind)
    yield from _owner_reference_errors(metadata.get("ownerReferences") or ())


def _name_errors(metadata: Mapping[str, Any], name_rule: NameRule) -> Iterator[FieldError]:
    name, generate_name = metadata.get("name"), metadata.get("generateName")
    if not name and not generate_name:
        yield required("metadata.name", "name or generateName is required", "set metadata.name")
    elif name:
        for message in name_rule(name):
            yield invalid("metadata.name", name, message, name_remedy(name, name_rule))
    else:
        # A prefix may end with characters that a name must not end with, because a suffix follows.
        for message in name_rule(f"{generate_name}a"):
            yield invalid("metadata.generateName", generate_name, message, name_remedy(generate_name, name_rule))


def name_remedy(name: Any, name_rule: NameRule) -> str:
    """Return the remedy for an invalid object name: a similar valid name, or the example `my-name`."""
    similar = re.sub(r"[^a-z0-9]+", "-", str(name).lower()).strip("-")[:GKE_LENGTH_MAX].rstrip("-")
    return f"use a name such as {format_json(similar if similar and not name_rule(similar) else 'my-name')}"


def label_errors(labels: Mapping[str, str] | None, path: str) -> Iterator[FieldError]:
    """Report labels whose key is not a qualified name or whose value is not a label value."""
    if not labels:
        return
    for key, value in labels.items():
        yield from label_key_errors(key, path)
        for message in label_value_errors(value or ""):
            yield invalid(path, value, message, f"for {key}, {_LABEL_REMEDY}")


def label_key_errors(key: str, path: str) -> Iterator[FieldError]:
    """Report a label key that is not a qualified name."""
    for message in qualified_name_errors(key):
        yield invalid(path, key, message, _KEY_REMEDY)


def annotation_errors(annotations: Mapping[str, str] | None, path: str) -> Iterator[FieldError]:
    """Report annotation keys that are not qualified names, and annotations of more than 256 KiB in total."""
    if not annotations:
        return
    for key in annotations:
        for message in qualified_name_errors(key.lower()):
            yield invalid(path, key, message, _KEY_REMEDY)
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > ANNOTATIONS_BYTES_MAX:
        yield too_long(path, ANNOTATIONS_BYTES_MAX, "store large content in a ConfigMap")


def finalizer_errors(finalizers: Sequence[str], path: str, *, is_native_kind: bool = True) -> Iterator[FieldError]:
    """Report invalid finalizers, custom unprefixed ones on native kinds, and `orphan` beside `foregroundDeletion`."""
    for i, finalizer in enumerate(finalizers):
        for message in qualified_name_errors(finalizer):
            yield invalid(f"{path}[{i}]", finalizer, message, _KEY_REMEDY)
        if is_native_kind and "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
            message = "name is neither a standard finalizer name nor is it fully qualified"
            yield invalid(f"{path}[{i}]", finalizer, message, "use a name with a domain, such as example.com/name")
    if ORPHAN_FINALIZER in finalizers and FOREGROUND_FINALIZER in finalizers:
        message = f"finalizer {ORPHAN_FINALIZER} and {FOREGROUND_FINALIZER} cannot be both set"
        yield invalid(path, finalizers, message, f"remove {ORPHAN_FINALIZER} or {FOREGROUND_FINALIZER}")


def _owner_reference_errors(owners: Sequence[Mapping[str, Any]]) -> Iterator[FieldError]:
    for i, owner in enumerate(owners):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                path = f"metadata.ownerReferences[{i}].{field}"
                yield invalid(path, owner.get(field) or "", f"{field} must not be empty", f"set the {field}")
        api_version = owner.get("apiVersion") or ""
        if api_version.endswith("/") or api_version.count("/") > 1:
            path = f"metadata.ownerReferences[{i}].apiVersion"
            yield invalid(path, api_version, "version must not be empty", "use an apiVersion such as batch/v1")
        if owner.get("kind") == _EVENT_KIND.kind and api_version == _EVENT_KIND.api_version:
            message = f"/{api_version}, Kind={_EVENT_KIND.kind} is disallowed from being an owner"
            yield invalid_without_value(f"metadata.ownerReferences[{i}]", message, "use the Event's object as owner")
    controllers = [owner.get("name", "") for owner in owners if owner.get("controller")]
    if len(controllers) > 1:
        message = f'Only one reference can have Controller set to true. Found "true" in references for {controllers}'
        yield invalid_without_value("metadata.ownerReferences", message, "set controller: true on one owner only")


def selector_errors(selector: Mapping[str, Any] | None, path: str) -> Iterator[FieldError]:
    """Report invalid labels and expressions in a label selector."""
    if not selector:
        return
    yield from label_errors(selector.get("matchLabels"), f"{path}.matchLabels")
    for i, expression in enumerate(selector.get("matchExpressions") or ()):
        expression_path = f"{path}.matchExpressions[{i}]"
        yield from _selector_expression_errors(expression, expression_path)
        yield from label_key_errors(expression["key"], f"{expression_path}.key")
        for j, value in enumerate(expression.get("values") or ()):
            for message in label_value_errors(value):
                yield invalid(f"{expression_path}.values[{j}]", value, message, _LABEL_REMEDY)


def _selector_expression_errors(expression: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    values, operator = expression.get("values"), expression["operator"]
    if operator in {"In", "NotIn"}:
        if not values:
            message = "must be specified when `operator` is 'In' or 'NotIn'"
            yield required(f"{path}.values", message, "add values, or use the operator Exists")
    elif operator in {"Exists", "DoesNotExist"}:
        if values:
            message = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield forbidden(f"{path}.values", message, "remove the values, or use the operator In")
    else:
        remedy = "use In, NotIn, Exists or DoesNotExist"
        yield invalid(f"{path}.operator", operator, "not a valid selector operator", remedy)


# Rules of resource requests and limits. Source: Kubernetes's pkg/apis/core/validation.


_STANDARD_RESOURCES: Final = ("cpu", "memory", "ephemeral-storage")
_POD_RESOURCES: Final = ("cpu", "memory")
_RESOURCE_REMEDY: Final = f"use {', '.join(_STANDARD_RESOURCES)}, hugepages-<size>, or a device such as nvidia.com/gpu"


def resources_errors(resources: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Validate the requests and limits of a container: resource names, amounts, and requests within limits."""
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    for field, amounts in (("limits", limits), ("requests", requests)):
        for name, value in amounts.items():
            amount_path = f"{path}.{field}[{name}]"
            yield from resource_name_errors(name, amount_path)
            yield from _resource_value_errors(name, value, amount_path)
    for name, value in requests.items():
        yield from _resource_limit_errors(name, value, limits, path)
    if _has_hugepages(requests, limits) and {*requests, *limits}.isdisjoint(_STANDARD_RESOURCES[:2]):
        message = "HugePages require cpu or memory"
        yield forbidden(path, message, "add a request for cpu or memory")


def pod_resources_errors(resources: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Validate the pod-level requests and limits of a pod spec, which may contain only cpu, memory and hugepages."""
    yield from resources_errors(resources, path)
    for field in ("limits", "requests"):
        for name in resources.get(field) or {}:
            if name not in _POD_RESOURCES and not name.startswith("hugepages-"):
                remedy = f"move {name} to the resources of a container"
                yield unsupported(f"{path}.{field}[{name}]", name, (*_POD_RESOURCES, "hugepages-*"), remedy)


def _is_native(name: str) -> bool:
    return "/" not in name or "kubernetes.io/" in name


@memoized_if_short(maxsize=4096)
def is_extended(name: str) -> bool:
    """Return whether a resource name is an extended resource such as nvidia.com/gpu, whose amounts are integers."""
    return not _is_native(name) and not name.startswith("requests.") and not qualified_name_errors(f"requests.{name}")


def _has_hugepages(*amounts: Mapping[str, Any]) -> bool:
    return any(name.startswith("hugepages-") for each in amounts for name in each)


def resource_name_errors(name: str, path: str) -> Iterator[FieldError]:
    """Report a resource name that a container cannot use.

    Valid are cpu, memory, ephemeral-storage, hugepages-*, extended resources, and names in kubernetes.io domains.
    """
    if qualified_name_errors(name):
        yield from label_key_errors(name, path)
    elif "/" not in name:
        if name not in _STANDARD_RESOURCES and not name.startswith("hugepages-"):
            yield invalid(path, name, "must be a standard resource for containers", _RESOURCE_REMEDY)
    elif not _is_native(name) and not is_extended(name):
        yield invalid(path, name, "doesn't follow extended resource name standard", _RESOURCE_REMEDY)


def _resource_value_errors(name: str, value: Any, path: str) -> Iterator[FieldError]:
    yield from amount_errors(value, path)
    amount = parse_nano_amount(value)
    if amount is not None and amount % 10**9 and is_extended(name):
        yield invalid(path, canonical_quantity_or_text(value), "must be an integer", "use an integer")


def _resource_limit_errors(name: str, value: Any, limits: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    can_overcommit = _is_native(name) and not name.startswith("hugepages-")
    limit = limits.get(name)
    if limit is None:
        if not can_overcommit:
            message = "Limit must be set for non overcommitable resources"
            yield required(f"{path}.limits", message, f"set the limit of {name} to {canonical_quantity_or_text(value)}")
        return
    request_text, limit_text = canonical_quantity_or_text(value), canonical_quantity_or_text(limit)
    if can_overcommit and exceeds_limit(value, limit):
        message = f"must be less than or equal to {name} limit of {limit_text}"
        yield invalid(f"{path}.requests", request_text, message, f"request at most {limit_text}, or raise the limit")
    elif not can_overcommit and parse_nano_amount(value) != parse_nano_amount(limit):
        message = f"must be equal to {name} limit of {limit_text}"
        yield invalid(f"{path}.requests", request_text, message, f"set request and limit of {name} to the same amount")
