"""Calibration from the platform's own forecasts: its requests, its storage, and restarts."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import make
from batchyard.api.meta import Key, Obj
from batchyard.apiserver.request import DeferredResponse, Response
from batchyard.base.instant import MINUTE, Instant
from batchyard.server.forecasting.service import CALIBRATION_INTERVAL, CALIBRATION_USE_PERIOD, CalibrationLoop
from batchyard.server.http.flow_control import too_many_requests
from batchyard.sim.forecasting.calibration import LEVELS, Calibration, ForecastRecord

FORECAST = ForecastRecord("team/w", "u", 0, ("history, many forks",), 5.0, tuple(5 + level for level in LEVELS))


class CalibrationBench:
    """A pending Workload, a settable clock, and a forecast that answers at once."""

    def __init__(self, path: Path) -> None:
        self.now: Instant = 0
        self.asked = 0
        result = make.workload("w")
        self.workload: Obj = {**result, "metadata": {**result["metadata"], "uid": "u"}}
        self.answer: Callable[[], DeferredResponse] = lambda: DeferredResponse(
            lambda reported: reported(Response(200, msgspec.json.encode([FORECAST])))
        )
        self.calibrating = CalibrationLoop(path, self, lambda: self.now, self._ask)

    def get(self, key: Key) -> Obj | None:
        return self.workload if key.name == "w" else None

    def look(self, now: Instant) -> Calibration:
        self.now = now
        self.calibrating.check_forecasts()
        return self.calibrating.calibration

    def _ask(self) -> DeferredResponse:
        self.asked += 1
        return self.answer()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "forecasts.json"


def test_calibration_asks_no_forecast_before_first_use(path: Path) -> None:
    scene = CalibrationBench(path)
    scene.look(CALIBRATION_INTERVAL)
    assert (scene.asked, path.exists()) == (0, False)


def test_calibration_asks_periodically_for_one_day_after_use(path: Path) -> None:
    scene = CalibrationBench(path)
    scene.calibrating.record_use()
    for minute in range(2 * CALIBRATION_INTERVAL // MINUTE):
        scene.look(minute * MINUTE)
    assert scene.asked == 2
    scene.look(CALIBRATION_USE_PERIOD + MINUTE)
    assert scene.asked == 2


def test_forecast_result_is_learned_and_persisted(path: Path) -> None:
    scene = CalibrationBench(path)
    scene.calibrating.record_use()
    assert scene.look(0).pending == (FORECAST,)
    condition = {"type": "Admitted", "status": "True", "lastTransitionTime": "1970-01-01T00:09:00Z", "reason": "r"}
    scene.workload = {**scene.workload, "status": {"conditions": [condition]}}
    learnt = scene.look(10 * MINUTE)
    assert not learnt.pending
    assert learnt.tracks["history, many forks"].shifts[17] > 0
    assert CalibrationBench(path).calibrating.calibration.tracks == learnt.tracks


def test_calibration_retries_later_when_server_is_busy(path: Path) -> None:
    scene = CalibrationBench(path)
    scene.answer = refuse
    scene.calibrating.record_use()
    assert not scene.look(0).pending
    scene.answer = lambda: DeferredResponse(lambda reported: reported(Response(503, b"")))
    assert not scene.look(CALIBRATION_INTERVAL).pending
    assert scene.asked == 2


def refuse() -> DeferredResponse:
    raise too_many_requests()


def test_unreadable_calibration_file_yields_empty_calibration(path: Path) -> None:
    path.write_bytes(b"{")
    assert CalibrationBench(path).calibrating.calibration == Calibration()


def test_calibration_continues_when_disk_rejects_writes(path: Path) -> None:
    scene = CalibrationBench(path.parent / "gone" / "forecasts.json")
    scene.calibrating.record_use()
    assert scene.look(0).pending == (FORECAST,)
