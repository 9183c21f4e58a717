"""`batchyard why`: asks a cluster or a simulation for the reason of an object's state, and prints it."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote

import typer

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.api.scheme import ServedKind, kind_info
from batchyard.base.instant import Duration
from batchyard.cli import output
from batchyard.cli.cluster_access import REFUSALS, ClusterTarget, UnreachableError, answered
from batchyard.cli.options import DATA_DIR, Context, DataDir, Kubeconfig, Output, cluster
from batchyard.cli.output import render_json, render_yaml
from batchyard.client.transport import path_of, path_of_kind
from batchyard.sim.scenario import run_length

# --- rendering of the why document ---
#
# Rendering of the `why` document as text: summary, facts, quota table, quota holders, nodes, suggested changes.


Document: TypeAlias = Mapping[str, Any]

WIDTH: Final = 120
_CELL_MAX: Final = 44
_ROWS_MAX: Final = 18
_LABEL: Final = 13

_VERDICTS: Final = {
    "fits": "fits",
    "short": "short of quota",
    "nobodyToPreempt": "short, no usable victims",
    "preempts": "would preempt",
    "reclaims": "would reclaim",
    "exceedsMaximum": "exceeds maximum capacity",
    "taint": "taint not tolerated",
    "affinity": "not selected",
    "notFound": "flavor not found",
}


def lines_of(found: Document, *, is_wide: bool) -> Iterator[str]:
    """The lines of the text; `is_wide` includes every level of every flavor."""
    subject = found["subject"]
    name = "/".join(subject[field] for field in ("namespace", "name") if subject.get(field))
    yield f"{subject['kind']} {name}: {found['state']}"
    yield from wrap(found["summary"], WIDTH)
    yield ""
    yield from _facts(found)
    for part in (_quota(found, is_wide=is_wide), _quotas(found), _holders(found), _nodes(found), _changes(found)):
        lines = list(part)
        if lines:
            yield ""
            yield from lines


def _facts(found: Document) -> Iterator[str]:
    binding = found.get("binding")
    if binding:
        where = binding.get("where") or {}
        at = f" at {where['kind']} {where['name']}" if where.get("kind") else ""
        what = " ".join(binding[field] for field in ("resource", "flavor") if binding.get(field))
        missing = f"; missing {binding['missing']} {what}" if binding.get("missing") else ""
        yield from _fact("limit", f"{binding['limit']}{at}{missing}")
    if found.get("clusterQueue"):
        cohort = f" in Cohort {found['cohort']}" if found.get("cohort") else ""
        yield from _fact("queue", f"{found['clusterQueue']}{cohort}")
    line = found.get("line") or {}
    if line.get("position"):
        before = f", after {', '.join(line['ahead'])}" if line.get("ahead") else ""
        more = line["position"] - 1 - len(line.get("ahead") or ())
        yield from _fact("in line", f"{line['position']} of {line['of']}{before}{f' and {more} more' if more else ''}")
    for share in found.get("shares") or ():
        yield from _fact("share", f"{share['clusterQueue']}: {share.get('share', 0)} at weight {share['weight']:g}")
    for number, text in enumerate((found.get("preemption") or {}).get("alternatives") or ()):
        yield from _fact("instead" if number == 0 else "", text)
    for check in found.get("checks") or ():
        message = f": {check['message']}" if check.get("message") else ""
        yield from _fact("check", f"{check['name']} is {check['state']}{message}")
    for request in found.get("requests") or ():
        yield from _fact("request", f"{request['name']}: {request['told']}")
    for label, text in (found.get("facts") or {}).items():
        yield from _fact(label, text)


def _fact(label: str, text: str) -> Iterator[str]:
    for number, line in enumerate(wrap(text, WIDTH - _LABEL) or [""]):
        yield f"{(label if number == 0 else ''):<{_LABEL}}{line}".rstrip()


def _quota(found: Document, *, is_wide: bool) -> Iterator[str]:
    rows = list(_rows(found))
    if not rows:
        return
    binding = found.get("binding") or {}
    if len(rows) > _ROWS_MAX and not is_wide:
        kept = [row for row in rows if row[1] == binding.get("flavor") or not row[6]]
        left = len(rows) - len(kept[:_ROWS_MAX])
        rows = kept[:_ROWS_MAX]
    else:
        left = 0
    header = ("POD SET", "FLAVOR", "RESOURCE", "ASKED", "MISSING", "VERDICT", "LEVEL")
    figures = ("NOMINAL", "USED", "FREE", "BORROW", "LEND")
    yield from _table([(*header, *figures), *rows])
    if left:
        yield f"... and {left} more rows: -o wide"


def _quotas(found: Document) -> Iterator[str]:
    """The quotas of a ClusterQueue: nominal, used, borrowed, lent and available."""
    fields = ("flavor", "resource", "nominal", "used", "borrowed", "lent", "available")
    rows = [tuple(each[field] for field in fields) for each in found.get("quotas") or ()]
    if rows:
        yield from _table([("FLAVOR", "RESOURCE", "NOMINAL", "USED", "BORROWED", "LENT", "FREE"), *rows[:_ROWS_MAX]])
    if len(rows) > _ROWS_MAX:
        yield f"... and {len(rows) - _ROWS_MAX} more rows: -o yaml"


def _rows(found: Document) -> Iterator[tuple[str, ...]]:
    """A row per level of each resource, flavor and pod set; repeated cells are empty."""
    for pod_set in found.get("podSets") or ():
        if pod_set.get("unavailable"):
            yield pod_set["name"], "", pod_set["unavailable"], "", "", "not covered by the queue", *[""] * 6
        for flavor in pod_set.get("flavors") or ():
            verdict = _VERDICTS.get(flavor["verdict"], flavor["verdict"])
            for number, resource in enumerate(flavor.get("resources") or ()):
                about = (pod_set["name"], flavor["flavor"], resource["resource"], resource["asked"])
                stated = (*about, resource.get("missing", ""), verdict if number == 0 else "")
                yield from _levels(stated, resource.get("levels") or (), is_ruled_out="obstacle" in flavor)


def _levels(stated: Sequence[str], levels: Sequence[Document], *, is_ruled_out: bool) -> Iterator[tuple[str, ...]]:
    if is_ruled_out:
        yield *stated, *[""] * 6
        return
    for number, level in enumerate(levels):
        figures = [level.get(field, "") for field in ("nominal", "used", "available", "borrowingLimit", "lendingLimit")]
        name = f"{level['name']}" if level["kind"] == "ClusterQueue" else f"Cohort {level['name']}"
        start = stated if number == 0 else ("", stated[1], "", "", "", "")
        yield *start, name, *figures


def _holders(found: Document) -> Iterator[str]:
    holders = found.get("holders") or ()
    if not holders:
        return
    rows = [("HELD BY", "QUEUE", "PRIORITY", "HOLDS", "WHY IT STAYS")]
    for holder in holders:
        holds = ", ".join(f"{each['amount']} {each['resource']} {each['flavor']}".rstrip() for each in holder["holds"])
        fate = "it is being preempted" if holder.get("preempted") else holder.get("stays", "")
        borrows = " (borrows)" if holder["borrows"] else ""
        rows.append((holder["workload"], f"{holder['clusterQueue']}{borrows}", str(holder["priority"]), holds, fate))
    yield from _table(rows, last_is_free=True)
    if found.get("holdersMore"):
        yield f"... and {found['holdersMore']} more"


def _nodes(found: Document) -> Iterator[str]:
    nodes = found.get("nodes") or {}
    for text in nodes.get("text") or ():
        yield from wrap(text, WIDTH, subsequent_indent="  ")


def _changes(found: Document) -> Iterator[str]:
    changes = found.get("changes") or ()
    if changes:
        does = "place its pods" if found.get("nodes") else "admit it"
        yield f"Any one of these changes would {does}. Each was verified and is minimal:"
    for change in changes:
        given = f" ({change['given']})" if change.get("given") else ""
        yield from wrap(f"{change['text']}{given}", WIDTH - 2, initial_indent="- ", subsequent_indent="  ")


def _table(rows: Sequence[Sequence[str]], *, last_is_free: bool = False) -> Iterator[str]:
    """Aligned columns; empty columns are omitted, long cells are cut."""
    kept = [column for column in range(len(rows[0])) if any(row[column] for row in rows[1:])]
    cells = [
        [_cut(row[column]) if not (last_is_free and column == len(row) - 1) else row[column] for column in kept]
        for row in rows
    ]
    widths = [max(len(row[place]) for row in cells) for place in range(len(kept))]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _cut(text: str) -> str:
    return text if len(text) <= _CELL_MAX else f"{text[: _CELL_MAX - 3]}..."


if TYPE_CHECKING:
    from batchyard.sim.state import State
    from batchyard.sim.world import World

FORMS: Final = "workload/NAME, job/NAME, jobset/NAME, pod/NAME or clusterqueue/NAME"
_KINDS: Final = (scheme.WORKLOAD, scheme.JOB, scheme.JOB_SET, scheme.POD, scheme.CLUSTER_QUEUE)
_SHORT: Final = {"wl": scheme.WORKLOAD, "po": scheme.POD, "cq": scheme.CLUSTER_QUEUE}
#: Answers of a server without the `why` subresource; 403 without rights for it.
_NO_SUCH_PART: Final = (404, 403)
_NEAR_MAX: Final = 5


class Subject(NamedTuple):
    """The object to explain; without a namespace in that of the kubeconfig."""

    kind: str
    namespace: str
    name: str

    @staticmethod
    def read(text: str, namespace: str) -> "Subject | None":
        """Parse `kind/name` in kubectl's notation; None if malformed or of another kind."""
        word, _, name = text.partition("/")
        kind = _by_word().get(word.lower().partition(".")[0])
        if kind is None or not name or "/" in name:
            return None
        return Subject(kind, namespace if kind_info(kind).namespaced else "", name)

    @property
    def info(self) -> ServedKind:
        """The kind's registration."""
        return kind_info(self.kind)


