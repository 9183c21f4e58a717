"""Who may see what. A model shows nothing that its asker could not list through the API."""

from typing import Protocol

from batchyard.api import scheme
from batchyard.interfaces.client import Reader


class Sight(Protocol):
    """What somebody may list."""

    def may_list(self, kind: str, namespace: str = "") -> bool:
        """Whether he may list a kind in a namespace or, for '', wherever its objects are."""


class Everything:
    """The sight of whoever has a report: all that is in it."""

    def may_list(self, kind: str, namespace: str = "") -> bool:
        """Yes."""
        return True


class Scope:
    """What one asker sees while one model is made: each question is asked once."""

    def __init__(self, sight: Sight) -> None:
        self._sight = sight
        self._known: dict[tuple[str, str], bool] = {}

    def all_of(self, kind: str) -> bool:
        """Whether he sees all objects of a kind."""
        return self._asked(kind, "")

    def sees(self, kind: str, namespace: str) -> bool:
        """Whether he sees the objects of a kind in a namespace."""
        return self._asked(kind, "") or self._asked(kind, namespace)

    def namespaces(self, kind: str, reader: Reader) -> list[str] | None:
        """The namespaces in which he sees objects of a kind; None where that is all."""
        if self.all_of(kind):
            return None
        names = [str(obj["metadata"]["name"]) for obj in reader.list(scheme.NAMESPACE)]
        return [name for name in names if self._asked(kind, name)]

    def _asked(self, kind: str, namespace: str) -> bool:
        known = self._known.get((kind, namespace))
        if known is None:
            known = self._known[kind, namespace] = self._sight.may_list(kind, namespace)
        return known
