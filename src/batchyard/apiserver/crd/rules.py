"""Validation rules of schemas in the Common Expression Language: `x-kubernetes-validations`.

Rules are compiled once, when a definition is first served. A transition rule (with `oldSelf`) runs only if an old value
exists and can be correlated: in fields, maps, and lists with keys.
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
    for found in _BRACKET.finditer(text):
        if found[0] == ")":
            del open_[-1:]
        else:
            open_.append(found[1] in _ITERATING)
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
        from batchyard.apiserver.crd.cel import evaluated  # noqa: PLC0415 - loaded only if rules exist

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
    from batchyard.apiserver.crd.cel import NotCompiled, expression, rule  # noqa: PLC0415

    try:
        rule(written["rule"], optional_old=bool(written.get("optionalOldSelf")))
        if written.get("messageExpression"):
            expression(written["messageExpression"])
    except NotCompiled as error:
        return ("", error.lacking) if error.lacking else (str(error), "")
    return "", ""


def _compiled(written: Mapping[str, Any]) -> ValidationRule | None:
    """Compile a rule; None if it uses unimplemented functions, about which its definition got a warning."""
    from batchyard.apiserver.crd.cel import NotCompiled, expression, rule  # noqa: PLC0415

    try:
        found = rule(written["rule"], optional_old=bool(written.get("optionalOldSelf")))
        reported = written.get("messageExpression")
        message = expression(reported).program if reported else None
    except NotCompiled:
        return None
    return ValidationRule(written, found.program, found.uses_old, message, depth_of(written["rule"]))


def _message(rule: ValidationRule, variables: Mapping[str, Any]) -> str:
    """Return the message of a failed rule."""
    from batchyard.apiserver.crd.cel import evaluated  # noqa: PLC0415

    if rule.message is not None:
        made, _ = evaluated(rule.message, variables)
        if isinstance(made, str) and made.strip() and "\n" not in made:
            return made.strip()
    written: str = rule.written.get("message") or f"failed rule: {rule.written['rule'].strip()}"
    return written
