"""Writing to the terminal: results on standard output, everything about the run on standard error.

The only place that writes there. A reader that goes away (`| head`) ends the command quietly.
"""

import os
import sys
from typing import BinaryIO, NoReturn, TextIO

#: What shells show for a command that a closed pipe ended.
CLOSED_PIPE = 141


def write(text: str) -> None:
    """Write results."""
    _write(sys.stdout, text)


def tell(line: str) -> None:
    """Write a line about the run."""
    _write(sys.stderr, line + "\n")


def fail(message: str) -> NoReturn:
    """End the command because the input or the run failed."""
    tell(message)
    raise SystemExit(1)


def bytes_out() -> BinaryIO:
    """Standard output for what is written in great numbers: buffered, whatever the environment says; to be closed."""
    return open(sys.stdout.fileno(), "wb", closefd=False)


def end_with_closed_pipe() -> NoReturn:
    """Nobody reads on: end without a word."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())  # what is still in the buffers goes there
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
