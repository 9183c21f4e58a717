"""Validation rules of schemas in the Common Expression Language: `x-kubernetes-validations`.

Rules are compiled once, when a definition is first served. A transition rule (with `oldSelf`) runs only if an old value
exists and can be correlated: in fields, maps, and lists with keys.
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
from batchyard.api.meta import NANO, parse
from batchyard.api.patterns import found
from batchyard.api.validation.rules import printed
from batchyard.apiserver.crd.values import (
    LIST_TYPE,
    MAP_KEYS,
    MAP_TYPE,
    PRESERVES,
    RULES,
    Schema,
    additional,
    has_somewhere,
    identity,
    items,
    properties,
)

# --- cel functions ---
#
# The CEL extension functions of Kubernetes: lists, sets, strings, quantities, URLs and addresses.
#
# Quantities, URLs, addresses and networks are represented by canonical strings, so that equal values compare equal.
# Source: k8s.io/apiserver, pkg/cel/library.


_T: Final = cel.Type
# --- cel ---
#
# The Common Expression Language for rules of CustomResourceDefinitions. Importing it loads the CEL library.
#
# Sources: k8s.io/apiserver, pkg/cel/library, and k8s.io/apiextensions-apiserver, pkg/apiserver/schema/cel.


_ANY: Final = _T.DYN
_LIST: Final = _T.List(_T.DYN)


def further_functions() -> Any:
    """Return all functions as an extension of the CEL library."""
    by_name: dict[str, list[Any]] = {}
    for name, is_member, parameters, result, call in _all():
        overloads = by_name.setdefault(name, [])
        key = f"{name}_{len(overloads)}"
        overloads.append(cel.Overload(key, result, parameters, is_member, call))
    return cel.CelExtension("kubernetes", [cel.FunctionDecl(name, each) for name, each in by_name.items()])


def _all() -> Iterator[tuple[str, bool, list[Any], Any, Callable[..., Any]]]:
    """Yield name, whether it is a member function, parameter types, result type and implementation."""
    text, whole, truth, real = _T.STRING, _T.INT, _T.BOOL, _T.DOUBLE
    yield "isSorted", True, [_LIST], truth, lambda each: list(each) == sorted(each)
    yield "sum", True, [_LIST], _ANY, sum
    yield "min", True, [_LIST], _ANY, min
    yield "max", True, [_LIST], _ANY, max
    yield "indexOf", True, [_LIST, _ANY], whole, _index
    yield "lastIndexOf", True, [_LIST, _ANY], whole, _last_index
    yield "sets.contains", False, [_LIST, _LIST], truth, lambda a, b: _members(a) >= _members(b)
    yield "sets.intersects", False, [_LIST, _LIST], truth, lambda a, b: not _members(a).isdisjoint(_members(b))
    yield "sets.equivalent", False, [_LIST, _LIST], truth, lambda a, b: _members(a) == _members(b)
    yield "find", True, [text, text], text, lambda where, what: next(found(what, where), "")
    yield "findAll", True, [text, text], _T.List(text), lambda where, what: list(found(what, where))
    yield "findAll", True, [text, text, whole], _T.List(text), _first_found
    yield "quantity", False, [text], text, _quantity
    yield "isQuantity", False, [text], truth, _reads(_quantity)
    yield "isInteger", True, [text], truth, lambda a: Fraction(a).denominator == 1
    yield "asInteger", True, [text], whole, int
    yield "asApproximateFloat", True, [text], real, lambda a: float(Fraction(a))
    yield "sign", True, [text], whole, lambda a: _compared(a, "0")
    yield "add", True, [text, text], text, lambda a, b: str(Fraction(a) + Fraction(b))
    yield "add", True, [text, whole], text, lambda a, b: str(Fraction(a) + b)
    yield "sub", True, [text, text], text, lambda a, b: str(Fraction(a) - Fraction(b))
    yield "sub", True, [text, whole], text, lambda a, b: str(Fraction(a) - b)
    yield "isGreaterThan", True, [text, text], truth, lambda a, b: _compared(a, b) > 0
    yield "isLessThan", True, [text, text], truth, lambda a, b: _compared(a, b) < 0
    yield "compareTo", True, [text, text], whole, _compared
    yield from _of_places()


def _of_places() -> Iterator[tuple[str, bool, list[Any], Any, Callable[..., Any]]]:
    """Yield the functions of URLs, addresses and networks."""
    text, whole, truth = _T.STRING, _T.INT, _T.BOOL
    yield "url", False, [text], text, _url
    yield "isURL", False, [text], truth, _reads(_url)
    yield "getScheme", True, [text], text, lambda url: urlsplit(url).scheme
    yield "getHost", True, [text], text, lambda url: urlsplit(url).netloc.rpartition("@")[2]
    yield "getHostname", True, [text], text, lambda url: urlsplit(url).hostname or ""
    yield "getPort", True, [text], text, lambda url: str(urlsplit(url).port or "")
    yield "getEscapedPath", True, [text], text, lambda url: urlsplit(url).path
    yield "getQuery", True, [text], _T.Map(text, _T.List(text)), lambda url: parse_qs(urlsplit(url).query)
    yield "ip", False, [text], text, lambda address: str(ipaddress.ip_address(address))
    yield "isIP", False, [text], truth, _reads(ipaddress.ip_address)
    yield "family", True, [text], whole, lambda address: ipaddress.ip_address(address).version
    yield "isLoopback", True, [text], truth, lambda address: ipaddress.ip_address(address).is_loopback
    yield "isUnspecified", True, [text], truth, lambda address: ipaddress.ip_address(address).is_unspecified
    yield "cidr", False, [text], text, lambda network: str(ipaddress.ip_interface(network))
    yield "isCIDR", False, [text], truth, lambda network: "/" in network and _reads(ipaddress.ip_interface)(network)
    yield "containsIP", True, [text, text], truth, lambda network, it: ipaddress.ip_address(it) in _network(network)
    yield "containsCIDR", True, [text, text], truth, _contains_network
    yield "prefixLength", True, [text], whole, lambda network: _network(network).prefixlen
    yield "masked", True, [text], text, lambda network: str(_network(network))


def _reads(read: Callable[[str], object]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            read(text)
        except ValueError:
            return False
        return True

    return check


def _quantity(text: str) -> str:
    return str(Fraction(parse(text), NANO))


def _compared(one: str, other: str) -> int:
    first, second = Fraction(one), Fraction(other)
    return (first > second) - (first < second)


def _index(items: Sequence[Any], wanted: Any) -> int:
    sought = _member(wanted)
    return next((i for i, each in enumerate(items) if _member(each) == sought), -1)


def _last_index(items: Sequence[Any], wanted: Any) -> int:
    sought = _member(wanted)
    return next((i for i in range(len(items) - 1, -1, -1) if _member(items[i]) == sought), -1)


def _members(items: Iterable[Any]) -> set[Any]:
    """Return list items as a set with CEL's equality, in which true and 1 differ."""
    return {_member(each) for each in items}


