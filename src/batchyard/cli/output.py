"""Terminal output: results on standard output, everything about the run on standard error.

The only module that writes there. A closed pipe (`| head`) ends the command quietly.
"""

import os
import sys
from typing import BinaryIO, NoReturn, TextIO

#: The exit code that shells show for a command that SIGPIPE ended.
CLOSED_PIPE = 141


def write(text: str) -> None:
    """Write results."""
    _write(sys.stdout, text)


def report_line(line: str) -> None:
    """Write a line about the run to standard error."""
    _write(sys.stderr, line + "\n")


def fail(message: str) -> NoReturn:
    """Print an error and end the command with 1."""
    report_line(message)
    raise SystemExit(1)


def bytes_out() -> BinaryIO:
    """Standard output as a buffered binary stream for large output, regardless of PYTHONUNBUFFERED; close it."""
    return open(sys.stdout.fileno(), "wb", closefd=False)


def end_with_closed_pipe() -> NoReturn:
    """End the command without a message: the reader has closed the pipe."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())  # discards the rest of the buffers
    raise SystemExit(CLOSED_PIPE)


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except UnicodeEncodeError:
        stream.write(text.encode("ascii", "backslashreplace").decode())
        stream.flush()
    except BrokenPipeError:
        end_with_closed_pipe()
