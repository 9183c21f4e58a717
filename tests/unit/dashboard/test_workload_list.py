"""The cached list of Workloads follows all changes between two reads."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.dashboard.data_source import WorkloadListCache
from batchyard.store.memory import Store

CHANGES = st.lists(st.tuples(st.sampled_from(["put", "finish", "delete", "look"]), st.integers(0, 5)), max_size=40)


class StoreReader:
    """A store as a Reader."""

    def __init__(self) -> None:
        self.store = Store()
        self.born = 0

    def get(self, key: Key) -> Obj | None:
        return self.store.get(key)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        return self.store.list(kind, namespace)

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        return ()

    def change(self, what: str, number: int) -> None:
        """Create, finish or delete a Workload; a Workload created again has another UID."""
        key = Key(scheme.WORKLOAD, "team", f"w{number}")
        result = self.store.get(key)
        if what == "delete" and result is not None:
            self.store.delete(key)
        elif what == "put" and result is None:
            self.born += 1
            obj = make.workload(f"w{number}")
            own = {"uid": f"u{self.born}", "creationTimestamp": make.stamp(self.born)}
            self.store.put(key, {**obj, "metadata": {**obj["metadata"], **own}})
        elif what == "finish" and result is not None:
            self.store.put(key, {**result, "status": {"conditions": [make.condition("Finished")]}})


@given(CHANGES)
def test_workload_list_cache_matches_store_sorted_newest_first(changes: list[tuple[str, int]]) -> None:
    stored, workload_list = StoreReader(), WorkloadListCache()
    for what, number in [*changes, ("look", 0)]:
        stored.change(what, number)
        if what == "look":
            entries = workload_list.entries(stored, None)
            objs = {obj["metadata"]["uid"]: obj for obj in stored.list(scheme.WORKLOAD)}
            assert {entry.view.uid: entry.obj for entry in entries} == objs
            assert [entry.order for entry in entries] == sorted((entry.order for entry in entries), reverse=True)
            assert all(
                (entry.state == "Finished") == ("status" in entry.obj and bool(entry.obj["status"]))
                for entry in entries
            )
            assert workload_list.entries(stored, ["other"]) == []