def _member(value: Any) -> Any:
    if isinstance(value, Mapping):
        return ("map", frozenset((_member(key), _member(each)) for key, each in value.items()))
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        return (isinstance(value, bool), value)
    return ("list", tuple(map(_member, value)))


def _first_found(where: str, what: str, count: int) -> list[str]:
    return list(islice(found(what, where), count if count >= 0 else None))


def _url(text: str) -> str:
    parts = urlsplit(text)
    if not (parts.scheme and parts.netloc) and not text.startswith("/"):
        raise ValueError(f"{text!r} is not a URL: neither absolute nor a path")
    return text


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    return ipaddress.ip_network(text, strict=False)


def _contains_network(outer: str, inner: str) -> bool:
    one, other = _network(outer), _network(inner)
    return one.version == other.version and other.prefixlen >= one.prefixlen and other.network_address in one


#: Kubernetes functions that are not implemented.
LACKING: Final = frozenset(
    {"authorizer", "format", "isSemver", "semver", "transformList", "transformMap", "transformMapEntry"}
)
_MISSING: Final = re.compile(r"(?:undeclared reference to|no matching overload for) '([^']*)'")
_RESULTS: Final = ("BOOL", "DYN")


class Expression(NamedTuple):
    """A compiled expression."""

    program: Any
    #: Whether it uses `oldSelf`; such a rule is skipped on creation.
    uses_old: bool


