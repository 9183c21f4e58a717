"""Access control of the dashboard: a model contains only objects that its user may list through the API."""

from typing import Protocol

from batchyard.api import scheme
from batchyard.interfaces.client import Reader


class ViewerAccess(Protocol):
    """The list permissions of a user."""

    def may_list(self, kind: str, namespace: str = "") -> bool:
        """Report whether the user may list a kind in a namespace, or in all namespaces for ''."""


class FullAccess:
    """Permission for everything, for the readers of a report."""

    def may_list(self, kind: str, namespace: str = "") -> bool:
        """Return True."""
        return True


class NamespaceAccess:
    """The permissions of one user while one model is computed, each checked once."""

    def __init__(self, sight: ViewerAccess) -> None:
        self._sight = sight
        self._known: dict[tuple[str, str], bool] = {}

    def all_of(self, kind: str) -> bool:
        """Report whether the user may list a kind in all namespaces."""
        return self._asked(kind, "")

    def sees(self, kind: str, namespace: str) -> bool:
        """Report whether the user may list a kind in a namespace."""
        return self._asked(kind, "") or self._asked(kind, namespace)

    def namespaces(self, kind: str, reader: Reader) -> list[str] | None:
        """Return the namespaces in which the user may list a kind; None for all namespaces."""
        if self.all_of(kind):
            return None
        names = [str(obj["metadata"]["name"]) for obj in reader.list(scheme.NAMESPACE)]
        return [name for name in names if self._asked(kind, name)]

    def _asked(self, kind: str, namespace: str) -> bool:
        known = self._known.get((kind, namespace))
        if known is None:
            known = self._known[kind, namespace] = self._sight.may_list(kind, namespace)
        return known
