"""What the runner does about writes that the API server refuses again and again."""

import pytest

from batchyard.api.errors import ApiError, InvalidObject, RefusedForNow
from batchyard.api.meta import Key
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import Create, Reader
from batchyard.interfaces.controller import ReconcileResult
from unit.controller_runtime.test_runner import Scripted, Yard, count_to, job, key, when_touched


@pytest.mark.parametrize("error", [InvalidObject([]), RefusedForNow("no right")])
def test_what_the_server_refuses_is_retried_less_and_less_often_and_reported(error: ApiError) -> None:
    controller = Scripted(look=count_to(1))
    yard = Yard(controller, errors=[error] * 4)
    yard.run(Create(job()))
    assert controller.looks == [("a", wait * SECOND) for wait in (0, 1, 3, 7, 15, 15)]
    assert yard.recorded == [(at * SECOND, "scripted", "WriteRefused") for at in (1, 3, 7)]


def test_a_refused_write_does_not_hold_up_independent_ones_for_long() -> None:
    def look(_key: Key, reader: Reader, _now: Instant) -> ReconcileResult:
        return ReconcileResult([] if reader.get(key("b")) else [Create(job("b")), Create(job("c"))], independent=True)

    controller = Scripted(look=look, minds=when_touched)
    yard = Yard(controller, errors=[InvalidObject([])] * 12)
    yard.touch()
    yard.run()
    assert controller.looks == [("a", second * SECOND) for second in (0, 1, 3, 7, 15, 23, 31)]
