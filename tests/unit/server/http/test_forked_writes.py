"""Functions that run in forked child processes, and their end at shutdown."""

import asyncio

import pytest

from batchyard.apiserver.request import MASTERS_GROUP, StatusError, UserInfo
from batchyard.interfaces.controller import Work
from batchyard.server.http.forked_writes import ForkedWork

OWNER = UserInfo("owner", (MASTERS_GROUP,))
USER = UserInfo("anna", ())


def run_now(work: Work) -> None:
    work()


@pytest.mark.parametrize("user", [OWNER, USER])
def test_close_rejects_queued_functions(user: UserInfo) -> None:
    async def run() -> list[bytes | StatusError]:
        loop = asyncio.get_running_loop()
        results: list[bytes | StatusError] = []
        executor = ForkedWork(loop, run_now)
        executor.submit(user, lambda: b"done", results.append)
        executor.close()
        return results

    (result,) = asyncio.run(run())
    assert isinstance(result, StatusError)
    assert result.code == 429


def test_function_returns_its_output() -> None:
    async def run() -> bytes | StatusError:
        loop = asyncio.get_running_loop()
        end: asyncio.Future[bytes | StatusError] = loop.create_future()
        executor = ForkedWork(loop, run_now)
        executor.submit(OWNER, lambda: b"done", end.set_result)
        result = await end
        executor.close()
        return result

    assert asyncio.run(run()) == b"done"
