"""A proxy for an API server with delayed, repeated, interrupted and expired watches."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Self

from aiohttp import ClientSession, ClientTimeout, web

from batchyard.base.instant import SECOND
from batchyard.base.primitives import draw_integer
from batchyard.server.clocks.wall import sleep_for

_GONE = {"kind": "Status", "apiVersion": "v1", "code": 410, "reason": "Expired", "message": "too old resource version"}
_MILLION = 1_000_000


class ProxyFaults(NamedTuple):
    """The faults, in seconds; 0 means never."""

    seed: int = 0
    #: Maximum delay of a watch; each kind has its own delay.
    late_max: float = 0
    #: Maximum additional delay of a line.
    jitter: float = 0
    #: One of this number of lines is repeated.
    repeats: int = 0
    #: A watch breaks off after this time, or up to twice this time.
    breaks_after: float = 0
    #: One of this number of restarted watches gets the error Expired.
    gone: int = 0


class BadProxy:
    """The proxy; it listens within the context."""

    def __init__(self, server: str, badness: ProxyFaults) -> None:
        self._server = server
        self._wrong = badness
        self._drawn = 0
        self._begun: dict[str, int] = {}
        self.url = ""
        #: The number of faults by kind.
        self.done = {"watches": 0, "repeated": 0, "broken": 0, "gone": 0}

    async def __aenter__(self) -> Self:
        self._session = ClientSession(timeout=ClientTimeout(total=None))
        app = web.Application()
        app.add_routes([web.get("/{path:.*}", self._answer)])
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        headers = {"Accept": request.headers.get("Accept", "application/json")}
        async with self._session.get(f"{self._server}{request.raw_path}", headers=headers) as answer:
            if "watch" not in request.query or answer.status != 200:
                body = await answer.read()
                return web.Response(status=answer.status, body=body, content_type="application/json")
            reported = web.StreamResponse(headers={"Content-Type": "application/json"})
            try:
                await reported.prepare(request)
            except ConnectionError:  # the client is gone
                return reported
            kind = request.path.rpartition("/")[2]
            self._begun[kind] = self._begun.get(kind, 0) + 1
            self.done["watches"] += 1
            if self._begun[kind] > 1 and self._happens(self._wrong.gone):
                self.done["gone"] += 1
                await reported.write(json.dumps({"type": "ERROR", "object": _GONE}).encode() + b"\n")
                return reported
            await self._notify(kind, answer.content.readline, reported)
            return reported

    async def _notify(self, kind: str, read: Callable[[], Awaitable[bytes]], reported: web.StreamResponse) -> None:
        """Forward the lines of a watch, each with a delay."""
        wrong, loop = self._wrong, asyncio.get_running_loop()
        lines: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        late = draw_integer(wrong.seed, "late", kind) % _MILLION / _MILLION * wrong.late_max

        async def gather() -> None:
            while line := await read():
                lines.put_nowait((loop.time() + late + self._drawn_up_to(wrong.jitter), line))
            lines.put_nowait((0, b""))

        gathering = asyncio.create_task(gather())
        try:
            async with asyncio.timeout(self._drawn_up_to(2 * wrong.breaks_after) or None):
                while (each := await lines.get())[1]:
                    await sleep_for(max(0, round((each[0] - loop.time()) * SECOND)))
                    repeated = 1 + self._happens(wrong.repeats)
                    self.done["repeated"] += repeated - 1
                    await reported.write(each[1] * repeated)
        except TimeoutError:
            self.done["broken"] += 1
        except ConnectionError:
            pass  # the client is gone
        finally:
            gathering.cancel()

    def _happens(self, one_of: int) -> bool:
        self._drawn += 1
        return bool(one_of) and not draw_integer(self._wrong.seed, "happens", str(self._drawn)) % one_of

    def _drawn_up_to(self, most: float) -> float:
        self._drawn += 1
        return draw_integer(self._wrong.seed, "time", str(self._drawn)) % _MILLION / _MILLION * most
