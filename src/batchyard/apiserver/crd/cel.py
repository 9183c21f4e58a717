"""The Common Expression Language, as the rules of CustomResourceDefinitions use it. Loads the library when imported.

Sources: k8s.io/apiserver, pkg/cel/library, and k8s.io/apiextensions-apiserver, pkg/apiserver/schema/cel.
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

from batchyard.api.patterns import found
from batchyard.api.quantity import NANO, parse
from batchyard.apiserver.crd.schemas import PRESERVES, Schema, additional, items, properties

# --- cel functions ---
#
# Functions that Kubernetes has beyond the language: of lists, sets, texts, quantities, URLs and addresses.
#
# A quantity, a URL, an address or a network is the text of it in one canonical form, so that equal ones are equal.
# Source: k8s.io/apiserver, pkg/cel/library.


_T: Final = cel.Type
_ANY: Final = _T.DYN
_LIST: Final = _T.List(_T.DYN)


def further_functions() -> Any:
    """All of them, as the library takes them."""
    by_name: dict[str, list[Any]] = {}
    for name, is_member, parameters, result, call in _all():
        overloads = by_name.setdefault(name, [])
        key = f"{name}_{len(overloads)}"
        overloads.append(cel.Overload(key, result, parameters, is_member, call))
    return cel.CelExtension("kubernetes", [cel.FunctionDecl(name, each) for name, each in by_name.items()])


def _all() -> Iterator[tuple[str, bool, list[Any], Any, Callable[..., Any]]]:
    """Name, whether it is called on its first parameter, types of parameters and result, and what it does."""
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
    """URLs, addresses and networks."""
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
    """The items of a list as a set: equal where the language has them equal, which true and 1 are not."""
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
        raise ValueError(f"{text!r} is no URL: it is neither absolute nor a path")
    return text


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    return ipaddress.ip_network(text, strict=False)


def _contains_network(outer: str, inner: str) -> bool:
    one, other = _network(outer), _network(inner)
    return one.version == other.version and other.prefixlen >= one.prefixlen and other.network_address in one


#: Functions that Kubernetes has and we have not.
LACKING: Final = frozenset(
    {"authorizer", "format", "isSemver", "semver", "transformList", "transformMap", "transformMapEntry"}
)
_MISSING: Final = re.compile(r"(?:undeclared reference to|no matching overload for) '([^']*)'")
_RESULTS: Final = ("BOOL", "DYN")


class Expression(NamedTuple):
    """An expression that can be evaluated."""

    program: Any
    #: Whether it compares with what was there before, and so holds where nothing was.
    uses_old: bool


class NotCompiled(ValueError):  # noqa: N818 - what it is
    """An expression cannot be used; `lacking` is what Kubernetes has for it and we have not."""

    def __init__(self, message: str, lacking: str = "") -> None:
        super().__init__(message)
        self.lacking = lacking


def rule(text: str, *, optional_old: bool) -> Expression:
    """The expression of a rule; NotCompiled if it is none."""
    found = expression(_with_optional_old(text) if optional_old else text)
    if found.program.return_type().name() not in _RESULTS:
        raise NotCompiled("must evaluate to a bool")
    return found


def expression(text: str) -> Expression:
    """An expression over `self` and `oldSelf`; NotCompiled if it is none."""
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
    """The result of a program, and what went wrong, one of them empty."""
    try:
        result = program.eval(data=variables)
    except RuntimeError as error:  # its own bounds: more steps than a rule may take
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
# Values as rules see them: fields under names that the language can say, and numbers doubles where they may be.
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
