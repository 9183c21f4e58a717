"""The command `batchyard top`: a live terminal view of queues, waiting and running jobs, and nodes."""

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from batchyard.api import scheme
from batchyard.api.amounts import readable_amount
from batchyard.api.meta import Key, Obj, amount
from batchyard.api.scheme import kind_info
from batchyard.api.times import format_second
from batchyard.api.views.node import node_view, parse_pod_template
from batchyard.api.views.workload import cluster_queue_view, workload_view
from batchyard.base.counts import count_with_noun
from batchyard.base.instant import SECOND, Instant, format_age
from batchyard.cli import output as terminal
from batchyard.cli.daily.cluster import ClusterClient, ClusterRequestError, run_in_cluster, watch_objects
from batchyard.cli.daily.commands import target_of
from batchyard.cli.daily.jobs import JobEntry, JobState, format_requests, job_entries
from batchyard.cli.options import Context, DataDir, Kubeconfig
from batchyard.client.informer import Informer, InformerScope, ObjectCache
from batchyard.client.transport import kind_path
from batchyard.dashboard.models.reasons import shorten_reason
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.server.clocks.wall import sleep_for

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.table import Table as RichTable
    from rich.text import Text

# The rows of the view: plain values, computed from the watched objects.


class UsageBar(NamedTuple):
    """An amount in use and its limit, which a view draws as a bar; the limit may be 0."""

    used: int
    limit: int
    text: str


class ViewRow(NamedTuple):
    """A row of a section: its cells, of which a UsageBar is drawn as a bar."""

    cells: Sequence[str | UsageBar]

    def matches(self, filter_text: str) -> bool:
        """Return whether the cells, joined by spaces, contain the text, ignoring case."""
        texts = [cell.text if isinstance(cell, UsageBar) else cell for cell in self.cells]
        return filter_text.lower() in " ".join(texts).lower()


class TopSection(NamedTuple):
    """A section of the view: its title, column names and rows, and why it is incomplete ('' if it is complete)."""

    title: str
    columns: Sequence[str]
    rows: Sequence[ViewRow]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class TopModel:
    """All sections of the view at one instant, and the summary in its first line."""

    now: Instant
    summary: str
    sections: Sequence[TopSection]


#: The kinds of objects that the view is computed from.
_KINDS: Final = (scheme.CLUSTER_QUEUE, scheme.WORKLOAD, scheme.POD, scheme.NODE, scheme.JOB, scheme.JOB_SET)
_QUEUE_COLUMNS: Final = ("CLUSTERQUEUE", "FLAVOR", "RESOURCE", "USED OF QUOTA", "WAITING", "RUNNING")
_WAITING_COLUMNS: Final = ("JOB", "NAMESPACE", "QUEUE", "PRIO", "REQUESTS", "WAITS", "REASON")
_RUNNING_COLUMNS: Final = ("JOB", "NAMESPACE", "CLUSTERQUEUE", "STATE", "SINCE", "PODS", "NODES", "REQUESTS")
_NODE_COLUMNS: Final = ("NODE", "STATE", "PODS", "CPU", "MEMORY", "DEVICES")
_WAITING_STATES: Final = frozenset({JobState.PENDING, JobState.CHECKING, JobState.SUSPENDED})


def top_model(objects: ObjectCache, problems: Mapping[str, str], now: Instant) -> TopModel:
    """Return what `batchyard top` shows: the summary line and the sections.

    `problems` maps a kind to the reason why its objects are missing or outdated.
    """
    pods = None if scheme.POD in problems else objects.list(scheme.POD)
    jobs = [*objects.list(scheme.JOB), *objects.list(scheme.JOB_SET)]
    entries = [e for e in job_entries(objects.list(scheme.WORKLOAD), jobs, pods) if e.workload is not None]
    waiting_jobs = sorted((e for e in entries if e.state in _WAITING_STATES), key=_waiting_order)
    active_jobs = [entry for entry in entries if entry.state.holds_quota]
    nodes = objects.list(scheme.NODE)
    ready_count = sum(node_view(node).ready for node in nodes)
    queues = objects.list(scheme.CLUSTER_QUEUE)
    summary = (
        f"{len(waiting_jobs)} waiting, {len(active_jobs)} running, "
        f"{ready_count} of {count_with_noun(len(nodes), 'node')} ready"
    )
    sections = (
        TopSection("Queues", _QUEUE_COLUMNS, list(_queue_rows(queues)), problems.get(scheme.CLUSTER_QUEUE, "")),
        TopSection(
            "Waiting", _WAITING_COLUMNS, [_waiting_row(e, now) for e in waiting_jobs], problems.get(scheme.WORKLOAD, "")
        ),
        TopSection(
            "Running", _RUNNING_COLUMNS, [_running_row(e, now) for e in active_jobs], problems.get(scheme.WORKLOAD, "")
        ),
        TopSection("Nodes", _NODE_COLUMNS, list(_node_rows(nodes, pods or ())), problems.get(scheme.NODE, "")),
    )
    return TopModel(now, summary, sections)


