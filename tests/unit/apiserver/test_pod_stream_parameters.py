"""Parameters of requests to processes and ports of pods."""

import pytest

from batchyard.apiserver.request import ApiRequest, StatusError
from batchyard.apiserver.subresources.pod_streams import requested_ports


def request_for_ports(*ports: int) -> ApiRequest:
    stated = tuple(("ports", str(port)) for port in ports)
    return ApiRequest("GET", "/", dict(stated), {}, query_items=stated)


def test_port_forward_rejects_more_than_128_ports() -> None:
    assert requested_ports(request_for_ports(*range(1, 129))) == tuple(range(1, 129))
    with pytest.raises(StatusError, match="129 ports are too many for one connection: forward at most 128"):
        requested_ports(request_for_ports(*range(1, 130)))
