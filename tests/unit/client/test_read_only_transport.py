"""The read-only transport refuses all writes."""

import pytest

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.client.rest import ClientDependencies, RestClient
from batchyard.client.transport import HttpRequest, HttpResponse, RateLimit, ReadOnlyTransport, WriteRefusedError
from batchyard.interfaces.client import Delete
from unit.client.client_and_server import ClientAndServer


def test_read_only_transport_passes_reads_and_refuses_writes() -> None:
    served = ClientAndServer()
    reading = ReadOnlyTransport(served.line)
    answers: list[HttpResponse] = []
    reading.send(HttpRequest("GET", "/api/v1/namespaces"), answers.append)
    served.run()
    assert [answer.code for answer in answers] == [200]
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        with pytest.raises(WriteRefusedError):
            reading.send(HttpRequest(method, "/api/v1/namespaces/team"), answers.append)
    assert served.api.get("/api/v1/namespaces/team")["metadata"]["name"] == "team"


def test_client_with_read_only_transport_cannot_write() -> None:
    served = ClientAndServer()
    wiring = ClientDependencies(
        served.kernel, served.kernel, ReadOnlyTransport(served.line), RateLimit(10.0, 10), lambda: True
    )
    client = RestClient(wiring, (scheme.NAMESPACE,))
    client.start()
    served.run()
    assert client.get(Key(scheme.NAMESPACE, "", "team")) is not None
    with pytest.raises(WriteRefusedError):
        client.submit([Delete(Key(scheme.NAMESPACE, "", "team"))], lambda _: None)
    served.run()
    assert served.api.get("/api/v1/namespaces/team")["metadata"]["name"] == "team"
