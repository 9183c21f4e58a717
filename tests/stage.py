"""A small world for tests of controllers: a store, virtual time, the runner, and the controllers under test."""

from collections.abc import Mapping
from typing import Any

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, find_condition, key_of, with_metadata
from batchyard.base.instant import Instant
from batchyard.client.local import LocalClient
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.controller_runtime.runner import Runner
from batchyard.interfaces.client import Create, Delete, Propagation, Update, UpdateStatus, Write, WriteResult
from batchyard.interfaces.controller import Controller, EventRecord
from batchyard.sim.state import to_added_events
from batchyard.store.memory import Store


class Stage:
    """A store with virtual time, and controllers that reconcile its objects."""

    def __init__(self, *controllers: Controller) -> None:
        self.kernel = VirtualEventLoop(make.NOW)
        self.store = Store()
        self.client = LocalClient(self.store, self.kernel)
        self.runner = Runner(self.kernel, self.client, controllers, self._record)
        self.events: list[EventRecord] = []

    def put(self, *objects: Obj) -> None:
        """Create or update objects with their status, and run all due work."""
        for given in objects:
            obj = with_metadata(given, resourceVersion=None)
            known = self.client.get(key_of(obj))
            self._submit(Create(obj) if known is None else Update(obj))
            if known is not None and "status" in obj:
                self._submit(UpdateStatus(obj))
        self.settle()

    def delete(self, kind: str, name: str, namespace: str = "team") -> None:
        """Delete an object, and run all due work."""
        self._submit(Delete(Key(kind, namespace, name)))
        self.settle()

    def delete_without_dependents(self, kind: str, name: str, namespace: str = "team") -> None:
        """Delete an object without its dependents, and run all due work."""
        self._submit(Delete(Key(kind, namespace, name), propagation=Propagation.ORPHAN))
        self.settle()

    def replace_controllers(self, *controllers: Controller) -> None:
        """Stop the controllers, and start others that know only the stored objects."""
        self.runner.stop()
        self.client.unsubscribe(self.runner.observe)
        self.runner = Runner(self.kernel, self.client, controllers, self._record)
        self.runner.observe(to_added_events([obj for kind in self.store.kinds() for obj in self.store.list(kind)]))
        self.settle()

    def settle(self) -> None:
        """Run all work that is due now."""
        self.kernel.run(self.kernel.now())

    def run(self, seconds: float) -> None:
        """Run until this many seconds after the start."""
        self.kernel.run(make.at(seconds))

    def get(self, kind: str, name: str, namespace: str = "team") -> Mapping[str, Any]:
        """Return an object; raise AssertionError if it does not exist."""
        result = self.client.get(Key(kind, namespace, name))
        assert result is not None, f"there is no {kind} {namespace}/{name}"
        return result

    def workload(self, name: str = "wl") -> Mapping[str, Any]:
        """Return a Workload; raise AssertionError if it does not exist."""
        return self.get(scheme.WORKLOAD, name)

    def workloads(self) -> list[Obj]:
        """All Workloads."""
        return list(self.client.list(scheme.WORKLOAD))

    def only_workload(self) -> Obj:
        """Return the only Workload; raise ValueError if there is not exactly one."""
        (workload,) = self.workloads()
        return workload

    def reasons(self) -> list[str]:
        """The reasons of the events so far."""
        return [event.reason for event in self.events]

    def _submit(self, write: Write) -> None:
        def done(result: WriteResult) -> None:
            assert result.error is None, result.error

        self.client.submit([write], done)

    def _record(self, now: Instant, controller: str, event: EventRecord) -> None:
        self.events.append(event)


def condition_state(obj: Mapping[str, Any], type: str) -> tuple[str, str, str]:  # noqa: A002 - the field's name
    """Return status, reason and message of a condition that the object must have."""
    result = find_condition(obj, type)
    assert result is not None, f"there is no condition {type}"
    return result["status"], result["reason"], result["message"]
