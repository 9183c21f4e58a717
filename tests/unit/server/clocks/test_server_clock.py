"""A platform beside a server follows the server's time instead of the clock of its machine."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from batchyard.base.instant import HOUR, MINUTE, SECOND, Duration
from batchyard.client.transport import HttpRequest, HttpResponse
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.server.clocks.kernel import LiveKernel
from batchyard.server.clocks.server import ServerClock, is_other_server

START = 1_767_225_600 * SECOND


class DatedServer:
    """An external server; its successive dates are ahead of START by these durations."""

    def __init__(self, ahead: Sequence[Duration]) -> None:
        self.ahead = list(ahead)

    async def send_request(self, request: HttpRequest) -> HttpResponse:
        """Return a response; the clock uses only its date."""
        if request.path != "/version":
            return HttpResponse(404, server_time=START)
        return HttpResponse(
            200, b'{"gitVersion": "v1.36.2"}', server_time=START + (self.ahead.pop(0) if self.ahead else 0)
        )

    def send(self, request: HttpRequest, answered: Callable[[HttpResponse], None]) -> None:
        """Answer the same through a callback."""
        answered(asyncio.run(self.send_request(request)))

    def watch(self, *_: object) -> None:
        """Do nothing: the clock does not watch."""


def measure_offsets(first: Sequence[Duration], later: Sequence[Duration] = ()) -> tuple[list[Duration], list[str]]:
    """Return the offset of the clock after the first answers and after each later one, and the reports."""
    reported: list[str] = []
    result: list[Duration] = []
    loop = asyncio.new_event_loop()
    server, timers, kernel = DatedServer([0, *first]), VirtualEventLoop(START), LiveKernel(loop, START)
    clock = ServerClock(kernel, timers, server, server, reported.append)
    loop.run_until_complete(clock.synchronize())
    result.append(kernel.clock() - START)
    kernel.call_soon(lambda: None)  # from now on there is work
    for ahead in later:
        server.ahead = [ahead]
        timers.step()
        result.append(kernel.clock() - START)
    loop.close()
    return [each // MINUTE * MINUTE for each in result], reported


class VersionServer:
    """A server that answers the request of its version with a fixed response."""

    def __init__(self, response: HttpResponse) -> None:
        self.response = response

    async def send_request(self, request: HttpRequest) -> HttpResponse:
        """Return the response."""
        assert request.path == "/version"
        return self.response


@pytest.mark.parametrize(
    ("response", "is_other"),
    [
        (HttpResponse(200, b'{"gitVersion": "v1.36.2"}'), True),
        (HttpResponse(200, b'{"gitVersion": "v1.36.0+batchyard"}'), False),
        (HttpResponse(200, b"<html>please log in</html>"), False),
        (HttpResponse(200, b"{}"), False),
        (HttpResponse(403, b'{"gitVersion": "v1.36.2"}'), False),
    ],
)
def test_server_is_other_only_if_it_reports_another_version(response: HttpResponse, is_other: bool) -> None:
    assert asyncio.run(is_other_server(VersionServer(response))) is is_other


def test_clock_is_set_forwards_or_backwards_before_first_work() -> None:
    result, (reported,) = measure_offsets([HOUR, HOUR])
    assert result == [HOUR]
    assert reported.endswith("m behind the API server's clock: it is set to the server's time")
    assert measure_offsets([-HOUR, -HOUR])[0] == [-HOUR]


def test_inconsistent_server_dates_are_ignored() -> None:
    assert measure_offsets([HOUR, 0]) == ([0], [])
    assert measure_offsets([2 * SECOND, 0])[0] == [0]


def test_running_clock_is_only_set_forwards_and_warns_once_when_ahead() -> None:
    assert measure_offsets([0], [HOUR, HOUR])[0] == [0, 0, HOUR]
    result, (reported,) = measure_offsets([0], [-HOUR, -HOUR, -HOUR, -HOUR])
    assert result == [0] * 5
    assert reported.endswith(
        "m ahead of the API server's clock: it is not set back until the next start of this process"
    )
