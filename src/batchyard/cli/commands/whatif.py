"""`batchyard whatif`: runs a state with and without a change, and prints the differences."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from batchyard.api.errors import FieldError
from batchyard.api.meta import Key
from batchyard.api.printing import format_table
from batchyard.api.scheme import KINDS
from batchyard.base.instant import Duration
from batchyard.cli import output
from batchyard.cli.cluster_access import UNTIL, ClusterSource, requested_state, with_explicit_runtimes
from batchyard.cli.commands.simulate import in_words, print_warnings, read
from batchyard.cli.options import (
    DATA_DIR,
    Context,
    DataDir,
    FairSharing,
    Kubeconfig,
    Output,
    OutputOption,
    Seed,
    StateFile,
    Until,
    cluster,
    duration,
)
from batchyard.cli.output import render_json, render_yaml
from batchyard.controller_runtime.kernel import EndlessInstant
from batchyard.sim.scenario import FileFault, InvalidScenario
from batchyard.sim.whatif import (
    Difference,
    QueueDifference,
    RunStart,
    WorkloadDifference,
    WorkloadTimeline,
    compare,
    difference_of,
    document_of,
    read_change,
    start_of,
)
from batchyard.sim.world import EPOCH

_NEVER: Final = "-"


@dataclass(frozen=True, slots=True)
class WhatifRequest:
    """The arguments of the command."""

    paths: Sequence[str]
    changes: Sequence[str]
    deleted: Sequence[str]
    at: Duration
    until: Duration | None
    state: str | None
    where: ClusterSource
    fair_sharing: bool
    seed: int
    form: Output


def run(request: WhatifRequest) -> None:
    """Run both; ends the command with 1 on failure."""
    start = _start(request)
    try:
        deleted = [_key(text) for text in request.deleted]
        change, warnings = read_change(request.changes, deleted, start)
    except InvalidScenario as invalid:
        faults = len(invalid.faults)
        output.fail(f"{invalid}\nbatchyard: {faults} fault{'s' * (faults > 1)}; nothing was run")
    print_warnings(warnings)
    began = EPOCH + request.at if start.state is None else start.state.at
    until = UNTIL if request.until is None and start.state is not None else request.until
    try:
        difference = difference_of(compare(start, change, until, request.seed), began)
    except EndlessInstant as endless:
        output.fail(f"batchyard: {endless}")
    for refusal in difference.comparison.refused:
        output.report_line(f"refused: {refusal}")
    output.write(shown(difference, request.form))
    if difference.comparison.refused:
        raise SystemExit(1)


def shown(difference: Difference, form: Output) -> str:
    """Format the differences."""
    if form is Output.JSON:
        return render_json(document_of(difference))
    if form is Output.YAML:
        return render_yaml(document_of(difference))
    parts = [f"{difference.summary}\n"]
    if difference.workloads:
        header = ["WORKLOAD", "QUEUE", "EFFECT", "STARTS", "WITH IT", "ENDS", "WITH IT", "PREEMPTED BY"]
        parts.append(format_table([header, *map(_workload, difference.workloads)]))
    if difference.queues:
        header = ["QUEUE", "MEAN WAIT", "WITH IT", "PENDING", "WITH IT"]
        parts.append(format_table([header, *map(_queue, difference.queues)]))
    parts += _machines(document_of(difference))
    return "\n".join(parts)


def _start(request: WhatifRequest) -> RunStart:
    if request.paths:
        return RunStart(read(request.paths), at=request.at)
    state = with_explicit_runtimes(requested_state(request.state, request.where), "they keep running in both runs")
    return start_of(state, fair_sharing=request.fair_sharing)


def _key(text: str) -> Key:
    """The key of an object to delete, from KIND/NAME or KIND/NAMESPACE/NAME; InvalidScenario if malformed."""
    kind, *rest = text.split("/")
    names = kind.lower()
    for info in KINDS:
        if names in {info.singular, info.plural, *info.short_names, info.kind.lower(), f"{info.plural}.{info.group}"}:
            if len(rest) == 1 and rest[0]:
                return Key(info.constant, "default" if info.namespaced else "", rest[0])
            if len(rest) == 2 and info.namespaced:
                return Key(info.constant, *rest)
            break
    else:
        raise InvalidScenario(
            [FileFault("--delete", FieldError("", f"{kind!r} is not a known kind", "use a kind such as node"))]
        )
    remedy = f"use {kind}/NAMESPACE/NAME" if info.namespaced else f"use {kind}/NAME"
    raise InvalidScenario([FileFault("--delete", FieldError("", f"{text!r} is not an object name", remedy))])


def _workload(row: WorkloadDifference) -> list[str]:
    old, new = row.without, row.changed
    effect = row.effect
    if row.sooner and effect in {"sooner", "later"}:
        effect = f"{in_words(abs(row.sooner))} {effect}"
    by = "" if new is None or (old is not None and old.preemptions == new.preemptions) else new.by
    return [row.name, row.queue, effect, _start_of(old), _start_of(new), _end_of(old), _end_of(new), by]


def _start_of(story: WorkloadTimeline | None) -> str:
    if story is None or story.starts is None:
        return _NEVER
    return "running" if story.starts < 0 else in_words(story.starts) if story.starts else "at once"


def _end_of(story: WorkloadTimeline | None) -> str:
    return _NEVER if story is None or story.ends is None else in_words(story.ends)


def _queue(row: QueueDifference) -> list[str]:
    waits = (row.waited_without, row.waited_changed)
    return [row.name, *(in_words(round(wait)) for wait in waits), str(row.pending_without), str(row.pending_changed)]


def _machines(reported: dict[str, Any]) -> list[str]:
    """Nodes and costs, if they differ."""
    nodes, costs = reported["nodes"], reported["costs"]
    if nodes["without"] == nodes["changed"] and costs["without"] == costs["changed"]:
        return []
    rows = [["", "WITHOUT", "WITH IT"]]
    rows.append(["nodes at the end", *(str(nodes[side]["atEnd"]) for side in ("without", "changed"))])
    rows.append(["machine hours", *(f"{nodes[side]['machineHours']:,.2f}" for side in ("without", "changed"))])
    rows.append(["cost", *(f"${costs[side]}" for side in ("without", "changed"))])
    return [format_table(rows)]


# --- whatif ---
#
# The options of `batchyard whatif`.


def whatif(
    context: typer.Context,
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="Manifests of a scenario to change, instead of a cluster."),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--filename", "-f", metavar="FILE", help="Manifests to apply, as kubectl does; repeatable."),
    ] = None,
    delete: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND/NAME", help="An object to delete; or KIND/NAMESPACE/NAME; repeatable."),
    ] = None,
    at: Annotated[
        Duration,
        typer.Option(
            parser=duration,
            metavar="DURATION",
            help="The virtual time of the change, in a scenario.",
            show_default="0s",
        ),
    ] = 0,
    until: Until = None,
    state: StateFile = None,
    kubeconfig: Kubeconfig = "",
    kube_context: Context = "",
    data_dir: DataDir = None,
    fair_sharing: FairSharing = False,
    seed: Seed = 0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare two runs of the same state, with and without a change. Nothing is changed."""
    if not change and not delete:
        raise typer.BadParameter("give a change with -f FILE, or an object to delete with --delete KIND/NAME")
    if paths and state is not None:
        raise typer.BadParameter("PATH and --state are two states: leave out one")
    if at and not paths:
        raise typer.BadParameter("--at is for scenarios: a state starts at its own time")

    where = ClusterSource(cluster(context, kubeconfig, data_dir), kube_context, data_dir or DATA_DIR)
    run(WhatifRequest(paths or [], change or [], delete or [], at, until, state, where, fair_sharing, seed, output))
