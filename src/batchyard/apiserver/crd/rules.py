"""Validation rules of schemas in the Common Expression Language: `x-kubernetes-validations`.

The rules of a kind are compiled when an object is first checked. A transition rule (with `oldSelf`) runs only if an old
value exists and can be correlated: in fields, maps, and lists with keys. With `optionalOldSelf` it always runs.
Source: k8s.io/apiextensions-apiserver, pkg/apiserver/schema/cel/validation.go.
"""

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache
from itertools import islice
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

from cel_expr_python import cel
from cel_expr_python.ext.ext_bindings import ExtBindings
from cel_expr_python.ext.ext_encoders import ExtEncoders
from cel_expr_python.ext.ext_math import ExtMath
from cel_expr_python.ext.ext_optional import ExtOptional
from cel_expr_python.ext.ext_strings import ExtStrings

from batchyard.api.errors import FieldError
from batchyard.api.meta import NANO, parse_quantity
from batchyard.api.patterns import find_matches
from batchyard.api.validation.rules import format_json
from batchyard.apiserver.crd.values import (
    LIST_TYPE,
    MAP_KEYS,
    MAP_TYPE,
    PRESERVE_UNKNOWN_FIELDS,
    VALIDATION_RULES,
    Schema,
    additional_properties_schema,
    items_schema,
    list_item_identity,
    properties,
    uses_keyword,
)

# The CEL extension functions of Kubernetes: lists, sets, strings, quantities, URLs and addresses.
#
# Quantities, URLs, addresses and networks are represented by canonical strings, so that equal values compare equal.
# Source: k8s.io/apiserver, pkg/cel/library.


_T: Final = cel.Type
_ANY_TYPE: Final = _T.DYN
_LIST: Final = _T.List(_T.DYN)
_IPV4_LINK_LOCAL_MULTICAST: Final = ipaddress.IPv4Network("224.0.0.0/24")
_IPV4_BROADCAST: Final = ipaddress.IPv4Address("255.255.255.255")
_CIDR_PATTERN: Final = re.compile(r"[0-9A-Fa-f.:]+/(0|[1-9][0-9]*)")


def kubernetes_functions() -> Any:
    """Return the implemented functions that Kubernetes adds to CEL, as an extension for CEL."""
    overloads_by_name: dict[str, list[Any]] = {}
    for name, is_member, parameters, result, implementation in _function_declarations():
        overloads = overloads_by_name.setdefault(name, [])
        key = f"{name}_{len(overloads)}"
        overloads.append(cel.Overload(key, result, parameters, is_member, implementation))
    return cel.CelExtension("kubernetes", [cel.FunctionDecl(name, each) for name, each in overloads_by_name.items()])


def _function_declarations() -> Iterator[tuple[str, bool, list[Any], Any, Callable[..., Any]]]:
    """Yield each CEL function: name, whether it is a member function, parameter types, result type, implementation."""
    text, integer, boolean, double = _T.STRING, _T.INT, _T.BOOL, _T.DOUBLE
    yield "isSorted", True, [_LIST], boolean, lambda each: list(each) == sorted(each)
    yield "sum", True, [_LIST], _ANY_TYPE, sum
    yield "min", True, [_LIST], _ANY_TYPE, min
    yield "max", True, [_LIST], _ANY_TYPE, max
    yield "indexOf", True, [_LIST, _ANY_TYPE], integer, _index_of
    yield "lastIndexOf", True, [_LIST, _ANY_TYPE], integer, _last_index_of
    yield "reverse", True, [_LIST], _LIST, lambda each: list(reversed(each))
    yield "sets.contains", False, [_LIST, _LIST], boolean, lambda a, b: _comparable_set(a) >= _comparable_set(b)
    yield "sets.intersects", False, [_LIST, _LIST], boolean, lambda a, b: bool(_comparable_set(a) & _comparable_set(b))
    yield "sets.equivalent", False, [_LIST, _LIST], boolean, lambda a, b: _comparable_set(a) == _comparable_set(b)
    yield "find", True, [text, text], text, lambda value, pattern: next(find_matches(pattern, value), "")
    yield "findAll", True, [text, text], _T.List(text), lambda value, pattern: list(find_matches(pattern, value))
    yield "findAll", True, [text, text, integer], _T.List(text), _first_matches
    yield "quantity", False, [text], text, _canonical_quantity
    yield "isQuantity", False, [text], boolean, _make_parse_check(_canonical_quantity)
    yield "isInteger", True, [text], boolean, lambda a: Fraction(a).denominator == 1
    yield "asInteger", True, [text], integer, int
    yield "asApproximateFloat", True, [text], double, lambda a: float(Fraction(a))
    yield "sign", True, [text], integer, lambda a: _compare_quantities(a, "0")
    yield "add", True, [text, text], text, lambda a, b: str(Fraction(a) + Fraction(b))
    yield "add", True, [text, integer], text, lambda a, b: str(Fraction(a) + b)
    yield "sub", True, [text, text], text, lambda a, b: str(Fraction(a) - Fraction(b))
    yield "sub", True, [text, integer], text, lambda a, b: str(Fraction(a) - b)
    yield "isGreaterThan", True, [text, text], boolean, lambda a, b: _compare_quantities(a, b) > 0
    yield "isLessThan", True, [text, text], boolean, lambda a, b: _compare_quantities(a, b) < 0
    yield "compareTo", True, [text, text], integer, _compare_quantities
    yield from _network_function_declarations()


