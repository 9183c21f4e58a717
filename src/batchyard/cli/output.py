"""Terminal output of all commands: results on standard output; progress, remarks and errors on standard error.

A closed pipe (`| head`) ends the command without an error message.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NoReturn, TextIO, TypeAlias

import yaml

from batchyard.api.meta import Obj
from batchyard.api.printing import format_table, table
from batchyard.api.scheme import kind_info
from batchyard.base.counts import count_with_noun
from batchyard.base.instant import SECOND, Instant, format_age
from batchyard.cli.options import Output

#: The exit code after a closed output pipe: the code that shells show for SIGPIPE.
CLOSED_PIPE_EXIT_CODE = 141


def write(text: str) -> None:
    """Write result text to standard output."""
    _write_to_stream(sys.stdout, text)


def report_line(line: str) -> None:
    """Write a line of progress, a remark or an error to standard error."""
    _write_to_stream(sys.stderr, line + "\n")


def fail(message: str) -> NoReturn:
    """Print an error message and exit the command with code 1."""
    report_line(message)
    raise SystemExit(1)


def write_report(path: Path, html: str, option: str = "--report") -> None:
    """Write an HTML report; on failure, the command exits with a message that names `option`."""
    try:
        path.write_text(html, "utf-8")
    except OSError as error:
        fail(f"{path}: cannot write the report: {error.strerror}; choose another file with {option}")


def open_binary_output() -> BinaryIO:
    """Return standard output as a buffered binary stream for large output; the caller closes it."""
    return open(sys.stdout.fileno(), "wb", closefd=False)


def end_with_closed_pipe() -> NoReturn:
    """Exit the command without a message, because the program that read its output closed the pipe."""
    null_device_fd = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(null_device_fd, stream.fileno())  # discards the buffered output
    raise SystemExit(CLOSED_PIPE_EXIT_CODE)


def _write_to_stream(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except UnicodeEncodeError:
        stream.write(text.encode("ascii", "backslashreplace").decode())
        stream.flush()
    except BrokenPipeError:
        end_with_closed_pipe()


# Output of objects: tables in kubectl's layout, or a Kubernetes List in JSON or YAML.
#
# The text does not depend on the terminal: no colors, no truncation.


#: The objects to print by kind; kinds and objects are in display order.
Listing: TypeAlias = Mapping[str, Sequence[Obj]]

NOTHING_FOUND: Final = "No resources found\n"
_NO_FIELDS: Final[Mapping[str, Any]] = {}


def render(listing: Listing, output: Output, *, now: Instant, extra_fields: Mapping[str, Any] = _NO_FIELDS) -> str:
    """Format objects as a table, JSON or YAML; JSON and YAML also contain the fields of `extra_fields`."""
    if output.is_table:
        return render_tables(listing, now=now, wide=output is Output.WIDE)
    return render_document({**_kubernetes_list(listing), **extra_fields}, output)


def render_tables(listing: Listing, *, now: Instant, wide: bool = False) -> str:
    """Return the tables of the kinds that have objects, as kubectl prints them; NOTHING_FOUND without objects.

    The tables of namespaced kinds have a namespace column.
    """
    table_texts = [
        format_table(table(kind, objs, now=now, wide=wide, namespaces=kind_info(kind).namespaced))
        for kind, objs in listing.items()
        if objs
    ]
    return "\n".join(table_texts) or NOTHING_FOUND


def render_document(value: object, output_format: str) -> str:
    """Format a value as JSON if `output_format` is json, otherwise as YAML."""
    return render_json(value) if output_format == Output.JSON else render_yaml(value)


def render_json(value: object) -> str:
    """Format a value as JSON like kubectl: four spaces, sorted fields."""
    return json.dumps(value, indent=4, sort_keys=True, ensure_ascii=False) + "\n"


def render_yaml(value: object) -> str:
    """Format a value as YAML like kubectl: sorted fields, multi-line text as blocks."""
    text: str = yaml.dump(value, Dumper=_OutputYamlDumper, sort_keys=True, allow_unicode=True, width=1 << 20)
    return text


def _kubernetes_list(listing: Listing) -> dict[str, Any]:
    objects = [obj for objs in listing.values() for obj in objs]
    return {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": objects}


class _OutputYamlDumper(yaml.SafeDumper):
    def ignore_aliases(self, _data: object) -> bool:
        return True


def _represent_text(dumper: _OutputYamlDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_OutputYamlDumper.add_representer(str, _represent_text)


# Progress bars on standard error for long runs on a terminal.
#
# A simulation's bar shows the larger of two fractions: virtual time up to the horizon (without one, up to the last
# submission), and Workloads that have quota.


if TYPE_CHECKING:
    from rich.progress import Progress

    from batchyard.sim.simulate import Simulation

#: The number of simulation steps between two updates of the progress bar: some hundredths of a second.
STEPS_PER_UPDATE: Final = 2_000
PROGRESS_DELAY_SECONDS: Final = 1.0


def run_with_progress(simulation: "Simulation", is_interrupted: Callable[[], bool] = lambda: False) -> None:
    """Run a simulation to its end, or until `is_interrupted`, called every STEPS_PER_UPDATE steps, returns true.

    If the run is long and standard error is a terminal, show a progress bar.
    """
    started_at, is_terminal = monotonic(), sys.stderr.isatty()
    while not is_terminal or monotonic() - started_at < PROGRESS_DELAY_SECONDS:
        if is_interrupted() or not simulation.advance(STEPS_PER_UPDATE):
            return
    with _progress_bar() as bar:
        task_id = bar.add_task("simulating", total=1.0)
        while not is_interrupted() and simulation.advance(STEPS_PER_UPDATE):
            description = _progress_text(simulation, monotonic() - started_at)
            bar.update(task_id, completed=fraction_done(simulation), description=description)


def run_until_interrupted(simulation: "Simulation") -> None:
    """Run a simulation to its end with progress output.

    The first Ctrl-C ends the simulation early; the second Ctrl-C raises KeyboardInterrupt.
    """
    interrupts: list[int] = []

    def on_interrupt(number: int, _frame: FrameType | None) -> None:
        if interrupts:
            raise KeyboardInterrupt
        interrupts.append(number)

    old_handler = signal.signal(signal.SIGINT, on_interrupt)
    try:
        run_with_progress(simulation, lambda: bool(interrupts))
        if interrupts:
            simulation.interrupt()
    finally:
        signal.signal(signal.SIGINT, old_handler)


def fraction_done(simulation: "Simulation") -> float:
    """Return the estimated progress of a simulation as a fraction between 0 and 0.99."""
    wait_counts, workload_count = simulation.world.waits, _workload_count(simulation)
    admitted_fraction = (wait_counts.admissions - wait_counts.evictions) / workload_count if workload_count else 0.0
    end = simulation.horizon or max((step.at for step in simulation.scenario.steps), default=0)
    time_fraction = simulation.world.now() / end if end else 0.0
    return max(0.0, min(0.99, max(admitted_fraction, time_fraction)))


def _progress_text(simulation: "Simulation", seconds: float) -> str:
    wait_counts, total = simulation.world.waits, _workload_count(simulation)
    virtual_time, seconds = simulation.world.now(), max(seconds, 0.001)
    placed_count = wait_counts.admissions - wait_counts.evictions
    parts = [f"{format_age(virtual_time)} of virtual time ({format_age(round(virtual_time / seconds))}/s)"]
    if total:
        parts.append(f"{placed_count:,} of {total:,} placed ({placed_count / seconds:,.0f}/s)")
    fraction = fraction_done(simulation)
    if fraction:
        parts.append(f"about {format_age(round(seconds * (1 - fraction) / fraction * SECOND))} left")
    return ", ".join(parts)


def _workload_count(simulation: "Simulation") -> int:
    return sum(simulation.scenario.counts.get(kind, 0) for kind in ("Workload", "Job", "JobSet"))


def _progress_bar() -> "Progress":
    from rich.console import Console  # noqa: PLC0415 - only for long runs
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - only for long runs

    progress_columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*progress_columns, console=Console(stderr=True), transient=True)


class ObjectCounter:
    """A progress display on the terminal: the number of objects read so far, and the kind that is being read."""

    def __init__(self, action: str, kind_count: int) -> None:
        self._action = action
        self._kind_count = kind_count
        self._count = 0
        self._counted_kinds: dict[str, None] = {}
        self._progress_bar: Progress | None = None

    def __enter__(self) -> "ObjectCounter":
        if sys.stderr.isatty():
            self._progress_bar = _progress_bar()
            self._progress_bar.start()
            self._progress_bar.add_task(self._action, total=self._kind_count)
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress_bar is not None:
            self._progress_bar.stop()

    def add(self, kind: str, count: int) -> None:
        """Count `count` more objects of one kind, and update the display."""
        self._count += count
        self._counted_kinds[kind] = None
        if self._progress_bar is not None:
            (task_id,) = self._progress_bar.task_ids
            message = f"{self._action} {kind}: {count_with_noun(self._count, 'object')}"
            self._progress_bar.update(task_id, completed=len(self._counted_kinds), description=message)
