"""Error messages about objects that do not exist, or that the user may not read, with the remedy."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.scheme import ServedKind

_SIMILAR_MAX: Final = 5
#: The minimum ratio of difflib at which one name resembles another.
_SIMILARITY_MIN: Final = 0.5
_NAMESPACES_SHOWN_MAX: Final = 5
#: The kinds of Kubernetes itself, which its role `view` allows to read. Kueue has a role for each other kind.
_KINDS_OF_VIEW: Final = (scheme.JOB, scheme.POD)


class NamespacedName(NamedTuple):
    """The name of an object, and its namespace ('' if it has none)."""

    namespace: str
    name: str


def not_found_text(
    served_kind: ServedKind,
    missing_name: NamespacedName,
    existing_names: Sequence[NamespacedName],
    option: str = "-n {namespace}",
) -> str:
    """Return a message about a missing object, which lists other namespaces that have it, or else similar names.

    `existing_names` are those of the objects of that kind that the user may list; those in the namespace of
    `missing_name` are preferred. `option` is the option of the command that selects a namespace.
    """
    namespace_note = f" in namespace {missing_name.namespace}" if missing_name.namespace else ""
    text = f"{served_kind.singular} {missing_name.name} not found{namespace_note}"
    same_named = [each for each in existing_names if each.name == missing_name.name]
    namespaces = sorted({each.namespace for each in same_named if each.namespace})
    if namespaces:
        shown_names = ", ".join(namespaces[:_NAMESPACES_SHOWN_MAX]) + (
            "..." if len(namespaces) > _NAMESPACES_SHOWN_MAX else ""
        )
        return f"{text}; found in {shown_names} (use {option.format(namespace=namespaces[0])})"
    near_names = [each.name for each in existing_names if missing_name.namespace in {"", each.namespace}]
    names = near_names or [each.name for each in existing_names]
    if suggestions := similar_names(missing_name.name, names):
        return f"{text}; similar names: {', '.join(suggestions)}"
    if not names:
        return f"{text}; no {served_kind.singular} found: check the namespace, and the cluster or file"
    more_note = "..." if len(names) > _SIMILAR_MAX else ""
    return f"{text}; existing: {', '.join(names[:_SIMILAR_MAX])}{more_note}"


def similar_names(name: str, names: Sequence[str]) -> Sequence[str]:
    """Return at most five of `names`: those that contain the missing name `name`, then those that resemble it."""
    containing_names = [candidate for candidate in names if name in candidate]
    close_names = get_close_matches(name, names, _SIMILAR_MAX, _SIMILARITY_MIN)
    return list(dict.fromkeys([*containing_names, *close_names]))[:_SIMILAR_MAX]


def missing_role_advice(served_kind: ServedKind, namespace: str) -> str:
    """Return the advice to ask for the ClusterRole that permits reading the kind in `namespace` ('' for all)."""
    role = "view" if served_kind.constant in _KINDS_OF_VIEW else f"kueue-{served_kind.singular}-viewer-role"
    scope_text = f"in namespace {namespace}" if namespace else "by a ClusterRoleBinding"
    return f"ask an administrator for the ClusterRole {role} {scope_text}"
