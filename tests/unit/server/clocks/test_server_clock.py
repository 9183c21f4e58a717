"""A platform beside a server goes by the server's time, whatever the clock of its own machine says."""

import asyncio
from collections.abc import Callable, Sequence

from batchyard.base.instant import HOUR, MINUTE, SECOND, Duration
from batchyard.client.transport import HttpAnswer, HttpRequest
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.server.clocks.kernel import LiveKernel
from batchyard.server.clocks.server import ServerClock

START = 1_767_225_600 * SECOND


class Dated:
    """A server of others, whose dates are ahead of START by so much, one after the other."""

    def __init__(self, ahead: Sequence[Duration]) -> None:
        self.ahead = list(ahead)

    async def ask(self, request: HttpRequest) -> HttpAnswer:
        """The answer, of which only the date is looked at."""
        if request.path != "/version":
            return HttpAnswer(404, server_time=START)
        return HttpAnswer(
            200, b'{"gitVersion": "v1.36.2"}', server_time=START + (self.ahead.pop(0) if self.ahead else 0)
        )

    def send(self, request: HttpRequest, answered: Callable[[HttpAnswer], None]) -> None:
        """The same, to be told."""
        answered(asyncio.run(self.ask(request)))

    def watch(self, *_: object) -> None:
        """Nobody watches."""


def differing(first: Sequence[Duration], later: Sequence[Duration] = ()) -> tuple[list[Duration], list[str]]:
    """By how much the clock was set after the first answers, and after each of the later ones; what was told."""
    reported: list[str] = []
    found: list[Duration] = []
    loop = asyncio.new_event_loop()
    server, timers, kernel = Dated([0, *first]), VirtualEventLoop(START), LiveKernel(loop, START)
    clock = ServerClock(kernel, timers, server, server, reported.append)
    loop.run_until_complete(clock.set())
    found.append(kernel.clock() - START)
    kernel.call_soon(lambda: None)  # from now on there is work
    for ahead in later:
        server.ahead = [ahead]
        timers.step()
        found.append(kernel.clock() - START)
    loop.close()
    return [each // MINUTE * MINUTE for each in found], reported


def test_before_anything_is_done_the_clock_is_set_either_way() -> None:
    found, (reported,) = differing([HOUR, HOUR])
    assert found == [HOUR]
    assert reported.endswith("m behind the server's: following the server's")
    assert differing([-HOUR, -HOUR])[0] == [-HOUR]


def test_dates_that_do_not_agree_count_for_nothing() -> None:
    assert differing([HOUR, 0]) == ([0], [])
    assert differing([2 * SECOND, 0])[0] == [0]


def test_later_it_is_set_ahead_alone_and_said_once_where_it_is_not() -> None:
    assert differing([0], [HOUR, HOUR])[0] == [0, 0, HOUR]
    found, (reported,) = differing([0], [-HOUR, -HOUR, -HOUR, -HOUR])
    assert found == [0] * 5
    assert reported.endswith("m ahead of the server's: time does not go back before the next start")