def _waiting_order(entry: JobEntry) -> tuple[bool, int, Instant]:
    assert entry.workload is not None, "only jobs with Workloads are in the view"
    return entry.state is JobState.SUSPENDED, -entry.priority, workload_view(entry.workload).queued


def _queue_rows(queues: Sequence[Obj]) -> Iterator[ViewRow]:
    for queue in queues:
        status, view = queue.get("status") or {}, cluster_queue_view(queue)
        used_amounts = {
            (flavor["name"], each["name"]): amount(each["name"], each.get("total", 0))
            for flavor in status.get("flavorsUsage") or ()
            for each in flavor.get("resources") or ()
        }
        counts = [str(status.get(field, 0)) for field in ("pendingWorkloads", "admittedWorkloads")]
        quotas = [quota for group in view.groups for quota in group.quotas]
        for number, quota in enumerate(quotas):
            used_amount = used_amounts.get((quota.flavor, quota.resource), 0)
            texts = [readable_amount(quota.resource, value) for value in (used_amount, quota.nominal)]
            usage = UsageBar(used_amount, quota.nominal, "/".join(texts))
            row_counts = counts if number == 0 else ["", ""]
            yield ViewRow([view.name, quota.flavor, quota.resource, usage, *row_counts])
        if not quotas:
            yield ViewRow([view.name, "", "", "no quota", *counts])


def _waiting_row(entry: JobEntry, now: Instant) -> ViewRow:
    assert entry.workload is not None, "only jobs with Workloads are in the view"
    reason = str(shorten_reason(entry.reason)) if entry.state is JobState.PENDING else f"{entry.state}: {entry.reason}"
    cells = [entry.title, entry.namespace, entry.queue, str(entry.priority), format_requests(entry.workload)]
    return ViewRow([*cells, format_age(now - workload_view(entry.workload).waiting_since), reason])


def _running_row(entry: JobEntry, now: Instant) -> ViewRow:
    assert entry.workload is not None, "only jobs with Workloads are in the view"
    state = f"{entry.state}: {entry.reason}" if entry.reason else str(entry.state)
    pods = "-" if entry.pods is None else f"{entry.pods.ready}/{entry.pod_count}"
    nodes = "-" if entry.pods is None else str(entry.pods.nodes)
    cells = [entry.title, entry.namespace, entry.cluster_queue, state, format_age(now - entry.since), pods, nodes]
    return ViewRow([*cells, format_requests(entry.workload)])


def _node_rows(nodes: Sequence[Obj], pods: Sequence[Obj]) -> Iterator[ViewRow]:
    requests_by_node: dict[str, dict[str, int]] = {}
    for pod in pods:
        node_name = (pod.get("spec") or {}).get("nodeName")
        if node_name and (pod.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}:
            totals = requests_by_node.setdefault(node_name, {"pods": 0})
            totals["pods"] += 1
            for resource, requested in parse_pod_template(pod["spec"]).requests:
                totals[resource] = totals.get(resource, 0) + requested
    for node in nodes:
        view = node_view(node)
        requests = requests_by_node.get(view.name, {"pods": 0})
        state = "Ready" if view.ready else "NotReady"
        devices = [name for name, value in view.allocatable.items() if "/" in name and value]
        device_texts = [f"{name} {requests.get(name, 0)}/{view.allocatable[name]}" for name in devices]
        bars = [_node_usage(name, requests, view.allocatable) for name in ("cpu", "memory")]
        cells = [view.name, f"{state}, cordoned" if view.unschedulable else state, str(requests["pods"])]
        yield ViewRow([*cells, *bars, ", ".join(device_texts)])


