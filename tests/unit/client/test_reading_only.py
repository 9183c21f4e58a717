"""Who is to read only cannot write, whatever he tries."""

import pytest

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.client.rest import ClientDependencies, RestClient
from batchyard.client.transport import HttpAnswer, HttpRequest, RateLimit, ReadOnlyTransport, WriteRefusedError
from batchyard.interfaces.client import Delete
from unit.client.served import Served


def test_lists_and_watches_pass_and_writes_do_not() -> None:
    served = Served()
    reading = ReadOnlyTransport(served.line)
    answers: list[HttpAnswer] = []
    reading.send(HttpRequest("GET", "/api/v1/namespaces"), answers.append)
    served.run()
    assert [answer.code for answer in answers] == [200]
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        with pytest.raises(WriteRefusedError):
            reading.send(HttpRequest(method, "/api/v1/namespaces/team"), answers.append)
    assert served.api.get("/api/v1/namespaces/team")["metadata"]["name"] == "team"


def test_a_client_over_it_changes_nothing() -> None:
    served = Served()
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
