"""All Workloads as lists need them, made once for each revision of each: so ten thousand take a few milliseconds."""

from collections.abc import Sequence
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.ports.client import Reader
from batchyard.web.states import owner_of, state_of

#: So many more than there are may be known of Workloads that are gone.
_SPARE: Final = 1000


class Entry:
    """One Workload."""

    __slots__ = ("namespace", "obj", "order", "state", "text", "view")

    def __init__(self, obj: Obj) -> None:
        self.obj = obj
        self.view: WorkloadView = workload_view(obj)
        self.namespace = self.view.namespace
        self.state = state_of(self.view, obj)
        #: The latest is the largest.
        self.order = self.view.created, self.view.key
        owner = owner_of(obj)
        #: What it is searched by: its own name and that of what it stands for.
        self.text = f"{self.view.key} {owner['name'] if owner else ''}".lower()


class Roster:
    """See the module."""

    def __init__(self) -> None:
        self._known: dict[str, Entry] = {}

    def entries(self, reader: Reader, namespaces: Sequence[str] | None) -> list[Entry]:
        """The Workloads of some namespaces, or, for None, of all."""
        if namespaces is None:
            found = self._entries(reader.list(scheme.WORKLOAD))
            if len(self._known) > len(found) + _SPARE:
                self._known = {entry.view.uid: entry for entry in found}
            return found
        return [each for name in namespaces for each in self._entries(reader.list(scheme.WORKLOAD, name))]

    def _entries(self, objs: Sequence[Obj]) -> list[Entry]:
        known, found = self._known, []
        for obj in objs:
            uid = obj["metadata"]["uid"]
            entry = known.get(uid)
            if entry is None or entry.obj is not obj:
                entry = known[uid] = Entry(obj)
            found.append(entry)
        return found
