"""Logs that are read again after a broken connection: each line once."""

from batchyard.cli.daily.cluster import LogReader

ONE, TWO, THREE = b"2026-01-01T00:00:01.5Z one", b"2026-01-01T00:00:02.0Z two", b"2026-01-01T00:00:02.0Z three"


def reader() -> tuple[LogReader, list[str]]:
    reported: list[str] = []
    return LogReader("p", lambda _pod, line: reported.append(line)), reported


def test_log_lines_are_not_repeated_after_reconnect() -> None:
    log, reported = reader()
    log.process_lines([ONE, TWO])
    log.restart_reading()
    assert log.since == "2026-01-01T00:00:02.0Z"
    log.process_lines([ONE, TWO, THREE])
    assert reported == ["one", "two", "three"]


def test_repeated_reconnect_within_one_instant_loses_no_lines() -> None:
    log, reported = reader()
    log.process_lines([TWO, THREE])
    for _ in range(2):
        log.restart_reading()
        log.process_lines([TWO, THREE])
    log.process_lines([b"2026-01-01T00:00:02.0Z four"])
    assert reported == ["two", "three", "four"]


def test_empty_and_undecodable_lines_are_printed() -> None:
    log, reported = reader()
    log.process_lines([b"2026-01-01T00:00:01.5Z ", b"2026-01-01T00:00:01.6Z \xff  two spaces"])
    assert reported == ["", "\ufffd  two spaces"]
