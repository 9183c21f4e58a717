"""The command `batchyard whatif`: simulates a cluster with and without a change, and prints the differences."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

import typer

from batchyard.api.errors import FieldError, NotFound
from batchyard.api.meta import Key, key_of
from batchyard.api.printing import format_table
from batchyard.api.scheme import KINDS, kind_info
from batchyard.base.counts import count_with_noun
from batchyard.base.instant import Duration
from batchyard.cli import options, output
from batchyard.cli.cluster_access import (
    DEFAULT_RUN_LENGTH,
    ClusterTarget,
    read_requested_state,
    read_source_texts,
    with_explicit_runtimes,
)
from batchyard.cli.commands.simulate import read_scenario_or_exit
from batchyard.cli.kueue_configuration import select_version
from batchyard.cli.manifest_warnings import Verbose, print_warnings
from batchyard.cli.missing_objects import NamespacedName, not_found_text
from batchyard.cli.output import render_document
from batchyard.cli.simulation_output import format_go_duration
from batchyard.controller_runtime.kernel import EndlessInstant
from batchyard.scheduling.decisions import KueueVersion
from batchyard.sim.scenario import FileFault, InvalidScenario
from batchyard.sim.whatif import (
    Comparison,
    Difference,
    QueueDifference,
    RunStart,
    WorkloadDifference,
    WorkloadTimeline,
    compare,
    difference_of,
    document_of,
    read_change,
    start_from_state,
)
from batchyard.sim.world import EPOCH

_NEVER_CELL: Final = "-"


@dataclass(frozen=True, slots=True)
class WhatifRequest:
    """The arguments of `batchyard whatif`."""

    paths: Sequence[str]
    #: The files with the manifests to apply.
    changes: Sequence[str]
    #: The objects to delete, as KIND[/NAMESPACE]/NAME.
    deletions: Sequence[str]
    at: Duration
    until: Duration | None
    state: str | None
    source: ClusterTarget
    fair_sharing: bool
    seed: int
    output_format: options.Output
    #: The version of Kueue whose decision rules apply in both runs.
    kueue_version: KueueVersion | None = None


def run_whatif(request: WhatifRequest) -> None:
    """Simulate the cluster with and without the change and print the differences.

    Exits with 1 on failure, and after the output if a write of the change was rejected.
    """
    run_start = _requested_run_start(request)
    try:
        deleted_keys = [_parse_object_key(text) for text in request.deletions]
        change, warnings = read_change(request.changes, deleted_keys, run_start)
    except InvalidScenario as invalid:
        output.fail(f"{invalid}\nbatchyard: {count_with_noun(len(invalid.faults), 'fault')}; nothing was run")
    print_warnings(warnings)
    started_at = EPOCH + request.at if run_start.state is None else run_start.state.at
    run_length = DEFAULT_RUN_LENGTH if request.until is None and run_start.state is not None else request.until
    try:
        difference = difference_of(compare(run_start, change, run_length, request.seed), started_at)
    except EndlessInstant as error:
        output.fail(f"batchyard: {error}")
    if missing := _missing_object_messages(difference.comparison, deleted_keys):
        output.fail("\n".join([*missing, "batchyard: nothing was compared"]))
    for rejection in difference.comparison.refused:
        output.report_line(f"rejected write: {rejection}")
    output.write(format_differences(difference, request.output_format))
    if difference.comparison.refused:
        raise SystemExit(1)


def _missing_object_messages(comparison: Comparison, deleted_keys: Sequence[Key]) -> list[str]:
    rejected_keys = [each.key for each in comparison.refused if each.reason == NotFound.reason]
    messages = []
    for key in deleted_keys:
        if key in rejected_keys:
            objects = comparison.without.result.objects.get(key.kind, ())
            existing_names = [NamespacedName(*key_of(obj)[1:]) for obj in objects]
            info = kind_info(key.kind)
            option = f"--delete {info.singular}/{{namespace}}/{key.name}"
            text = not_found_text(info, NamespacedName(key.namespace, key.name), existing_names, option)
            messages.append(f"--delete: {text}")
    return messages


def format_differences(difference: Difference, output_format: options.Output) -> str:
    """Format the differences that a change makes as tables, JSON or YAML."""
    if not output_format.is_table:
        return render_document(document_of(difference), output_format)
    section_texts = [f"{difference.summary}\n"]
    if difference.workloads:
        header = ["WORKLOAD", "QUEUE", "EFFECT", "STARTS", "WITH CHANGE", "ENDS", "WITH CHANGE", "PREEMPTED BY"]
        section_texts.append(format_table([header, *map(_workload_row, difference.workloads)]))
    if difference.queues:
        header = ["QUEUE", "MEAN WAIT", "WITH CHANGE", "PENDING", "WITH CHANGE"]
        section_texts.append(format_table([header, *map(_queue_row, difference.queues)]))
    section_texts += _machines_table(document_of(difference))
    return "\n".join(section_texts)


def _requested_run_start(request: WhatifRequest) -> RunStart:
    run_start = _read_run_start(request)
    scenario = run_start.scenario
    kueue = select_version(scenario.kueue, request.kueue_version)
    return replace(run_start, scenario=replace(scenario, kueue=kueue))


def _read_run_start(request: WhatifRequest) -> RunStart:
    if request.paths:
        texts = read_source_texts(request.paths)
        if texts.states:
            output.fail(f"batchyard: {texts.states[0][0]} is the state of a cluster: use --state for it")
        return RunStart(read_scenario_or_exit(texts), at=request.at)
    state = with_explicit_runtimes(
        read_requested_state(request.state, request.source), "they keep running in both runs"
    )
    return start_from_state(state, fair_sharing=request.fair_sharing)


def _parse_object_key(text: str) -> Key:
    kind, *namespace_and_name = text.split("/")
    kind_name = kind.lower()
    for info in KINDS:
        names = {info.singular, info.plural, *info.short_names, info.kind.lower(), f"{info.plural}.{info.group}"}
        if kind_name in names:
            if len(namespace_and_name) == 1 and namespace_and_name[0]:
                return Key(info.constant, "default" if info.namespaced else "", namespace_and_name[0])
            if len(namespace_and_name) == 2 and info.namespaced:
                return Key(info.constant, *namespace_and_name)
            break
    else:
        raise InvalidScenario(
            [
                FileFault(
                    "--delete",
                    FieldError("", f"{kind!r} is not a known kind", "use a kind such as node, job or clusterqueue"),
                )
            ]
        )
    remedy = f"use {kind}/NAMESPACE/NAME" if info.namespaced else f"use {kind}/NAME"
    raise InvalidScenario([FileFault("--delete", FieldError("", f"{text!r} is not an object name", remedy))])


def _workload_row(difference: WorkloadDifference) -> list[str]:
    timeline_without, timeline_with = difference.without, difference.changed
    effect = difference.effect
    if difference.sooner_by and effect in {"sooner", "later"}:
        effect = f"{format_go_duration(abs(difference.sooner_by))} {effect}"
    preemptor = (
        ""
        if timeline_with is None
        or (timeline_without is not None and timeline_without.preemptions == timeline_with.preemptions)
        else timeline_with.preempted_by
    )
    return [
        difference.name,
        difference.queue,
        effect,
        _format_start(timeline_without),
        _format_start(timeline_with),
        _format_end(timeline_without),
        _format_end(timeline_with),
        preemptor,
    ]


def _format_start(timeline: WorkloadTimeline | None) -> str:
    if timeline is None or timeline.started_at is None:
        return _NEVER_CELL
    start = timeline.started_at
    return "running" if start < 0 else format_go_duration(start) if start else "at once"


def _format_end(timeline: WorkloadTimeline | None) -> str:
    return _NEVER_CELL if timeline is None or timeline.ended_at is None else format_go_duration(timeline.ended_at)


def _queue_row(row: QueueDifference) -> list[str]:
    mean_waits = (row.waited_without, row.waited_changed)
    wait_cells = [format_go_duration(round(wait)) for wait in mean_waits]
    return [row.name, *wait_cells, str(row.pending_without), str(row.pending_changed)]


def _machines_table(comparison_document: dict[str, Any]) -> list[str]:
    nodes, cost_fields = comparison_document["nodes"], comparison_document["costs"]
    if nodes["without"] == nodes["changed"] and cost_fields["without"] == cost_fields["changed"]:
        return []
    rows = [["", "WITHOUT", "WITH CHANGE"]]
    rows.append(["nodes at the end", *(str(nodes[side]["atEnd"]) for side in ("without", "changed"))])
    rows.append(["machine hours", *(f"{nodes[side]['machineHours']:,.2f}" for side in ("without", "changed"))])
    rows.append(["cost", *(f"${cost_fields[side]}" for side in ("without", "changed"))])
    return [format_table(rows)]


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
            parser=options.to_duration,
            metavar="DURATION",
            help="The virtual time of the change, in a scenario.",
            show_default="0s",
        ),
    ] = 0,
    until: options.Until = None,
    state: options.StateFile = None,
    kubeconfig: options.Kubeconfig = "",
    kube_context: options.Context = "",
    data_dir: options.DataDir = None,
    fair_sharing: options.FairSharing = False,
    kueue_version: options.RecordedVersionOption = None,
    seed: options.Seed = 0,
    output: options.OutputOption = options.Output.TABLE,
    verbose: Verbose = False,  # noqa: ARG001 - its callback passes it to the warnings
) -> None:
    """Compare two simulated runs of the same state, with and without a change. The cluster is not changed."""
    if not change and not delete:
        raise typer.BadParameter("add a change with -f FILE, or an object to delete with --delete KIND/NAME")
    if paths and state is not None:
        raise typer.BadParameter("PATH and --state are two starting states: remove one of them")
    if at and not paths:
        raise typer.BadParameter(
            "--at applies only to a scenario (PATH), because a change to the state of a cluster takes effect at the "
            "time of that state; remove --at, or add PATH"
        )

    source = ClusterTarget(
        options.select_kubeconfig(context, kubeconfig, data_dir), kube_context, data_dir or options.DATA_DIR
    )
    request = WhatifRequest(
        *(paths or [], change or [], delete or [], at, until, state, source, fair_sharing, seed, output),
        kueue_version=None if kueue_version is None else KueueVersion(kueue_version.value),
    )
    run_whatif(request)
