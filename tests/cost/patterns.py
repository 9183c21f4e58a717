"""The regular expressions of the sources, and texts that are expensive for each of them."""

import ast
import importlib
import json
import re
import string
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import batchyard
from batchyard.api.schema import scalars
from batchyard.api.validation import rules
from batchyard.apiserver import built_in

#: The private parser of `re`.
parser: Any = importlib.import_module("re._parser")
codes: Any = importlib.import_module("re._constants")
SOURCES = Path(batchyard.__file__).parent
#: Functions of `re` with a pattern as first argument.
FUNCTIONS = ("compile", "match", "fullmatch", "search", "sub", "split", "findall", "finditer")
#: Methods that try a pattern at each position.
SCANS = ("search", "sub", "split", "findall", "finditer")
#: The function by which `api/schema/scalars.py` compiles a pattern of the field tables.
SCHEMA_PATTERN = r"re.sub('(?<!\\\\)\\$$', '\\\\Z', pattern)"
#: Patterns that are arguments of the function around them, by module and expression, with the reason that this is safe.
DYNAMIC = {
    ("batchyard.api.validation.rules", "pattern"): "the callers pass the constants of the module, tested below",
    ("batchyard.api.validation.cluster", "pattern"): "compiled for its error alone",
    ("batchyard.autoscaler.node_groups", "pattern"): "from a Cluster, which only the owner writes",
    ("batchyard.api.schema.scalars", SCHEMA_PATTERN): "the patterns of the field tables, tested below",
    ("batchyard.apiserver.built_in", "pattern"): "the elements of the layouts, tested below",
    (
        "batchyard.provision.steps.model",
        "self.destroys_pattern",
    ): "the constants of the steps, matched with our own output",
}
#: The letters of texts, besides those of the pattern.
_LETTERS = "0aAz.-_+/: ,\n\t\\\"'[]{}()=!<>@~\u00b5"
_ENDS = ("", "\0", "!", "x\n")
_LONGEST_PREFIX = 60


class Pattern(NamedTuple):
    """A pattern, its source location, and the functions that use it."""

    where: str
    compiled: "re.Pattern[str]"
    functions: tuple[str, ...]


