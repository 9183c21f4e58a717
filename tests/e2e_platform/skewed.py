"""The command `batchyard` on a machine whose clock is wrong: by so many seconds it is ahead, or behind.

Instead of a number a file can be named that has it, which is read each time: so the clock is set meanwhile.
"""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Final

#: What runs it; the seconds come next, or their file.
PROGRAM: Final = str(Path(__file__))


def _run(skew: str) -> None:
    from batchyard.cli.main import main  # noqa: PLC0415 - whoever imports this wants to start it only
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
