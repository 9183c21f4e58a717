"""Terminal output: results on standard output, everything about the run on standard error.

The only module that writes there. A closed pipe (`| head`) ends the command quietly.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NoReturn, TextIO, TypeAlias

import yaml

from batchyard.api.meta import Obj
from batchyard.api.printing import format_table, table
from batchyard.api.scheme import kind_info
from batchyard.base.instant import Instant, format_age
from batchyard.cli.options import Output
from batchyard.sim.simulate import Simulation

#: The exit code that shells show for a command that SIGPIPE ended.
CLOSED_PIPE = 141


def write(text: str) -> None:
    """Write results."""
    _write(sys.stdout, text)


def report_line(line: str) -> None:
    """Write a line about the run to standard error."""
    _write(sys.stderr, line + "\n")


def fail(message: str) -> NoReturn:
    """Print an error and end the command with 1."""
    report_line(message)
    raise SystemExit(1)


def bytes_out() -> BinaryIO:
    """Standard output as a buffered binary stream for large output, regardless of PYTHONUNBUFFERED; close it."""
    return open(sys.stdout.fileno(), "wb", closefd=False)


def end_with_closed_pipe() -> NoReturn:
    """End the command without a message: the reader has closed the pipe."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())  # discards the rest of the buffers
    raise SystemExit(CLOSED_PIPE)


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except UnicodeEncodeError:
        stream.write(text.encode("ascii", "backslashreplace").decode())
        stream.flush()
    except BrokenPipeError:
        end_with_closed_pipe()


# --- tables ---
#
# Output of objects: tables in kubectl's layout, or a Kubernetes List in JSON or YAML.
#
# The text does not depend on the terminal: no colours, no truncation.


#: Objects by kind, both in display order.
Listing: TypeAlias = Mapping[str, Sequence[Obj]]

NOTHING_FOUND: Final = "No resources found\n"
_NOTHING: Final[Mapping[str, Any]] = {}


def render(listing: Listing, output: Output, *, now: Instant, besides: Mapping[str, Any] = _NOTHING) -> str:
    """Format the objects; JSON and YAML also get the fields of `besides`. The text ends with a newline."""
    match output:
        case Output.TABLE | Output.WIDE:
            return render_tables(listing, now=now, wide=output is Output.WIDE)
        case Output.JSON:
            return render_json({**_list_of(listing), **besides})
        case Output.YAML:
            return render_yaml({**_list_of(listing), **besides})


def render_tables(listing: Listing, *, now: Instant, wide: bool = False) -> str:
    """A table for each kind that has objects, separated by empty lines; with namespaces for namespaced kinds."""
    tables = [
        format_table(table(kind, objs, now=now, wide=wide, namespaces=kind_info(kind).namespaced))
        for kind, objs in listing.items()
        if objs
    ]
    return "\n".join(tables) or NOTHING_FOUND


def render_json(value: object) -> str:
    """Format JSON like kubectl: four spaces, sorted fields."""
    return json.dumps(value, indent=4, sort_keys=True, ensure_ascii=False) + "\n"


def render_yaml(value: object) -> str:
    """Format YAML like kubectl: sorted fields, multi-line text as blocks."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=True, allow_unicode=True, width=1 << 20)
    return text


def _list_of(listing: Listing) -> dict[str, Any]:
    items = [obj for objs in listing.values() for obj in objs]
    return {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": items}


class _Dumper(yaml.SafeDumper):
    """Dumps YAML without anchors for shared objects."""

    def ignore_aliases(self, _data: object) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


# --- progress ---
#
# Progress bars on standard error for long runs on a terminal.
#
# A simulation's bar shows the larger of two fractions: virtual time up to the horizon (without one, up to the last
# submission), and Workloads that have quota.


if TYPE_CHECKING:
    from rich.progress import Progress

#: The work items between two readings of the clock: some hundredths of a second.
SLICE: Final = 2_000
PATIENCE_SECONDS: Final = 1.0


def watched(simulation: Simulation) -> None:
    """Run a simulation to its end, with a progress bar if it takes long and standard error is a terminal."""
    if not sys.stderr.isatty():
        simulation.advance()
        return
    begun = monotonic()
    while monotonic() - begun < PATIENCE_SECONDS:
        if not simulation.advance(SLICE):
            return
    with _bar() as bar:
        task = bar.add_task("simulating", total=1.0)
        while simulation.advance(SLICE):
            bar.update(task, completed=fraction_done(simulation), description=_description(simulation))


def fraction_done(simulation: Simulation) -> float:
    """The estimated progress of the run, between 0 and 1."""
    waits, known = simulation.world.waits, _known(simulation)
    by_workloads = (waits.admissions - waits.evictions) / known if known else 0.0
    end = simulation.horizon or max((step.at for step in simulation.scenario.steps), default=0)
    by_time = simulation.world.now() / end if end else 0.0
    return max(0.0, min(0.99, max(by_workloads, by_time)))


def _description(simulation: Simulation) -> str:
    waits, known = simulation.world.waits, _known(simulation)
    so_far = f"{format_age(simulation.world.now())} of virtual time"
    return f"{so_far}, {waits.admissions - waits.evictions:,} of {known:,} placed" if known else so_far


def _known(simulation: Simulation) -> int:
    """The number of Workloads and jobs in the scenario."""
    return sum(simulation.scenario.counts.get(kind, 0) for kind in ("Workload", "Job", "JobSet"))


def _bar() -> "Progress":
    from rich.console import Console  # noqa: PLC0415 - only for long runs
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - only for long runs

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


class Counting:
    """The number of objects read, shown on a terminal."""

    def __init__(self, what: str, parts: int) -> None:
        self._what = what
        self._parts = parts
        self._count = 0
        self._seen: dict[str, None] = {}
        self._bar: Progress | None = None

    def __enter__(self) -> "Counting":
        if sys.stderr.isatty():
            self._bar = _bar()
            self._bar.start()
            self._bar.add_task(self._what, total=self._parts)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def note(self, part: str, count: int) -> None:
        """Add a number of objects of a part."""
        self._count += count
        self._seen[part] = None
        if self._bar is not None:
            (task,) = self._bar.task_ids
            message = f"{self._what} {part}: {self._count:,} objects"
            self._bar.update(task, completed=len(self._seen), description=message)
