"""Validation of CustomResourceDefinitions beyond their structural schema.

Source: k8s.io/apiextensions-apiserver, pkg/apis/apiextensions/validation/validation.go.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api.custom_kinds import ESTABLISHED, built_in_kind, has_valid_ca_bundle
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj, annotation, is_true
from batchyard.api.patterns import pattern_fault
from batchyard.api.validation import rules
from batchyard.api.validation.policies import webhook_client_errors
from batchyard.api.validation.rules import forbidden, immutable, invalid, invalid_without_value, required, unsupported
from batchyard.apiserver.crd import values
from batchyard.apiserver.crd.json_path import InvalidJsonPath, parse_json_path
from batchyard.apiserver.crd.rules import find_compilation_problems

_STRING_SCHEMA: Final[values.Schema] = {"type": "string"}
_BOOLEAN: Final[values.Schema] = {"type": "boolean"}
_SCHEMA_TYPES: Final = ("array", "boolean", "integer", "number", "object", "string")
_COMBINING_KEYWORDS: Final = ("allOf", "anyOf", "oneOf")
_FORBIDDEN_IN_NESTED: Final = {
    "type": "must be empty to be structural",
    "additionalProperties": "must be undefined to be structural",
    "default": "must be undefined to be structural",
    "title": "must be empty to be structural",
    "description": "must be empty to be structural",
    "nullable": "must be false to be structural",
    values.PRESERVE_UNKNOWN_FIELDS: "must be false to be structural",
    values.EMBEDDED_RESOURCE: "must be false to be structural",
    values.INT_OR_STRING: "must be false to be structural",
    values.MAP_KEYS: "must be empty to be structural",
    values.LIST_TYPE: "must be undefined to be structural",
    values.MAP_TYPE: "must be undefined to be structural",
    values.VALIDATION_RULES: "must be empty to be structural",
}
_INTEGER_OR_STRING_SCHEMAS: Final = [{"type": "integer"}, {"type": "string"}]
_METADATA_FIELDS: Final = frozenset({"name", "generateName"})


def schema_errors(schema: values.Schema, path: str) -> Iterator[FieldError]:
    """Yield the errors of the root schema of a version in a CustomResourceDefinition."""
    if values.additional_properties_schema(schema) is not None:
        yield forbidden(f"{path}.additionalProperties", "must not be used at the root", "")
    if schema.get("type", "object") != "object":
        yield invalid(f"{path}.type", schema["type"], "must be object at the root", "")
    yield from _schema_errors(schema, path, "must not be empty at the root")
    metadata = values.properties(schema).get("metadata", {})
    if values.properties(metadata).keys() - _METADATA_FIELDS or set(metadata) - {"type", "properties", "description"}:
        message = "must not specify anything other than name and generateName, but metadata is implicitly specified"
        yield forbidden(f"{path}.properties[metadata]", message, "")


def _schema_errors(schema: values.Schema, path: str, missing_type_message: str) -> Iterator[FieldError]:
    yield from _type_errors(schema, path, missing_type_message)
    yield from _extension_errors(schema, path)
    yield from _list_and_map_errors(schema, path)
    yield from _unsupported_keyword_errors(schema, path)
    yield from _rule_errors(schema, path)
    yield from _combining_keyword_errors(schema, path, is_int_or_string=bool(schema.get(values.INT_OR_STRING)))
    message = "must not be empty for specified object fields"
    for name, field_schema in values.properties(schema).items():
        yield from _schema_errors(field_schema, f"{path}.properties[{name}]", message)
    if additional_schema := values.additional_properties_schema(schema):
        yield from _schema_errors(additional_schema, f"{path}.additionalProperties", message)
    if isinstance(schema.get("items"), Mapping):
        yield from _schema_errors(
            values.items_schema(schema), f"{path}.items", "must not be empty for specified array items"
        )
    if "default" in schema:
        yield from _default_errors(schema, path)


def _type_errors(schema: values.Schema, path: str, missing_type_message: str) -> Iterator[FieldError]:
    type_name = schema.get("type", "")
    if type_name and type_name not in _SCHEMA_TYPES:
        yield unsupported(f"{path}.type", type_name, _SCHEMA_TYPES)
    if schema.get(values.EMBEDDED_RESOURCE) and type_name != "object":
        message = f"must be object if {values.EMBEDDED_RESOURCE} is true"
        yield invalid(f"{path}.type", type_name, message, "") if type_name else required(f"{path}.type", message, "")
    elif not type_name and not schema.get(values.INT_OR_STRING) and not schema.get(values.PRESERVE_UNKNOWN_FIELDS):
        yield required(f"{path}.type", missing_type_message, "")
    if type_name == "array" and not isinstance(schema.get("items"), Mapping):
        yield required(f"{path}.items", "must be specified", "")


def _extension_errors(schema: values.Schema, path: str) -> Iterator[FieldError]:
    if schema.get(values.INT_OR_STRING):
        for keyword in (values.PRESERVE_UNKNOWN_FIELDS, values.EMBEDDED_RESOURCE):
            if schema.get(keyword):
                yield invalid(f"{path}.{keyword}", True, f"must be false if {values.INT_OR_STRING} is true", "")
    is_embedded = schema.get(values.EMBEDDED_RESOURCE)
    if is_embedded and values.additional_properties_schema(schema) is not None:
        yield forbidden(f"{path}.additionalProperties", f"must not be used if {values.EMBEDDED_RESOURCE} is set", "")
    if is_embedded and not schema.get(values.PRESERVE_UNKNOWN_FIELDS) and not values.properties(schema):
        message = f"must not be empty if {values.EMBEDDED_RESOURCE} is true without {values.PRESERVE_UNKNOWN_FIELDS}"
        yield required(f"{path}.properties", message, "")
    if schema.get(values.PRESERVE_UNKNOWN_FIELDS) is False:
        yield invalid(f"{path}.{values.PRESERVE_UNKNOWN_FIELDS}", False, "must be true or undefined", "")
    if values.properties(schema) and values.additional_properties_schema(schema) is not None:
        yield forbidden(f"{path}.additionalProperties", "additionalProperties and properties are mutual exclusive", "")


def _list_and_map_errors(schema: values.Schema, path: str) -> Iterator[FieldError]:
    list_type, map_keys = schema.get(values.LIST_TYPE), schema.get(values.MAP_KEYS) or ()
    schema_type = schema.get("type", "")
    if list_type is not None:
        if schema_type != "array":
            yield invalid(f"{path}.type", schema_type, f"must be array if {values.LIST_TYPE} is specified", "")
        if list_type not in ("atomic", "set", "map"):
            yield unsupported(f"{path}.{values.LIST_TYPE}", list_type, ("atomic", "set", "map"))
    if list_type == "map":
        yield from _map_key_errors(schema, map_keys, path)
    elif map_keys:
        message = f"must be map if {values.MAP_KEYS} is non-empty"
        yield invalid(f"{path}.{values.LIST_TYPE}", list_type or "", message, "")
    if (map_type := schema.get(values.MAP_TYPE)) is not None:
        yield from _map_type_errors(map_type, schema_type, path)


def _map_type_errors(map_type: Any, schema_type: str, path: str) -> Iterator[FieldError]:
    message = f"must be object if {values.MAP_TYPE} is specified"
    if not schema_type:
        yield required(f"{path}.type", message, "")
    elif schema_type != "object":
        yield invalid(f"{path}.type", schema_type, message, "")
    if map_type not in ("atomic", "granular"):
        yield unsupported(f"{path}.{values.MAP_TYPE}", map_type, ("atomic", "granular"))


def _map_key_errors(schema: values.Schema, keys: Sequence[str], path: str) -> Iterator[FieldError]:
    item_schema = values.items_schema(schema)
    if not keys:
        yield required(f"{path}.{values.MAP_KEYS}", "must not be empty if x-kubernetes-list-type is map", "")
    if item_schema.get("type") != "object":
        message = f"must be object if parent array's {values.LIST_TYPE} is map"
        yield invalid(f"{path}.items.type", item_schema.get("type", ""), message, "")
    for i, key in enumerate(keys):
        if key not in values.properties(item_schema):
            yield invalid(f"{path}.{values.MAP_KEYS}[{i}]", key, "entries must all be names of item properties", "")
        elif key not in (item_schema.get("required") or ()) and "default" not in values.properties(item_schema)[key]:
            text = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"
            yield required(f"{path}.items.properties[{key}].default", text, "")


def _unsupported_keyword_errors(schema: values.Schema, path: str) -> Iterator[FieldError]:
    for keyword in ("$ref", "id", "patternProperties", "definitions", "dependencies", "additionalItems"):
        if keyword in schema:
            yield forbidden(f"{path}.{keyword}", f"{keyword} is not supported", "")
    if schema.get("uniqueItems"):
        message = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        yield forbidden(f"{path}.uniqueItems", message, "")
    if (pattern := schema.get("pattern")) and (problem := pattern_fault(pattern)):
        message = f"must be a valid regular expression, but isn't: {problem}"
        yield invalid(f"{path}.pattern", pattern, message, "")


def _rule_errors(schema: values.Schema, path: str) -> Iterator[FieldError]:
    for i, rule in enumerate(schema.get(values.VALIDATION_RULES) or ()):
        rule_path = f"{path}.{values.VALIDATION_RULES}[{i}]"
        if not str(rule.get("rule", "")).strip():
            yield required(f"{rule_path}.rule", "rule is not specified", "")
        elif problem := find_compilation_problems(rule)[0]:
            yield invalid(f"{rule_path}.rule", rule["rule"], problem, "")


def rule_warnings(schema: values.Schema, path: str) -> Iterator[str]:
    """Yield a warning for each CEL validation rule that is not checked because it uses unimplemented functions."""
    for i, rule in enumerate(schema.get(values.VALIDATION_RULES) or ()):
        if unsupported_functions := find_compilation_problems(rule)[1]:
            rule_path = f"{path}.{values.VALIDATION_RULES}[{i}]"
            yield f"{rule_path}: the rule is not checked: unsupported functions: {unsupported_functions}"
    for name, field_schema in values.properties(schema).items():
        yield from rule_warnings(field_schema, f"{path}.properties[{name}]")
    for keyword, inner_schema in (
        ("additionalProperties", values.additional_properties_schema(schema)),
        ("items", values.items_schema(schema)),
    ):
        if inner_schema:
            yield from rule_warnings(inner_schema, f"{path}.{keyword}")


def _combining_keyword_errors(schema: values.Schema, path: str, *, is_int_or_string: bool) -> Iterator[FieldError]:
    for keyword in _COMBINING_KEYWORDS:
        for i, nested_schema in enumerate(schema.get(keyword) or ()):
            is_int_or_string_form = is_int_or_string and (
                (keyword == "anyOf" and schema["anyOf"] == _INTEGER_OR_STRING_SCHEMAS)
                or (keyword == "allOf" and i == 0 and nested_schema.get("anyOf") == _INTEGER_OR_STRING_SCHEMAS)
            )
            if not is_int_or_string_form:
                yield from _nested_errors(nested_schema, f"{path}.{keyword}[{i}]")
    if isinstance(schema.get("not"), Mapping):
        yield from _nested_errors(schema["not"], f"{path}.not")


def _nested_errors(schema: values.Schema, path: str) -> Iterator[FieldError]:
    for keyword, message in _FORBIDDEN_IN_NESTED.items():
        if schema.get(keyword):
            yield forbidden(f"{path}.{keyword}", message, "")
    if "metadata" in values.properties(schema):
        yield forbidden(f"{path}.properties[metadata]", "must not be specified in a nested context", "")
    yield from _combining_keyword_errors(schema, path, is_int_or_string=False)
    for name, field_schema in values.properties(schema).items():
        yield from _nested_errors(field_schema, f"{path}.properties[{name}]")
    if isinstance(schema.get("items"), Mapping):
        yield from _nested_errors(values.items_schema(schema), f"{path}.items")


def _default_errors(schema: values.Schema, path: str) -> Iterator[FieldError]:
    default: Any = schema["default"]
    if (
        isinstance(default, Mapping)
        and not schema.get(values.EMBEDDED_RESOURCE)
        and values.prune_unknown_fields(default, schema) != default
    ):
        yield invalid(f"{path}.default", default, "must not have unknown fields", "")
    yield from values.value_errors(values.with_defaults(default, schema), schema, f"{path}.default")


# The recursive schema of JSON schemas, which checks the types of their keywords.
#
# Source: k8s.io/apiextensions-apiserver, pkg/apis/apiextensions/v1/types_jsonschema.go.


_NUMBER_SCHEMA: Final[values.Schema] = {"type": "number"}
_INTEGER: Final[values.Schema] = {"type": "integer"}
_STRING_LIST_SCHEMA: Final[values.Schema] = {"type": "array", "items": _STRING_SCHEMA}
_VALIDATION_RULE_SCHEMA: Final[values.Schema] = {
    "type": "object",
    "required": ["rule"],
    "properties": {
        **dict.fromkeys(("rule", "message", "messageExpression", "fieldPath"), _STRING_SCHEMA),
        "reason": {
            "type": "string",
            "enum": ["FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired", "FieldValueDuplicate"],
        },
        "optionalOldSelf": _BOOLEAN,
    },
}


def _schema_of_schemas() -> values.Schema:
    schema: dict[str, Any] = {"type": "object"}
    schema_list: values.Schema = {"type": "array", "items": schema}
    schema["properties"] = {
        **dict.fromkeys(
            ("type", "format", "title", "description", "pattern", values.LIST_TYPE, values.MAP_TYPE), _STRING_SCHEMA
        ),
        **dict.fromkeys(("nullable", "uniqueItems", "exclusiveMaximum", "exclusiveMinimum"), _BOOLEAN),
        **dict.fromkeys((values.PRESERVE_UNKNOWN_FIELDS, values.EMBEDDED_RESOURCE, values.INT_OR_STRING), _BOOLEAN),
        **dict.fromkeys(("maximum", "minimum", "multipleOf"), _NUMBER_SCHEMA),
        **dict.fromkeys(("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"), _INTEGER),
        **dict.fromkeys(("required", values.MAP_KEYS), _STRING_LIST_SCHEMA),
        **dict.fromkeys(("items", "not"), schema),
        **dict.fromkeys(("allOf", "anyOf", "oneOf"), schema_list),
        "enum": {"type": "array", "items": {}},
        "properties": {"type": "object", "additionalProperties": schema},
        "additionalProperties": {"anyOf": [schema, _BOOLEAN]},
        values.VALIDATION_RULES: {"type": "array", "items": _VALIDATION_RULE_SCHEMA},
    }
    return schema


SCHEMA_OF_SCHEMAS: Final = _schema_of_schemas()


# Errors of a CustomResourceDefinition: its names, versions, columns and subresources.


_APPROVAL_ANNOTATION: Final = "api-approved.kubernetes.io"
_PROTECTED_GROUPS: Final = ("k8s.io", "kubernetes.io")
_COLUMN_TYPES: Final = ("boolean", "date", "integer", "number", "string")
_SELECTABLE_FIELDS_MAX: Final = 8


def definition_errors(definition: Obj) -> Iterator[FieldError]:
    """Yield the errors of a CustomResourceDefinition that the structural schema of this kind cannot express."""
    spec, name = definition["spec"], definition["metadata"].get("name", "")
    if name != f"{spec['names']['plural']}.{spec['group']}":
        yield invalid("metadata.name", name, 'must be spec.names.plural+"."+spec.group', "")
    yield from _group_errors(definition)
    yield from _name_errors(spec["names"])
    yield from _version_errors(spec["versions"])
    yield from _conversion_errors(definition)
    for i, version in enumerate(spec["versions"]):
        yield from _version_schema_errors(version, f"spec.versions[{i}]")
    if spec.get("preserveUnknownFields"):
        text = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"
        yield invalid("spec.preserveUnknownFields", True, text, "")


def definition_warnings(definition: Obj, custom_groups: Collection[str] = ()) -> list[str]:
    """Return the warnings about a CustomResourceDefinition: that its schema is unused, or rules are not checked.

    The API server does not serve the built-in kinds of the API groups `custom_groups`.
    """
    served_kind = built_in_kind(definition, custom_groups)
    if served_kind is not None:
        title = f"{served_kind.kind}.{served_kind.group}"
        return [f"batchyard serves {title} itself: this definition is stored but its schema is unused"]
    warnings: list[str] = []
    for i, version in enumerate(definition["spec"]["versions"]):
        warnings += rule_warnings(values.root_schema(version), f"spec.versions[{i}].schema.openAPIV3Schema")
    return warnings


def definition_update_errors(new: Obj, old: Obj) -> Iterator[FieldError]:
    """Yield an error for each changed immutable field, and for each stored version that is no longer defined."""
    old_spec, new_spec = old["spec"], new["spec"]
    yield from _ca_bundle_errors(new, old)
    if new_spec["group"] != old_spec["group"]:
        yield immutable("spec.group", new_spec["group"])
    if new_spec["names"]["plural"] != old_spec["names"]["plural"]:
        yield immutable("spec.names.plural", new_spec["names"]["plural"])
    if is_true(old, ESTABLISHED):
        if new_spec["scope"] != old_spec["scope"]:
            yield immutable("spec.scope", new_spec["scope"])
        if new_spec["names"]["kind"] != old_spec["names"]["kind"]:
            yield immutable("spec.names.kind", new_spec["names"]["kind"])
    version_names = [version["name"] for version in new_spec["versions"]]
    for i, stored_version in enumerate((old.get("status") or {}).get("storedVersions") or ()):
        if stored_version not in version_names:
            yield invalid(f"status.storedVersions[{i}]", stored_version, "must appear in spec.versions", "")


def _group_errors(definition: Obj) -> Iterator[FieldError]:
    group = definition["spec"]["group"]
    for message in rules.dns_subdomain_errors(group):
        yield invalid("spec.group", group, message, "")
    if "." not in group:
        yield invalid("spec.group", group, "should be a domain with at least one dot", "")
    is_protected = any(group == each or group.endswith(f".{each}") for each in _PROTECTED_GROUPS)
    if is_protected and not annotation(definition, _APPROVAL_ANNOTATION):
        text = f'protected groups must have approval annotation "{_APPROVAL_ANNOTATION}", see https://github.com/kubernetes/enhancements/pull/1111'
        yield required(f"metadata.annotations[{_APPROVAL_ANNOTATION}]", text, "")


def _name_errors(names: Mapping[str, Any]) -> Iterator[FieldError]:
    for field in ("plural", "singular"):
        for message in rules.dns1035_label_errors(names[field]) if names.get(field) else ():
            yield invalid(f"spec.names.{field}", names[field], message, "")
    for field in ("kind", "listKind"):
        for message in rules.dns1035_label_errors(names[field].lower()) if names.get(field) else ():
            text = f"may have mixed case, but should otherwise match: {message}"
            yield invalid(f"spec.names.{field}", names[field], text, "")
    for field in ("shortNames", "categories"):
        for i, each in enumerate(names.get(field) or ()):
            for message in rules.dns1035_label_errors(each):
                yield invalid(f"spec.names.{field}[{i}]", each, message, "")
    for field in ("plural", "singular", "kind", "listKind"):
        if not names.get(field):
            yield required(f"spec.names.{field}", "", "")
    if names["kind"] and names["kind"] == names["listKind"]:
        yield invalid("spec.names.listKind", names["kind"], "kind and listKind may not be the same", "")


def _version_errors(versions: Sequence[Mapping[str, Any]]) -> Iterator[FieldError]:
    names = [version["name"] for version in versions]
    for i, name in enumerate(names):
        for message in rules.dns1035_label_errors(name):
            yield invalid(f"spec.versions[{i}].name", name, message, "")
    if len(dict.fromkeys(names)) != len(names):
        yield invalid_without_value("spec.versions", "must contain unique version names", "")
    if sum(version["storage"] for version in versions) != 1:
        yield invalid_without_value("spec.versions", "must have exactly one version marked as storage version", "")


def _conversion_errors(definition: Obj) -> Iterator[FieldError]:
    conversion = definition["spec"].get("conversion") or {}
    strategy, path = conversion.get("strategy", "None"), "spec.conversion"
    if strategy not in ("None", "Webhook"):
        yield unsupported(f"{path}.strategy", strategy, ("None", "Webhook"))
    webhook = conversion.get("webhook")
    if strategy != "Webhook":
        if webhook is not None:
            message = "should not be set when strategy is not set to Webhook"
            if webhook.get("clientConfig") is not None:
                yield forbidden(f"{path}.webhookClientConfig", message, "")
            if webhook.get("conversionReviewVersions"):
                yield forbidden(f"{path}.conversionReviewVersions", message, "")
        return
    client_config = (webhook or {}).get("clientConfig")
    if client_config is None:
        yield required(f"{path}.webhookClientConfig", "required when strategy is set to Webhook", "")
    else:
        yield from webhook_client_errors(client_config, f"{path}.webhookClientConfig")
    yield from _review_version_errors((webhook or {}).get("conversionReviewVersions") or (), path)


def _review_version_errors(versions: Sequence[str], conversion_path: str) -> Iterator[FieldError]:
    path = f"{conversion_path}.conversionReviewVersions"
    if not versions:
        yield required(path, "", "")
        return
    repeated_indexes = rules.repeated_indexes(versions)
    for i, version in enumerate(versions):
        if i in repeated_indexes:
            yield invalid(f"{path}[{i}]", version, "duplicate version", "")
            continue
        for message in rules.dns1035_label_errors(version):
            yield invalid(f"{path}[{i}]", version, message, "")
    if not {"v1", "v1beta1"} & set(versions):
        yield invalid(path, list(versions), "must include at least one of v1, v1beta1", "")


def _ca_bundle_errors(new: Obj, old: Obj) -> Iterator[FieldError]:
    """Yield an error for a CA bundle that is not valid, unless that of the old definition was not valid either."""
    if is_true(old, ESTABLISHED) and has_valid_ca_bundle(old) and not has_valid_ca_bundle(new):
        bundle = new["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"]
        message = "unable to load root certificates: unable to parse bytes as PEM block"
        yield invalid("spec.conversion.webhookClientConfig.caBundle", bundle, message, "")


def _version_schema_errors(version: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    schema = values.root_schema(version)
    if not schema:
        yield required(f"{path}.schema.openAPIV3Schema", "schemas are required", "")
        return
    keyword_faults = list(values.value_errors(schema, SCHEMA_OF_SCHEMAS, f"{path}.schema.openAPIV3Schema"))
    if keyword_faults:
        yield from keyword_faults
        return
    yield from schema_errors(schema, f"{path}.schema.openAPIV3Schema")
    for i, column in enumerate(version.get("additionalPrinterColumns") or ()):
        yield from _column_errors(column, f"{path}.additionalPrinterColumns[{i}]")
    yield from _scale_errors((version.get("subresources") or {}).get("scale"), f"{path}.subresources.scale")
    yield from _selectable_errors(version, schema, f"{path}.selectableFields")


def _column_errors(column: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    if column["type"] not in _COLUMN_TYPES:
        message = f"must be one of {','.join(_COLUMN_TYPES)}"
        yield invalid(f"{path}.type", column["type"], message, "")
    try:
        parse_json_path(column["jsonPath"])
    except InvalidJsonPath as error:
        yield invalid(f"{path}.jsonPath", column["jsonPath"], f"is an invalid JSON path: {error}", "")


def _scale_errors(scale: Mapping[str, Any] | None, path: str) -> Iterator[FieldError]:
    if scale is None:
        return
    for field, prefixes in (("specReplicasPath", (".spec.",)), ("statusReplicasPath", (".status.",))):
        if not scale.get(field):
            yield required(f"{path}.{field}", "", "")
        elif not scale[field].startswith(prefixes):
            yield invalid(f"{path}.{field}", scale[field], f"should be a json path under {prefixes[0][:-1]}", "")
    selector_path = scale.get("labelSelectorPath")
    if selector_path and not selector_path.startswith((".spec.", ".status.")):
        message = "should be a json path under either .status or .spec"
        yield invalid(f"{path}.labelSelectorPath", selector_path, message, "")


def _selectable_errors(version: Mapping[str, Any], schema: values.Schema, path: str) -> Iterator[FieldError]:
    fields = version.get("selectableFields") or ()
    if len(fields) > _SELECTABLE_FIELDS_MAX:
        yield FieldError(path, f"Too many: {len(fields)}: must have at most {_SELECTABLE_FIELDS_MAX} items")
    known_paths: list[str] = []
    for i, field in enumerate(fields):
        json_path = field["jsonPath"]
        field_schema: values.Schema = schema
        for name in json_path.strip(".").split("."):
            field_schema = values.schema_of_field(field_schema, name)
        if json_path in known_paths:
            yield FieldError(f"{path}[{i}].jsonPath", f'Duplicate value: "{json_path}"')
        elif not field_schema:
            yield invalid(f"{path}[{i}].jsonPath", json_path, "does not refer to a valid field", "")
        elif field_schema.get("type") not in ("boolean", "integer", "string"):
            message = "must point to a field of type string, boolean or integer"
            yield invalid(f"{path}[{i}].jsonPath", json_path, message, "")
        known_paths.append(json_path)