def _node_usage(resource: str, requests: Mapping[str, int], allocatable: Mapping[str, int]) -> UsageBar:
    used, limit = requests.get(resource, 0), allocatable.get(resource, 0)
    if resource == "memory":
        return UsageBar(used, limit, f"{used / (1 << 30):.1f}/{limit / (1 << 30):.1f}Gi")
    return UsageBar(used, limit, f"{readable_amount(resource, used)}/{readable_amount(resource, limit)}")


# What the user has chosen, and the keys that change it.


class KeyNames:
    """The names of keyboard keys that do not produce printable characters."""

    LEFT, RIGHT, UP, DOWN, PAGE_UP, PAGE_DOWN = "left", "right", "up", "down", "page-up", "page-down"
    TAB, BACK_TAB, ENTER, ESCAPE, BACKSPACE = "tab", "back-tab", "enter", "escape", "backspace"


_KEY_BY_SEQUENCE: Final[Mapping[str, str]] = {
    **{f"\x1b{start}A": KeyNames.UP for start in "[O"},
    **{f"\x1b{start}B": KeyNames.DOWN for start in "[O"},
    **{f"\x1b{start}C": KeyNames.RIGHT for start in "[O"},
    **{f"\x1b{start}D": KeyNames.LEFT for start in "[O"},
    "\x1b[5~": KeyNames.PAGE_UP,
    "\x1b[6~": KeyNames.PAGE_DOWN,
    "\x1b[Z": KeyNames.BACK_TAB,
    "\x1b": KeyNames.ESCAPE,
    "\t": KeyNames.TAB,
    "\r": KeyNames.ENTER,
    "\n": KeyNames.ENTER,
    "\x7f": KeyNames.BACKSPACE,
    "\b": KeyNames.BACKSPACE,
}
_SEQUENCE_LENGTH_MAX: Final = max(map(len, _KEY_BY_SEQUENCE))
_FILTER_LENGTH_MAX: Final = 60
_PAGE_ROWS: Final = 10
_TAB_COUNT: Final = 4
#: A terminal of this many columns and rows shows all sections at once.
_WIDE_SIZE: Final = (160, 40)


def parse_keys(data: bytes) -> Iterator[str]:
    """Yield the keys in the bytes that a terminal sent; unknown escape sequences are skipped."""
    text = data.decode("utf-8", "ignore")
    while text:
        lengths = range(min(_SEQUENCE_LENGTH_MAX, len(text)), 0, -1)
        length = next((length for length in lengths if text[:length] in _KEY_BY_SEQUENCE), 1)
        if text[0] != "\x1b" or length > 1 or len(text) == 1:
            yield _KEY_BY_SEQUENCE.get(text[:length], text[:length])
            text = text[length:]
        else:
            end = next(
                (i for i, character in enumerate(text[2:], 3) if character.isalpha() or character == "~"), len(text)
            )
            text = text[end:]


