"""Malformed objects: valid objects, changed in a few places."""

from collections.abc import Iterator, Mapping
from typing import Any

from fuzz.seeded_random import SeededRandom

#: Values that are likely to cause faults.
NASTY: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, -(2**31) - 1, 2**53, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30),
    *(0.5, -0.0, 1e308, -1e308, 1e-320, 1e15),
    *(
        "",
        " ",
        "\0",
        "\n",
        "a\nb",
        "\u202e",
        "\ud7ff",
        "\uffff",
        "é",
        "İ",
        "😀",
        "a" * 300,
        "a" * 70_000,
        "-",
        ".",
        "..",
    ),
    *("/", "a/b", "a/b/c", "%s%n", "{{.}}", "$(id)", "../../etc/passwd", "null", "true", "0", "1", "-1", "1e3", "0x10"),
    *(
        "1e400",
        "-1e400",
        "1E",
        "1Ei",
        "999999999999999999999Ei",
        "0.000000000000001",
        "1n",
        "-5",
        "+5",
        "\uff15",
        "\u0663",
        "\u00b2",
    ),
    *("1h", "-1h", "9999999h", "1h1h", "PT1S", "2026-01-01T00:00:00Z", "0000-01-01T00:00:00Z", "9999-12-31T23:59:60Z"),
    *(
        "2026-01-01T00:00:00.123456789+99:99",
        "10000-01-01T00:00:00Z",
        "2026-02-30T00:00:00Z",
        "20%",
        "-1%",
        "101%",
        "%",
    ),
    *([], {}, [[]], [{}], [None], {"": ""}, {"": None}, ["a", "a"], [1, "a", None, {}], {"a": {"a": {"a": {}}}}),
    *({"name": None}, {"name": []}, {"matchLabels": []}, {"matchExpressions": [{}]}, {"name": "a", "key": {}}),
)
_NAMES = (
    *("", "metadata", "spec", "status", "kind", "apiVersion", "name", "namespace", "labels", "annotations", "items"),
    *("ownerReferences", "finalizers", "managedFields", "resourceVersion", "uid", "generation", "generateName"),
    *("deletionTimestamp", "creationTimestamp", "$patch", "$retainKeys", "$setElementOrder/containers", "a.b", "~1"),
    *("$deleteFromPrimitiveList/finalizers", "\0twice", "f:a", "__proto__", "é"),
)
_DEPTHS = (20, 90, 101, 5_000)


def mutate(value: Any, dice: SeededRandom, changes: int | None = None) -> Any:
    """Return a value with some changed places."""
    for _ in range(changes or 1 + dice.below(4)):
        places = list(_places(value))
        value = _change_value(value, dice.one_of(places), dice)
    return value


def deep(levels: int, of: str) -> bytes:
    """Return a text with this depth of nesting."""
    begin, end = {"list": (b"[", b"]"), "object": (b'{"a":', b"}"), "mixed": (b'[{"a":', b"}]")}[of]
    return begin * levels + b"1" + end * levels


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, Mapping):
        for name, child in value.items():
            yield from _places(child, (*path, name))
    elif isinstance(value, list):
        for index, child in enumerate(value[:20]):
            yield from _places(child, (*path, index))


def _change_value(value: Any, path: tuple[Any, ...], dice: SeededRandom) -> Any:
    if not path:
        return _replacement(value, dice)
    step, rest = path[0], path[1:]
    if isinstance(value, Mapping):
        new: Any = dict(value)
    else:
        new = list(value)
    if not rest and dice.happens(15):
        del new[step]
    else:
        new[step] = _change_value(value[step], rest, dice)
    return new


def _replacement(value: Any, dice: SeededRandom) -> Any:
    """Return a replacement of a value."""
    throw = dice.below(100)
    if isinstance(value, dict) and throw < 50:
        return {**value, dice.one_of(_NAMES): dice.one_of(NASTY)}
    if isinstance(value, list) and throw < 50:
        return [*value, *(value[:1] if dice.happens(50) else [dice.one_of(NASTY)])]
    if isinstance(value, str) and throw < 40:
        return value + str(dice.one_of(("\0", "\n", "é", "/", "-", " ", value, value * 40, "%00")))
    if isinstance(value, int) and throw < 40:
        return value * dice.one_of((-1, 2, 10**6, 10**18, 10**30))
    if throw > 97:
        nested: Any = value
        for _ in range(dice.one_of(_DEPTHS[:3])):
            nested = [nested] if dice.happens(50) else {"a": nested}
        return nested
    return dice.one_of(NASTY)
