"""What the words of a schema must be, themselves as a schema: one that holds itself.

Source: k8s.io/apiextensions-apiserver, pkg/apis/apiextensions/v1/types_jsonschema.go.
"""

from typing import Any, Final

from batchyard.apiserver.custom.schemas import (
    EMBEDDED,
    INT_OR_STRING,
    LIST_TYPE,
    MAP_KEYS,
    MAP_TYPE,
    PRESERVES,
    RULES,
    Schema,
)

_TEXT: Final[Schema] = {"type": "string"}
_TRUTH: Final[Schema] = {"type": "boolean"}
_NUMBER: Final[Schema] = {"type": "number"}
_WHOLE: Final[Schema] = {"type": "integer"}
_TEXTS: Final[Schema] = {"type": "array", "items": _TEXT}
_RULE: Final[Schema] = {
    "type": "object",
    "required": ["rule"],
    "properties": {
        **dict.fromkeys(("rule", "message", "messageExpression", "fieldPath"), _TEXT),
        "reason": {
            "type": "string",
            "enum": ["FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired", "FieldValueDuplicate"],
        },
        "optionalOldSelf": _TRUTH,
    },
}


def _schema_of_schemas() -> Schema:
    itself: dict[str, Any] = {"type": "object"}
    many: Schema = {"type": "array", "items": itself}
    itself["properties"] = {
        **dict.fromkeys(("type", "format", "title", "description", "pattern", LIST_TYPE, MAP_TYPE), _TEXT),
        **dict.fromkeys(("nullable", "uniqueItems", "exclusiveMaximum", "exclusiveMinimum"), _TRUTH),
        **dict.fromkeys((PRESERVES, EMBEDDED, INT_OR_STRING), _TRUTH),
        **dict.fromkeys(("maximum", "minimum", "multipleOf"), _NUMBER),
        **dict.fromkeys(("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"), _WHOLE),
        **dict.fromkeys(("required", MAP_KEYS), _TEXTS),
        **dict.fromkeys(("items", "not"), itself),
        **dict.fromkeys(("allOf", "anyOf", "oneOf"), many),
        "enum": {"type": "array", "items": {}},
        "properties": {"type": "object", "additionalProperties": itself},
        "additionalProperties": {"anyOf": [itself, _TRUTH]},
        RULES: {"type": "array", "items": _RULE},
    }
    return itself


SCHEMA_OF_SCHEMAS: Final = _schema_of_schemas()
