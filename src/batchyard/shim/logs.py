"""Container logs in CRI format, with rotation.

Each line is `time stream tag text`. The tag is F, or P for a part of a longer line. As in containerd
(internal/cri/io/logger.go), lines are split at 16 KiB and a carriage return before a newline is dropped. A last line
without a newline is tagged P.
"""

import os

from batchyard.shim import linux

_LINE_BYTES = 16 * 1024


class RotatingLog:
    """The log files of one run: `name` is written, and renamed to `name.1` when it is full."""

    def __init__(self, folder: int, name: str, bytes_max: int, files_max: int) -> None:
        self._folder = folder
        self._name = name
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._file = self._opened()
        self._size = os.fstat(self._file).st_size

    def write(self, lines: bytes) -> None:
        """Append complete lines. If the disk is full, lines are lost, so that a container never blocks on its log."""
        while lines:
            room = self._bytes_max - self._size
            fitting = len(lines) if len(lines) <= room else lines.rfind(b"\n", 0, max(room, 0)) + 1
            if not fitting and self._size:
                self._rotate()
                continue
            fitting = fitting or lines.find(b"\n") + 1
            self._append(lines[:fitting])
            lines = lines[fitting:]

    def _append(self, lines: bytes) -> None:
        try:
            written = os.write(self._file, lines)
        except OSError:
            written = 0
        if written == len(lines):
            self._size += written
        elif written:
            os.ftruncate(self._file, self._size)

    def truncate(self) -> bytes:
        """Truncate the log; return the texts of its last lines without their time stamps."""
        texts = self.tail(1000, 1 << 16)
        os.ftruncate(self._file, 0)
        self._size = 0
        return texts

    def tail(self, lines: int, size: int) -> bytes:
        """Return the texts of the last `lines` log lines, at most `size` bytes, for the termination message."""
        last = os.pread(self._file, 2 * size + 64 * lines, max(0, self._size - 2 * size - 64 * lines))
        return b"".join(map(_text, last.splitlines(keepends=True)[-lines:]))[-size:]

    def close(self) -> None:
        """Close the log file."""
        os.close(self._file)

    def _opened(self) -> int:
        return os.open(self._name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600, dir_fd=self._folder)

    def _rotate(self) -> None:
        """Rotate the log files and delete the oldest one. If that fails, truncate the current file."""
        try:
            for age in range(self._files_max - 1, 0, -1):
                self._rename(f"{self._name}.{age - 1}" if age > 1 else self._name, f"{self._name}.{age}")
            file = self._opened()
        except OSError:
            file = self._file
        os.ftruncate(file, 0)
        if file != self._file:
            os.close(self._file)
        self._file, self._size = file, 0

    def _rename(self, old: str, new: str) -> None:
        try:
            os.rename(old, new, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except FileNotFoundError:
            return


class LogLineSplitter:
    """Splits the bytes of one output (stdout or stderr) of a run into log lines."""

    def __init__(self, log: RotatingLog, name: str) -> None:
        self._log = log
        self._name = name
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Write data of the output (at most 16 KiB) to the log; an incomplete last line is kept for the next call."""
        whole, newline, rest = (self._rest + data).rpartition(b"\n")
        lines = []
        if newline:
            first, more, others = whole.partition(b"\n")
            while len(first) > _LINE_BYTES:
                lines.append(self._line(b"P", first[:_LINE_BYTES]))
                first = first[_LINE_BYTES:]
            start = self._line(b"F", b"")[:-1]
            lines.append(start + (first + more + others).replace(b"\n", b"\n" + start).replace(b"\r\n", b"\n"))
            lines[-1] = lines[-1].removesuffix(b"\r") + b"\n"
        while len(rest) > _LINE_BYTES:
            lines.append(self._line(b"P", rest[:_LINE_BYTES]))
            rest = rest[_LINE_BYTES:]
        self._rest = rest
        if lines:
            self._log.write(b"".join(lines))

    def end(self) -> None:
        """At the end of the output, write the incomplete last line."""
        if self._rest:
            self._log.write(self._line(b"P", self._rest))
            self._rest = b""

    def _line(self, tag: bytes, text: bytes) -> bytes:
        return b"%s %s %s %s\n" % (_stamp(), self._name.encode(), tag, text)


def _stamp() -> bytes:
    """Return the current time in RFC 3339 format with nanoseconds."""
    return linux.text(linux.now()).encode()


def _text(line: bytes) -> bytes:
    """Return the text of a CRI log line without time, stream and tag; a partial line (tag P) gets no newline."""
    _, _, rest = line.partition(b" ")
    _, _, rest = rest.partition(b" ")
    tag, _, text = rest.partition(b" ")
    return text.removesuffix(b"\n") if tag == b"P" else text