def _network_function_declarations() -> Iterator[tuple[str, bool, list[Any], Any, Callable[..., Any]]]:
    text, integer, boolean = _T.STRING, _T.INT, _T.BOOL
    yield "url", False, [text], text, _checked_url
    yield "isURL", False, [text], boolean, _make_parse_check(_checked_url)
    yield "getScheme", True, [text], text, lambda url: urlsplit(url).scheme
    yield "getHost", True, [text], text, lambda url: urlsplit(url).netloc.rpartition("@")[2]
    yield "getHostname", True, [text], text, lambda url: urlsplit(url).hostname or ""
    yield "getPort", True, [text], text, lambda url: str(urlsplit(url).port or "")
    yield "getEscapedPath", True, [text], text, lambda url: urlsplit(url).path
    yield "getQuery", True, [text], _T.Map(text, _T.List(text)), lambda url: parse_qs(urlsplit(url).query)
    yield "ip", False, [text], text, lambda address: str(_parse_address(address))
    yield "isIP", False, [text], boolean, _make_parse_check(_parse_address)
    yield "ip.isCanonical", False, [text], boolean, lambda address: str(_parse_address(address)) == address
    yield "family", True, [text], integer, lambda address: _parse_address(address).version
    yield "isLoopback", True, [text], boolean, lambda address: _parse_address(address).is_loopback
    yield "isUnspecified", True, [text], boolean, lambda address: _parse_address(address).is_unspecified
    yield "isLinkLocalUnicast", True, [text], boolean, lambda address: _parse_address(address).is_link_local
    yield "isLinkLocalMulticast", True, [text], boolean, _is_link_local_multicast
    yield "isGlobalUnicast", True, [text], boolean, _is_global_unicast
    yield "cidr", False, [text], text, lambda cidr: str(_parse_cidr(cidr))
    yield "isCIDR", False, [text], boolean, _make_parse_check(_parse_cidr)
    yield "ip", True, [text], text, lambda cidr: str(_parse_cidr(cidr).ip)
    yield "containsIP", True, [text, text], boolean, lambda cidr, ip: _parse_address(ip) in _parse_cidr(cidr).network
    yield "containsCIDR", True, [text, text], boolean, _contains_network
    yield "prefixLength", True, [text], integer, lambda cidr: _parse_cidr(cidr).network.prefixlen
    yield "masked", True, [text], text, lambda cidr: str(_parse_cidr(cidr).network)


