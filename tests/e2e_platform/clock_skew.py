"""The command `batchyard` with a clock that is a number of seconds ahead or behind.

A file with the number can be given instead. It is read at each use of the clock, so that a test can set the clock.
"""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Final

#: The program; the next argument is the seconds or their file.
PROGRAM: Final = str(Path(__file__))


def _run(skew: str) -> None:
    from batchyard.cli.main import main  # noqa: PLC0415 - importers only start it
    from batchyard.server.clocks import wall  # noqa: PLC0415 - as above

    right, file = wall.__dict__["time"], Path(skew)

    def time_ns() -> int:
        seconds = int(file.read_text("ascii") if file.is_file() else skew)
        return int(right.time_ns()) + seconds * 1_000_000_000

    wrong = SimpleNamespace(time_ns=time_ns)
    wrong.perf_counter, wrong.thread_time = right.perf_counter, right.thread_time
    wall.__dict__["time"] = wrong
    main()


if __name__ == "__main__":
    _run(sys.argv.pop(1))
