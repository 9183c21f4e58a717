"""The owner of a platform controls its clock."""

import asyncio
import json

import pytest

from batchyard.apiserver.request import ApiRequest, StatusError
from batchyard.base.instant import HOUR
from batchyard.server.clocks.kernel import LiveKernel
from batchyard.server.platform.clock_control import CLOCK_PATH, ClockControl

START = 1_767_225_600_000_000


def put(control: ClockControl, body: bytes) -> object:
    return control.put(ApiRequest("PUT", CLOCK_PATH, body=body)).body


async def control_of_a_clock() -> tuple[ClockControl, LiveKernel]:
    kernel = LiveKernel(asyncio.get_running_loop(), START, 60.0)
    return ClockControl(kernel, lambda: 7), kernel


def test_clock_runs_until_instant_and_resumes() -> None:
    async def act() -> None:
        control, kernel = await control_of_a_clock()
        reported = put(control, json.dumps({"until": START + HOUR}).encode())
        assert isinstance(reported, dict)
        assert (reported["until"], reported["hasStopped"], reported["revision"]) == (START + HOUR, False, 7)
        put(control, b'{"until": 0}')
        assert control.document()["hasStopped"]
        assert control.document()["instant"] == kernel.stops_at
        put(control, b'{"until": null}')
        assert control.document()["until"] is None

    asyncio.run(act())


@pytest.mark.parametrize("body", [b"", b"{}", b"7", b'{"until": "noon"}', b'{"until": true}', b'{"until": 1.5}'])
def test_invalid_instant_is_rejected(body: bytes) -> None:
    async def act() -> None:
        control, kernel = await control_of_a_clock()
        with pytest.raises(StatusError, match="until"):
            put(control, body)
        assert kernel.stops_at is None

    asyncio.run(act())
