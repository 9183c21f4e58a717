"""`batchyard decisions`: prints a platform's decision ledger."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote, urlencode

import typer

from batchyard.api.errors import ApiError
from batchyard.api.times import format_time, parse_time
from batchyard.base.instant import Instant, parse_duration
from batchyard.cli import output
from batchyard.cli.cluster_access import REFUSALS, ClusterTarget, UnreachableError, answered
from batchyard.cli.options import DATA_DIR, Context, DataDir, Kubeconfig, Output, cluster
from batchyard.cli.output import NOTHING_FOUND, render_json, render_yaml
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.platform.status_report import STATUS_REPORT_PATH as REPORT

_GROUP = "/apis/batchyard.dev/v1alpha1"
_NOT_FOUND = 404


class DecisionQuery(NamedTuple):
    """The query of the command."""

    about: str
    namespace: str
    since: str
    until: str
    reason: str
    limit: int
    is_everywhere: bool = False


def print_decisions(target: ClusterTarget, asked: DecisionQuery, form: Output) -> None:
    """Print the decisions; ends the command with 1 if the cluster has no ledger."""
    try:
        found = _found(target, asked)
    except UnreachableError as error:
        why = f"{error}; only platforms of `batchyard up` keep a ledger" if error.code == _NOT_FOUND else str(error)
        output.fail(f"batchyard: {why}")
    except (*REFUSALS, ApiError) as error:
        output.fail(f"batchyard: {error}")
    if form is Output.JSON:
        output.write(render_json(found))
    elif form is Output.YAML:
        output.write(render_yaml(found))
    else:
        output.write(_lines(found["items"], is_wide=form is Output.WIDE))


def _found(target: ClusterTarget, asked: DecisionQuery) -> Mapping[str, Any]:
    query = {"limit": str(asked.limit), "about": asked.about}
    query["fieldSelector"] = f"reason={asked.reason}" if asked.reason else ""
    for name, text in (("since", asked.since), ("until", asked.until)):
        query[name] = format_time(_instant(target, text)) if text else ""
    given = urlencode({name: text for name, text in query.items() if text})

    def path_in(namespace: str) -> str:
        there = quote(asked.namespace or namespace)
        within = "" if asked.is_everywhere else f"/namespaces/{there}"
        return f"{_GROUP}{within}/decisions?{given}"

    return answered(target, path_in)


def _instant(target: ClusterTarget, text: str) -> Instant:
    """Parse a time, or a duration before the platform's current time."""
    try:
        return parse_time(text)
    except ValueError:
        pass
    try:
        ago = parse_duration(text)
    except ValueError:
        output.fail(f"batchyard: {text!r} is not a time; use 2026-01-31T12:00:00Z, or 2h for two hours ago")
    try:
        now: Instant = answered(target, lambda _: REPORT)["instant"]
    except UnreachableError:
        now = wall_clock()  # no permission to read the platform's time
    return now - ago


def _lines(items: Sequence[Mapping[str, Any]], *, is_wide: bool) -> str:
    """One line per decision; `is_wide` adds its details below."""
    if not items:
        return NOTHING_FOUND
    rows = [(_time(each), _object(each), each["reason"], each["message"]) for each in items]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    reported = []
    for row, item in zip(rows, items, strict=True):
        reported.append(
            "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip()
        )
        if is_wide:
            reported += [f"    {line}" for line in render_yaml(item.get("details") or {}).splitlines() if line != "{}"]
    return "\n".join(reported) + "\n"


def _time(item: Mapping[str, Any]) -> str:
    moment, _, fraction = item["time"].rstrip("Z").partition(".")
    return f"{moment}.{(fraction or '0')[:3]:0<3}Z"


def _object(item: Mapping[str, Any]) -> str:
    regarding = item["regarding"]
    within = f"{regarding['namespace']}/" if regarding.get("namespace") else ""
    return f"{regarding['kind'].lower()} {within}{regarding['name']}"


# --- decisions ---
#
# The options of `batchyard decisions`.


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
        str, typer.Option(metavar="WHEN", help="Begin: a time such as 2026-01-31T12:00:00Z, or 2h for 2 hours ago.")
    ] = "",
    until: Annotated[str, typer.Option(metavar="WHEN", help="End: a time, or a duration ago.")] = "",
    reason: Annotated[str, typer.Option(metavar="REASON", help="Only this reason, such as Preempted.")] = "",
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=10_000, help="The number of latest decisions to show.")
    ] = 500,
    kubeconfig: Kubeconfig = "",
    kube_context: Context = "",
    data_dir: DataDir = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print them.")] = Output.TABLE,
) -> None:
    """List decisions with their times and details."""
    target = ClusterTarget(cluster(context, kubeconfig, data_dir), kube_context, data_dir or DATA_DIR)
    asked = DecisionQuery(about, "" if all_namespaces else namespace, since, until, reason, limit)
    print_decisions(target, asked._replace(is_everywhere=all_namespaces), output)
