"""The result of a run for its HTML report: conclusion, totals, tables and lines over time; totals of an earlier run."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from batchyard.api.times import format_second
from batchyard.dashboard.models.rows import reason_fields
from batchyard.sim.compare.sections import Section, change_rating, format_change, pair_tables
from batchyard.sim.summary.figure import Figures, FigureTable, Unit, format_figure, without_zero_columns
from batchyard.sim.summary.run_summary import RunSummary, conclusion_of, field_name, series_document, summary_document

#: The maximum size of a file with an earlier result.
EARLIER_RESULT_LENGTH_MAX: Final = 1 << 28
#: The maximum number of rows of a table in the report.
ROWS_SHOWN_MAX: Final = 200
_EMBEDDED_REPORT: Final = re.compile(r'<script type="application/json" id="report">(.*?)</script>', re.DOTALL)
#: The totals that the report shows first, as cards.
_CARD_FIGURES: Final = ("finished", "meanWait", "p90Wait", "maxWait", "makespan", "preemptions", "fairness", "cost")
#: The columns that the report shows as bars.
_BAR_FIGURES: Final = frozenset({"meanUse", "gotOfDue"})


def earlier_totals(text: str) -> dict[str, float]:
    """Return the overall figures of a run, by name, from `text`: its HTML report or its JSON output.

    Raises ValueError if the text contains none.
    """
    match = _EMBEDDED_REPORT.search(text)
    try:
        document = msgspec.json.decode(match[1] if match else text)
    except msgspec.DecodeError as error:
        raise ValueError(f"the file is neither a report nor JSON: {error}") from None
    for field in ("models", "result", "summary") if match else ("summary",):
        document = document.get(field) if isinstance(document, dict) else None
    totals = document.get("overall") if isinstance(document, dict) else None
    if not isinstance(totals, dict) or not all(isinstance(value, int | float) for value in totals.values()):
        raise ValueError("the file contains no summary of a run")
    return totals


def compare_with_earlier(summary: RunSummary, totals: Mapping[str, float], name: str) -> Section:
    """Return the table that compares a run with the totals of an earlier run, whose name for display is `name`."""
    figures: Figures = {figure.name: totals.get(field_name(figure)) for figure in summary.overall.figures}
    section = pair_tables(FigureTable("overall", "", "", summary.overall.figures, {"all": figures}), summary.overall)
    return Section(section.name, f"compared with {name}", "", section.figures, section.rows, name)


def result_view(summary: RunSummary, comparison: Section | None = None) -> dict[str, Any]:
    """Return the document of the report's result page, with at most 200 rows in each table.

    The values of cards and table cells are text, the lengths of bars are ratios.
    """
    run = summary.run
    return {
        "summary": {**summary_document(summary), "pending": []},
        "conclusion": conclusion_of(summary),
        "isInterrupted": summary.is_interrupted,
        "comparedWith": None if comparison is None else comparison.note,
        "cards": _cards(summary, comparison),
        "series": {
            "from": format_second(run.start_time),
            "to": format_second(run.result.now),
            "lines": [_with_maximum(line) for line in series_document(run)],
        },
        "tables": [_table_view(without_zero_columns(table)) for table in (summary.groups, *summary.tables)],
        "pendingCount": len(summary.pending),
        "pending": [
            {
                "namespace": row.namespace,
                "name": row.name,
                "owner": row.owner,
                "queue": row.cluster_queue or row.queue,
                "waited": format_figure(Unit.SECONDS, row.waited),
                "why": row.why or "waits for its turn in its queue",
                **reason_fields(row.why),
            }
            for row in summary.pending[:ROWS_SHOWN_MAX]
        ],
    }


def _cards(summary: RunSummary, comparison: Section | None) -> list[dict[str, Any]]:
    cards = []
    for figure in summary.overall.figures:
        value = summary.figures.get(figure.name)
        if figure.name not in _CARD_FIGURES or value is None:
            continue
        card = {"title": figure.title.partition(":")[0], "value": format_figure(figure.unit, value)}
        if comparison is not None:
            pair = comparison.rows[0].figures[figure.name]
            card["before"] = format_figure(figure.unit, pair[0])
            card["change"], card["rating"] = format_change(figure, pair), change_rating(figure, pair)
        cards.append(card)
    return cards


def _with_maximum(line: Mapping[str, Any]) -> dict[str, Any]:
    values: Sequence[float] = line["values"]
    return {**line, "most": format_figure(Unit(line["unit"]), max(values, default=0))}


def _table_view(table: FigureTable) -> dict[str, Any]:
    bar = next((figure for figure in table.figures if figure.name in _BAR_FIGURES), None)
    return {
        "title": table.title,
        "note": table.note,
        "subject": table.row_subject,
        "columns": [figure.title for figure in table.figures],
        "barTitle": "" if bar is None else bar.title,
        "rowCount": len(table.rows),
        "rows": [
            {
                "name": name,
                "cells": [
                    format_figure(figure.with_unit_of_row(name).unit, row.get(figure.name)) for figure in table.figures
                ],
                "bar": None if bar is None else row.get(bar.name),
            }
            for name, row in list(table.rows.items())[:ROWS_SHOWN_MAX]
        ],
    }
