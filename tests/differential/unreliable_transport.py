"""An unreliable connection to an API server: watches have different delays, repeat lines and break.

A real API server may behave the same: the API guarantees neither an order between kinds, nor unique delivery, nor the
resumption of a broken watch.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from batchyard.base.instant import MILLISECOND, SECOND, Duration, Instant
from batchyard.base.primitives import draw_integer
from batchyard.client.transport import HttpRequest, HttpResponse
from batchyard.controller_runtime.kernel import VirtualEventLoop
from unit.apiserver.api import Api
from unit.client.client_and_server import InProcessTransport

#: The plurals of the kinds that a shadow reads.
PLURALS = (
    *("workloads", "localqueues", "clusterqueues", "cohorts", "resourceflavors", "namespaces"),
    *("admissionchecks", "limitranges"),
)
_GONE = HttpResponse(410, b'{"kind":"Status","code":410,"reason":"Expired","message":"too old resource version"}')


class ConnectionFaults(NamedTuple):
    """The faults of a connection; 0 means never."""

    seed: int = 0
    #: The delays of watches by kind; other kinds have a random delay up to `late_max`.
    late: Mapping[str, Duration] = MappingProxyType({})
    late_max: Duration = 0
    #: The maximum variation of the time between two lines.
    jitter: Duration = 0
    #: One of this many lines is repeated.
    repeats: int = 0
    #: A watch breaks after a random time around this duration, and resumes.
    breaks_after: Duration = 0
    #: One of this many broken watches cannot resume: its last revision is too old.
    gone: int = 0
    #: The acceleration factor of events.
    hurry: int = 1


class UnreliableTransport(InProcessTransport):
    """A line with delayed, repeated and broken watches."""

    def __init__(self, kernel: VirtualEventLoop, api: Api, trouble: ConnectionFaults) -> None:
        super().__init__(kernel, api)
        self.wrong = trouble
        self._drawn = 0
        self._late = {plural: trouble.late.get(plural, self._draw(trouble.late_max)) for plural in PLURALS}
        #: Kinds whose next watch gets 410 Gone.
        self._too_old: dict[str, None] = {}

    def watch(
        self, request: HttpRequest, reported: Callable[[Sequence[bytes]], None], ended: Callable[[HttpResponse], None]
    ) -> None:
        kind = request.path.partition("?")[0].rpartition("/")[2]
        if kind in self._too_old:
            del self._too_old[kind]
            self.kernel.call_at(self.kernel.now() + MILLISECOND, lambda: ended(_GONE))
            return
        reporting = _DelayedWatch(self.kernel, reported, ended)

        def deliver(lines: Sequence[bytes]) -> None:
            now = self.kernel.now()
            reporting.at = max(reporting.at, now + self._late[kind] + self._draw(self.wrong.jitter))
            self.kernel.call_at(reporting.at, partial(reporting.deliver, self._repeated(lines)))

        super().watch(request, deliver, reporting.end)
        if self.wrong.breaks_after:
            lasts = self._draw(2 * self.wrong.breaks_after)
            self.kernel.call_at(self.kernel.now() + lasts, partial(self._break, kind, reporting))

    def _draw(self, below: int) -> int:
        self._drawn += 1
        return draw_integer(self.wrong.seed, "wire", str(self._drawn)) % below if below else 0

    def _break(self, kind: str, reporting: "_DelayedWatch") -> None:
        if not reporting.is_over:
            if self.wrong.gone and not self._draw(self.wrong.gone):
                self._too_old[kind] = None
            reporting.end(HttpResponse(200, trouble="cut"))

    def _repeated(self, lines: Sequence[bytes]) -> Sequence[bytes]:
        if not self.wrong.repeats:
            return lines
        return [each for line in lines for each in [line] * (1 + (not self._draw(self.wrong.repeats)))]


class _DelayedWatch:
    """A watch that delivers its lines in order, until it ends."""

    def __init__(
        self,
        kernel: VirtualEventLoop,
        reported: Callable[[Sequence[bytes]], None],
        ended: Callable[[HttpResponse], None],
    ) -> None:
        self._kernel, self._reported, self._ended = kernel, reported, ended
        self.at: Instant = 0
        self.is_over = False

    def deliver(self, lines: Sequence[bytes]) -> None:
        if not self.is_over:
            self._reported(lines)

    def end(self, answer: HttpResponse) -> None:
        if not self.is_over:
            self.is_over = True
            self._kernel.call_soon(lambda: self._ended(answer))


def random_connection_faults(seed: int) -> tuple[ConnectionFaults, Sequence[Duration]]:
    """Return the faults of a seed, and the times of restarts of the shadow."""
    sort = seed % 7
    if sort == 6:
        return ConnectionFaults(seed, {}, 3 * SECOND, SECOND // 2, 5, 6 * SECOND, draw_integer(seed, "gone") % 4, 20), [
            3 * SECOND
        ]
    trouble = ConnectionFaults(
        seed,
        late_max=draw_integer(seed, "late") % (8 * SECOND) if sort in {0, 1, 5} else 0,
        jitter=draw_integer(seed, "jitter") % SECOND if sort in {1, 5} else 0,
        repeats=3 if sort in {2, 5} else 0,
        breaks_after=5 * SECOND if sort in {2, 3, 5} else 0,
        gone=2 if sort in {3, 5} else 0,
    )
    return trouble, [draw_integer(seed, "again") % (60 * SECOND)] if sort in {4, 5} else []
