"""A violation of the Pod Security Standards, and the parts of pods and of messages that checks share."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from batchyard.api.meta import Obj


class Violation(NamedTuple):
    """A check that a pod fails."""

    reason: str
    detail: str

    def __str__(self) -> str:
        """`privileged (container "c" must not set securityContext.privileged=true)`."""
        return f"{self.reason} ({self.detail})" if self.detail else self.reason


CheckPod: TypeAlias = Callable[[Obj, Obj], Violation | None]
"""Looks at the metadata and the spec of a pod or of a template."""


def containers(spec: Obj) -> Iterator[Mapping[str, Any]]:
    """All containers of a pod: init containers, containers, ephemeral containers."""
    for field in ("initContainers", "containers", "ephemeralContainers"):
        yield from spec.get(field) or ()


def security(part: Obj) -> Mapping[str, Any]:
    """The security context of a pod's spec or of a container."""
    context: Mapping[str, Any] = part.get("securityContext") or {}
    return context


def selected(spec: Obj, violates: Callable[[Mapping[str, Any]], bool]) -> list[str]:
    """The names of the containers that violate a rule."""
    return [container["name"] for container in containers(spec) if violates(container)]


def plural(word: str, count: int) -> str:
    """A noun in the number that a count demands."""
    return word if count == 1 else f"{word}s"


def uses(count: int) -> str:
    """The verb of a subject of that number."""
    return "uses" if count == 1 else "use"


def quoted(values: Iterable[str]) -> str:
    """Values in quotes, with commas between them."""
    return ", ".join(f'"{value}"' for value in values)


def named(word: str, names: Sequence[str]) -> str:
    """`container "a"`, or `containers "a", "b"`."""
    return f"{plural(word, len(names))} {quoted(names)}"


def setters(names: Sequence[str], *, by_pod: bool) -> str:
    """The subject of a violation: the pod, containers of it, or both."""
    return " and ".join([*(["pod"] if by_pod else []), *([named("container", names)] if names else [])])


def is_of_windows(spec: Obj) -> bool:
    """Whether a pod runs on Windows, where checks of Linux security contexts do not apply."""
    return (spec.get("os") or {}).get("name") == "windows"


def has_user_namespace(spec: Obj) -> bool:
    """Whether a pod has a user namespace of its own."""
    return spec.get("hostUsers") is False