class NotCompiled(ValueError):  # noqa: N818 - named after the condition
    """An expression does not compile; `lacking` lists the unimplemented functions that it uses."""

    def __init__(self, message: str, lacking: str = "") -> None:
        super().__init__(message)
        self.lacking = lacking


def rule(text: str, *, optional_old: bool) -> Expression:
    """Compile a rule. Raises NotCompiled if it is invalid."""
    found = expression(_with_optional_old(text) if optional_old else text)
    if found.program.return_type().name() not in _RESULTS:
        raise NotCompiled("must evaluate to a bool")
    return found


def expression(text: str) -> Expression:
    """Compile an expression over `self` and `oldSelf`. Raises NotCompiled if it is invalid."""
    try:
        return Expression(_environment(with_old=False).compile(text), uses_old=False)
    except RuntimeError:
        pass
    try:
        return Expression(_environment(with_old=True).compile(text), uses_old=True)
    except RuntimeError as error:
        missing = dict.fromkeys(_MISSING.findall(str(error)))
        lacking = ", ".join(name for name in missing if name in LACKING)
        raise NotCompiled(f"compilation failed: {error}", lacking) from error


def evaluated(program: Any, variables: Mapping[str, Any]) -> tuple[Any, str]:
    """Evaluate a program; return the result and '', or None and the error."""
    try:
        result = program.eval(data=variables)
    except RuntimeError as error:  # the library's iteration limit
        return None, f"call cost exceeds limit: {error}"
    if result.type() == cel.Type.ERROR:
        return None, str(result.plain_value()).partition(": ")[2]
    return result.plain_value(), ""


def _with_optional_old(text: str) -> str:
    return f"cel.bind(oldSelf, wasThere ? optional.of(before) : optional.none(), {text}\n)"


@cache
def _environment(*, with_old: bool) -> Any:
    variables = {"self": cel.Type.DYN, "before": cel.Type.DYN, "wasThere": cel.Type.BOOL}
    if with_old:
        variables["oldSelf"] = cel.Type.DYN
    extensions = [ExtBindings(), ExtEncoders(), ExtMath(), ExtOptional(), ExtStrings(), further_functions()]
    return cel.NewEnv(variables=variables, extensions=extensions)


# --- cel values ---
#
# Conversion of values for CEL: escaped field names, and doubles for numbers.
#
# Source: k8s.io/apiserver, pkg/cel/escaping.go and k8s.io/apiextensions-apiserver, pkg/apiserver/schema/cel/values.go.


_WORDS: Final = frozenset(
    {
        *("true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import"),
        *("let", "loop", "package", "namespace", "return", "var", "void", "while"),
    }
)
_SIGNS: Final = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
_SIGN: Final = re.compile(r"__|[.\-/]")


def cel_value(value: Any, schema: Schema) -> Any:
    """Convert a value of a schema for CEL."""
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
    """Return a field name as escaped in CEL."""
    if name in _WORDS:
        return f"__{name}__"
    return _SIGN.sub(lambda found: _SIGNS[found[0]], name)


