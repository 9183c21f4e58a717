"""Clock control: the owner of a platform with accelerated time lets it run up to an instant, where it stops.

A client that must act at an instant of the platform's time can therefore be arbitrarily slow. `PUT` takes
`{"until": INSTANT}`, in microseconds since 1970; null lets time run freely. The responses to `PUT` and `GET` hold the
current instant, the last revision, and whether time has stopped with all work due by then done.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from batchyard.apiserver.request import ApiRequest, Response, StatusError
from batchyard.server.clocks.kernel import LiveKernel

#: The URL path.
PATH: Final = "/batchyard/clock"
_INVALID: Final = StatusError(400, "BadRequest", 'the body is {"until": INSTANT}, in microseconds since 1970, or null')


class ClockControl:
    """Handles the requests about the clock of a kernel."""

    def __init__(self, kernel: LiveKernel, revision: Callable[[], int]) -> None:
        self._kernel = kernel
        self._revision = revision

    def document(self) -> Mapping[str, Any]:
        """Return the current instant, and whether time has stopped."""
        kernel = self._kernel
        return {
            "instant": kernel.clock(),
            "until": kernel.stops_at,
            "hasStopped": kernel.has_stopped(),
            "revision": self._revision(),
        }

    def put(self, request: ApiRequest) -> Response:
        """Let time run until the requested instant."""
        try:
            until = json.loads(request.body)["until"]
        except (ValueError, TypeError, KeyError):
            raise _INVALID from None
        if until is not None and type(until) is not int:
            raise _INVALID
        self._kernel.run_until(until)
        return Response(200, self.document())
