"""Events of events.k8s.io that repeat before the API server answers the first request."""

from typing import Any

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.controller_runtime.events import EventRecorder
from batchyard.interfaces.controller import EventRecord
from unit.client.client_and_server import ClientAndServer

PREEMPTOR = Key(scheme.WORKLOAD, "team", "preemptor")


def stored(served: ClientAndServer) -> list[Any]:
    """The Events of the API server."""
    items: list[Any] = served.api.get("/api/v1/namespaces/team/events")["items"]
    return items


def test_simultaneous_preemptions_are_single_event_with_series() -> None:
    served = ClientAndServer().start()
    record = EventRecorder(served.client, "here")
    for number in range(8):
        reported = EventRecord(PREEMPTOR, "Normal", "PreemptedWorkload", f"Preempted workload team/{number}")
        record(served.kernel.now(), "scheduler", reported)
    served.run()
    (event,) = stored(served)
    assert (event["message"], event["series"]["count"]) == ("Preempted workload team/0", 8)
    record(served.kernel.now(), "scheduler", EventRecord(PREEMPTOR, "Normal", "PreemptedWorkload", "Preempted another"))
    served.run()
    assert [event["series"]["count"] for event in stored(served)] == [9]