class Simulated(NamedTuple):
    """The simulation to ask."""

    paths: Sequence[str]
    at: Duration | None
    seed: int


def of_cluster(subject: Subject, target: ClusterTarget, form: Output) -> None:
    """Ask a cluster and print the answer; ends the command with 1 on failure."""
    info = subject.info
    part = info.versions[-1] if info.group == "kueue.x-k8s.io" else info.storage_version

    def path_in(namespace: str) -> str:
        return path_of(info, part, subject.namespace or namespace, quote(subject.name), "why")

    try:
        found = answered(target, path_in)
    except UnreachableError as error:
        names = _names_in_cluster(subject, target) if error.code in _NO_SUCH_PART else []
        if subject.name in names:
            _worked_out_here(subject, target, form)
            return
        output.fail(f"batchyard: {error}{_near(subject.name, names)}")
    except REFUSALS as error:
        output.fail(f"batchyard: {error}")
    output.write(_written(found, form))


def of_simulation(subject: Subject, simulated: Simulated, form: Output) -> None:
    """Run manifests up to an instant and explain the object; ends the command with 1 if it does not exist.

    A state file is explained as is, unless a later instant is given.
    """
    from batchyard.cli.cluster_access import state_in  # noqa: PLC0415 - loads the simulator
    from batchyard.cli.commands.simulate import SimulateRequest, begun  # noqa: PLC0415 - loads the simulator
    from batchyard.sim.simulate import Simulation, SimulationOptions  # noqa: PLC0415 - loads the simulator
    from batchyard.sim.state_document import is_state  # noqa: PLC0415 - loads the simulator

    if simulated.at is None and len(simulated.paths) == 1 and is_state(simulated.paths[0]):
        of_state(subject, state_in(simulated.paths[0]), form)
        return
    scenario, state = begun(SimulateRequest(simulated.paths, None, simulated.at, simulated.seed))
    simulation = Simulation(scenario, SimulationOptions(simulated.at, simulated.seed, state=state))
    simulation.advance()
    simulation.result()
    ask(simulation.world, subject, form)


