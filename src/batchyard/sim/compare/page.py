"""HTML page of a comparison: one self-contained file without scripts, with lines and bars as SVG."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from batchyard.dashboard.static_report import COMPARE_STYLE, STYLE, asset
from batchyard.sim.compare.comparison import SHOWN, ComparisonLine, ConfigurationComparison, RepeatedFigure, WaitChange
from batchyard.sim.compare.sections import (
    Both,
    Figure,
    Section,
    SectionRow,
    Unit,
    format_change,
    format_figure,
    verdict,
)

#: The figures shown first, in large cards.
_FIRST: Final = ("meanWait", "p90Wait", "neverAdmitted", "makespan", "fairness", "preemptions", "cost")
#: The figures that a section shows as bars.
_BARS: Final = ("meanWait", "meanUse", "gotOfDue", "cost")
_HEIGHT: Final = 100


def page(found: ConfigurationComparison) -> str:
    """Return the whole page."""
    title = f"{found.names[0]} against {found.names[1]}"
    style = "".join(_style(name) for name in (STYLE, COMPARE_STYLE))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f'<header class="contrast">\n<h1>{escape(title)}</h1>\n<p class="lead">{escape(found.headline)}</p>\n'
        f'<p class="facts">{_facts(found)}</p>\n</header>\n'
        f'<main class="page contrast">\n{"".join(_parts(found))}</main>\n</body>\n</html>\n'
    )


def _style(name: str) -> str:
    found = asset(name)
    assert found is not None, "the files are part of the package"
    return found.content.decode()


def _facts(found: ConfigurationComparison) -> str:
    a, b = map(escape, found.names)
    seeds = f"seed {found.settings.seed}"
    if found.settings.seeds > 1:
        seeds = f"{found.settings.seeds} seeds; tables and lines are of {seeds}"
    times = f"{format_figure(Unit.SECONDS, found.lasts)} of virtual time"
    return f'<span class="key">{a}</span><span class="key b">{b}</span><span>{times}</span><span>{seeds}</span>'


def _parts(found: ConfigurationComparison) -> Iterator[str]:
    overall = next(section for section in found.sections if section.name == "overall")
    yield _figures(overall)
    yield _panel("over time", f'<div class="lines">{"".join(_chart(line, found) for line in found.lines)}</div>')
    for section in found.sections:
        if section is not overall:
            yield _panel(section.title, _table(found, section), section.note)
    counts = found.changes.better, found.changes.worse
    columns = "".join(
        _panel(title, _changes(found, changes[:SHOWN]), f"{len(changes)} in all, the largest changes first")
        for title, changes in zip(("Workloads with shorter waits", "Workloads with longer waits"), counts, strict=True)
        if changes
    )
    yield f'<div class="columns">{columns}</div>\n' if columns else ""
    yield _panel("all in all", _overall(found, overall), _never(overall))
    if found.repeats:
        yield _panel(f"over {found.settings.seeds} seeds", _repeats(found))


def _panel(title: str, content: str, note: str = "") -> str:
    note_html = f'<p class="note">{escape(note)}</p>' if note else ""
    head = f"<header><h2>{escape(title[:1].upper() + title[1:])}</h2></header>"
    return f'<section class="panel">{head}{note_html}{content}</section>\n'


def _never(overall: Section) -> str:
    if any(overall.rows[0].figures["neverAdmitted"]):
        return "Workloads that were never admitted count as waiting until the later end, a lower bound"
    return ""


def _figures(overall: Section) -> str:
    """Return the first figures as large cards."""
    (row,) = overall.rows
    cards = [
        _card(figure, row) for figure in overall.figures if figure.name in _FIRST and any(row.figures[figure.name])
    ]
    return f'<div class="figures">{"".join(cards)}</div>\n'


def _card(figure: Figure, row: SectionRow) -> str:
    both = row.figures[figure.name]
    a, b = (format_figure(figure.unit, value) for value in both)
    change = format_change(figure, both)
    before = f"<small>from {a}</small>" if change else ""
    word = f'<span class="{verdict(figure, both)}">{change or "no change"}</span>'
    title = figure.title.partition(":")[0]
    return f'<div class="figure"><span>{escape(title)}</span><div class="then"><b>{b}</b>{before}</div>{word}</div>'


# --- tables ---


def _table(found: ConfigurationComparison, section: Section) -> str:
    """Return a section as a table: both sides and the change of each figure, with a bar for the main one."""
    bar = next((figure for figure in section.figures if figure.name in _BARS), None)
    heads = [f'<th rowspan="2">{escape(section.about)}</th>', *(['<th rowspan="2"></th>'] if bar else [])]
    under = []
    for figure in section.figures:
        if _is_common(section, figure):
            heads.append(f'<th class="num first" rowspan="2">{escape(figure.title)}</th>')
            continue
        heads.append(f'<th class="group" colspan="3">{escape(figure.title)}</th>')
        under += [
            f'<th class="num first">{escape(found.names[0])}</th><th class="num">{escape(found.names[1])}</th>',
            '<th class="num">change</th>',
        ]
    most = max((value or 0 for row in section.rows for value in _of(row, bar)), default=0) if bar else 0
    rows = []
    for row in section.rows:
        cells = [f'<td class="main">{escape(row.name)}</td>']
        if bar:
            cells.append(f"<td>{_bars(_of(row, bar), most)}</td>")
        for figure in section.figures:
            both, common = _of(row, figure), _is_common(section, figure)
            cells.append(_one(figure, both) if common else _cells(figure, both))
        rows.append(f"<tr>{''.join(cells)}</tr>")
    head = f"<thead><tr>{''.join(heads)}</tr><tr>{''.join(under)}</tr></thead>"
    return f'<div class="scroll"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>'


def _is_common(section: Section, figure: Figure) -> bool:
    """Whether the figure is equal on both sides in all rows, so that one column is enough."""
    return all(a == b for a, b in (_of(row, figure) for row in section.rows))


def _one(figure: Figure, both: Both) -> str:
    return f'<td class="num first">{format_figure(figure.unit, both[0])}</td>'


def _of(row: SectionRow, figure: Figure | None) -> Both:
    return (None, None) if figure is None else row.figures.get(figure.name, (None, None))


def _cells(figure: Figure, both: Both) -> str:
    a, b = (format_figure(figure.unit, value) for value in both)
    change = f'<td class="num {verdict(figure, both)}">{format_change(figure, both)}</td>'
    return f'<td class="num first">{a}</td><td class="num">{b}</td>{change}'


def _overall(found: ConfigurationComparison, overall: Section) -> str:
    (row,) = overall.rows
    names = "".join(f'<th class="num">{escape(name)}</th>' for name in found.names)
    rows = [
        f'<tr><td class="main">{escape(figure.title)}</td>{_cells(figure, row.figures[figure.name])}</tr>'
        for figure in overall.figures
        if any(row.figures[figure.name])
    ]
    return _plain(f'<th></th>{names}<th class="num">change</th>', rows)


def _changes(found: ConfigurationComparison, changes: Sequence[WaitChange]) -> str:
    names = "".join(f'<th class="num">{escape(name)}</th>' for name in found.names)
    rows = [_change(each) for each in changes]
    return _plain(f'<th>Workload</th>{names}<th class="num">change</th><th>effect</th>', rows)


def _change(each: WaitChange) -> str:
    word = "worse" if each.longer > 0 else "better"
    waits = "".join(f'<td class="num">{format_figure(Unit.SECONDS, wait)}</td>' for wait in each.waits)
    sign = "+" if each.longer > 0 else "-"
    change = f'<td class="num {word}">{sign}{format_figure(Unit.SECONDS, abs(each.longer))}</td>'
    return f'<tr><td class="main">{escape(each.workload)}</td>{waits}{change}<td>{escape(each.effect)}</td></tr>'


def _repeats(found: ConfigurationComparison) -> str:
    names = "".join(f'<th class="num">{escape(name)}</th>' for name in found.names)
    rows = [_repeat(each) for each in found.repeats if any(each.means)]
    return _plain(f'<th>mean</th>{names}<th class="num">change</th><th class="num">95 % interval</th><th></th>', rows)


def _repeat(each: RepeatedFigure) -> str:
    unit = each.figure.unit
    ends = [each.difference - each.margin, each.difference + each.margin]
    between = " to ".join(f"{'-' if end < 0 else ''}{format_figure(unit, abs(end))}" for end in ends)
    certain = "" if each.is_certain or not each.margin else "may be chance"
    cells = f'<td class="num">{between}</td><td class="faint">{certain}</td>'
    return f'<tr><td class="main">{escape(each.figure.title)}</td>{_cells(each.figure, each.means)}{cells}</tr>'


def _plain(heads: str, rows: Sequence[str]) -> str:
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


# --- lines and bars ---


def _bars(both: Both, most: float) -> str:
    """Return a bar for each side, relative to the longest in the table."""
    made = []
    for side, value in zip("ab", both, strict=True):
        width = 100 * (value or 0) / most if most else 0
        made.append(
            f'<svg viewBox="0 0 100 5" preserveAspectRatio="none" aria-hidden="true">'
            f'<rect class="side-{side}" width="{width:.2f}" height="5" rx="1"/></svg>'
        )
    return f'<div class="pair">{"".join(made)}</div>'


def _chart(line: ComparisonLine, found: ConfigurationComparison) -> str:
    most = max((*line.a, *line.b), default=0)
    paths = "".join(
        f'<path class="line-{side}" d="{_path(values, most)}"/>' for side, values in (("a", line.a), ("b", line.b))
    )
    label = f"{line.name}: {found.names[0]} and {found.names[1]} over time"
    return (
        f"<figure><figcaption><span>{escape(line.name)}</span><span>at most {format_figure(Unit.COUNT, most)}</span>"
        "</figcaption>"
        f'<svg viewBox="0 0 {max(1, len(line.a))} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{paths}</svg>'
        f"<p><span>0</span><span>{format_figure(Unit.SECONDS, found.lasts)}</span></p></figure>"
    )


def _path(values: Sequence[float], most: float) -> str:
    """Return the steps of a line, one for each interval, with a margin at the top."""
    steps: list[str] = []
    for index, value in enumerate(values):
        y = _HEIGHT - (value / most if most else 0) * (_HEIGHT - 4)
        steps.append(f"{'L' if steps else 'M'}{index} {y:.1f}L{index + 1} {y:.1f}")
    return "".join(steps)
