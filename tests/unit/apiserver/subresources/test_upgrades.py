"""Which protocol a WebSocket speaks from then on."""

import pytest

from batchyard.apiserver.request import ApiRequest, StatusError
from batchyard.apiserver.subresources.pod_streams import UNNAMED, WEBSOCKET, upgrade_of

HANDSHAKE = {"connection": "Upgrade", "upgrade": WEBSOCKET, "sec-websocket-version": "13", "sec-websocket-key": "key"}


def chosen(spoken: tuple[str, ...], **headers: str) -> str:
    """The protocol that comes of a handshake."""
    return upgrade_of(ApiRequest("GET", "/", headers={**HANDSHAKE, **headers}), spoken, ()).protocol


def test_the_first_protocol_of_the_client_that_is_spoken_counts() -> None:
    assert chosen(("one", "two"), **{"sec-websocket-protocol": "none, two, one"}) == "two"


def test_a_client_that_names_no_protocol_is_understood_where_that_is_one() -> None:
    assert chosen(("one", UNNAMED)) == UNNAMED


@pytest.mark.parametrize(("headers", "asked"), [({}, ""), ({"sec-websocket-protocol": "two"}, "two")])
def test_other_protocols_are_refused_with_what_is_spoken(headers: dict[str, str], asked: str) -> None:
    spoken = ("one",) if not headers else ("one", UNNAMED)
    with pytest.raises(StatusError) as refused:
        chosen(spoken, **headers)
    reported = f"unable to upgrade: requested protocol(s) are not supported: [{asked}]; supports [one]"
    assert (refused.value.code, str(refused.value)) == (403, reported)
