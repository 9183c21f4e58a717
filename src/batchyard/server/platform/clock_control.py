"""The clock of a platform whose time runs faster, as its owner controls it: it runs up to an instant, and stops there.

A client that must act at an instant of the platform's time can so be as slow as it likes. `PUT` takes
`{"until": INSTANT}`, in microseconds since 1970; null lets time run on. The answer, also of `GET`, has the present
instant, the revision of the last change, and whether time has stopped and all work that was due by then is done.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from batchyard.apiserver.request import Refused, Request, Response
from batchyard.server.clocks.kernel import LiveKernel

#: Where it is.
PATH: Final = "/batchyard/clock"
_INVALID: Final = Refused(400, "BadRequest", 'the body is {"until": INSTANT}, in microseconds since 1970, or null')


class ClockControl:
    """Answers requests about the clock of a kernel."""

    def __init__(self, kernel: LiveKernel, revision: Callable[[], int]) -> None:
        self._kernel = kernel
        self._revision = revision

    def document(self) -> Mapping[str, Any]:
        """What time it is, and whether time has stopped."""
        kernel = self._kernel
        return {
            "instant": kernel.clock(),
            "until": kernel.stops_at,
            "hasStopped": kernel.has_stopped(),
            "revision": self._revision(),
        }

    def put(self, request: Request) -> Response:
        """Let time run until an instant."""
        try:
            until = json.loads(request.body)["until"]
        except (ValueError, TypeError, KeyError):
            raise _INVALID from None
        if until is not None and type(until) is not int:
            raise _INVALID
        self._kernel.run_until(until)
        return Response(200, self.document())
