"""Container logs in CRI format, with rotation.

Each line is `time stream tag text`. The tag is F, or P for a part of a longer line. As in containerd
(internal/cri/io/logger.go), lines are split at 16 KiB and a carriage return before a newline is dropped. A last line
without a newline is tagged P.
"""

import os

from batchyard.shim import linux

_LOG_LINE_BYTES_MAX = 16 * 1024


class RotatingLog:
    """The log files of one container: lines go to file `name`, which is renamed to `name.1` when it is full."""

    def __init__(self, folder_fd: int, name: str, bytes_max: int, files_max: int) -> None:
        self._folder_fd = folder_fd
        self._name = name
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._fd = self._open_file()
        self._size = os.fstat(self._fd).st_size

    def write(self, lines: bytes) -> None:
        """Append complete lines to the log. If a write fails, lines are lost, so that a container never blocks."""
        while lines:
            free_bytes = self._bytes_max - self._size
            fitting_bytes = len(lines) if len(lines) <= free_bytes else lines.rfind(b"\n", 0, max(free_bytes, 0)) + 1
            if not fitting_bytes and self._size:
                self._rotate_files()
                continue
            fitting_bytes = fitting_bytes or lines.find(b"\n") + 1
            self._append_lines(lines[:fitting_bytes])
            lines = lines[fitting_bytes:]

    def _append_lines(self, lines: bytes) -> None:
        try:
            written_count = os.write(self._fd, lines)
        except OSError:
            written_count = 0
        if written_count == len(lines):
            self._size += written_count
        elif written_count:
            os.ftruncate(self._fd, self._size)

    def truncate(self) -> bytes:
        """Empty the current log file; return the text of its last lines, at most 1,000 lines and 64 KiB."""
        last_lines = self.tail(1000, 1 << 16)
        os.ftruncate(self._fd, 0)
        self._size = 0
        return last_lines

    def tail(self, lines_max: int, bytes_max: int) -> bytes:
        """Return the text of the current file's last `lines_max` lines, at most its last `bytes_max` bytes."""
        data = os.pread(self._fd, 2 * bytes_max + 64 * lines_max, max(0, self._size - 2 * bytes_max - 64 * lines_max))
        return b"".join(map(_extract_text, data.splitlines(keepends=True)[-lines_max:]))[-bytes_max:]

    def close(self) -> None:
        """Close the log file."""
        os.close(self._fd)

    def _open_file(self) -> int:
        return os.open(self._name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600, dir_fd=self._folder_fd)

    def _rotate_files(self) -> None:
        """Rename the log files to the next numbers and delete the oldest. If that fails, empty the current file."""
        try:
            for age in range(self._files_max - 1, 0, -1):
                self._rename_file(f"{self._name}.{age - 1}" if age > 1 else self._name, f"{self._name}.{age}")
            fd = self._open_file()
        except OSError:
            fd = self._fd
        os.ftruncate(fd, 0)
        if fd != self._fd:
            os.close(self._fd)
        self._fd, self._size = fd, 0

    def _rename_file(self, old_name: str, new_name: str) -> None:
        try:
            os.rename(old_name, new_name, src_dir_fd=self._folder_fd, dst_dir_fd=self._folder_fd)
        except FileNotFoundError:
            return


class LogLineSplitter:
    """Splits the bytes of a container's stdout or stderr into log lines and writes these to the log."""

    def __init__(self, log: RotatingLog, name: str) -> None:
        self._log = log
        self._name = name
        self._incomplete_line = b""

    def feed(self, data: bytes) -> None:
        """Write output (at most 16 KiB per call) to the log as lines; keep an incomplete last line."""
        complete_lines, newline, remainder = (self._incomplete_line + data).rpartition(b"\n")
        lines = []
        if newline:
            line, separator, later_lines = complete_lines.partition(b"\n")
            while len(line) > _LOG_LINE_BYTES_MAX:
                lines.append(self._format_line(b"P", line[:_LOG_LINE_BYTES_MAX]))
                line = line[_LOG_LINE_BYTES_MAX:]
            prefix = self._format_line(b"F", b"")[:-1]
            lines.append(
                prefix + (line + separator + later_lines).replace(b"\n", b"\n" + prefix).replace(b"\r\n", b"\n")
            )
            lines[-1] = lines[-1].removesuffix(b"\r") + b"\n"
        while len(remainder) > _LOG_LINE_BYTES_MAX:
            lines.append(self._format_line(b"P", remainder[:_LOG_LINE_BYTES_MAX]))
            remainder = remainder[_LOG_LINE_BYTES_MAX:]
        self._incomplete_line = remainder
        if lines:
            self._log.write(b"".join(lines))

    def end(self) -> None:
        """Write the incomplete last line to the log after the output has ended."""
        if self._incomplete_line:
            self._log.write(self._format_line(b"P", self._incomplete_line))
            self._incomplete_line = b""

    def _format_line(self, line_tag: bytes, text: bytes) -> bytes:
        return b"%s %s %s %s\n" % (_format_current_time(), self._name.encode(), line_tag, text)


def _format_current_time() -> bytes:
    return linux.format_time(linux.now()).encode()


def _extract_text(line: bytes) -> bytes:
    """Return a CRI log line's text, without time, stream and tag; without newline if the line is partial (tag P)."""
    _, _, text_after_time = line.partition(b" ")
    _, _, text_after_time = text_after_time.partition(b" ")
    tag, _, text = text_after_time.partition(b" ")
    return text.removesuffix(b"\n") if tag == b"P" else text
