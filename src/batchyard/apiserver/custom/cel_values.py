"""Values as rules see them: fields under names that the language can say, and numbers doubles where they may be.

Source: k8s.io/apiserver, pkg/cel/escaping.go and k8s.io/apiextensions-apiserver, pkg/apiserver/schema/cel/values.go.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from batchyard.apiserver.custom.schemas import PRESERVES, Schema, additional, items, properties

_WORDS: Final = frozenset(
    {
        *("true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import"),
        *("let", "loop", "package", "namespace", "return", "var", "void", "while"),
    }
)
_SIGNS: Final = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
_SIGN: Final = re.compile(r"__|[.\-/]")


def cel_value(value: Any, schema: Schema) -> Any:
    """A value of a schema as a rule sees it."""
    if not schema:
        return value
    if isinstance(value, Mapping):
        return _object(value, schema)
    if isinstance(value, list):
        of = items(schema)
        return [cel_value(each, of) for each in value]
    if schema.get("type") == "number" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value


def escaped(name: str) -> str:
    """A field's name as rules say it."""
    if name in _WORDS:
        return f"__{name}__"
    return _SIGN.sub(lambda found: _SIGNS[found[0]], name)


def _object(value: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    known, rest = properties(schema), additional(schema)
    if rest is not None or (not known and schema.get(PRESERVES)):
        return {name: cel_value(each, rest or {}) for name, each in value.items()}
    return {escaped(name): cel_value(each, known[name]) for name, each in value.items() if name in known}
