"""What the CEL expressions of validation rules and of admission policies share: Kubernetes' functions, and cost bounds.

Source: k8s.io/apiserver, pkg/cel/library and pkg/apis/cel/config.go.
"""

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import islice, zip_longest
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

from cel_expr_python import cel
from cel_expr_python.ext.ext_bindings import ExtBindings
from cel_expr_python.ext.ext_encoders import ExtEncoders
from cel_expr_python.ext.ext_math import ExtMath
from cel_expr_python.ext.ext_optional import ExtOptional
from cel_expr_python.ext.ext_strings import ExtStrings

from batchyard.api.meta import NANO, parse_quantity
from batchyard.api.patterns import find_matches

BUDGET_EXCEEDED: Final = "validation failed due to running out of cost budget, no further validation rules will be run"
#: Words that are not identifiers in CEL.
RESERVED_WORDS: Final = frozenset(
    {
        *("true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import"),
        *("let", "loop", "package", "namespace", "return", "var", "void", "while"),
    }
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


def new_environment(*variables: str) -> Any:
    """Return an environment that compiles expressions over variables of any type, with the functions of Kubernetes."""
    extensions = [ExtBindings(), ExtEncoders(), ExtMath(), ExtOptional(), ExtStrings(), kubernetes_functions()]
    return cel.NewEnv(variables=dict.fromkeys(variables, cel.Type.DYN), extensions=extensions)


def evaluate_program(program: Any, variables: Mapping[str, Any]) -> tuple[Any, str]:
    """Evaluate a CEL program; return the result and '', or None and the error."""
    try:
        result = program.eval(data=variables)
    except RuntimeError as error:  # the library's iteration limit
        return None, f"call cost exceeds limit: {error}"
    if result.type() == cel.Type.ERROR:
        return None, str(result.plain_value()).partition(": ")[2]
    return result.plain_value(), ""


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
    yield from _list_function_declarations()
    yield from _version_function_declarations()
    yield from _network_function_declarations()


def _list_function_declarations() -> Iterator[tuple[str, bool, list[Any], Any, Callable[..., Any]]]:
    integer = _T.INT
    yield "distinct", True, [_LIST], _LIST, _distinct_items
    yield "flatten", True, [_LIST], _LIST, lambda items: _flatten(items, 1)
    yield "flatten", True, [_LIST, integer], _LIST, _flatten
    yield "lists.range", False, [integer], _T.List(integer), _list_range
    yield "slice", True, [_LIST, integer, integer], _LIST, _slice
    yield "sort", True, [_LIST], _LIST, sorted


def _version_function_declarations() -> Iterator[tuple[str, bool, list[Any], Any, Callable[..., Any]]]:
    text, integer, boolean = _T.STRING, _T.INT, _T.BOOL
    yield "semver", False, [text], text, _checked_version
    yield "semver", False, [text, boolean], text, _normalized_version
    yield "isSemver", False, [text], boolean, _make_parse_check(_checked_version)
    yield "isSemver", False, [text, boolean], boolean, _is_version
    yield "major", True, [text], integer, lambda version: _version_numbers(version)[0]
    yield "minor", True, [text], integer, lambda version: _version_numbers(version)[1]
    yield "patch", True, [text], integer, lambda version: _version_numbers(version)[2]


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
    """Compare two quantities, or two semantic versions, whose texts are never numbers."""
    if _VERSION.fullmatch(first_text):
        return _compare_versions(first_text, second_text)
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


# Lists. Source: the extension library of cel-go, ext/lists.go.


def _distinct_items(items: Sequence[Any]) -> list[Any]:
    items_by_value: dict[Any, Any] = {}
    for each in items:
        items_by_value.setdefault(_comparable_value(each), each)
    return list(items_by_value.values())


def _flatten(items: Sequence[Any], depth: int) -> list[Any]:
    if depth < 0:
        raise ValueError("level must be non-negative")
    flat_items: list[Any] = []
    for each in items:
        flat_items += _flatten(each, depth - 1) if depth and isinstance(each, list) else [each]
    return flat_items


def _list_range(count: int) -> list[int]:
    if count > _ITERATIONS_MAX:
        raise ValueError(f"lists.range() with more than {_ITERATIONS_MAX} items")
    return list(range(count))


def _slice(items: Sequence[Any], start: int, end: int) -> list[Any]:
    if start < 0 or end < 0:
        raise ValueError(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise ValueError(f"cannot slice({start}, {end}), start index must be less than or equal to end index")
    if end > len(items):
        raise ValueError(f"cannot slice({start}, {end}), list is length {len(items)}")
    return list(items[start:end])


# Semantic versions, represented by their texts. Source: k8s.io/apiserver, pkg/cel/library/semverlib.go.


_VERSION: Final = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z.-]+)?", re.ASCII
)


def _checked_version(text: str) -> str:
    if _VERSION.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a semantic version, such as 1.2.3")
    return text


def _normalized_version(text: str, normalize: bool) -> str:
    if not normalize:
        return _checked_version(text)
    core, mark, rest = re.sub(r"([-+])", r"\n\1\n", text.removeprefix("v"), count=1).partition("\n")
    numbers = [part.lstrip("0") or "0" for part in core.split(".")]
    whole_core = ".".join([*numbers, "0", "0"][: max(3, len(numbers))])
    return _checked_version(whole_core + rest.replace("\n", "") if mark else whole_core)


def _is_version(text: str, normalize: bool) -> bool:
    return _make_parse_check(lambda each: _normalized_version(each, normalize))(text)


def _version_numbers(text: str) -> tuple[int, int, int]:
    match = _VERSION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a semantic version, such as 1.2.3")
    return int(match[1]), int(match[2]), int(match[3])


def _compare_versions(first: str, second: str) -> int:
    """Compare two versions: first their numbers, then their pre-release parts; a release is greater than those."""
    first_numbers, second_numbers = _version_numbers(first), _version_numbers(second)
    if first_numbers != second_numbers:
        return 1 if first_numbers > second_numbers else -1
    first_text, second_text = (_VERSION.sub(r"\4", each) for each in (first, second))
    if not first_text or not second_text:
        return bool(second_text) - bool(first_text)
    for left, right in zip_longest(first_text.split("."), second_text.split(".")):
        if left != right:
            return 1 if right is None or (left is not None and _part_key(left) > _part_key(right)) else -1
    return 0


def _part_key(part: str) -> tuple[bool, int, str]:
    return (False, int(part), "") if part.isdigit() else (True, 0, part)


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