def of_state(subject: Subject, state: "State", form: Output) -> None:
    """Explain an object of a state as is, without running the controllers."""
    from batchyard.sim.whatif import start_of  # noqa: PLC0415 - loads the simulator
    from batchyard.sim.world import World  # noqa: PLC0415 - loads the simulator

    ask(World(start_of(state).scenario, state=state), subject, form)


def ask(world: "World", subject: Subject, form: Output) -> None:
    """Explain an object of a world; ends the command with 1 if it does not exist."""
    key = _found_in(world, subject)
    found = world.platform.explainer.why(key, world.kernel.now())
    assert found is not None, "the object exists"
    output.write(_written(found, form))


def _found_in(world: "World", subject: Subject) -> Key:
    """The key of the subject; without a namespace its name must be unique."""
    every = [obj["metadata"] for obj in world.objects(subject.kind)]
    found = [each for each in every if each["name"] == subject.name]
    if subject.namespace:
        found = [each for each in found if each.get("namespace", "") == subject.namespace]
    if len(found) == 1:
        return Key(subject.kind, found[0].get("namespace", ""), subject.name)
    if found:
        homes = sorted(each.get("namespace", "") for each in found)
        output.fail(
            f"batchyard: {subject.info.singular} {subject.name} is in {', '.join(homes)}: use --namespace {homes[0]}"
        )
    names = [_full_name(each) for each in every]
    where = f" in namespace {subject.namespace}" if subject.namespace else ""
    near = _near(subject.name, names)
    return output.fail(f"batchyard: not found: {subject.info.singular} {subject.name}{where}{near}")


