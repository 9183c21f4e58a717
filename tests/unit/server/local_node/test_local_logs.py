"""The logs of this machine's containers, read in parts."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.interfaces.containers import RUN, LogLine
from batchyard.server.local_node.containers import LocalContainers, LocalLog
from batchyard.server.local_node.run_dirs import NodeTimes, RunFolders
from unit.kubelet.local.fake_machine import UID, ContainerScript, LocalStage, pod

STAMP = "2026-01-01T00:00:00.000000000Z"
#: Longer than a piece.
LONG = 5000


class EqualNodeTimes:
    """Node times that equal the platform's times."""

    def to_platform_time(self, at: int) -> int:
        return at


class LogFileReader:
    """Reads a log on each notification."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop, *, skipping_to: int | None = None) -> None:
        self.is_over = False
        self.most = 0
        self._loop = loop
        self.log = LocalLog(path, loop, lambda: self.is_over, {}, cast("NodeTimes", EqualNodeTimes()))
        self.log.on_new_data = self._read
        self.lines: list[str] = []
        if skipping_to is not None:
            self.log.skip_to_last(skipping_to)
        self._read()

    def until_caught_up(self) -> Sequence[str]:
        while self.log.is_behind:
            run(self._loop, 0.001)
        return self.lines

    def _read(self) -> None:
        result: Sequence[LogLine] = self.log.read()
        self.most = max(self.most, len(result))
        self.lines += [line.text for line in result]


def run(loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    """Let the loop run for a while."""
    loop.call_later(seconds, loop.stop)
    loop.run_forever()


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    created = asyncio.new_event_loop()
    yield created
    created.close()


def write(path: Path, texts: Sequence[str], tag: str = "F") -> None:
    with path.open("a") as file:
        file.writelines(f"{STAMP} stdout {tag} {text}\n" for text in texts)


def rotate(path: Path, files: int = 5) -> None:
    """Rotate the log as the supervisor of a run does."""
    for age in range(files - 1, 0, -1):
        old = path.with_name(f"{path.name}.{age - 1}") if age > 1 else path
        if old.exists():
            old.rename(path.with_name(f"{path.name}.{age}"))
    path.touch()


def texts(first: int, count: int = LONG) -> list[str]:
    return [str(number) for number in range(first, first + count)]


def test_long_log_is_read_completely_in_parts(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    path = tmp_path / "0.log"
    for part in range(4):
        if part:
            rotate(path)
        write(path, texts(part * LONG))
    reader = LogFileReader(path, loop)
    assert reader.log.is_behind
    assert reader.until_caught_up() == texts(0, 4 * LONG)
    assert reader.most < LONG
    reader.log.close()


def test_log_rotation_while_reading_loses_no_lines(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    path = tmp_path / "0.log"
    write(path, texts(0))
    rotate(path)
    write(path, texts(LONG))
    reader = LogFileReader(path, loop)
    for part in (2, 3):
        rotate(path)
        write(path, texts(part * LONG))
        run(loop, 0.001)
    assert reader.until_caught_up() == texts(0, 4 * LONG)
    write(path, ["more"])
    run(loop, 0.3)
    assert reader.lines[-1] == "more"
    reader.log.close()


def test_log_files_deleted_before_reading_are_skipped(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    path = tmp_path / "0.log"
    write(path, texts(0))
    reader = LogFileReader(path, loop)
    for part in range(1, 7):
        rotate(path, 3)
        write(path, texts(part * LONG))
    assert reader.until_caught_up() == [*texts(0), *texts(4 * LONG, 3 * LONG)]
    reader.log.close()


@pytest.mark.parametrize("lines", [0, 1, 10, LONG + 1, 3 * LONG])
def test_tail_lines_are_located_from_end_of_log(tmp_path: Path, loop: asyncio.AbstractEventLoop, lines: int) -> None:
    path = tmp_path / "0.log"
    write(path, texts(0))
    rotate(path)
    write(path, ["a part"], "P")
    write(path, texts(LONG))
    reader = LogFileReader(path, loop, skipping_to=lines)
    result = reader.until_caught_up()
    whole = [*texts(0), f"a part{LONG}", *texts(LONG + 1, LONG - 1)]
    assert result[max(0, len(result) - lines) :] == whole[max(0, len(whole) - lines) :]
    assert len(result) >= min(lines, len(whole))
    assert len(result) < lines + 2 * LONG
    if lines < LONG:
        assert len(result) < LONG
    reader.log.close()


def test_last_partial_line_of_ended_container_is_returned_without_newline(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    path = tmp_path / "0.log"
    write(path, texts(0))
    write(path, ["rest"], "P")
    reader = LogFileReader(path, loop)
    reader.is_over = True
    assert reader.until_caught_up() == [*texts(0), "rest"]
    assert reader.log.is_over


class LogsOfStage:
    """Reads the logs of the pod of a stage, in which each start has written its number."""

    def __init__(self, stage: LocalStage, folder: Path, loop: asyncio.AbstractEventLoop, starts: int) -> None:
        folders, now = RunFolders(folder), stage.kernel.now
        self._stage = stage
        self._containers = LocalContainers(stage.machine, folders, loop, NodeTimes(now, now))
        for attempt in range(starts):
            path = folders.log_path(Key(RUN, UID, f"main/{attempt}"))
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, [str(attempt)])

    def read(self, *, previous: bool) -> list[str]:
        log = self._containers.log(self._stage.get(scheme.POD, "pod"), "main", previous=previous)
        lines = [line.text for line in log.read()]
        log.close()
        return lines


def test_previous_log_is_that_of_last_state(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    stage = LocalStage(pod(restartPolicy="Always"), main=ContainerScript(3, 1))
    logs = LogsOfStage(stage, tmp_path, loop, 3)
    read_logs = []
    for seconds in (4, 10, 17, 20):
        stage.run(seconds)
        read_logs.append((*stage.container()["state"], *logs.read(previous=False), *logs.read(previous=True)))
    assert read_logs == [("running", "1", "0"), ("waiting", "1", "1"), ("running", "2", "1"), ("waiting", "2", "2")]


def test_log_of_starting_container_is_that_of_last_start(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    slow = ContainerScript(3, 1, starting=2)
    stage = LocalStage(pod(restartPolicy="Always"), **{"main": ContainerScript(3, 1), "main/1": slow, "main/2": slow})
    logs = LogsOfStage(stage, tmp_path, loop, 3)
    read_logs = []
    for seconds in (4, 6, 19, 21):
        stage.run(seconds)
        read_logs.append((stage.machine.started[-1], *stage.container()["state"], *logs.read(previous=False)))
    assert read_logs == [
        ("main/1", "terminated", "0"),
        ("main/1", "running", "1"),
        ("main/2", "waiting", "1"),
        ("main/2", "running", "2"),
    ]
