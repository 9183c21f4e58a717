"""The command `batchyard` on a machine whose clock is wrong: by so many seconds it is ahead, or behind."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Final

#: What runs it; the seconds come next.
PROGRAM: Final = str(Path(__file__))


def _run(seconds: int) -> None:
    from batchyard.cli.main import main  # noqa: PLC0415 - whoever imports this wants to start it only
    from batchyard.live import clock  # noqa: PLC0415 - as above

    right = clock.__dict__["time"]
    wrong = SimpleNamespace(time_ns=lambda: right.time_ns() + seconds * 1_000_000_000)
    wrong.perf_counter, wrong.thread_time = right.perf_counter, right.thread_time
    clock.__dict__["time"] = wrong
    main()


if __name__ == "__main__":
    _run(int(sys.argv.pop(1)))
