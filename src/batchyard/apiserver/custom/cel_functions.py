"""Functions that Kubernetes has beyond the language: of lists, sets, texts, quantities, URLs and addresses.

A quantity, a URL, an address or a network is the text of it in one canonical form, so that equal ones are equal.
Source: k8s.io/apiserver, pkg/cel/library.
"""

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import islice
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from cel_expr_python import cel

from batchyard.api.patterns import found
from batchyard.api.quantity import NANO, parse

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
