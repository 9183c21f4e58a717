"""`batchyard guide`: the reference architecture's guide, played; each table beside what the guide's authors saw."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from batchyard.api import scheme, tables
from batchyard.api.meta import Obj
from batchyard.base.garbage import rare_collections
from batchyard.base.instant import Instant, format_age
from batchyard.cli import output
from batchyard.cli.options import Output
from batchyard.cli.simulate import tell_warnings
from batchyard.cli.tables import render_json, render_yaml
from batchyard.sim.guide import Guide, Seen, cluster_file, examples_folder, played_steps, unfinished_of
from batchyard.sim.result import refusal_of
from batchyard.sim.scenario import InvalidScenario


class Played(Protocol):
    """A guide that is played, in a world or by a platform that runs."""

    @property
    def initial(self) -> Mapping[str, int]:
        """How many nodes there are in each pool before the first step."""

    @property
    def began(self) -> Instant:
        """When it began."""

    def now(self) -> Instant:
        """What time it is in the guide."""

    def objects(self, kind: str) -> Sequence[Obj]:
        """All objects of a kind."""


def run(manifests: Path | None, step: str | None, form: Output, live: float | None) -> None:
    """Play it, `live` by a platform that runs so much faster than the clock.

    Exits with 1 where a row that quota alone decides differs, or something does not end.
    """
    folder = manifests or examples_folder()
    if folder is None:
        output.fail("batchyard: the examples are not beside the package; name their folder with --manifests DIR")
    try:
        guide = Guide(folder, played_steps(step))
    except InvalidScenario as invalid:
        output.fail(f"{invalid}\nbatchyard: the guide cannot be played")
    tell_warnings(guide.warnings)
    seen = _played(guide)
    if live is None:
        _show(seen, guide, step, form)
        return
    from batchyard.cli.live_guide import LiveGuide, platform  # noqa: PLC0415 - loads the platform

    with platform(cluster_file(folder), live) as started:
        played = LiveGuide(guide, started)
        seen_live = list(played.play(played_steps(step)))
        _compare(seen, seen_live)
        _show(seen_live, played, step, form)


@rare_collections()
def _played(guide: Guide) -> Sequence[Seen]:
    return list(guide.play())


def _show(seen: Sequence[Seen], guide: Played, step: str | None, form: Output) -> None:
    output.write(_shown(seen if step is None else seen[-1:], guide, form))
    if isinstance(guide, Guide):
        for write, error in guide.world.refused:
            output.tell(f"refused: {refusal_of(write, error)}")
    _conclude(seen, guide, whole=step is None)


def _compare(simulated: Sequence[Seen], live: Sequence[Seen]) -> None:
    """Say where a platform that runs shows something else than the simulation: rows of queues, and nodes of pools."""
    rows = [(one.step.name, *row) for one, other in zip(simulated, live, strict=True) for row in _both(one, other)]
    for name, is_same, simulated_row, live_row in rows:
        if not is_same:
            output.tell(f"{name}: simulated {simulated_row or 'nothing'}, live {live_row or 'nothing'}")
    same = sum(is_same for _, is_same, _, _ in rows)
    output.tell(f"batchyard: {same} of {len(rows)} rows of the tables are those of the simulation")


def _both(one: Seen, other: Seen) -> Iterator[tuple[bool, str, str]]:
    """The rows of both tables of a step, each beside the other's: whether they are the same, and what they say."""
    for mine, its in ((_queue_rows(one), _queue_rows(other)), (_pool_rows(one), _pool_rows(other))):
        for name in dict.fromkeys((*mine, *its)):
            yield mine.get(name) == its.get(name), " ".join(mine.get(name, ())), " ".join(its.get(name, ()))


def _queue_rows(seen: Seen) -> Mapping[str, Sequence[str]]:
    """The rows of `kubectl get clusterqueues -o wide`, by name."""
    _, *rows = tables.table(scheme.CLUSTER_QUEUE, seen.cluster_queues, now=seen.now, wide=True, namespaces=False)
    return {row[0]: [cell for cell in row if cell] for row in rows}


def _pool_rows(seen: Seen) -> Mapping[str, Sequence[str]]:
    return {f"pool {pool}": (f"pool {pool}", f"{count} nodes") for pool, count in seen.pools.items()}


def _shown(seen: Sequence[Seen], guide: Played, form: Output) -> str:
    """Steps, and the Jobs at the end, in one of the forms."""
    if form is Output.JSON:
        return render_json(_document(seen, guide))
    if form is Output.YAML:
        return render_yaml(_document(seen, guide))
    return "".join([*(_step_table(each, guide.began) for each in seen), _jobs_table(guide)])


