"""Logs of runs: CRI format in files of limited size."""

import os
from pathlib import Path

from batchyard.shim import state_dir
from batchyard.shim.logs import LogLineSplitter, RotatingLog
from integration_shim.machine import ShimMachine, container, shell, wait_for_phase

SMALL = {"maxBytes": 4096, "maxFiles": 3}
#: Writes much more than a log holds, at the speed of a pipe.
FLOOD = "yes 'a line that is about as long as lines of logs often are' | head -c 300000000; echo; echo end"


def written_lines(tmp_path: Path, *chunks: bytes) -> list[tuple[str, bytes]]:
    """The tag and text of each line after chunks are written to a log."""
    opened = state_dir.open_folder(str(tmp_path))
    log = RotatingLog(opened, "0.log", 1 << 20, 5)
    stream = LogLineSplitter(log, "stdout")
    for chunk in chunks:
        stream.feed(chunk)
    stream.end()
    log.close()
    os.close(opened)
    rows = [line.split(b" ", 3) for line in (tmp_path / "0.log").read_bytes().splitlines()]
    assert all(row[1] == b"stdout" for row in rows)
    return [(row[2].decode(), row[3]) for row in rows]


def test_lines_are_joined_from_arbitrary_chunks(tmp_path: Path) -> None:
    assert written_lines(tmp_path, b"on", b"e\ntwo\n\nth", b"ree\n") == [
        ("F", b"one"),
        ("F", b"two"),
        ("F", b""),
        ("F", b"three"),
    ]


def test_line_without_newline_is_partial(tmp_path: Path) -> None:
    assert written_lines(tmp_path, b"one\ntwo") == [("F", b"one"), ("P", b"two")]


def test_long_line_is_split_into_partial_lines(tmp_path: Path) -> None:
    result = written_lines(tmp_path, *[b"x" * 16384] * 2, b"x\n" + b"y" * 16384 + b"\n")
    assert result == [("P", b"x" * 16384), ("P", b"x" * 16384), ("F", b"x"), ("F", b"y" * 16384)]


def test_carriage_return_before_newline_is_dropped(tmp_path: Path) -> None:
    assert written_lines(tmp_path, b"one\r\ntwo\r", b"\nthree\r\n") == [("F", b"one"), ("F", b"two"), ("F", b"three")]


def test_tail_returns_text_of_last_lines(tmp_path: Path) -> None:
    opened = state_dir.open_folder(str(tmp_path))
    log = RotatingLog(opened, "0.log", 1 << 20, 5)
    LogLineSplitter(log, "stderr").feed(b"".join(b"line %d\n" % number for number in range(100)))
    assert log.tail(2, 2048) == b"line 98\nline 99\n"
    assert log.tail(80, 10) == b"8\nline 99\n"
    log.close()
    os.close(opened)


def test_log_is_limited_to_its_number_of_files(plain: ShimMachine) -> None:
    plain.ended(container("seq", "1000", log=SMALL))
    logs = plain.root / "pods/u/logs/main"
    assert sorted(place.name for place in logs.iterdir()) == ["0.log", "0.log.1", "0.log.2"]
    assert all(place.stat().st_size <= SMALL["maxBytes"] for place in logs.iterdir())
    texts = [row for name in ("0.log.2", "0.log.1", "0.log") for row in plain.log(name=f"main/{name}")]
    assert [text for _, _, text in texts] == [str(number) for number in range(1001 - len(texts), 1001)]


def test_log_flood_drops_oldest_lines_with_bounded_memory(plain: ShimMachine) -> None:
    run = plain.start(shell(FLOOD, log={"maxBytes": 1 << 20, "maxFiles": 2}))
    supervisor = wait_for_phase(run, "Running")["keeper"]
    other = plain.ended(shell("echo meanwhile"), pod="other")
    assert (other["reason"], plain.texts("other")) == ("Completed", ["meanwhile"])
    peak = 0
    while "VmRSS" in (status := status_of(supervisor)):
        peak = max(peak, int(status.partition("VmRSS:")[2].split()[0]))
    assert peak < 40_000
    assert wait_for_phase(run, "Exited")["exitCode"] == 0
    assert plain.texts()[-1] == "end"


def status_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_termination_message_is_read_from_its_file(node: ShimMachine) -> None:
    node.sandbox()
    reported = node.ended(shell("echo out; printf 'last words' > /dev/termination-log; exit 1"))
    assert reported["message"] == "last words"


def test_termination_message_keeps_its_last_4096_bytes(node: ShimMachine) -> None:
    node.sandbox()
    reported = node.ended(shell("yes | head -c 5000 > /last; printf end >> /last", terminationMessagePath="/last"))
    assert len(reported["message"]) == 4096
    assert reported["message"].endswith("y\nend")


def test_termination_message_falls_back_to_log_on_error_only_by_policy(plain: ShimMachine) -> None:
    expected = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    assert plain.ended(shell("echo one; echo two >&2; exit 1", **expected), "a")["message"] == "one\ntwo\n"
    assert plain.ended(shell("echo one", **expected), "b")["message"] == ""
    assert plain.ended(shell("echo one; exit 1"), "c")["message"] == ""
