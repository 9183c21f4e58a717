"""What pods lose that are stopped."""

from typing import Any

import pytest

import make
from batchyard.base.instant import MINUTE, SECOND, Instant
from batchyard.core.checkpoints import checkpoint_interval, lost_work, running_since


def noted(text: str | None) -> Any:
    annotations = None if text is None else {"batchyard.dev/checkpoint-every": text}
    return {"metadata": make.metadata("o", annotations=annotations)}


def pod(phase: str, **state: Any) -> Any:
    return {"metadata": make.metadata("p"), "status": {"phase": phase, "containerStatuses": [{"state": state}]}}


@pytest.mark.parametrize(
    ("started", "interval", "lost"),
    [
        (make.at(0), None, 100 * SECOND),
        (make.at(0), 30 * SECOND, 10 * SECOND),
        (make.at(0), 50 * SECOND, 0),
        (make.at(0), 5 * MINUTE, 100 * SECOND),
        (make.at(95), 30 * SECOND, 5 * SECOND),
        (make.at(101), None, 0),
        (None, None, 0),
    ],
)
def test_what_was_done_since_the_last_checkpoint_is_lost(
    started: Instant | None, interval: int | None, lost: int
) -> None:
    assert lost_work(started, interval, make.at(100)) == lost


def test_the_first_who_says_how_often_work_is_saved_is_believed() -> None:
    assert checkpoint_interval([noted(None), None, noted("5m"), noted("1m")]) == 5 * MINUTE


@pytest.mark.parametrize("text", [None, "often", "", "0s"])
def test_who_says_nothing_that_can_be_read_never_saves_work(text: str | None) -> None:
    assert checkpoint_interval([noted(text)]) is None


def test_work_is_done_while_containers_run() -> None:
    started = {"startedAt": make.stamp(7)}
    assert running_since(pod("Running", running=started)) == make.at(7)
    assert running_since(pod("Running", waiting={"reason": "CrashLoopBackOff"})) is None
    assert running_since(pod("Succeeded", running=started)) is None
    assert running_since({"metadata": make.metadata("p")}) is None