def _make_parse_check(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return check


def _canonical_quantity(text: str) -> str:
    return str(Fraction(parse_quantity(text), NANO))


def _compare_quantities(first_text: str, second_text: str) -> int:
    first_amount, second_amount = Fraction(first_text), Fraction(second_text)
    return (first_amount > second_amount) - (first_amount < second_amount)


def _index_of(list_items: Sequence[Any], wanted_item: Any) -> int:
    wanted_value = _comparable_value(wanted_item)
    return next((i for i, each in enumerate(list_items) if _comparable_value(each) == wanted_value), -1)


def _last_index_of(list_items: Sequence[Any], wanted_item: Any) -> int:
    wanted_value = _comparable_value(wanted_item)
    return next((i for i in range(len(list_items) - 1, -1, -1) if _comparable_value(list_items[i]) == wanted_value), -1)


def _comparable_set(items: Iterable[Any]) -> set[Any]:
    """Return list items as a set with CEL's equality, in which true and 1 differ."""
    return {_comparable_value(each) for each in items}


def _comparable_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return ("map", frozenset((_comparable_value(key), _comparable_value(each)) for key, each in value.items()))
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        return (isinstance(value, bool), value)
    return ("list", tuple(map(_comparable_value, value)))


def _first_matches(text: str, pattern: str, count: int) -> list[str]:
    return list(islice(find_matches(pattern, text), count if count >= 0 else None))


def _checked_url(text: str) -> str:
    url_parts = urlsplit(text)
    if not (url_parts.scheme and url_parts.netloc) and not text.startswith("/"):
        raise ValueError(f"{text!r} is not a URL: neither absolute nor a path")
    return text


def _parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse an address; as in Kubernetes, one with a zone or an IPv4-mapped one raises ValueError."""
    return _checked_address(ipaddress.ip_address(text), text)


def _parse_cidr(text: str) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface:
    if _CIDR_PATTERN.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not an address with a prefix length, such as 10.0.0.0/8")
    interface = ipaddress.ip_interface(text)
    _checked_address(interface.ip, text)
    return interface


def _checked_address(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, text: str
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    if isinstance(address, ipaddress.IPv6Address) and (address.scope_id or address.ipv4_mapped):
        raise ValueError(f"IP address {text!r} with a zone, or mapped from IPv4, is not allowed")
    return address


def _is_link_local_multicast(text: str) -> bool:
    address = _parse_address(text)
    if isinstance(address, ipaddress.IPv4Address):
        return address in _IPV4_LINK_LOCAL_MULTICAST
    return address.packed[0] == 0xFF and address.packed[1] & 0x0F == 0x02  # ff?2::


def _is_global_unicast(text: str) -> bool:
    address = _parse_address(text)
    has_other_scope = address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local
    return not has_other_scope and address != _IPV4_BROADCAST


def _contains_network(outer_text: str, inner_text: str) -> bool:
    outer_network, inner_network = _parse_cidr(outer_text).network, _parse_cidr(inner_text).network
    is_subnet = outer_network.version == inner_network.version and inner_network.prefixlen >= outer_network.prefixlen
    return is_subnet and inner_network.network_address in outer_network


# Compilation and evaluation of CEL expressions in rules of CustomResourceDefinitions.
#
# Sources: k8s.io/apiserver, pkg/cel/library, and k8s.io/apiextensions-apiserver, pkg/apiserver/schema/cel.


#: Kubernetes functions that are not implemented: a rule that calls one is accepted but not checked. `all`, `exists` and
#: `existsOne` are undeclared only with two variables. `lists` stands for `lists.range`.
UNIMPLEMENTED_FUNCTIONS: Final = frozenset(
    {
        *("authorizer", "format", "isSemver", "semver"),
        *("all", "exists", "existsOne", "transformList", "transformMap", "transformMapEntry"),
        *("distinct", "flatten", "lists", "slice", "sort", "sortBy", "unwrap", "unwrapOpt"),
    }
)
_UNKNOWN_FUNCTION: Final = re.compile(r"(?:undeclared reference to|no matching overload for) '([^']*)'")
_ALLOWED_RESULT_TYPES: Final = ("BOOL", "DYN")


class CompiledExpression(NamedTuple):
    """A compiled CEL expression, and whether it uses `oldSelf`."""

    program: Any
    #: Whether it uses `oldSelf`.
    uses_old_self: bool


class NotCompiled(ValueError):  # noqa: N818 - named after the condition
    """A CEL expression does not compile; `unimplemented_names` lists the unimplemented functions that it uses."""

    def __init__(self, message: str, unimplemented_names: str = "") -> None:
        super().__init__(message)
        self.unimplemented_names = unimplemented_names


def compile_cel_rule(text: str, *, is_old_self_optional: bool) -> CompiledExpression:
    """Compile a CEL validation rule. Raises NotCompiled if it is invalid or cannot evaluate to a bool.

    If `is_old_self_optional`, `oldSelf` is an optional value, as `optionalOldSelf` requires.
    """
    compiled_rule = compile_expression(text, is_old_self_optional=is_old_self_optional)
    if compiled_rule.program.return_type().name() not in _ALLOWED_RESULT_TYPES:
        raise NotCompiled("must evaluate to a bool")
    return compiled_rule


def compile_expression(text: str, *, is_old_self_optional: bool) -> CompiledExpression:
    """Compile a CEL expression over `self` and `oldSelf`. Raises NotCompiled if it is invalid.

    If `is_old_self_optional`, the program reads `oldSelf` as a list that holds the old value, or is empty without one.
    """
    try:
        return CompiledExpression(_cel_environment(with_old_self=False).compile(text), uses_old_self=False)
    except RuntimeError:
        pass
    environment = _cel_environment(with_old_self=True)
    try:
        program = environment.compile(text)
        if is_old_self_optional:
            program = environment.compile(_bind_optional_old_self(text))
        return CompiledExpression(program, uses_old_self=True)
    except RuntimeError as error:
        unknown_functions = dict.fromkeys(_UNKNOWN_FUNCTION.findall(str(error)))
        unimplemented_names = ", ".join(name for name in unknown_functions if name in UNIMPLEMENTED_FUNCTIONS)
        raise NotCompiled(f"compilation failed: {error}", unimplemented_names) from error


def evaluate_program(program: Any, variables: Mapping[str, Any]) -> tuple[Any, str]:
    """Evaluate a CEL program; return the result and '', or None and the error."""
    try:
        result = program.eval(data=variables)
    except RuntimeError as error:  # the library's iteration limit
        return None, f"call cost exceeds limit: {error}"
    if result.type() == cel.Type.ERROR:
        return None, str(result.plain_value()).partition(": ")[2]
    return result.plain_value(), ""


def _bind_optional_old_self(text: str) -> str:
    return f"cel.bind(oldSelf, oldSelf == [] ? optional.none() : optional.of(oldSelf[0]), {text}\n)"


@cache
def _cel_environment(*, with_old_self: bool) -> Any:
    variables = {"self": cel.Type.DYN}
    if with_old_self:
        variables["oldSelf"] = cel.Type.DYN
    extensions = [ExtBindings(), ExtEncoders(), ExtMath(), ExtOptional(), ExtStrings(), kubernetes_functions()]
    return cel.NewEnv(variables=variables, extensions=extensions)


# Conversion of values for CEL: escaped field names, and doubles for numbers.
#
# Source: k8s.io/apiserver, pkg/cel/escaping.go and k8s.io/apiextensions-apiserver, pkg/apiserver/schema/cel/values.go.


_RESERVED_WORDS: Final = frozenset(
    {
        *("true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import"),
        *("let", "loop", "package", "namespace", "return", "var", "void", "while"),
    }
)
_FIELD_NAME_ESCAPES: Final = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
_ESCAPED_CHARACTERS: Final = re.compile(r"__|[.\-/]")


def cel_value(value: Any, schema: Schema) -> Any:
    """Convert a value to its CEL form: with escaped names of declared fields, and doubles where the type is `number`.

    Fields that the schema does not declare are left out, except in maps and in objects of unknown structure.
    """
    if not schema:
        return value
    if isinstance(value, Mapping):
        return _cel_object(value, schema)
    if isinstance(value, list):
        item_schema = items_schema(schema)
        return [cel_value(each, item_schema) for each in value]
    if schema.get("type") == "number" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value


def escape_field_name(name: str) -> str:
    """Return a field name as CEL expressions write it, such as `a__dot__b` for `a.b`."""
    if name in _RESERVED_WORDS:
        return f"__{name}__"
    return _ESCAPED_CHARACTERS.sub(lambda match: _FIELD_NAME_ESCAPES[match[0]], name)


def _cel_object(value: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    schemas, additional_schema = properties(schema), additional_properties_schema(schema)
    if additional_schema is not None or (not schemas and schema.get(PRESERVE_UNKNOWN_FIELDS)):
        return {name: cel_value(each, additional_schema or {}) for name, each in value.items()}
    return {escape_field_name(name): cel_value(each, schemas[name]) for name, each in value.items() if name in schemas}


# Upper bounds on the cost of rules, from their text and the size of their input.


_BASE_STEPS: Final = 100  # steps of an evaluation before its first iteration
_ITERATIONS_MAX: Final = 10_000  # limit of the CEL library for one evaluation
_CHARACTERS_PER_STEP: Final = 100  # characters that an iteration may concatenate in one step
_BRACKET_PATTERN: Final = re.compile(r"(?:(?<!\w)(\w++)\s*+)?\(|\)")
_ITERATING_FUNCTIONS: Final = frozenset({"all", "exists", "exists_one", "existsOne", "filter", "map"})


class InputSize(NamedTuple):
    """The size of the value that a CEL rule reads: the number of values, and of characters in their strings."""

    value_count: int
    character_count: int


class RuleBudget:
    """The cost budget for the CEL rules of one object, in evaluation steps: about one second of CPU time.

    Steps are estimated from the nesting of iterations and the input size. Upstream counts actual steps, with the same
    limit of a second. Source: k8s.io/apiserver, pkg/apis/cel/config.go.
    """

    def __init__(self) -> None:
        self._remaining_steps = 10_000_000

    def spend(self, depth: int, size: InputSize) -> bool:
        """Deduct the cost of one rule evaluation from the budget; return whether the budget sufficed."""
        steps = min(size.value_count**depth, _ITERATIONS_MAX)
        self._remaining_steps -= _BASE_STEPS + (
            steps * (1 + size.character_count // _CHARACTERS_PER_STEP) if depth else 0
        )
        return self._remaining_steps >= 0


def iteration_depth(text: str) -> int:
    """Return the maximum nesting of iterations in a CEL expression; parentheses in strings count too."""
    open_brackets: list[bool] = []
    depth_max = 0
    for bracket in _BRACKET_PATTERN.finditer(text):
        if bracket[0] == ")":
            del open_brackets[-1:]
        else:
            open_brackets.append(bracket[1] in _ITERATING_FUNCTIONS)
            depth_max = max(depth_max, sum(open_brackets))
    return depth_max


def input_size(value: Any) -> InputSize:
    """Return the number of values in a value, including itself, and of characters in their strings."""
    value_count, character_count, pending_values = 0, 0, [value]
    while pending_values:
        each = pending_values.pop()
        value_count += 1
        if isinstance(each, Mapping):
            pending_values += each.values()
        elif isinstance(each, list):
            pending_values += each
        elif isinstance(each, str):
            character_count += len(each)
    return InputSize(value_count, character_count)


NO_OLD_VALUE: Final = object()
"""Stands for the missing old value of a new object."""

_BUDGET_EXCEEDED: Final = "validation failed due to running out of cost budget, no further validation rules will be run"


class ValidationRule(NamedTuple):
    """A compiled CEL validation rule and its definition in the schema."""

    definition: Mapping[str, Any]
    program: Any
    uses_old_self: bool
    #: The program of messageExpression; None without one.
    message_program: Any
    #: The maximum nesting of iterations.
    depth: int

    @property
    def runs_without_old_value(self) -> bool:
        """Whether a transition rule also runs without an old value (`optionalOldSelf`)."""
        return _has_optional_old_self(self.definition)


class _BudgetExceeded(Exception):  # noqa: N818 - named after the condition
    """The CEL rules of an object exceed their cost budget; carries the error to report."""


class ValidationRules:
    """The CEL validation rules of a schema and of the schemas nested in it, as far as they compile."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._value_rules = [
            rule for definition in schema.get(VALIDATION_RULES) or () if (rule := _compile_rule(definition)) is not None
        ]
        self._iterates = any(rule.depth for rule in self._value_rules)
        self._field_rules = {
            name: ValidationRules(field_schema)
            for name, field_schema in properties(schema).items()
            if uses_keyword(field_schema, VALIDATION_RULES)
        }
        additional_schema, item_schema = additional_properties_schema(schema), items_schema(schema)
        self._additional_rules = (
            ValidationRules(additional_schema)
            if additional_schema and uses_keyword(additional_schema, VALIDATION_RULES)
            else None
        )
        self._item_rules = ValidationRules(item_schema) if uses_keyword(item_schema, VALIDATION_RULES) else None

    def rule_errors(self, value: Any, old: Any) -> Iterator[FieldError]:
        """Yield the errors that the CEL rules report for an object; `old` is its previous value, or NO_OLD_VALUE."""
        try:
            yield from self._value_errors(value, old, "", RuleBudget())
        except _BudgetExceeded as error:
            yield error.args[0]

    def _value_errors(self, value: Any, old: Any, path: str, budget: RuleBudget) -> Iterator[FieldError]:
        if value is None:
            return
        if self._value_rules:
            yield from self._rule_errors(value, old, path, budget)
        if isinstance(value, Mapping):
            yield from self._field_errors(value, old, path, budget)
        elif isinstance(value, list) and self._item_rules is not None:
            old_items = self._old_items_by_key(old)
            keys: Sequence[str] = self._schema.get(MAP_KEYS) or ()
            for i, each in enumerate(value):
                old_item = (
                    old_items.get(list_item_identity(each, keys, items_schema(self._schema)), NO_OLD_VALUE)
                    if old_items
                    else NO_OLD_VALUE
                )
                yield from self._item_rules._value_errors(each, old_item, f"{path}[{i}]", budget)

    def _field_errors(self, value: Mapping[str, Any], old: Any, path: str, budget: RuleBudget) -> Iterator[FieldError]:
        is_correlated = isinstance(old, Mapping) and self._schema.get(MAP_TYPE) != "atomic"
        for name, each in value.items():
            rules = self._field_rules.get(name, self._additional_rules)
            if rules is not None:
                old_field = old.get(name, NO_OLD_VALUE) if is_correlated else NO_OLD_VALUE
                yield from rules._value_errors(each, old_field, f"{path}.{name}" if path else name, budget)

    def _old_items_by_key(self, old: Any) -> dict[Any, Any]:
        if self._schema.get(LIST_TYPE) != "map" or not isinstance(old, list):
            return {}
        return {
            list_item_identity(each, self._schema.get(MAP_KEYS) or (), items_schema(self._schema)): each for each in old
        }

    def _rule_errors(self, value: Any, old: Any, path: str, budget: RuleBudget) -> Iterator[FieldError]:
        new_value, old_value = cel_value(value, self._schema), None
        optional_old_value = []
        if old is not NO_OLD_VALUE:
            old_value = cel_value(old, self._schema)
            optional_old_value = [old_value]
        size = input_size([value, old_value] if self._iterates else None)
        for rule in self._value_rules:
            if not rule.uses_old_self or rule.runs_without_old_value or old is not NO_OLD_VALUE:
                if not budget.spend(rule.depth, size):
                    problem = f"Invalid value: {self._quoted_type()}: {_BUDGET_EXCEEDED}"
                    raise _BudgetExceeded(FieldError(path or "<nil>", problem))
                old_self = optional_old_value if rule.runs_without_old_value else old_value
                yield from self._evaluate_rule(rule, {"self": new_value, "oldSelf": old_self}, path)

    def _evaluate_rule(self, rule: ValidationRule, variables: Mapping[str, Any], path: str) -> Iterator[FieldError]:
        result, error = evaluate_program(rule.program, variables)
        if result is True:
            return
        quoted_type, reason = self._quoted_type(), rule.definition.get("reason", "FieldValueInvalid")
        field_path = f"{path}{rule.definition.get('fieldPath', '')}".removeprefix(".") or "<nil>"
        message = _rule_message(rule, variables)
        if error:
            yield FieldError(field_path, f"Invalid value: {quoted_type}: {error} evaluating rule: {message}")
            return
        message_prefix = {
            "FieldValueRequired": "Required value: ",
            "FieldValueForbidden": "Forbidden: ",
            "FieldValueDuplicate": "Duplicate value: ",
        }.get(reason, f"Invalid value: {quoted_type}: ")
        yield FieldError(field_path, message_prefix + message)

    def _quoted_type(self) -> str:
        return format_json(self._schema.get("type", "object"))


