"""Runs the store on a simulated disk with faults: `python tools/disk_faults.py --runs 1000 --seed 1`.

Each run writes, compacts, stops, crashes, loses power and restarts, with disk faults that follow from its seed. It
checks that every acknowledged write is kept, or that the start is refused with a clear message. The steps of a failing
run are shrunk and printed. `--json FILE` writes the counts of outcomes and faults, and the failing runs. Use the
project's environment. Exits with 1 if a run fails.
"""

import argparse
import resource
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import msgspec

from batchyard.server.clocks.wall import monotonic_seconds
from disk_faults.runs import draw_steps, play, shrink

_PROGRESS_SECONDS = 10.0
_FAILURES_MAX = 10


def main() -> int:
    """Play the runs; return 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1, help="the seed of the first run")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    report = _play_all(range(args.seed, args.seed + args.runs), args.json)
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(report)).decode() + "\n")
    return 1 if report["failures"] else 0


def _play_all(seeds: range, file: Path | None) -> dict[str, Any]:
    outcomes, effects, sums = Counter[str](), Counter[str](), Counter[str]()
    failures: list[dict[str, Any]] = []
    shown_at = monotonic_seconds()
    report: dict[str, Any] = {}
    for seed in seeds:
        result = play(seed)
        outcomes[result.outcome] += 1
        effects.update(result.effects)
        sums.update(runs=1, calls=result.calls, acknowledged=result.acknowledged, starts=result.starts)
        if result.violation:
            failures.append(_shrunk(seed, result.violation))
        usage = resource.getrusage(resource.RUSAGE_SELF)
        report = {
            **sums,
            "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
            "outcomes": dict(outcomes),
            "faults": dict(effects.most_common()),
            "failures": failures,
        }
        is_last = seed == seeds[-1] or len(failures) >= _FAILURES_MAX
        if is_last or monotonic_seconds() - shown_at > _PROGRESS_SECONDS:
            shown_at = monotonic_seconds()
            sys.stderr.write(f"{sums['runs']} of {len(seeds)} runs, {dict(outcomes)}\n")
            if file is not None:
                file.write_bytes(msgspec.json.encode(report))
        if is_last:
            break
    return report


def _shrunk(seed: int, violation: str) -> dict[str, Any]:
    steps = shrink(seed, draw_steps(seed))
    sys.stderr.write(f"seed {seed}: {violation}\n")
    for step in steps:
        faults = ", ".join(f"{fault.effect} at {fault.call} {fault.number}" for fault in step.faults)
        sys.stderr.write(f"  {step.action} {step.size}" + (f" with {faults}\n" if faults else "\n"))
    return {"seed": seed, "violation": violation, "steps": [step._asdict() for step in steps]}


if __name__ == "__main__":
    sys.exit(main())
