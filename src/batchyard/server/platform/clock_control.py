"""Clock control: the owner of a platform with accelerated time can let it run up to an instant, where it stops.

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
CLOCK_PATH: Final = "/batchyard/clock"
_INVALID_CLOCK_REQUEST: Final = StatusError(
    400, "BadRequest", 'the body must be {"until": INSTANT}, with INSTANT in microseconds since 1970 or null'
)


class ClockControl:
    """Handles HTTP requests that read or control the accelerated clock of a platform."""

    def __init__(self, kernel: LiveKernel, revision: Callable[[], int]) -> None:
        self._kernel = kernel
        self._revision = revision

    def document(self) -> Mapping[str, Any]:
        """Return JSON fields: the current instant, when time stops, whether it has stopped, and the last revision."""
        kernel = self._kernel
        has_stopped, revision = kernel.has_stopped(), self._revision()
        return {"instant": kernel.clock(), "until": kernel.stops_at, "hasStopped": has_stopped, "revision": revision}

    def put(self, request: ApiRequest) -> Response:
        """Handle a PUT request: let time run until an instant, or without end if null. Raises StatusError (400)."""
        try:
            end_time = json.loads(request.body)["until"]
        except (ValueError, TypeError, KeyError):
            raise _INVALID_CLOCK_REQUEST from None
        if end_time is not None and type(end_time) is not int:
            raise _INVALID_CLOCK_REQUEST
        self._kernel.run_until(end_time)
        return Response(200, self.document())
