"""Requests to speak another protocol on their connection: which is wanted, and which of its versions it becomes.

Sources: k8s.io/streaming pkg/httpstream (SPDY) and pkg/httpstream/wsstream (WebSockets), k8s.io/apimachinery
pkg/util/proxy, k8s.io/apiserver pkg/util/proxy (tunnels).
"""

from collections.abc import Sequence
from typing import Final

from batchyard.apiserver.request import SEPARATOR, Refused, Request, bad_request
from batchyard.apiserver.streams import Upgrade

WEBSOCKET: Final = "websocket"
SPDY: Final = "SPDY/3.1"
#: How a WebSocket says that SPDY is spoken over it, and about what.
TUNNEL: Final = f"{SPDY}+"
#: The protocol of a WebSocket whose client names none.
UNNAMED: Final = ""
_KEY: Final = "sec-websocket-key"
_VERSION: Final = "13"


def upgrade_of(request: Request, websockets: Sequence[str], spdy: Sequence[str]) -> Upgrade:
    """What a request wants its connection to be, of the protocols that are spoken; Refused if it is none of them."""
    wanted = request.headers.get("upgrade", "").lower()
    if "upgrade" not in request.headers.get("connection", "").lower():
        raise bad_request("Upgrade request required")
    if wanted == WEBSOCKET:
        return Upgrade(WEBSOCKET, _websocket_protocol(request, websockets))
    if SPDY.lower() in wanted:
        return Upgrade(SPDY, _spdy_protocol(request, spdy))
    raise bad_request(f"unable to upgrade: {wanted or 'nothing'} is not spoken here, but {WEBSOCKET} and {SPDY}")


def _websocket_protocol(request: Request, spoken: Sequence[str]) -> str:
    if request.headers.get("sec-websocket-version", "") != _VERSION:
        raise bad_request("unable to upgrade: missing or bad WebSocket Version")
    if request.method != "GET" or not request.headers.get(_KEY):
        raise bad_request("unable to upgrade: this is no handshake of a WebSocket")
    asked = _listed(request, "sec-websocket-protocol")
    chosen = next((each for each in asked or [UNNAMED] if each in spoken), None)
    if chosen is None:
        told = f"[{' '.join(asked)}]; supports [{' '.join(filter(None, spoken))}]"
        raise Refused(403, "Forbidden", f"unable to upgrade: requested protocol(s) are not supported: {told}")
    return chosen


def _spdy_protocol(request: Request, spoken: Sequence[str]) -> str:
    header = "x-stream-protocol-version"
    asked = _listed(request, header)
    if not asked:
        raise bad_request(f"unable to upgrade: header {header.title()} does not exist in request")
    chosen = next((each for each in asked if each in spoken), None)
    if chosen is None:
        told = f"client supports [{' '.join(asked)}], server accepts [{' '.join(spoken)}]"
        raise Refused(403, "Forbidden", f"unable to upgrade: unable to negotiate protocol: {told}")
    return chosen


def _listed(request: Request, header: str) -> list[str]:
    """The values of a header that is a list, and may come more than once."""
    text = request.headers.get(header, "").replace(SEPARATOR, ",")
    return [value for each in text.split(",") if (value := each.strip())]
