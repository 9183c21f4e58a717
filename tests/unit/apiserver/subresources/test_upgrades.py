"""Selection of the WebSocket protocol of an upgrade."""

import pytest

from batchyard.apiserver.request import ApiRequest, StatusError
from batchyard.apiserver.subresources.pod_streams import UNNAMED_PROTOCOL, WEBSOCKET, negotiate_upgrade

HANDSHAKE = {"connection": "Upgrade", "upgrade": WEBSOCKET, "sec-websocket-version": "13", "sec-websocket-key": "key"}


def chosen(spoken: tuple[str, ...], **headers: str) -> str:
    """The protocol that a handshake selects."""
    return negotiate_upgrade(ApiRequest("GET", "/", headers={**HANDSHAKE, **headers}), spoken, ()).subprotocol


def test_upgrade_chooses_first_supported_protocol_of_client() -> None:
    assert chosen(("one", "two"), **{"sec-websocket-protocol": "none, two, one"}) == "two"


def test_upgrade_accepts_client_without_protocol_if_supported() -> None:
    assert chosen(("one", UNNAMED_PROTOCOL)) == UNNAMED_PROTOCOL


@pytest.mark.parametrize(("headers", "asked"), [({}, ""), ({"sec-websocket-protocol": "two"}, "two")])
def test_upgrade_rejects_unsupported_protocol(headers: dict[str, str], asked: str) -> None:
    spoken = ("one",) if not headers else ("one", UNNAMED_PROTOCOL)
    with pytest.raises(StatusError) as refused:
        chosen(spoken, **headers)
    reported = f"unable to upgrade: requested protocol(s) are not supported: [{asked}]; supports [one]"
    assert (refused.value.code, str(refused.value)) == (403, reported)
