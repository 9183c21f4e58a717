// The result of a simulation, in reports: conclusion, totals, lines and bars over time, tables.

import { h } from "./dom.js";
import { countText } from "./format.js";
import { chart, linkTo, panel, plainBar, reasonCell, table } from "./parts.js";
import { drawing, timelineLegend } from "./timeline.js";

export const resultPage = { model: "result", title: () => "Result", query: () => ({}), show: showResult };

function showResult(model) {
  return h("div", { class: "page result" }, h("h1", {}, "Result", model.isInterrupted ? h("span", { class: "warn" }, "interrupted") : null),
    h("p", { class: "conclusion" }, model.conclusion.join(" ")),
    model.comparedWith ? h("p", { class: "faint" }, `Changes are relative to ${model.comparedWith}.`) : null,
    h("section", { class: "figures", "aria-label": "Totals" }, model.cards.map(resultCard)),
    resultPending(model),
    panel("Over time", "", chart(model.series, model.series.lines, "over time")),
    model.timeline && model.timeline.lanes.length ? panel("Timeline", linkTo("timeline", [], "by node, preemptions"), timelineLegend(model.timeline), drawing(model.timeline)) : null,
    model.tables.map(resultTable));
}

function resultCard(card) {
  return h("div", { class: "figure", "data-key": card.title }, h("b", {}, card.value, card.change ? h("small", {}, ` from ${card.before}`) : null),
    h("span", {}, card.title), card.before ? h("span", { class: `change ${card.rating}` }, card.change || "no change") : null);
}

function resultPending(model) {
  if (!model.pendingCount) return null;
  const columns = [
    ["workload", "main", (row) => [linkTo("workload", [row.namespace, row.name], row.owner), h("span", { class: "under" }, row.namespace)]],
    ["queue", "queue", (row) => row.queue],
    ["waited", "num", (row) => row.waited],
    ["why", "why", reasonCell],
  ];
  const shown = model.pending.length < model.pendingCount ? `the longest ${model.pending.length} of ${model.pendingCount.toLocaleString("en")}` : countText(model.pendingCount, "Workload");
  return panel("Pending at the end", shown, table(columns, model.pending, (row) => `${row.namespace}/${row.name}`));
}

function resultTable(each) {
  const columns = [[each.subject, "main", (row) => row.name]];
  if (each.barTitle) columns.push([each.barTitle, "wide", (row) => (row.bar === null ? null : plainBar(Math.min(1, row.bar), `${(row.bar * 100).toFixed(1)} %`))]);
  each.columns.forEach((title, n) => columns.push([title, "num", (row) => row.cells[n]]));
  const more = each.rows.length < each.rowCount ? `the first ${each.rows.length} of ${each.rowCount.toLocaleString("en")}` : each.note;
  return panel(each.title[0].toUpperCase() + each.title.slice(1), more, table(columns, each.rows, (row) => row.name));
}
