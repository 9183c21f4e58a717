"""What a check of a value returns when it does not hold: flaws, each with its place relative to the value."""

from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

_SHOWN_LENGTH_MAX: Final = 80
_WORDS: Final = {True: "true", False: "false", None: "null"}


class MapKey(str):
    """A step of a path into a mapping with names of the user's own: `limits[cpu]`."""

    __slots__ = ()


Step: TypeAlias = "str | int | MapKey"


class Flaw(NamedTuple):
    """One flaw. `owner` is the type in which an unknown field was found; its remedy is made from the whole kind."""

    path: tuple[Step, ...]
    problem: str
    remedy: str
    owner: str = ""


class Flaws(list[Flaw]):
    """Returned in place of a value that is not sound."""

    __slots__ = ()

    def below(self, step: Step) -> "Flaws":
        """The same flaws, seen from what holds the value."""
        return Flaws(Flaw((step, *flaw.path), *flaw[1:]) for flaw in self)


def flaw(problem: str, remedy: str) -> Flaws:
    """A single flaw of the value itself."""
    return Flaws([Flaw((), problem, remedy)])


def wrong_type(value: Any, wanted: str, remedy: str = "") -> Flaws:
    """The value is of another type than the field."""
    return flaw(f"Invalid value: {shown(value)}: must be {wanted}", remedy or f"write {wanted}")


def shown(value: Any) -> str:
    """A value as messages show it: short, and on one line."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        text = msgspec.json.encode(value.encode(errors="replace").decode()).decode()
    elif isinstance(value, int) and value.bit_length() > _SHOWN_LENGTH_MAX:
        return "a huge number"
    else:
        text = _WORDS[value] if isinstance(value, bool | None) else repr(value)
    return text if len(text) <= _SHOWN_LENGTH_MAX else f"{text[:_SHOWN_LENGTH_MAX]}..."


def choice(names: list[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else "".join(names)


def path_text(path: tuple[Step, ...]) -> str:
    """A path as Kubernetes writes it: `spec.resourceGroups[0].flavors[1].name`, `metadata.labels[a/b]`."""
    text = ""
    for step in path:
        if isinstance(step, int | MapKey):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text
