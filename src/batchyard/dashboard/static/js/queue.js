// One ClusterQueue: pending Workloads, LocalQueues, quota, history.

import { actionBar, offerPath, openDialog } from "./actions.js";
import { forbiddenPage } from "./cohorts.js";
import { h } from "./dom.js";
import { amountsText, barLegend, chart, empty, linkTo, panel, reasonCell, since, stateBadge, table, usageTable, workloadCells } from "./parts.js";
import { pager } from "./workloads.js";

export const queuePage = {
  model: "queue",
  title: (route) => route.names[0],
  query: (route) => ({ name: route.names[0], offset: route.query.offset || "0" }),
  show: showQueue,
  summary: (model) => `${model.name}: ${model.pending} pending, ${model.reserving} hold quota`,
  stateOf: (model) => (model.rules ? model.rules["stop policy"] : ""),
  extras: (model) => (model.name ? { offer: offerPath(targetOf(model)) } : {}),
};

function targetOf(model) {
  return { kind: "ClusterQueue", namespace: "", name: model.name };
}

function showQueue(model, context) {
  if (model.forbidden) return forbiddenPage(model.forbidden);
  return h("div", { class: "page" },
    h("p", { class: "crumbs" }, model.path.length ? model.path.map((name) => [linkTo("cohorts", [], name), " / "]) : null, "ClusterQueue"),
    h("h1", {}, model.name, model.active ? null : h("span", { class: "warn" }, model.why)),
    actionBar(targetOf(model), context.extras.offer, context),
    h("p", { class: "facts" }, fact("strategy", model.strategy), Object.entries(model.rules).map(([name, value]) => fact(name, value))),
    panel("Quota", model.cohort ? `in cohort ${model.cohort}` : "no cohort", barLegend(), usageTable(model.usage)),
    h("div", { class: "columns" }, linePanel(model, context), runningPanelOf(model)),
    seriesPanel(model), localPanel(model, context));
}

export function fact(name, value) {
  return h("span", { class: "fact" }, h("span", { class: "faint" }, name), " ", value);
}

function linePanel(model, context) {
  if (!model.pending) return panel("Pending", "", empty("Nothing is pending", "New Workloads are considered immediately."));
  const columns = [
    ["#", "num faint", (row) => row.position],
    ["workload", "main", (row) => (row.hidden ? h("span", { class: "faint" }, "of another team") : [linkTo("workload", [row.namespace, row.name], row.owner ? row.owner.name : row.name), h("span", { class: "under" }, row.namespace)])],
    ["priority", "num", (row) => (row.hidden ? "" : row.priority)],
    ["pending for", "num", (row) => (row.hidden ? "" : since(row.since))],
    ["why", "why", (row) => (row.hidden ? "" : reasonCell(row))],
  ];
  return panel("Pending", `${model.pending.toLocaleString("en")} pending`, table(columns, model.line, (row) => String(row.position), { hasLinks: true }), pager(model, model.pending, context));
}

function runningPanelOf(model) {
  if (!model.running.length && !model.hiddenRunning) return panel("Hold quota", "", empty("Nothing is running"));
  const cells = workloadCells();
  const columns = [cells[0], cells[2], cells[3], ["state", "", (row) => stateBadge(row.state)], ["since", "num", (row) => since(row.since)]];
  const hidden = model.hiddenRunning ? h("p", { class: "faint more" }, `and ${model.hiddenRunning} of other teams`) : null;
  return panel("Hold quota", `${model.reserving}`, table(columns, model.running, (row) => `${row.namespace}/${row.name}`, { hasLinks: true }), hidden);
}

function seriesPanel(model) {
  if (!model.series) return null;
  const lines = [
    { name: "pending", values: model.series.pending, most: String(Math.max(...model.series.pending)), kind: "waiting" },
    { name: "holding quota", values: model.series.running, most: String(Math.max(...model.series.running)), kind: "running" },
    ...model.series.usage.filter((line) => Math.max(...line.values)).map((line) => ({ name: `${line.flavor} ${line.resource}`, values: line.values, most: line.most, kind: "used" })),
  ];
  return panel("Over time", "since recording began", chart(model.series, lines, model.name));
}

// The actions on a LocalQueue are requested when the user opens them: a ClusterQueue can have hundreds of LocalQueues.
function localActions(line, context) {
  if (!context.isLive) return null;
  const target = { kind: "LocalQueue", namespace: line.namespace, name: line.name };
  return h("button", { type: "button", class: "quiet", "aria-label": `Actions on ${line.name} in ${line.namespace}`, onclick: () => openActions(target, context) }, "⋯");
}

async function openActions(target, context) {
  const offer = await context.source.get(offerPath(target));
  const dialog = openDialog(`LocalQueue ${target.name}`, actionBar(target, offer, { ...context, refresh: () => { dialog.close(); context.refresh(); } }),
    h("menu", {}, h("button", { type: "button", onclick: () => dialog.close() }, "Close")));
}

function localPanel(model, context) {
  if (!model.localQueues.length) return panel("LocalQueues", "", empty("No LocalQueue points here", "Jobs are submitted through a LocalQueue in their namespace."));
  const columns = [
    ["queue", "main", (line) => [h("a", { href: `#/workloads?namespace=${encodeURIComponent(line.namespace)}&queue=${encodeURIComponent(line.name)}` }, line.name), h("span", { class: "under" }, line.namespace)]],
    ["pending", "num", (line) => line.pending],
    ["hold quota", "num", (line) => line.reserving],
    ["uses", "", (line) => amountsText(line.usage.map((each) => ({ ...each, amount: each.used }))) || h("span", { class: "faint" }, "nothing")],
    ...(model.localQueues.some((line) => line.pastUsage) ? [["past usage", "", (line) => line.pastUsage ?? ""]] : []),
    ["", "", (line) => [line.active ? null : h("span", { class: "warn" }, line.why), localActions(line, context)]],
  ];
  const isOrderedByUsage = model.localQueues.some((line) => line.pastUsage);
  return panel("LocalQueues", isOrderedByUsage ? "Workloads of LocalQueues with less past usage are ahead" : String(model.localQueues.length), table(columns, model.localQueues, (line) => `${line.namespace}/${line.name}`));
}