def patterns() -> Iterator[Pattern]:
    """Yield all patterns of the sources; raise AssertionError if one is neither constant nor listed as dynamic."""
    for path in sorted(SOURCES.rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        calls = [node for node in ast.walk(tree) if _is_pattern_call(node)]
        if calls:
            name = ".".join(("batchyard", *path.relative_to(SOURCES).with_suffix("").parts)).removesuffix(".__init__")
            yield from _of_module(name, tree, calls)

    for pattern in (
        rules._LABEL,
        rules._SUBDOMAIN,
        rules._DNS1035_LABEL_PATTERN,
        rules._QUALIFIED_NAME,
        rules._LABEL_VALUE,
        rules._DOMAIN_PATH_PATTERN,
    ):
        yield Pattern("batchyard.api.validation.rules", rules._compile_pattern(pattern), ("fullmatch",))
    for _, pattern in (*built_in._SECOND_LAYOUT, *built_in._MICRO_LAYOUT):
        yield Pattern("batchyard.apiserver.built_in", re.compile(pattern, re.ASCII), ("match",))
    for pattern in sorted(set(_schema_patterns())):
        yield Pattern(f"the field tables: {pattern}", scalars._compile_pattern(pattern), ("search",))


def _schema_patterns() -> Iterator[str]:
    """Yield the patterns of all field tables."""
    for path in sorted((SOURCES / "api/schema/fields").glob("*.json")):
        yield from _named_patterns(json.loads(path.read_text("utf-8")))


def _named_patterns(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("pattern"), str):
            yield value["pattern"]
        for child in value.values():
            yield from _named_patterns(child)
    elif isinstance(value, list):
        for child in value:
            yield from _named_patterns(child)


def _is_pattern_call(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "re"
        and node.func.attr in FUNCTIONS
    )


def _of_module(name: str, tree: ast.Module, calls: list[Any]) -> Iterator[Pattern]:
    constants = {
        id(node.value): _target(node) for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.AnnAssign)
    }
    for call in calls:
        text = ast.unparse(call.args[0])
        where = f"{name}:{call.lineno}"
        try:
            result = _value(call.args[0], vars(importlib.import_module(name)))
        except NameError:
            assert (name, text) in DYNAMIC, f"{where}: the pattern {text} is not a constant; list it in DYNAMIC"
            continue
        if isinstance(result, bytes):
            result = result.decode("latin-1")  # it matches characters as it does bytes
        assert isinstance(result, str), f"{where}: {text} is no text"
        yield Pattern(where, _compiled(call, result, name), _functions(call, tree, constants.get(id(call), "")))


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return the value of a constant expression; raise NameError if it uses no constant of the module."""
    match node:
        case ast.Constant(value):
            return value
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.Attribute(value=holder, attr=name):
            return getattr(_value(holder, names), name)
        case ast.BinOp(left, ast.BitOr(), right):
            return _value(left, names) | _value(right, names)
        case ast.BinOp(left, ast.Add(), right):
            return _value(left, names) + _value(right, names)
        case ast.JoinedStr(values):
            return "".join(map(str, (_value(each, names) for each in values)))
        case ast.FormattedValue(value=value):
            return _value(value, names)
    raise NameError(ast.unparse(node))


def _compiled(call: ast.Call, text: str, name: str) -> "re.Pattern[str]":
    given = list(call.args[1:]) if call.func.attr == "compile" else []  # type: ignore[attr-defined]
    given += [each.value for each in call.keywords if each.arg == "flags"]
    flags = _value(given[0], vars(importlib.import_module(name))) if given else 0
    return re.compile(text, flags)


def _target(node: ast.Assign | ast.AnnAssign) -> str:
    target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
    return target.id if isinstance(target, ast.Name) else ""


def _functions(call: ast.Call, tree: ast.Module, constant: str) -> tuple[str, ...]:
    """Return the functions that use a pattern; by default those that try it once."""
    used = call.func.attr  # type: ignore[attr-defined]
    if used != "compile":
        return ("search" if used in SCANS else used,)
    result = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == constant
    }
    return tuple(
        {"findall" if each in SCANS else each for each in result if each in FUNCTIONS} or {"match", "fullmatch"}
    )


def attacks(pattern: "re.Pattern[str]") -> Iterator[tuple[str, str, str]]:
    """Yield texts for a pattern: a prefix, a repeated part, and a suffix."""
    tree = parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE)
    samples = dict.fromkeys(_samples(tree))
    prefixes = [prefix[:_LONGEST_PREFIX] for prefix in dict.fromkeys(_prefixes(tree, ""))]
    letters = dict.fromkeys([*samples, *_LETTERS])
    for prefix in dict.fromkeys(["", *prefixes]):
        for pump in letters:
            for end in _ENDS:
                yield prefix, pump, end


def _samples(tree: Any) -> Iterator[str]:
    """Yield a matching text for each repeat of a pattern."""
    for code, argument in tree:
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            yield _sample(argument[2]) or "a"
        for child in _children(code, argument):
            yield from _samples(child)


def _prefixes(tree: Any, before: str) -> Iterator[str]:
    """Yield the prefix of each repeat."""
    for code, argument in tree:
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            yield before
        for child in _children(code, argument):
            yield from _prefixes(child, before)
        before += _sample([(code, argument)])


def _children(code: Any, argument: Any) -> list[Any]:
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
        return [argument[2]]
    if code is codes.SUBPATTERN:
        return [argument[3]]
    if code is codes.BRANCH:
        return list(argument[1])
    if code in (codes.ASSERT, codes.ASSERT_NOT):
        return [argument[1]]
    return [argument] if code is codes.ATOMIC_GROUP else []


def _sample(tree: Any) -> str:
    """Return a text that matches a part of a pattern."""
    return "".join(_sample_of(code, argument) for code, argument in tree)


def _sample_of(code: Any, argument: Any) -> str:
    if code is codes.LITERAL:
        return chr(argument)
    if code is codes.NOT_LITERAL:
        return "b" if argument == ord("a") else "a"
    if code is codes.ANY:
        return "a"
    if code is codes.IN:
        return next(str(letter) for letter in string.printable + "\u00b5" if _is_in(letter, argument))
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
        return "".join([_sample(argument[2])] * max(1, argument[0]))
    children = _children(code, argument)
    return _sample(children[0]) if children and code is not codes.ASSERT_NOT else ""


def _is_in(letter: str, members: Any) -> bool:
    expected, result = True, False
    for code, argument in members:
        if code is codes.NEGATE:
            expected = False
        elif code is codes.LITERAL:
            result = result or letter == chr(argument)
        elif code is codes.RANGE:
            result = result or argument[0] <= ord(letter) <= argument[1]
        else:
            result = result or bool(_CATEGORIES[argument].fullmatch(letter))
    return result is expected


_CATEGORIES: Mapping[Any, "re.Pattern[str]"] = {
    codes.CATEGORY_DIGIT: re.compile(r"\d"),
    codes.CATEGORY_NOT_DIGIT: re.compile(r"\D"),
    codes.CATEGORY_SPACE: re.compile(r"\s"),
    codes.CATEGORY_NOT_SPACE: re.compile(r"\S"),
    codes.CATEGORY_WORD: re.compile(r"\w"),
    codes.CATEGORY_NOT_WORD: re.compile(r"\W"),
}