@dataclass(frozen=True, slots=True)
class ViewState:
    """The user's choices: the section, the filter, the first shown row, and whether the view is paused or ends."""

    tab: int = 0
    filter_text: str = ""
    #: Whether the user types the filter.
    is_typing: bool = False
    first_row: int = 0
    is_paused: bool = False
    has_quit: bool = False

    def after_key(self, key: str) -> "ViewState":
        """Return the view state after a key press; `key` is a result of `parse_keys`."""
        if self.is_typing:
            return self._after_typed_key(key)
        match key:
            case "q" | "Q":
                return replace(self, has_quit=True)
            case KeyNames.TAB | KeyNames.RIGHT:
                return replace(self, tab=(self.tab + 1) % _TAB_COUNT, first_row=0)
            case KeyNames.BACK_TAB | KeyNames.LEFT:
                return replace(self, tab=(self.tab - 1) % _TAB_COUNT, first_row=0)
            case "1" | "2" | "3" | "4":
                return replace(self, tab=int(key) - 1, first_row=0)
            case KeyNames.UP | KeyNames.DOWN | KeyNames.PAGE_UP | KeyNames.PAGE_DOWN:
                step = _PAGE_ROWS if key in (KeyNames.PAGE_UP, KeyNames.PAGE_DOWN) else 1
                return replace(self, first_row=max(0, self.first_row + (-step if "up" in key else step)))
            case "/":
                return replace(self, is_typing=True, filter_text="", first_row=0)
            case KeyNames.ESCAPE:
                return replace(self, filter_text="", first_row=0)
            case "p" | "P":
                return replace(self, is_paused=not self.is_paused)
        return self

    def _after_typed_key(self, key: str) -> "ViewState":
        if key == KeyNames.ENTER:
            return replace(self, is_typing=False)
        if key == KeyNames.ESCAPE:
            return replace(self, is_typing=False, filter_text="")
        if key == KeyNames.BACKSPACE:
            return replace(self, filter_text=self.filter_text[:-1])
        if len(key) == 1 and key.isprintable() and len(self.filter_text) < _FILTER_LENGTH_MAX:
            return replace(self, filter_text=self.filter_text + key)
        return self


# Drawing.


class ScreenSize(NamedTuple):
    """The columns and rows of a terminal."""

    width: int
    height: int


_BAR_WIDTH: Final = 10
_HELP: Final = "q quit  tab/arrows switch  / filter  p pause"
#: The lines around the rows of the sections: the summary, the tabs, the keys.
_FRAME_LINES: Final = 3


def draw_frame(model: TopModel, state: ViewState, size: ScreenSize) -> "RenderableType":
    """Return the frame for a terminal of this size: one section, or all of them if the terminal is large."""
    from rich.console import Group  # noqa: PLC0415 - slow to load
    from rich.table import Table  # noqa: PLC0415 - slow to load

    is_wide = size.width >= _WIDE_SIZE[0] and size.height >= _WIDE_SIZE[1]
    body_height = size.height - _FRAME_LINES
    body: RenderableType
    if is_wide:
        body = Table.grid(expand=True, padding=(0, 2))
        body.add_column(ratio=1)
        body.add_column(ratio=1)
        section_height = body_height // 2
        drawn_sections = [
            _draw_section(
                section, state if number == state.tab else replace(state, first_row=0), section_height, has_title=True
            )
            for number, section in enumerate(model.sections)
        ]
        body.add_row(*drawn_sections[:2])
        body.add_row(*drawn_sections[2:])
    else:
        body = _draw_section(model.sections[state.tab], state, body_height, has_title=False)
    return Group(_summary_line(model, state), _tab_line(model, state), body, _bottom_line(model, state))


def _summary_line(model: TopModel, state: ViewState) -> "Text":
    text = _styled_line("batchyard top", "bold")
    if state.is_paused:
        text.append("  paused", "yellow")
    return text.append(f"  {format_second(model.now)}  {model.summary}")


def _tab_line(model: TopModel, state: ViewState) -> "Text":
    line = _styled_line("", "")
    for number, section in enumerate(model.sections):
        label = f" {section.title} {len(_matching_rows(section, state))} "
        line.append(f"[{label.strip()}]" if number == state.tab else label, "reverse" if number == state.tab else "")
        line.append(" ")
    return line


def _bottom_line(model: TopModel, state: ViewState) -> "Text":
    if state.is_typing:
        return _styled_line(f"filter: {state.filter_text}_  (Enter keeps it, Esc removes it)", "bold")
    problem = next((section.problem for section in model.sections if section.problem and section.rows), "")
    if problem:
        return _styled_line(f"q quit  not up to date: {problem}", "bold red")
    active_filter = f"  filter: {state.filter_text} (Esc removes it)" if state.filter_text else ""
    return _styled_line(f"{_HELP}{active_filter}", "dim")


def _styled_line(text: str, style: str) -> "Text":
    from rich.text import Text  # noqa: PLC0415 - slow to load

    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _matching_rows(section: TopSection, state: ViewState) -> Sequence[ViewRow]:
    return [row for row in section.rows if row.matches(state.filter_text)] if state.filter_text else section.rows


