"""The rules that a schema has for its values, in the Common Expression Language: `x-kubernetes-validations`.

They are compiled once, when a definition comes to be served. A rule that compares with what was there before is asked
where something was, and where it can be told what: in fields, in mappings, in lists whose items have keys.
Source: k8s.io/apiextensions-apiserver, pkg/apiserver/schema/cel/validation.go.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api.errors import FieldError
from batchyard.api.validation.errors import printed
from batchyard.apiserver.crd.cel import cel_value
from batchyard.apiserver.crd.schemas import (
    LIST_TYPE,
    MAP_KEYS,
    MAP_TYPE,
    RULES,
    Schema,
    additional,
    has_somewhere,
    identity,
    items,
    properties,
)

# --- rule costs ---
#
# What the rules of an object cost: bounded from above by their text and by how much they are asked about.


_BEGINNING: Final = 100  # steps that an evaluation takes before its first iteration
_ITERATIONS: Final = 10_000  # what the library lets one evaluation have
_LETTERS: Final = 100  # of the texts, that an iteration may join to others in one step
_BRACKET: Final = re.compile(r"(?:(?<!\w)(\w++)\s*+)?\(|\)")
_ITERATING: Final = frozenset({"all", "exists", "exists_one", "existsOne", "filter", "map"})


class Size(NamedTuple):
    """How many values there are, and letters in their texts."""

    values: int
    letters: int


class Budget:
    """What the rules of one object may cost together, in steps: about a second of a processor's time.

    Steps are what an evaluation may take at most, by its iterations and by how much it is asked about. Upstream
    counts what it does take, with the same second in mind. Source: k8s.io/apiserver, pkg/apis/cel/config.go.
    """

    def __init__(self) -> None:
        self._left = 10_000_000

    def spend(self, depth: int, size: Size) -> bool:
        """Whether there is enough for one evaluation with so many iterations within each other, about so much."""
        steps = min(size.values**depth, _ITERATIONS)
        self._left -= _BEGINNING + (steps * (1 + size.letters // _LETTERS) if depth else 0)
        return self._left >= 0


def depth_of(text: str) -> int:
    """How many iterations of an expression are within each other at most; brackets in its texts count as well."""
    open_: list[bool] = []
    deepest = 0
    for found in _BRACKET.finditer(text):
        if found[0] == ")":
            del open_[-1:]
        else:
            open_.append(found[1] in _ITERATING)
            deepest = max(deepest, sum(open_))
    return deepest


def size_of(value: Any) -> Size:
    """How much is within a value, and itself."""
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


NOTHING: Final = object()
"""There was no such value before."""

_SPENT: Final = "validation failed due to running out of cost budget, no further validation rules will be run"


class Rule(NamedTuple):
    """One rule, as it was written and compiled."""

    written: Mapping[str, Any]
    program: Any
    uses_old: bool
    #: Makes the message; None where there is none to make it.
    message: Any
    #: How many iterations within iterations it has at most.
    depth: int

    @property
    def takes_none(self) -> bool:
        """Whether it is asked where nothing was before, too."""
        return bool(self.written.get("optionalOldSelf"))


class _Spent(Exception):  # noqa: N818 - what it is
    """The budget is spent, at this fault."""


class Rules:
    """The rules of a value and of all within it."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._own = [rule for written in schema.get(RULES) or () if (rule := _compiled(written)) is not None]
        self._iterates = any(rule.depth for rule in self._own)
        self._fields = {name: Rules(of) for name, of in properties(schema).items() if has_somewhere(of, RULES)}
        rest, item = additional(schema), items(schema)
        self._rest = Rules(rest) if rest and has_somewhere(rest, RULES) else None
        self._item = Rules(item) if has_somewhere(item, RULES) else None

    def faults(self, value: Any, old: Any) -> Iterator[FieldError]:
        """What an object breaks; `old` is what was there before, or NOTHING."""
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
                was = before.get(identity(each, keys, items(self._schema)), NOTHING) if before else NOTHING
                yield from self._item._faults(each, was, f"{path}[{i}]", budget)

    def _faults_of_fields(self, value: Mapping[str, Any], old: Any, path: str, budget: Budget) -> Iterator[FieldError]:
        is_known = isinstance(old, Mapping) and self._schema.get(MAP_TYPE) != "atomic"
        for name, each in value.items():
            rules = self._fields.get(name, self._rest)
            if rules is not None:
                was = old.get(name, NOTHING) if is_known else NOTHING
                yield from rules._faults(each, was, f"{path}.{name}" if path else name, budget)

    def _known_items(self, old: Any) -> dict[Any, Any]:
        """The items there were, by what tells them apart."""
        if self._schema.get(LIST_TYPE) != "map" or not isinstance(old, list):
            return {}
        return {identity(each, self._schema.get(MAP_KEYS) or (), items(self._schema)): each for each in old}

    def _own_faults(self, value: Any, old: Any, path: str, budget: Budget) -> Iterator[FieldError]:
        before = None if old is NOTHING else cel_value(old, self._schema)
        variables = {
            "self": cel_value(value, self._schema),
            "oldSelf": before,
            "before": before,
            "wasThere": old is not NOTHING,
        }
        size = size_of([value, before] if self._iterates else None)
        for rule in self._own:
            if not rule.uses_old or rule.takes_none or old is not NOTHING:
                if not budget.spend(rule.depth, size):
                    raise _Spent(FieldError(path or "<nil>", f"Invalid value: {self._shown()}: {_SPENT}"))
                yield from self._broken(rule, variables, path)

    def _broken(self, rule: Rule, variables: Mapping[str, Any], path: str) -> Iterator[FieldError]:
        from batchyard.apiserver.crd.cel import evaluated  # noqa: PLC0415 - loaded where there are rules

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
    """What is wrong with a rule, and what of it we lack: one of them at most."""
    from batchyard.apiserver.crd.cel import NotCompiled, expression, rule  # noqa: PLC0415

    try:
        rule(written["rule"], optional_old=bool(written.get("optionalOldSelf")))
        if written.get("messageExpression"):
            expression(written["messageExpression"])
    except NotCompiled as error:
        return ("", error.lacking) if error.lacking else (str(error), "")
    return "", ""


def _compiled(written: Mapping[str, Any]) -> Rule | None:
    """The rule; None where it needs what we lack, which was told when its definition was made."""
    from batchyard.apiserver.crd.cel import NotCompiled, expression, rule  # noqa: PLC0415

    try:
        found = rule(written["rule"], optional_old=bool(written.get("optionalOldSelf")))
        told = written.get("messageExpression")
        message = expression(told).program if told else None
    except NotCompiled:
        return None
    return Rule(written, found.program, found.uses_old, message, depth_of(written["rule"]))


def _message(rule: Rule, variables: Mapping[str, Any]) -> str:
    """What is said of a rule that is broken."""
    from batchyard.apiserver.crd.cel import evaluated  # noqa: PLC0415

    if rule.message is not None:
        made, _ = evaluated(rule.message, variables)
        if isinstance(made, str) and made.strip() and "\n" not in made:
            return made.strip()
    written: str = rule.written.get("message") or f"failed rule: {rule.written['rule'].strip()}"
    return written