def _worked_out_here(subject: Subject, target: ClusterTarget, form: Output) -> None:
    """Explain locally for a server that does not serve `why`, from its current objects."""
    from batchyard.cli.cluster_access import ClusterSource, requested_state  # noqa: PLC0415 - loads the simulator

    of_state(subject, requested_state(None, ClusterSource(*target)), form)


def _names_in_cluster(subject: Subject, target: ClusterTarget) -> list[str]:
    """The names of the kind's objects, as far as the user may list them."""
    info = subject.info
    for version in reversed(info.versions):

        def path_in(namespace: str, version: str = version) -> str:
            within = subject.namespace or namespace
            return path_of(info, version, within) if info.namespaced else path_of_kind(info, version)

        try:
            return [each["metadata"]["name"] for each in answered(target, path_in).get("items") or ()]
        except REFUSALS:
            continue
    return []


def _near(name: str, names: Sequence[str]) -> str:
    """The existing names most similar to a missing one."""
    parts = [each for each in names if name in each]
    near = list(dict.fromkeys([*parts, *get_close_matches(name, names, _NEAR_MAX, 0.5)]))[:_NEAR_MAX]
    return f"; similar names: {', '.join(near)}" if near else ""


def _full_name(metadata: Mapping[str, Any]) -> str:
    namespace = metadata.get("namespace", "")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


def _by_word() -> dict[str, str]:
    """The kinds by their singular, plural and short names."""
    words = dict(_SHORT)
    for kind in _KINDS:
        info = kind_info(kind)
        words |= {info.singular: kind, info.plural: kind}
    return words


def _written(found: Mapping[str, Any], form: Output) -> str:
    if form is Output.JSON:
        return render_json(found)
    if form is Output.YAML:
        return render_yaml(found)
    return "\n".join(lines_of(found, is_wide=form is Output.WIDE)) + "\n"


# --- why ---
#
# The options of `batchyard why`.


def _moment(text: str) -> Duration:

    try:
        return run_length(text)
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong)) from None


def why(
    context: typer.Context,
    about: Annotated[
        str,
        typer.Argument(metavar="KIND/NAME", help="workload/x, job/x, jobset/x, pod/x or clusterqueue/x."),
    ],
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NS", help="The namespace; default: the kubeconfig's.")
    ] = "",
    paths: Annotated[
        list[str] | None,
        typer.Option(
            "-f", "--filename", metavar="PATH", help="Simulate these manifests instead of asking a cluster; repeatable."
        ),
    ] = None,
    at: Annotated[
        Duration | None,
        typer.Option(parser=_moment, metavar="DURATION", help="With -f: at this virtual time; default: the end."),
    ] = None,
    seed: Annotated[int, typer.Option(help="With -f: seed of all random values, such as uids.")] = 0,
    kubeconfig: Kubeconfig = "",
    kube_context: Context = "",
    data_dir: DataDir = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
) -> None:
    """Show why a Workload or pod waits, what holds the missing quota, and the smallest change that would admit it."""
    if at is not None and not paths:
        raise typer.BadParameter("--at requires a simulation: give manifests with -f")

    subject = Subject.read(about, namespace)
    if subject is None:
        raise typer.BadParameter(f"{about!r}: use {FORMS}")
    if paths:
        of_simulation(subject, Simulated(paths, at, seed), output)
    else:
        target = ClusterTarget(cluster(context, kubeconfig, data_dir), kube_context, data_dir or DATA_DIR)
        of_cluster(subject, target, output)
