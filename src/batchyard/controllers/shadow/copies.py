"""Copies of a pursuit, from which it goes on in another way."""

import io
import pickle
from typing import Any

from batchyard.api.views.workload import WorkloadView
from batchyard.controllers.shadow.held_back import HeldBack
from batchyard.controllers.shadow.judgement import Judgement
from batchyard.core.plan import NO_PICK, SCAN_DONE
from batchyard.ports.client import WatchEvent


class Copy:
    """A pursuit as it was at some time. What never changes is shared."""

    def __init__(self, pursuit: Judgement) -> None:
        self._shared: list[Any] = [NO_PICK, SCAN_DONE]
        self._places = {id(each): place for place, each in enumerate(self._shared)}
        buffer = io.BytesIO()
        pickler = pickle.Pickler(buffer, pickle.HIGHEST_PROTOCOL)
        pickler.persistent_id = self._place  # type: ignore[method-assign]
        pickler.dump(pursuit)
        self._bytes = buffer.getvalue()

    def again(self) -> Judgement:
        """The pursuit."""
        unpickler = pickle.Unpickler(io.BytesIO(self._bytes))  # noqa: S301 - what was written above
        unpickler.persistent_load = self._shared.__getitem__  # type: ignore[method-assign]
        found: Judgement = unpickler.load()
        return found

    def _place(self, value: Any) -> int | None:
        """The place of what is shared; None for what is copied."""
        place = self._places.get(id(value))
        if place is None and isinstance(value, WorkloadView | WatchEvent | HeldBack):
            place = self._places[id(value)] = len(self._shared)
            self._shared.append(value)
        return place
