"""Requests to talk to processes and ports of pods, as far as they say what is wanted."""

import pytest

from batchyard.apiserver.request import ApiRequest, StatusError
from batchyard.apiserver.subresources.pod_streams import ports_of


def asking(*ports: int) -> ApiRequest:
    stated = tuple(("ports", str(port)) for port in ports)
    return ApiRequest("GET", "/", dict(stated), {}, query_items=stated)


def test_no_more_ports_are_named_than_there_are_channels_for() -> None:
    assert ports_of(asking(*range(1, 129))) == tuple(range(1, 129))
    with pytest.raises(StatusError, match="129 ports are more than 128"):
        ports_of(asking(*range(1, 130)))
