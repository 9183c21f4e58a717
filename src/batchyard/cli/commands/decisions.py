"""The command `batchyard decisions`: prints a platform's decision ledger, its record of scheduling decisions."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote, urlencode

import typer

from batchyard.api.errors import ApiError
from batchyard.api.times import format_time, parse_time
from batchyard.base.instant import Instant, parse_duration
from batchyard.cli import output
from batchyard.cli.cluster_access import (
    REQUEST_ERRORS,
    ClusterTarget,
    UnreachableError,
    read_platform_time,
    request_document,
)
from batchyard.cli.options import DATA_DIR, Context, DataDir, Kubeconfig, Output, select_kubeconfig
from batchyard.cli.output import NOTHING_FOUND, render_document, render_yaml

_DECISIONS_API = "/apis/batchyard.dev/v1alpha1"
_NOT_FOUND_CODE = 404


class DecisionQuery(NamedTuple):
    """The arguments of `batchyard decisions` that select entries of the decision ledger."""

    about: str
    namespace: str
    since: str
    until: str
    reason: str
    limit: int
    is_everywhere: bool = False


def print_decisions(target: ClusterTarget, query: DecisionQuery, output_format: Output) -> None:
    """Print the selected decisions of a platform; exit with 1 if its decision ledger is missing or cannot be read."""
    try:
        decision_list = _query_decisions(target, query)
    except UnreachableError as error:
        message = (
            f"{error}; only platforms started by `batchyard up` have a decision ledger"
            if error.code == _NOT_FOUND_CODE
            else str(error)
        )
        output.fail(f"batchyard: {message}")
    except (*REQUEST_ERRORS, ApiError) as error:
        output.fail(f"batchyard: {error}")
    if output_format.is_table:
        output.write(_format_decisions(decision_list["items"], is_wide=output_format is Output.WIDE))
    else:
        output.write(render_document(decision_list, output_format))


def _query_decisions(target: ClusterTarget, query: DecisionQuery) -> Mapping[str, Any]:
    parameters = {"limit": str(query.limit), "about": query.about}
    parameters["fieldSelector"] = f"reason={query.reason}" if query.reason else ""
    for name, text in (("since", query.since), ("until", query.until)):
        parameters[name] = format_time(_parse_instant(target, f"--{name}", text)) if text else ""
    encoded_query = urlencode({name: text for name, text in parameters.items() if text})

    def path_for_namespace(namespace: str) -> str:
        selected_namespace = quote(query.namespace or namespace)
        scope_path = "" if query.is_everywhere else f"/namespaces/{selected_namespace}"
        return f"{_DECISIONS_API}{scope_path}/decisions?{encoded_query}"

    return request_document(target, path_for_namespace)


def _parse_instant(target: ClusterTarget, option: str, text: str) -> Instant:
    try:
        return parse_time(text)
    except ValueError:
        pass
    try:
        time_before_now = parse_duration(text)
    except ValueError:
        output.fail(f"batchyard: {option}: {text!r} is not a time; use 2026-01-31T12:00:00Z, or 2h for two hours ago")
    return read_platform_time(target) - time_before_now


def _format_decisions(decision_items: Sequence[Mapping[str, Any]], *, is_wide: bool) -> str:
    if not decision_items:
        return NOTHING_FOUND
    rows = [
        (_format_decision_time(decision), _format_object(decision), decision["reason"], decision["message"])
        for decision in decision_items
    ]
    column_widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = []
    for row, item in zip(rows, decision_items, strict=True):
        padded_cells = [cell.ljust(width) for cell, width in zip(row, column_widths, strict=False)]
        lines.append("  ".join([*padded_cells, row[3]]).rstrip())
        if is_wide:
            lines += [f"    {line}" for line in render_yaml(item.get("details") or {}).splitlines() if line != "{}"]
    return "\n".join(lines) + "\n"


def _format_decision_time(decision: Mapping[str, Any]) -> str:
    seconds_part, _, second_fraction = decision["time"].rstrip("Z").partition(".")
    return f"{seconds_part}.{(second_fraction or '0')[:3]:0<3}Z"


def _format_object(decision: Mapping[str, Any]) -> str:
    object_reference = decision["regarding"]
    namespace_prefix = f"{object_reference['namespace']}/" if object_reference.get("namespace") else ""
    return f"{object_reference['kind'].lower()} {namespace_prefix}{object_reference['name']}"


def decisions(
    context: typer.Context,
    about: Annotated[
        str, typer.Argument(metavar="KIND/NAME", help="The object, such as job/train; default: all.")
    ] = "",
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NS", help="The namespace; default: the kubeconfig's.")
    ] = "",
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="All namespaces.")] = False,
    since: Annotated[
        str, typer.Option(metavar="WHEN", help="Start: a time such as 2026-01-31T12:00:00Z, or 2h for 2 hours ago.")
    ] = "",
    until: Annotated[str, typer.Option(metavar="WHEN", help="End: a time, or how long ago.")] = "",
    reason: Annotated[str, typer.Option(metavar="REASON", help="Only this reason, such as Preempted.")] = "",
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=10_000, help="The number of latest decisions to show.")
    ] = 500,
    kubeconfig: Kubeconfig = "",
    kube_context: Context = "",
    data_dir: DataDir = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print them.")] = Output.TABLE,
) -> None:
    """List scheduling decisions with their times and details."""
    target = ClusterTarget(select_kubeconfig(context, kubeconfig, data_dir), kube_context, data_dir or DATA_DIR)
    query = DecisionQuery(about, "" if all_namespaces else namespace, since, until, reason, limit)
    print_decisions(target, query._replace(is_everywhere=all_namespaces), output)