def _has_optional_old_self(definition: Mapping[str, Any]) -> bool:
    return bool(definition.get("optionalOldSelf"))


def find_compilation_problems(definition: Mapping[str, Any]) -> tuple[str, str]:
    """Return (compilation error, unimplemented functions used) for a CEL validation rule; ('', '') if it is valid."""
    try:
        compile_cel_rule(definition["rule"], is_old_self_optional=_has_optional_old_self(definition))
        if definition.get("messageExpression"):
            compile_expression(definition["messageExpression"], is_old_self_optional=_has_optional_old_self(definition))
    except NotCompiled as error:
        return ("", error.unimplemented_names) if error.unimplemented_names else (str(error), "")
    return "", ""


def _compile_rule(definition: Mapping[str, Any]) -> ValidationRule | None:
    """Compile a CEL validation rule; return None if that fails, for example if it calls an unimplemented function."""
    try:
        is_optional = _has_optional_old_self(definition)
        cel_rule = compile_cel_rule(definition["rule"], is_old_self_optional=is_optional)
        message_expression, message_program = definition.get("messageExpression"), None
        if message_expression:
            message_program = compile_expression(message_expression, is_old_self_optional=is_optional).program
    except NotCompiled:
        return None
    depth = iteration_depth(definition["rule"])
    return ValidationRule(definition, cel_rule.program, cel_rule.uses_old_self, message_program, depth)


def _rule_message(rule: ValidationRule, variables: Mapping[str, Any]) -> str:
    if rule.message_program is not None:
        evaluated_message, _ = evaluate_program(rule.message_program, variables)
        if isinstance(evaluated_message, str) and evaluated_message.strip() and "\n" not in evaluated_message:
            return evaluated_message.strip()
    default_message: str = rule.definition.get("message") or f"failed rule: {rule.definition['rule'].strip()}"
    return default_message
