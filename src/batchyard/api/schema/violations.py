"""Schema violations with path, problem and remedy, and suggestions for misspelled or misplaced field names."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from batchyard.api.scheme import Field, TypeScope

_SHOWN_VALUE_LENGTH_MAX: Final = 80
_JSON_TEXT_BY_CONSTANT: Final = {True: "true", False: "false", None: "null"}


class MapKey(str):
    """A key in a field path that selects a value of a mapping with user-defined keys: `cpu` in `limits[cpu]`."""

    __slots__ = ()


PathStep: TypeAlias = "str | int | MapKey"


class SchemaViolation(NamedTuple):
    """A value that violates its schema: problem, remedy, and path relative to the validated value.

    If a field is unknown, `owner` is the type of the object that contains it, `value` is the field's value, and the
    remedy is found later.
    """

    path: tuple[PathStep, ...]
    problem: str
    remedy: str
    owner: str = ""
    value: Any = None


class SchemaViolations(list[SchemaViolation]):
    """The list of all schema violations of one value."""

    __slots__ = ()

    def with_prefix(self, step: PathStep) -> "SchemaViolations":
        """Return the violations with `step` put before each path, which is then relative to the parent value."""
        return SchemaViolations(SchemaViolation((step, *violation.path), *violation[1:]) for violation in self)


def single_violation(problem: str, remedy: str) -> SchemaViolations:
    """Return a list with one schema violation of the validated value as a whole."""
    return SchemaViolations([SchemaViolation((), problem, remedy)])


def wrong_type_violation(value: Any, type_text: str, remedy: str = "") -> SchemaViolations:
    """Return a list with the schema violation of a value of the wrong type; `type_text` describes the right type."""
    return single_violation(
        f"Invalid value: {format_value(value)}: must be {type_text}", remedy or f"write {type_text}"
    )


def format_value(value: Any) -> str:
    """Format a value for an error message as JSON on one line, cut after 80 characters.

    Objects, lists and huge numbers are only named: `an object`.
    """
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        text = msgspec.json.encode(value.encode(errors="replace").decode()).decode()
    elif isinstance(value, int) and value.bit_length() > _SHOWN_VALUE_LENGTH_MAX:
        return "a huge number"
    else:
        text = _JSON_TEXT_BY_CONSTANT[value] if isinstance(value, bool | None) else repr(value)
    return text if len(text) <= _SHOWN_VALUE_LENGTH_MAX else f"{text[:_SHOWN_VALUE_LENGTH_MAX]}..."


def join_alternatives(names: list[str]) -> str:
    """Join names to a choice: `a`, `a or b`, `a, b or c`."""
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else "".join(names)


def format_path(path: tuple[PathStep, ...]) -> str:
    """Format a field path as Kubernetes does: `spec.resourceGroups[0].flavors[1].name`, `metadata.labels[a/b]`."""
    text = ""
    for step in path:
        if isinstance(step, int | MapKey):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text


# Suggestions for misspelled names, by edit distance.


LOOSE_EDIT_RATIO: Final = 0.5
STRICT_EDIT_RATIO: Final = 0.2


def find_nearest_name(written_name: str, known_names: Iterable[str], edit_ratio: float = 0.34) -> str | None:
    """Return the known name with the smallest edit distance to a written name; None if none is close enough.

    The distance may be at most `edit_ratio` of the length of the longer name, or one if that name has three characters
    or more. Case, `-` and `_` are ignored. At a ratio of 0.5 or more, names also match if one is a prefix of the other
    and has four characters or more (`queue`, `queueingStrategy`). A written name of over 100 characters has no match.
    """
    plain_name, nearest_name, minimum_edit_count = _normalize_name(written_name), None, 1 << 30
    if not plain_name or len(plain_name) > 100:
        return None
    for name in known_names:
        known_plain = _normalize_name(name)
        shorter_length, longer = sorted((len(plain_name), len(known_plain)))
        edit_count = edit_distance(plain_name, known_plain)
        if edit_ratio >= LOOSE_EDIT_RATIO and shorter_length >= 4 and _is_prefix_of_either(plain_name, known_plain):
            edit_count = min(edit_count, int(longer * edit_ratio))
        if edit_count < minimum_edit_count and (edit_count <= longer * edit_ratio or (edit_count == 1 and longer >= 3)):
            nearest_name, minimum_edit_count = name, edit_count
    return nearest_name


def edit_distance(text: str, other_text: str) -> int:
    """Return the edit distance of two texts: insertions, deletions, replacements and swaps of adjacent characters."""
    second_last_row: list[int] = []
    last_row = list(range(len(other_text) + 1))
    for i, a in enumerate(text, 1):
        row = [i]
        for j, b in enumerate(other_text, 1):
            edit_count = min(last_row[j] + 1, row[-1] + 1, last_row[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other_text[j - 2] and text[i - 2] == b:
                edit_count = min(edit_count, second_last_row[j - 2] + 1)
            row.append(edit_count)
        second_last_row, last_row = last_row, row
    return last_row[-1]


def _is_prefix_of_either(text: str, other_text: str) -> bool:
    return text.startswith(other_text) or other_text.startswith(text)


def _normalize_name(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


# Locations of field names within a kind, for remedies for unknown fields.


#: The path from the root to an object within a kind; names of list fields end in `[]`.
ObjectLocation: TypeAlias = tuple[str, ...]


_NEAR_STEPS_MAX: Final = 2
_FAR_STEPS_MAX: Final = 4
_LISTED_FIELDS_MAX: Final = 12
_NESTING_DEPTH_MAX: Final = 12


def unknown_field_remedy(scope: TypeScope, kind: str, violation: SchemaViolation) -> str:
    """Return the first remedy that applies to an unknown field in an object of an API kind.

    1. A known name that differs from the field's name by a typo.
    2. For `X: true`, a known field that has X among its values: `field: X`.
    3. An object at most two path steps away that has a field of this name, whose type fits the value.
    4. A similar known name.
    5. An object at most four path steps away that has a field of this name, whose type fits the value.
    6. The list of known names, or if there are over 12, to check the spelling.
    """
    name = str(violation.path[-1])
    type_scope, type_name = scope.scope_of(violation.owner)
    fields = type_scope.fields(type_name)
    names = list(fields)
    likely_name = find_nearest_name(name, names, STRICT_EDIT_RATIO)
    if likely_name:
        return f"did you mean {likely_name}?"
    field_with_value = next((each for each in names if name in fields[each].constraints.get("enum", ())), None)
    if violation.value is True and field_with_value:
        return f"did you mean {field_with_value}: {name}?"
    step_count, closest_path = _closest_location(scope, kind, violation)
    if closest_path and step_count <= _NEAR_STEPS_MAX:
        return f"move the field to {closest_path}"
    similar_name = find_nearest_name(name, names, LOOSE_EDIT_RATIO)
    if similar_name:
        return f"did you mean {similar_name}?"
    if closest_path and step_count <= _FAR_STEPS_MAX:
        return f"move the field to {closest_path}"
    return (
        f"use one of the fields {', '.join(names)}"
        if len(names) <= _LISTED_FIELDS_MAX
        else "check the spelling, or remove the field"
    )


def _closest_location(scope: TypeScope, kind: str, violation: SchemaViolation) -> tuple[int, str]:
    """Return the closest field with the name of an unknown field (`violation`): its distance in steps, and its path.

    The type of the field must fit the value. Without such a field, the distance is huge and the path is ''.
    """
    minimum_step_count, closest_path = 1 << 30, ""
    start, name = _object_location(violation.path), str(violation.path[-1])
    for location, field in _locations_by_field(scope, kind).get(name, ()):
        if not _may_contain(field, violation.value):
            continue
        shared_steps = 0
        while shared_steps < min(len(start), len(location)) and start[shared_steps] == location[shared_steps]:
            shared_steps += 1
        step_count = len(start) + len(location) - 2 * shared_steps
        if 0 < step_count < minimum_step_count:
            minimum_step_count, closest_path = step_count, ".".join((*location, name))
    return minimum_step_count, closest_path


def _may_contain(field: Field, value: Any) -> bool:
    if value is None or field.expression == "any":
        return True
    if field.is_list or isinstance(value, list):
        return field.is_list and isinstance(value, list)
    is_object = field.is_map or field.is_object
    if is_object or isinstance(value, dict):
        return is_object and isinstance(value, dict)
    return isinstance(value, bool) == (field.expression == "bool")


@lru_cache(maxsize=64)
def _locations_by_field(scope: TypeScope, kind: str) -> dict[str, list[tuple[ObjectLocation, Field]]]:
    locations_by_name: dict[str, list[tuple[ObjectLocation, Field]]] = {}
    for location, fields in _nested_object_fields(scope, kind):
        for name, field in fields.items():
            locations_by_name.setdefault(name, []).append((location, field))
    return locations_by_name


def _nested_object_fields(scope: TypeScope, kind: str) -> Iterator[tuple[ObjectLocation, dict[str, Field]]]:
    pending_objects: list[tuple[ObjectLocation, TypeScope, str]] = [((), scope, kind)]
    for path, outer_scope, type_name in pending_objects:
        type_scope, name = outer_scope.scope_of(type_name)
        fields = dict(type_scope.fields(name))
        yield path, fields
        if len(path) < _NESTING_DEPTH_MAX and name != "ObjectMeta":
            child_fields = [(field, spec) for field, spec in fields.items() if spec.object_type]
            pending_objects += [
                ((*path, field + "[]" * spec.is_list), type_scope, spec.object_type) for field, spec in child_fields
            ]


def _object_location(path: tuple[PathStep, ...]) -> ObjectLocation:
    location_steps: list[str] = []
    for step in path[:-1]:
        if isinstance(step, int):
            location_steps[-1] += "[]"
        else:
            location_steps.append(step)
    return tuple(location_steps)
