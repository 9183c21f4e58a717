"""Compares placement policies for shared GPUs: the share of GPUs that each allocates on the nodes of a trace.

    python benchmarks/gpu_placement.py TRACE [--seeds 10] [--policies fgd,best-fit]

TRACE is the folder of a trace (docs/reference/scenarios.md), such as Alibaba's openb trace with its GPU nodes and its
default pods. Each run fills the nodes with pods until they request 130 percent of the GPUs. Prints a table row per
policy: the means over the seeds of the GPUs that are allocated when 100 and 130 percent are requested, and fragmented
at 100 percent, each in percent of all GPUs; the lowest and the highest value at 100 percent; and the median CPU time.
"""

import argparse
import statistics
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from batchyard.placement.gpu_policies import GpuPolicyName
from batchyard.sim.simulate import SimulationOptions
from batchyard.sim.trace_fill import FillRun, fill_trace, gpu_placement_for
from batchyard.sim.traces import Trace, read_trace

REQUESTED = Fraction(13, 10)


class Outcome(NamedTuple):
    """Percentages of all GPUs, and the CPU seconds of a run."""

    allocated_at_100: float
    allocated_at_130: float
    fragmented_at_100: float
    cpu_seconds: float


def main() -> None:
    """Run each policy with each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--policies", default=",".join(GpuPolicyName))
    options = parser.parse_args()
    trace = read_trace(options.trace)
    print("| policy | allocated at 100 % | lowest to highest | at 130 % | fragmented at 100 % | CPU-s |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in options.policies.split(","):
        outcomes = [measure(trace, GpuPolicyName(name), seed) for seed in range(options.seeds)]
        means = [statistics.mean(column) for column in zip(*outcomes, strict=True)]
        lowest, highest = min(outcomes).allocated_at_100, max(outcomes).allocated_at_100
        cpu_seconds = statistics.median(outcome.cpu_seconds for outcome in outcomes)
        spread = f"{lowest:.2f} to {highest:.2f}"
        print(
            f"| {name} | {means[0]:.2f} | {spread} | {means[1]:.2f} | {means[2]:.2f} | {cpu_seconds:.1f} |", flush=True
        )


def measure(trace: Trace, policy: GpuPolicyName, seed: int) -> Outcome:
    """Fill the nodes once."""
    started_at = time.process_time()
    fill = fill_trace(trace, REQUESTED, seed)
    scenario = replace(fill.scenario, gpu_placement=gpu_placement_for(trace, policy))
    run = FillRun(replace(fill, scenario=scenario), SimulationOptions(seed=seed))
    run.simulation.advance()
    points = run.report().points
    at_100 = max((point for point in points if point.requested <= 1), key=lambda point: point.requested)
    at_130 = points[-1]
    cpu_seconds = time.process_time() - started_at
    return Outcome(100 * at_100.allocated, 100 * at_130.allocated, 100 * at_100.fragmented, cpu_seconds)


if __name__ == "__main__":
    main()
