"""Measures how long clients wait for a takeover: `python tools/takeover_time.py --takeovers 10`.

The primary and its standby run on this machine, each with its own folder and port, as on two machines. Each takeover
begins with SIGKILL, SIGSTOP or SIGTERM to the primary. It ends when the other platform acknowledges a write. Prints the
seconds of each takeover, and the minimum, median and maximum for each signal.
"""

import argparse
import signal
import sys
from contextlib import closing
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from batchyard.server.clocks.wall import monotonic_seconds
from fuzz.histories import NodeClient, repair
from fuzz.standby_pair import StandbyPair, wait_until

_PATH = "/api/v1/namespaces/default/configmaps"
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "end": signal.SIGTERM}


def main() -> int:
    """Measure the takeovers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--takeovers", type=int, default=10, help="takeovers for each signal")
    args = parser.parse_args()
    with TemporaryDirectory() as folder, StandbyPair(Path(folder)) as pair:
        for fault in _SIGNALS:
            seconds = [measure_takeover(pair, fault, f"{fault}-{number}") for number in range(args.takeovers)]
            text = " ".join(f"{each:.1f}" for each in seconds)
            summary = f"min {min(seconds):.1f}, median {median(seconds):.1f}, max {max(seconds):.1f}"
            sys.stdout.write(f"{fault}: {summary} s; {text}\n")
            sys.stdout.flush()
    return 0


def measure_takeover(pair: StandbyPair, fault: str, name: str) -> float:
    """Return the seconds from a signal to the primary until its standby acknowledges a write."""
    obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    with closing(NodeClient([pair.standby], pair.client_context(), timeout=1)) as client:
        began_at = monotonic_seconds()
        pair.primary.send(_SIGNALS[fault])
        wait_until(lambda: client.ask("POST", _PATH, obj)[0] == 201, "a write after the takeover")
        seconds = monotonic_seconds() - began_at
    pair.wait_for_takeover()
    repair(pair, fault)
    return seconds


if __name__ == "__main__":
    sys.exit(main())