def _step_table(seen: Seen, began: Instant) -> str:
    """What is to be seen after a step: the queues, and a while later the nodes."""
    queues = f"# {seen.step.name}: queues after {format_age(seen.now - began)}\n{tables.format_table(_beside(seen))}"
    nodes = tables.table(scheme.NODE, seen.nodes, now=seen.nodes_now, wide=False, namespaces=False)
    title = f"# {seen.step.name}: nodes after {format_age(seen.nodes_now - began)}"
    return f"{queues}\n{title}\n{tables.format_table(_pools(seen))}\n{tables.format_table(nodes)}\n"


def _pools(seen: Seen) -> tables.Table:
    """How many nodes are ready in each pool, and how many the guide's authors saw."""
    saw = seen.step.nodes
    rows = [[pool, str(count), *_beside_pool(count, saw, pool)] for pool, count in seen.pools.items()]
    total, all_saw = sum(seen.pools.values()), None if saw is None else {"": sum(saw.values())}
    missing = [[pool, "0", *_beside_pool(0, saw, pool)] for pool in saw or () if pool not in seen.pools]
    header = ["POOL", "READY NODES", "GUIDE NODES", "AGREES"]
    return [header, *rows, *missing, ["all", str(total), *_beside_pool(total, all_saw, "")]]


def _beside_pool(count: int, saw: Mapping[str, int] | None, pool: str) -> list[str]:
    return ["", ""] if saw is None else [str(saw.get(pool, 0)), "yes" if count == saw.get(pool, 0) else "no"]


def _beside(seen: Seen) -> tables.Table:
    """`kubectl get clusterqueues -o wide`, and how many the guide's authors saw in each."""
    header, *rows = tables.table(scheme.CLUSTER_QUEUE, seen.cluster_queues, now=seen.now, wide=True, namespaces=False)
    compared = [_compared(seen, obj["metadata"]["name"]) for obj in seen.cluster_queues]
    beside = [[*row, *cells] for row, cells in zip(rows, compared, strict=True)]
    return [[*header, "GUIDE PENDING", "GUIDE ADMITTED", "AGREES"], *beside]


def _compared(seen: Seen, queue: str) -> list[str]:
    saw, is_exact = seen.step.saw(queue), seen.step.is_exact(queue)
    agrees = seen.rows[queue] == saw
    said = ("yes" if agrees else "no") if not is_exact else ("yes, exact" if agrees else "NO, and it is exact")
    return [str(saw.pending), str(saw.admitted), said]


def _jobs(guide: Played) -> Sequence[Obj]:
    return guide.objects(scheme.JOB)


def _jobs_table(guide: Played) -> str:
    """`kubectl get jobs -A`."""
    now = guide.now()
    return tables.format_table(tables.table(scheme.JOB, _jobs(guide), now=now, wide=False, namespaces=True))


def _document(seen: Sequence[Seen], guide: Played) -> dict[str, Any]:
    """Steps and Jobs in the shape of the guide's own figures."""
    now = guide.now()
    return {
        "initialNodes": guide.initial,
        "steps": [
            {
                "name": each.step.name,
                "clusterQueues": {name: row._asdict() for name, row in each.rows.items()},
                "nodes": each.pools,
            }
            for each in seen
        ],
        "jobs": [_job(job, now) for job in _jobs(guide)],
    }


def _job(job: Obj, now: Instant) -> dict[str, str]:
    _, _, completions, duration, age = tables.row(job, now=now, wide=False)
    metadata = job["metadata"]
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "completions": completions,
        "duration": duration,
        "ageAtEnd": age,
    }


def _conclude(seen: Sequence[Seen], guide: Played, *, whole: bool) -> None:
    """Say whether it went as in the guide."""
    exact = sum(each.step.is_exact(queue) for each in seen for queue in each.rows)
    wrong = [f"{each.step.name}: {queue}" for each in seen for queue in each.wrong]
    found = _jobs(guide)
    jobs, unfinished = len(found), len(unfinished_of(found))
    output.tell(
        f"batchyard: {exact - len(wrong)} of {exact} rows that quota alone decides (exact) agree with the guide, the "
        f"others depend on when one looks; {jobs - unfinished} of {jobs} Jobs are complete; nodes after each step: "
        f"{', '.join(str(sum(each.pools.values())) for each in seen)}"
    )
    if wrong or (whole and unfinished):
        output.fail(f"batchyard: not as in the guide: {', '.join(wrong) or 'some Jobs never ended'}")
