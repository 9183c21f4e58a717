"""Strategic merge patches: JSON merge patches with merging of lists.

Lists with a merge strategy in their schema are merged item by item; others are replaced. Directives among the fields
control the merge:

    $patch: replace | delete         on a mapping or list item: replace or remove the existing one
    $deleteFromPrimitiveList/F       the values to remove from the list F
    $setElementOrder/F               the order of the items of the list F
    $retainKeys                      the only fields to keep

Source: k8s.io/apimachinery, pkg/util/strategicpatch/patch.go.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from batchyard.apiserver.merge_schema import MergeSchema
from batchyard.apiserver.request import StatusError, bad_request

_PATCH: Final = "$patch"
_DELETE_FROM: Final = "$deleteFromPrimitiveList/"
_ORDER: Final = "$setElementOrder/"
_RETAIN: Final = "$retainKeys"
_encode: Final = msgspec.json.Encoder(order="sorted").encode


def strategically_merged(value: Mapping[str, Any], patch: Mapping[str, Any], shape: MergeSchema) -> dict[str, Any]:
    """Apply a patch to a mapping. Raises Refused if the patch is malformed."""
    if _PATCH in patch:
        return _directed(patch)
    result = dict(value)
    if _RETAIN in patch:
        result = _retained(result, patch)
    for name, wanted in patch.items():
        if name.startswith(_DELETE_FROM):
            _delete_from(result, name.removeprefix(_DELETE_FROM), wanted)
        elif name.startswith(_ORDER) or name == _RETAIN:
            continue
        elif wanted is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), wanted, shape.below(name), patch.get(f"{_ORDER}{name}"))
    for name, order in patch.items():
        field = name.removeprefix(_ORDER)
        if field != name and field not in patch and isinstance(result.get(field), list):
            result[field] = _merged(result[field], [], shape.below(field), order)
    return result


def _directed(patch: Mapping[str, Any]) -> dict[str, Any]:
    """Apply the `$patch` directive of a mapping."""
    match patch[_PATCH]:
        case "replace":
            return {name: wanted for name, wanted in patch.items() if name != _PATCH}
        case "delete":
            return {}
    raise bad_request(f"unknown patch type: {patch[_PATCH]} in map: {dict(patch)}")


def _retained(value: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Keep only the fields named by `$retainKeys`, which must include all fields that the patch sets."""
    kept = patch[_RETAIN]
    given = [name for name, wanted in patch.items() if wanted is not None and not name.startswith("$")]
    if not isinstance(kept, list):
        raise bad_request("invalid patch format of retainKeys")
    names = frozenset(name for name in kept if isinstance(name, str))
    if not names.issuperset(given):
        raise bad_request("invalid patch format of retainKeys")
    return {name: child for name, child in value.items() if name in names}


def _delete_from(result: dict[str, Any], name: str, gone: Any) -> None:
    if not isinstance(gone, list):
        raise bad_request("invalid patch format of primitive list")
    if isinstance(result.get(name), list):
        named = frozenset(map(_encode, gone))
        result[name] = [item for item in result[name] if _encode(item) not in named]


def _merged(value: Any, wanted: Any, shape: MergeSchema, order: Any) -> Any:
    """Apply a patch to a field."""
    if isinstance(wanted, Mapping):
        return strategically_merged(value if isinstance(value, Mapping) else {}, wanted, shape)
    if isinstance(wanted, list) and shape.merge is not None:
        return _list_merged(value if isinstance(value, list) else [], wanted, shape, order)
    return wanted


def _list_merged(items: list[Any], patch: list[Any], shape: MergeSchema, order: Any) -> list[Any]:
    """Apply a patch to a list, ordered by the patch or by its `$setElementOrder`."""
    key = shape.merge
    assert key is not None, "lists without a merge strategy are replaced"
    if any(isinstance(item, list) for item in (*items, *patch)):
        raise StatusError(422, "Invalid", "lists of lists are not supported")
    if order is not None:
        _check_order(order, patch, key)
    if key:
        given, left = _items_merged(items, patch, key, shape.item)
    elif any(isinstance(item, Mapping) for item in patch):
        raise bad_request("cannot merge lists without merge key")
    else:
        given, left = patch, list(dict.fromkeys([*items, *patch]))
    return _ordered(left, given if order is None else order, items, key)


def _items_merged(
    items: list[Any], patch: list[Any], key: str, shape: MergeSchema
) -> tuple[Sequence[Mapping[str, Any]], list[Any]]:
    """Return the patch items without directives, and all items after the merge."""
    given = [item for item in patch if _directive_of(item) is None]
    left = [] if any(_directive_of(item) == "replace" for item in patch) else list(items)
    gone = frozenset(_name_of(item, key) for item in patch if _directive_of(item) == "delete")
    left = [item for item in left if _encode(item.get(key)) not in gone]
    places = _first_places(_encode(item.get(key)) for item in left)
    for item in given:
        at = places.setdefault(_name_of(item, key), len(left))
        left[at : at + 1] = [strategically_merged(left[at] if at < len(left) else {}, item, shape)]
    return given, left


def _directive_of(item: Any) -> str | None:
    if not isinstance(item, Mapping):
        raise bad_request(f"an item of a list with a merge key is not an object: {item}")
    directive = item.get(_PATCH)
    if directive == "merge":
        raise bad_request("merging lists cannot yet be specified in the patch")
    if directive not in (None, "replace", "delete"):
        raise bad_request(f"unknown patch type: {directive} in map: {dict(item)}")
    return directive


def _key_of(item: Any, key: str) -> Any:
    """Return the identity of a list item: the merge key's value, or the item itself without a merge key."""
    if not key:
        return item
    if not isinstance(item, Mapping) or key not in item:
        raise bad_request(f"map: {item} does not contain declared merge key: {key}")
    return item[key]


def _check_order(order: Any, patch: Sequence[Any], key: str) -> None:
    """Raise Refused unless `$setElementOrder` contains the items of the patch in their order."""
    if not isinstance(order, list):
        raise bad_request("invalid patch format of setElementOrder list")
    stated: Iterator[Any] = iter([_key_of(item, key) for item in order])
    given = [item for item in patch if not key or _directive_of(item) is None]
    if patch and order and not all(_key_of(item, key) in stated for item in given):
        message = f"doesn't match {_ORDER.rstrip('/')} list:\n{order}\n"
        raise bad_request(f"The order in patch list:\n{list(patch)}\n {message}")


def _ordered(items: list[Any], order: Sequence[Any], before: Sequence[Any], key: str) -> list[Any]:
    """Order items: named items in the given order, other items merged between them in their previous order."""
    places = _first_places(_name_of(item, key) for item in order)
    were = _first_places(_name_of(item, key) for item in before)
    tagged = [(_name_of(item, key), item) for item in items]
    named = deque(sorted((pair for pair in tagged if pair[0] in places), key=lambda pair: places[pair[0]]))
    others = deque(pair for pair in tagged if pair[0] not in places)
    result = []
    while named and others:
        first, other = were.get(named[0][0]), were.get(others[0][0])
        comes_first = first is not None and other is not None and other < first
        result.append((others if comes_first else named).popleft())
    return [item for _, item in (*result, *named, *others)]


def _name_of(item: Any, key: str) -> bytes:
    """Return the encoded identity of a list item."""
    return _encode(_key_of(item, key))


def _first_places(names: Iterable[bytes]) -> dict[bytes, int]:
    places: dict[bytes, int] = {}
    for i, name in enumerate(names):
        places.setdefault(name, i)
    return places