def _object(value: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    known, rest = properties(schema), additional(schema)
    if rest is not None or (not known and schema.get(PRESERVES)):
        return {name: cel_value(each, rest or {}) for name, each in value.items()}
    return {escaped(name): cel_value(each, known[name]) for name, each in value.items() if name in known}


# --- rule costs ---
#
# Upper bounds on the cost of rules, from their text and the size of their input.


_BEGINNING: Final = 100  # steps of an evaluation before its first iteration
_ITERATIONS: Final = 10_000  # limit of the CEL library for one evaluation
_LETTERS: Final = 100  # characters that an iteration may concatenate in one step
_BRACKET: Final = re.compile(r"(?:(?<!\w)(\w++)\s*+)?\(|\)")
_ITERATING: Final = frozenset({"all", "exists", "exists_one", "existsOne", "filter", "map"})


class Size(NamedTuple):
    """The number of values and of characters in their strings."""

    values: int
    letters: int


class Budget:
    """The cost budget for the rules of one object, in steps: about one second of CPU time.

    Steps are an upper bound, from nesting of iterations and input size. Upstream counts actual steps, with the same
    limit of a second. Source: k8s.io/apiserver, pkg/apis/cel/config.go.
    """

    def __init__(self) -> None:
        self._left = 10_000_000

    def spend(self, depth: int, size: Size) -> bool:
        """Spend the cost of one evaluation; return whether the budget sufficed."""
        steps = min(size.values**depth, _ITERATIONS)
        self._left -= _BEGINNING + (steps * (1 + size.letters // _LETTERS) if depth else 0)
        return self._left >= 0


def depth_of(text: str) -> int:
    """Return the maximum nesting of iterations in an expression; parentheses in string literals count too."""
    open_: list[bool] = []
    deepest = 0
    for bracket in _BRACKET.finditer(text):
        if bracket[0] == ")":
            del open_[-1:]
        else:
            open_.append(bracket[1] in _ITERATING)
            deepest = max(deepest, sum(open_))
    return deepest


def size_of(value: Any) -> Size:
    """Return the size of a value, including itself."""
    values, letters, left = 0, 0, [value]
    while left:
        each = left.pop()
        values += 1
        if isinstance(each, Mapping):
            left += each.values()
        elif isinstance(each, list):
            left += each
        elif isinstance(each, str):
            letters += len(each)
    return Size(values, letters)


NO_OLD_VALUE: Final = object()
"""Marks the absence of an old value."""

_SPENT: Final = "validation failed due to running out of cost budget, no further validation rules will be run"


class ValidationRule(NamedTuple):
    """A compiled rule and its definition."""

    written: Mapping[str, Any]
    program: Any
    uses_old: bool
    #: The program of messageExpression; None without one.
    message: Any
    #: The maximum nesting of iterations.
    depth: int

    @property
    def takes_none(self) -> bool:
        """Whether a transition rule also runs without an old value."""
        return bool(self.written.get("optionalOldSelf"))


class _Spent(Exception):  # noqa: N818 - named after the condition
    """The budget is exhausted; carries the error to report."""


class ValidationRules:
    """The rules of a value and of everything below it."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._own = [rule for written in schema.get(RULES) or () if (rule := _compiled(written)) is not None]
        self._iterates = any(rule.depth for rule in self._own)
        self._fields = {
            name: ValidationRules(of) for name, of in properties(schema).items() if has_somewhere(of, RULES)
        }
        rest, item = additional(schema), items(schema)
        self._rest = ValidationRules(rest) if rest and has_somewhere(rest, RULES) else None
        self._item = ValidationRules(item) if has_somewhere(item, RULES) else None

    def faults(self, value: Any, old: Any) -> Iterator[FieldError]:
        """Yield the errors of an object; `old` is its previous value, or NOTHING."""
        try:
            yield from self._faults(value, old, "", Budget())
        except _Spent as spent:
            yield spent.args[0]

    def _faults(self, value: Any, old: Any, path: str, budget: Budget) -> Iterator[FieldError]:
        if value is None:
            return
        if self._own:
            yield from self._own_faults(value, old, path, budget)
        if isinstance(value, Mapping):
            yield from self._faults_of_fields(value, old, path, budget)
        elif isinstance(value, list) and self._item is not None:
            before = self._known_items(old)
            keys: Sequence[str] = self._schema.get(MAP_KEYS) or ()
            for i, each in enumerate(value):
                was = before.get(identity(each, keys, items(self._schema)), NO_OLD_VALUE) if before else NO_OLD_VALUE
                yield from self._item._faults(each, was, f"{path}[{i}]", budget)

    def _faults_of_fields(self, value: Mapping[str, Any], old: Any, path: str, budget: Budget) -> Iterator[FieldError]:
        is_known = isinstance(old, Mapping) and self._schema.get(MAP_TYPE) != "atomic"
        for name, each in value.items():
            rules = self._fields.get(name, self._rest)
            if rules is not None:
                was = old.get(name, NO_OLD_VALUE) if is_known else NO_OLD_VALUE
                yield from rules._faults(each, was, f"{path}.{name}" if path else name, budget)

    def _known_items(self, old: Any) -> dict[Any, Any]:
        """Return the old items by their key."""
        if self._schema.get(LIST_TYPE) != "map" or not isinstance(old, list):
            return {}
        return {identity(each, self._schema.get(MAP_KEYS) or (), items(self._schema)): each for each in old}

    def _own_faults(self, value: Any, old: Any, path: str, budget: Budget) -> Iterator[FieldError]:
        before = None if old is NO_OLD_VALUE else cel_value(old, self._schema)
        variables = {
            "self": cel_value(value, self._schema),
            "oldSelf": before,
            "before": before,
            "wasThere": old is not NO_OLD_VALUE,
        }
        size = size_of([value, before] if self._iterates else None)
        for rule in self._own:
            if not rule.uses_old or rule.takes_none or old is not NO_OLD_VALUE:
                if not budget.spend(rule.depth, size):
                    raise _Spent(FieldError(path or "<nil>", f"Invalid value: {self._shown()}: {_SPENT}"))
                yield from self._broken(rule, variables, path)

    def _broken(self, rule: ValidationRule, variables: Mapping[str, Any], path: str) -> Iterator[FieldError]:

        holds, wrong = evaluated(rule.program, variables)
        if holds is True:
            return
        shown, reason = self._shown(), rule.written.get("reason", "FieldValueInvalid")
        at = f"{path}{rule.written.get('fieldPath', '')}".removeprefix(".") or "<nil>"
        if wrong:
            yield FieldError(at, f"Invalid value: {shown}: {wrong} evaluating rule: {_message(rule, variables)}")
            return
        begun = {
            "FieldValueRequired": "Required value: ",
            "FieldValueForbidden": "Forbidden: ",
            "FieldValueDuplicate": "Duplicate value: ",
        }.get(reason, f"Invalid value: {shown}: ")
        yield FieldError(at, begun + _message(rule, variables))

    def _shown(self) -> str:
        return printed(self._schema.get("type", "object"))


def check_rule(written: Mapping[str, Any]) -> tuple[str, str]:
    """Return the compilation error of a rule, or the unimplemented functions that it uses; both empty if valid."""
    try:
        rule(written["rule"], optional_old=bool(written.get("optionalOldSelf")))
        if written.get("messageExpression"):
            expression(written["messageExpression"])
    except NotCompiled as error:
        return ("", error.lacking) if error.lacking else (str(error), "")
    return "", ""


def _compiled(written: Mapping[str, Any]) -> ValidationRule | None:
    """Compile a rule; None if it uses unimplemented functions, about which its definition got a warning."""
    try:
        found = rule(written["rule"], optional_old=bool(written.get("optionalOldSelf")))
        reported = written.get("messageExpression")
        message = expression(reported).program if reported else None
    except NotCompiled:
        return None
    return ValidationRule(written, found.program, found.uses_old, message, depth_of(written["rule"]))


def _message(rule: ValidationRule, variables: Mapping[str, Any]) -> str:
    """Return the message of a failed rule."""
    if rule.message is not None:
        made, _ = evaluated(rule.message, variables)
        if isinstance(made, str) and made.strip() and "\n" not in made:
            return made.strip()
    written: str = rule.written.get("message") or f"failed rule: {rule.written['rule'].strip()}"
    return written