def _draw_section(section: TopSection, state: ViewState, height: int, *, has_title: bool) -> "RichTable":
    rows = _matching_rows(section, state)
    row_limit = max(1, height - 1 - has_title)
    first_row = max(0, min(state.first_row, len(rows) - row_limit))
    shown_rows = list(rows[first_row : first_row + row_limit])
    hidden_count = len(rows) - first_row - len(shown_rows)
    if hidden_count > 0 and row_limit > 1:
        shown_rows = shown_rows[:-1]
    table = _new_table(section, section.title if has_title else None)
    for row in shown_rows:
        table.add_row(*map(_draw_cell, row.cells))
    line_count = len(shown_rows)
    if hidden_count > 0 and row_limit > 1:
        table.add_row(f"... {hidden_count + 1} more")
        line_count += 1
    if not rows:
        note = section.problem or ("nothing matches the filter" if state.filter_text else "none")
        table.add_row(note)
        line_count += 1
    for _ in range(row_limit - line_count):
        table.add_row()
    return table


def _new_table(section: TopSection, title: str | None) -> "RichTable":
    from rich.table import Table  # noqa: PLC0415 - slow to load

    table = Table(
        box=None,
        expand=True,
        pad_edge=False,
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
    )
    last_column = len(section.columns) - 1
    for number, name in enumerate(section.columns):
        table.add_column(name, no_wrap=True, overflow="ellipsis", ratio=1 if number == last_column else None)
    return table


def _draw_cell(cell: str | UsageBar) -> "Text":
    if not isinstance(cell, UsageBar):
        return _styled_line(cell.replace("\n", " "), "")
    fraction = cell.used / cell.limit if cell.limit else float(cell.used > 0)
    filled_width = min(_BAR_WIDTH, round(fraction * _BAR_WIDTH))
    style = "red" if fraction > 1 else "yellow" if fraction >= 0.9 else "green"
    text = _styled_line("", "")
    text.append("#" * filled_width, style)
    text.append("." * (_BAR_WIDTH - filled_width), "dim")
    text.append(f" {cell.text}")
    return text


def format_once(model: TopModel, width: int) -> str:
    """Return the output of `batchyard top --once`: all sections with all their rows, as plain text."""
    from io import StringIO  # noqa: PLC0415 - only for this output

    from rich.console import Console  # noqa: PLC0415 - slow to load

    text = StringIO()
    console = Console(file=text, width=width, color_system=None, force_terminal=False, legacy_windows=False)
    console.print(_styled_line(f"{format_second(model.now)}  {model.summary}", ""))
    for section in model.sections:
        console.print()
        console.print(_draw_section(section, ViewState(), max(1, len(section.rows)) + 2, has_title=True))
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().rstrip().splitlines())


# The live view: informers fill the cache, keys change the state, and each change is drawn at most four times a second.

_FRAME_INTERVAL: Final = SECOND // 4
#: The number of frame intervals after which the view is drawn even without a change, so that ages grow.
_IDLE_FRAMES: Final = 4
_CLOCK_FRAMES: Final = 240
#: The width of `--once` without a terminal.
_ONCE_WIDTH: Final = 160
_KEY_BYTES_MAX: Final = 1024


