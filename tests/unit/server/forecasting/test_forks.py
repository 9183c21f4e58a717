"""Forks that answer questions: their responses and their metrics."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from batchyard.apiserver.request import Response, StatusError
from batchyard.server.forecasting import service
from batchyard.server.forecasting.service import ForkPool

_TOTAL = "batchyard_fork_questions_total"


def ask(*works: Callable[[], Any]) -> tuple[list[Response], str]:
    """Run each work in a fork, one after the other; return the responses and the metrics."""

    async def run() -> tuple[list[Response], str]:
        loop, answers = asyncio.get_running_loop(), []
        forks = ForkPool(loop, lambda: 1)
        for number, work in enumerate(works):
            answered: asyncio.Future[Any] = loop.create_future()
            forks.submit_question(number, work).then(answered.set_result)
            answers.append(await asyncio.wait_for(answered, 60))
        return answers, "".join(forks.metrics.texts())

    return asyncio.run(run())


def refuse() -> None:
    raise StatusError(404, "NotFound", "there is none")


def fail() -> None:
    os._exit(1)


def test_fork_pool_counts_results_of_questions() -> None:
    answers, reported = ask(os.getpid, refuse, fail, lambda: 2)
    assert [answer.code for answer in answers] == [200, 404, 503, 200]
    assert int(answers[0].body) != os.getpid()
    for result, count in {"answered": 2, "refused": 1, "failed": 1, "turnedaway": 0}.items():
        assert f'{_TOTAL}{{result="{result}"}} {count}\n' in reported
    assert "batchyard_fork_duration_seconds_count 4\n" in reported
    assert "batchyard_fork_waiting 0\n" in reported


def test_fork_memory_is_reported_in_bytes() -> None:
    memory = ask(lambda: len(bytearray(b"x" * (64 << 20))))[1].partition("\nbatchyard_fork_memory_bytes ")[2]
    assert 64 << 20 < int(memory.partition("\n")[0]) < 64 << 30


def test_fork_memory_is_absent_before_first_fork() -> None:
    reported = ask()[1]
    assert f'{_TOTAL}{{result="answered"}} 0\n' in reported
    assert "memory" not in reported


def test_fork_pool_counts_rejected_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "QUEUED_QUESTIONS_MAX", 0)

    async def run() -> str:
        forks = ForkPool(asyncio.get_running_loop(), lambda: 1)
        with pytest.raises(StatusError, match="Too many requests"):
            forks.submit_question("when", fail)
        return "".join(forks.metrics.texts())

    assert f'{_TOTAL}{{result="turnedaway"}} 1\n' in asyncio.run(run())
