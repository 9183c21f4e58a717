"""The HTML page of a comparison: one file without scripts, with lines and bars as SVG."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from batchyard.dashboard.static_report import COMPARE_STYLE, STYLE, read_asset
from batchyard.sim.compare.comparison import (
    CHANGES_SHOWN_MAX,
    ComparisonLine,
    ConfigurationComparison,
    RepeatedFigure,
    WaitChange,
)
from batchyard.sim.compare.sections import Section, SectionRow, ValuePair, change_rating, format_change
from batchyard.sim.summary.figure import Figure, Unit, format_figure, unit_of

#: The figures shown first, in large cards.
_CARD_FIGURES: Final = ("meanWait", "p90Wait", "neverAdmitted", "makespan", "fairness", "preemptions", "cost")
#: The figures that a section shows as bars.
_BAR_FIGURES: Final = ("meanWait", "meanUse", "gotOfDue", "cost")
_CHART_HEIGHT: Final = 100


def comparison_page(comparison: ConfigurationComparison) -> str:
    """Return the HTML page of a comparison."""
    title = f"{comparison.names[0]} against {comparison.names[1]}"
    style = "".join(_style_sheet(name) for name in (STYLE, COMPARE_STYLE))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f'<header class="contrast">\n<p class="crumbs">{escape(title)}</p>\n'
        f"<h1>{escape(_conclusion(comparison))}</h1>\n"
        f'<p class="lead">{escape(comparison.headline)}</p>\n'
        f'<p class="facts">{_facts_html(comparison)}</p>\n</header>\n'
        f'<main class="page contrast">\n{"".join(_page_panels_html(comparison))}</main>\n</body>\n</html>\n'
    )


def _conclusion(comparison: ConfigurationComparison) -> str:
    (row,) = _overall_section(comparison).rows
    figures = [each for each in _overall_section(comparison).figures if each.name in _CARD_FIGURES]
    titles_by_rating: dict[str, list[str]] = {}
    for figure in figures:
        rating = change_rating(figure, row.figures[figure.name])
        title = "makespan" if figure.name == "makespan" else figure.title.partition(":")[0]
        titles_by_rating.setdefault(rating, []).append(title)
    verdicts = [
        f"{rating} in {_join_titles(titles)}"
        for rating in ("better", "worse")
        if (titles := titles_by_rating.get(rating))
    ]
    second = comparison.names[1]
    if not verdicts:
        return f"{second} and {comparison.names[0]} have equal main figures"
    return f"{second} is {', '.join(verdicts)}"


def _join_titles(titles: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(titles[:-1]), titles[-1]]))


def _overall_section(comparison: ConfigurationComparison) -> Section:
    return next(section for section in comparison.sections if section.name == "overall")


def _style_sheet(name: str) -> str:
    style_asset = read_asset(name)
    assert style_asset is not None, f"the style sheet {name} is missing: reinstall the package batchyard"
    return style_asset.content.decode()


def _facts_html(comparison: ConfigurationComparison) -> str:
    a, b = map(escape, comparison.names)
    seeds = f"seed {comparison.settings.seed}"
    if comparison.settings.seeds > 1:
        seeds = f"{comparison.settings.seeds} seeds; tables and lines are of {seeds}"
    duration_text = f"{format_figure(Unit.SECONDS, comparison.run_seconds)} of virtual time"
    return f'<span class="key">{a}</span><span class="key b">{b}</span><span>{duration_text}</span><span>{seeds}</span>'


def _page_panels_html(comparison: ConfigurationComparison) -> Iterator[str]:
    overall_section = _overall_section(comparison)
    yield _cards_html(overall_section)
    charts_html = "".join(_chart_html(line, comparison) for line in comparison.lines)
    yield _panel_html("over time", f'<div class="lines">{charts_html}</div>')
    for section in comparison.sections:
        if section is not overall_section:
            yield _panel_html(section.title, _section_table(comparison, section), section.note)
    change_groups = comparison.changes.shorter, comparison.changes.longer
    columns_html = "".join(
        _panel_html(
            title,
            _changes_table(comparison, changes[:CHANGES_SHOWN_MAX]),
            f"{len(changes)} in all, the largest changes first",
        )
        for title, changes in zip(
            ("Workloads with shorter waits", "Workloads with longer waits"), change_groups, strict=True
        )
        if changes
    )
    yield f'<div class="columns">{columns_html}</div>\n' if columns_html else ""
    yield _panel_html("totals", _overall_table(comparison, overall_section), _never_admitted_note(overall_section))
    if comparison.repeats:
        yield _panel_html(f"over {comparison.settings.seeds} seeds", _repeats_table(comparison))


def _panel_html(title: str, content: str, note: str = "") -> str:
    note_html = f'<p class="note">{escape(note)}</p>' if note else ""
    header_html = f"<header><h2>{escape(title[:1].upper() + title[1:])}</h2></header>"
    return f'<section class="panel">{header_html}{note_html}{content}</section>\n'


def _never_admitted_note(overall: Section) -> str:
    if any(overall.rows[0].figures["neverAdmitted"]):
        return "Workloads that were never admitted count as waiting until the later end, a lower bound"
    return ""


def _cards_html(overall: Section) -> str:
    (row,) = overall.rows
    card_figures = [each for each in overall.figures if each.name in _CARD_FIGURES and any(row.figures[each.name])]
    cards = [_card_html(figure, row) for figure in card_figures]
    return f'<div class="figures">{"".join(cards)}</div>\n'


def _card_html(figure: Figure, row: SectionRow) -> str:
    value_pair = row.figures[figure.name]
    a, b = (format_figure(figure.unit, value) for value in value_pair)
    change_text = format_change(figure, value_pair)
    previous_html = f"<small>from {a}</small>" if change_text else ""
    change_html = f'<span class="{change_rating(figure, value_pair)}">{change_text or "no change"}</span>'
    title = figure.title.partition(":")[0]
    values_html = f'<div class="then"><b>{b}</b>{previous_html}</div>'
    return f'<div class="figure"><span>{escape(title)}</span>{values_html}{change_html}</div>'


def _section_table(comparison: ConfigurationComparison, section: Section) -> str:
    bar = next((figure for figure in section.figures if figure.name in _BAR_FIGURES), None)
    header_cells = [
        f'<th rowspan="2">{escape(title)}</th>' for title in (section.row_subject, *([bar.title] if bar else []))
    ]
    second_header_cells = []
    for figure in section.figures:
        if _has_common_value(section, figure):
            header_cells.append(f'<th class="num first" rowspan="2">{escape(figure.title)}</th>')
            continue
        header_cells.append(f'<th class="group" colspan="3">{escape(figure.title)}</th>')
        second_header_cells += [
            f'<th class="num first">{escape(comparison.names[0])}</th>',
            f'<th class="num">{escape(comparison.names[1])}</th>',
            '<th class="num">change</th>',
        ]
    bar_maximum = max((value or 0 for row in section.rows for value in _values_of(row, bar)), default=0) if bar else 0
    table_rows = []
    for row in section.rows:
        row_cells = [f'<td class="main">{escape(row.name)}</td>']
        if bar:
            row_cells.append(f"<td>{_bars_html(_values_of(row, bar), bar_maximum)}</td>")
        for figure in section.figures:
            value_pair, is_common = _values_of(row, figure), _has_common_value(section, figure)
            format_cells = _common_cell if is_common else _change_cells
            row_cells.append(format_cells(figure.with_unit_of_row(row.name), value_pair))
        table_rows.append(f"<tr>{''.join(row_cells)}</tr>")
    header_html = f"<thead><tr>{''.join(header_cells)}</tr><tr>{''.join(second_header_cells)}</tr></thead>"
    return f'<div class="scroll"><table>{header_html}<tbody>{"".join(table_rows)}</tbody></table></div>'


def _has_common_value(section: Section, figure: Figure) -> bool:
    return all(a == b for a, b in (_values_of(row, figure) for row in section.rows))


def _common_cell(figure: Figure, value_pair: ValuePair) -> str:
    return f'<td class="num first">{format_figure(figure.unit, value_pair[0])}</td>'


def _values_of(row: SectionRow, figure: Figure | None) -> ValuePair:
    return (None, None) if figure is None else row.figures.get(figure.name, (None, None))


def _change_cells(figure: Figure, value_pair: ValuePair) -> str:
    a, b = (format_figure(figure.unit, value) for value in value_pair)
    change_cell = f'<td class="num {change_rating(figure, value_pair)}">{format_change(figure, value_pair)}</td>'
    return f'<td class="num first">{a}</td><td class="num">{b}</td>{change_cell}'


def _overall_table(comparison: ConfigurationComparison, overall_section: Section) -> str:
    (row,) = overall_section.rows
    names = "".join(f'<th class="num">{escape(name)}</th>' for name in comparison.names)
    table_rows = [
        f'<tr><td class="main">{escape(figure.title)}</td>{_change_cells(figure, row.figures[figure.name])}</tr>'
        for figure in overall_section.figures
        if any(row.figures[figure.name])
    ]
    return _plain_table(f'<th></th>{names}<th class="num">change</th>', table_rows)


def _changes_table(comparison: ConfigurationComparison, changes: Sequence[WaitChange]) -> str:
    names = "".join(f'<th class="num">{escape(name)}</th>' for name in comparison.names)
    table_rows = [_change_row(each) for each in changes]
    return _plain_table(f'<th>Workload</th>{names}<th class="num">change</th><th>effect</th>', table_rows)


def _change_row(wait_change: WaitChange) -> str:
    effect_class = "worse" if wait_change.longer_by > 0 else "better"
    wait_cells = "".join(f'<td class="num">{format_figure(Unit.SECONDS, wait)}</td>' for wait in wait_change.wait_pair)
    sign = "+" if wait_change.longer_by > 0 else "-"
    change_cell = f'<td class="num {effect_class}">{sign}{format_figure(Unit.SECONDS, abs(wait_change.longer_by))}</td>'
    name_cell = f'<td class="main">{escape(wait_change.workload)}</td>'
    return f"<tr>{name_cell}{wait_cells}{change_cell}<td>{escape(wait_change.effect)}</td></tr>"


def _repeats_table(comparison: ConfigurationComparison) -> str:
    names = "".join(f'<th class="num">{escape(name)}</th>' for name in comparison.names)
    table_rows = [_repeat_row(each) for each in comparison.repeats if any(each.means)]
    header_cells = f'<th>mean</th>{names}<th class="num">change</th><th class="num">95 % interval</th><th></th>'
    return _plain_table(header_cells, table_rows)


def _repeat_row(repeated: RepeatedFigure) -> str:
    unit = repeated.figure.unit
    interval_ends = [repeated.difference - repeated.margin, repeated.difference + repeated.margin]
    interval_text = " to ".join(f"{'-' if end < 0 else ''}{format_figure(unit, abs(end))}" for end in interval_ends)
    certainty_note = "" if repeated.is_certain or not repeated.margin else "may be chance"
    interval_cells = f'<td class="num">{interval_text}</td><td class="faint">{certainty_note}</td>'
    name_cell = f'<td class="main">{escape(repeated.figure.title)}</td>'
    return f"<tr>{name_cell}{_change_cells(repeated.figure, repeated.means)}{interval_cells}</tr>"


def _plain_table(heads: str, rows: Sequence[str]) -> str:
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _bars_html(value_pair: ValuePair, maximum: float) -> str:
    bars = []
    for side, value in zip("ab", value_pair, strict=True):
        width_percent = 100 * (value or 0) / maximum if maximum else 0
        bars.append(
            f'<svg viewBox="0 0 100 5" preserveAspectRatio="none" aria-hidden="true">'
            f'<rect class="side-{side}" width="{width_percent:.2f}" height="5" rx="1"/></svg>'
        )
    return f'<div class="pair">{"".join(bars)}</div>'


def _chart_html(line: ComparisonLine, comparison: ConfigurationComparison) -> str:
    maximum = max((*line.a, *line.b), default=0)
    maximum_text = format_figure(unit_of(line.name.partition(" ")[0]), maximum)
    side_values = (("a", line.a), ("b", line.b))
    paths = "".join(
        f'<path class="line-{side}" d="{_svg_path_data(values, maximum)}"/>' for side, values in side_values
    )
    chart_label = f"{line.name}: {comparison.names[0]} and {comparison.names[1]} over time"
    return (
        f"<figure><figcaption><span>{escape(line.name)}</span><span>at most {maximum_text}</span>"
        "</figcaption>"
        f'<svg viewBox="0 0 {max(1, len(line.a))} {_CHART_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(chart_label)}">{paths}</svg>'
        f"<p><span>0</span><span>{format_figure(Unit.SECONDS, comparison.run_seconds)}</span></p></figure>"
    )


def _svg_path_data(values: Sequence[float], maximum: float) -> str:
    path_steps: list[str] = []
    for index, value in enumerate(values):
        y = _CHART_HEIGHT - (value / maximum if maximum else 0) * (_CHART_HEIGHT - 4)
        path_steps.append(f"{'L' if path_steps else 'M'}{index} {y:.1f}L{index + 1} {y:.1f}")
    return "".join(path_steps)