class _TopView:
    def __init__(self, client: ClusterClient, namespace: str) -> None:
        self._client = client
        self._cache = ObjectCache()
        self._informers = [
            Informer(kind_info(kind), self._cache, 0, InformerScope(namespace if kind_info(kind).namespaced else ""))
            for kind in _KINDS
        ]
        self._state = ViewState()
        self._model: TopModel | None = None
        self._has_changed = True

    async def run(self) -> None:
        from rich.console import Console  # noqa: PLC0415 - slow to load
        from rich.live import Live  # noqa: PLC0415 - slow to load

        watches = [asyncio.ensure_future(self._watch(informer)) for informer in self._informers]
        try:
            with (
                _reading_terminal_keys(self._on_keys),
                Live(console=Console(), screen=True, auto_refresh=False) as live,
            ):
                await self._draw_until_quit(live, watches)
        finally:
            for task in watches:
                task.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    async def _draw_until_quit(self, live: "Live", watches: Sequence["asyncio.Task[None]"]) -> None:
        frame_number = 0
        while not self._state.has_quit:
            if self._has_changed or frame_number % _IDLE_FRAMES == 0:
                self._has_changed = False
                live.update(self._frame(ScreenSize(*live.console.size)), refresh=True)
            frame_number += 1
            if frame_number % _CLOCK_FRAMES == 0:
                with suppress(ClusterRequestError):  # the watches report a server that does not respond
                    await self._client.read_time()
            await self._check_watches(watches)

    async def _check_watches(self, watches: Sequence["asyncio.Task[None]"]) -> None:
        """Wait for the time of the next frame; raise the error of a watch that ended."""
        done_tasks, _ = await asyncio.wait(
            [*watches, pause := asyncio.ensure_future(sleep_for(_FRAME_INTERVAL))], return_when=asyncio.FIRST_COMPLETED
        )
        for task in done_tasks:
            task.result()
        await pause

    def _frame(self, size: ScreenSize) -> "RenderableType":
        if self._model is None or not self._state.is_paused:
            problems = {each.info.constant: each.trouble for each in self._informers if each.trouble}
            self._model = top_model(self._cache, problems, self._client.now)
        row_count = len(_matching_rows(self._model.sections[self._state.tab], self._state))
        self._state = replace(self._state, first_row=min(self._state.first_row, max(0, row_count - 1)))
        return draw_frame(self._model, self._state, size)

    async def _watch(self, informer: Informer) -> None:
        await watch_objects(self._client.transport, informer, self._on_change, self._on_change)

    def _on_change(self, _: object) -> None:
        self._has_changed = True

    def _on_keys(self, data: bytes) -> None:
        for key in parse_keys(data):
            self._state = self._state.after_key(key)
        self._has_changed = True


@contextmanager
def _reading_terminal_keys(on_keys: Callable[[bytes], None]) -> Iterator[None]:
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    mode = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, lambda: on_keys(os.read(descriptor, _KEY_BYTES_MAX)))
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, mode)


async def _read_model_once(client: ClusterClient, namespace: str) -> TopModel:
    cache, problems = ObjectCache(), {}
    for kind in _KINDS:
        info = kind_info(kind)
        scope = namespace if info.namespaced else ""
        objects = await client.list_objects(kind, scope, is_required=kind == scheme.WORKLOAD)
        if objects is None:
            problems[kind] = f"no permission to list {info.plural}{f' in namespace {scope}' if scope else ''}"
        for obj in objects or ():
            key = Key(kind, obj["metadata"].get("namespace") or "", obj["metadata"]["name"])
            cache.apply_event(WatchEvent(EventType.ADDED, key, obj, None, 0))
    return top_model(cache, problems, client.now)


async def _namespace_to_list(client: ClusterClient, namespace: str) -> str:
    if namespace:
        return namespace
    info = kind_info(scheme.WORKLOAD)
    response = await client.get(f"{kind_path(info, info.storage_version)}?limit=1")
    return client.namespace if response.code == HTTPStatus.FORBIDDEN else ""


def top(
    context: typer.Context,
    namespace: Annotated[
        str,
        typer.Option("--namespace", "-n", metavar="NS", help="Only jobs of this namespace; default: all namespaces."),
    ] = "",
    once: Annotated[bool, typer.Option("--once", help="Print one frame as plain text, and end.")] = False,
    kubeconfig: Kubeconfig = "",
    kube_context: Context = "",
    data_dir: DataDir = None,
) -> None:
    """Show queues, waiting and running jobs, and nodes live. Keys: tab, arrows, / (filter), p (pause), q (quit)."""
    target = target_of(context, kubeconfig, kube_context, data_dir)

    async def show_once(client: ClusterClient) -> str:
        width = get_terminal_size().columns if sys.stdout.isatty() else _ONCE_WIDTH
        return format_once(await _read_model_once(client, await _namespace_to_list(client, namespace)), width)

    async def show_live(client: ClusterClient) -> None:
        await _TopView(client, await _namespace_to_list(client, namespace)).run()

    if once:
        terminal.write(run_in_cluster(target, show_once))
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        terminal.fail("batchyard: top needs a terminal: use --once to print one frame")
    run_in_cluster(target, show_live)
