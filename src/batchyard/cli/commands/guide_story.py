"""The story of `batchyard guide`: what happens in each step, why it matters, and the figures that show it."""

import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from batchyard.base.counts import count_with_noun, select_verb
from batchyard.base.instant import Instant, format_age
from batchyard.sim.guide import GuideObservation

_WIDTH: Final = 79
_INDENT: Final = "   "
_OPENING: Final = (
    "Four teams share one GPU cluster: a few reserved nodes, and on-demand and Spot machines when they are needed. "
    "The steps are those of Google's guide to its batch reference architecture, simulated with the guide's times."
)
_NEXT_STEPS: Final = """
Try next:
  {program} guide --verbose
      every queue and node after each step, beside the figures of Google's guide
  {program} why job/report -f examples/why/nominal.yaml --at 1m
      why a Job waits, and the smallest change that would start it
  {program} up --cluster examples/refarch/cluster.yaml --speed 60x --detach
      the same cluster as a live platform for kubectl; `{program} down` stops it
"""


class _StepText(NamedTuple):
    title: str
    event: str
    reason: str


_STEP_TEXTS: Final[Mapping[str, _StepText]] = {
    "low-priority": _StepText(
        "Idle nodes are lent",
        "The teams submit 16 low-priority Jobs. Four borrow reserved nodes that no other queue uses. "
        "The autoscaler adds Spot machines for the rest.",
        "reserved nodes do not idle, and cheap machines are bought only while Jobs need them.",
    ),
    "high-priority": _StepText(
        "Owners get their nodes back",
        "16 high-priority Jobs arrive. They preempt the Jobs on the lent nodes and use new on-demand machines. "
        "Jobs beyond the quota wait.",
        "lending does not weaken a guarantee: the owner gets its nodes back at once.",
    ),
    "compact-placement": _StepText(
        "Nodes are placed side by side",
        "16 Jobs require adjacent machines. Each team runs one at a time, and each Job gets a node pool of its own.",
        "training that exchanges gradients needs a fast network between its nodes.",
    ),
    "jobset": _StepText(
        "Gangs start together",
        "16 JobSets enter the low-priority queues. A JobSet starts when all of its pods have quota.",
        "a gang that is started in part would hold GPUs without doing work.",
    ),
    "dws": _StepText(
        "Scarce machines are requested as a whole",
        "Two Jobs need machines that the cloud does not have at once. They wait until it has all of their nodes.",
        "no node waits for the others of its Job, and you pay for none that waits.",
    ),
    "all-completed": _StepText(
        "The cluster shrinks",
        "The last Jobs end. The autoscaler removes the machines that it added.",
        "you pay for machines only while work runs on them.",
    ),
}


def format_story(
    observations: Sequence[GuideObservation],
    preemption_totals: Sequence[int],
    initial_nodes: Mapping[str, int],
    run_start: Instant,
) -> str:
    """Return the narrative of `batchyard guide`: for each simulated step, its event, why it matters, and its figures.

    `preemption_totals` has the number of preemptions up to the end of each step. `initial_nodes` has the number of
    nodes by pool before the first step. `run_start` is the start of the run.
    """
    parts = [textwrap.fill(_OPENING, _WIDTH)]
    pools, preemptions = initial_nodes, 0
    for number, (observation, total) in enumerate(zip(observations, preemption_totals, strict=True), 1):
        step_text = _STEP_TEXTS[observation.step.name]
        heading = f"{number}. {step_text.title}"
        time = f"after {format_age(observation.nodes_now - run_start)}"
        lines = [
            f"{heading}{time:>{_WIDTH - len(heading)}}",
            _fill_paragraph(step_text.event),
            _fill_paragraph(f"Why it matters: {step_text.reason}"),
            _fill_paragraph(
                f"Shown by: {_workload_counts(observation, total - preemptions)};",
                f"{_node_counts(observation, pools)}.",
            ),
        ]
        parts.append("\n".join(lines))
        pools, preemptions = observation.pools, total
    return "\n\n".join(parts) + "\n\n"


def format_next_steps() -> str:
    """Return suggestions for what to try after the guide; commands start with this program's path or `batchyard`."""
    program = sys.argv[0] if sys.argv[0].endswith("/batchyard") else "batchyard"
    return _NEXT_STEPS.format(program=program)


def _fill_paragraph(*sentences: str) -> str:
    return textwrap.fill(
        " ".join(sentences), _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False
    )


def _workload_counts(observation: GuideObservation, preemptions: int) -> str:
    rows = observation.rows.values()
    admitted_count, pending_count = sum(row.admitted for row in rows), sum(row.pending for row in rows)
    waiting_text = f", {pending_count} {select_verb(pending_count, 'waits', 'wait')}" if pending_count else ""
    preempted_text = f", {preemptions} {select_verb(preemptions, 'was', 'were')} preempted" if preemptions else ""
    admitted_text = f"{count_with_noun(admitted_count, 'Workload')} {select_verb(admitted_count, 'has', 'have')} quota"
    return f"{admitted_text}{waiting_text}{preempted_text}"


def _node_counts(observation: GuideObservation, old_pools: Mapping[str, int]) -> str:
    pools = observation.pools
    changes = {pool: pools.get(pool, 0) - old_pools.get(pool, 0) for pool in dict.fromkeys([*old_pools, *pools])}
    texts = [f"{change:+} {pool}" for pool, change in changes.items() if change]
    return f"{count_with_noun(sum(pools.values()), 'node')} ({', '.join(texts) or 'as before'})"
