// The overview: cluster, queues, running Workloads, pending Workloads and their reasons.

import { charts } from "./charts.js";
import { comparisonPanel } from "./comparison.js";
import { h } from "./dom.js";
import { countText } from "./format.js";
import { barLegend, empty, flavorBars, linkTo, panel, plainBar, reasonCell, since, stateBadge, table, workloadCells } from "./parts.js";

export const overviewPage = { model: "overview", title: () => "Overview", query: () => ({}), show: showOverview, summary: (model) => `${model.waitingCount} pending, ${model.runningCount} hold quota` };

function showOverview(model) {
  return h("div", { class: "page overview" }, h("h1", { class: "sr" }, "Overview"), figures(model), comparisonPanel(model.comparison, false),
    model.charts ? panel("Over time", "UTC; drag to zoom, double-click shows all", charts(model.charts)) : null,
    model.queues ? queuesPanel(model) : localQueuesPanel(model),
    h("div", { class: "columns" }, waitingPanel(model), runningPanel(model)));
}

function figures(model) {
  const cluster = model.cluster;
  return h("section", { class: "figures", "aria-label": "Figures" },
    figure("waiting", model.waitingCount, h("a", { href: "#/workloads?state=Pending" }, "workloads pending")),
    figure("running", model.runningCount, "hold quota"),
    cluster && cluster.nodes.all ? figure("nodes", cluster.nodes.ready, linkTo("nodes", [], nodesText(cluster.nodes))) : null,
    cluster ? cluster.resources.slice(0, 4).map((line) => h("div", { class: "figure", "data-key": line.resource },
      h("b", {}, line.used, h("small", {}, ` / ${line.capacity}`)), h("span", {}, line.resource.replace("nvidia.com/gpu", "GPUs")),
      plainBar(line.share, `${line.resource}: ${line.used} of ${line.capacity} requested`))) : null);
}

function nodesText(nodes) {
  if (nodes.ready === nodes.all) return "nodes ready";
  return `of ${nodes.all} nodes ready${nodes.booting ? `, ${nodes.booting} booting` : ""}`;
}

function figure(key, number, words) {
  return h("div", { class: `figure figure-${key}`, "data-key": key }, h("b", {}, number.toLocaleString("en")), h("span", {}, words));
}

function queuesPanel(model) {
  if (!model.queues.length) return panel("Queues", "", empty("No ClusterQueues", "Create one with kubectl apply, and a LocalQueue that points to it."));
  const columns = [
    ["queue", "main", (line) => [linkTo("queue", [line.name]), line.active ? null : h("span", { class: "warn", title: line.why }, "stopped")]],
    ["cohort", "", (line) => (line.cohort ? linkTo("cohorts", [], line.cohort) : h("span", { class: "faint" }, "–"))],
    ["pending", "num", (line) => (line.pending ? h("b", { class: "waits" }, line.pending.toLocaleString("en")) : h("span", { class: "faint" }, "0"))],
    ["admitted", "num", (line) => (line.admitted ? line.admitted.toLocaleString("en") : h("span", { class: "faint" }, "0"))],
    ["quota used, by flavor", "bars", (line) => flavorBars(line.bars)],
  ];
  const more = model.queuesCount > model.queues.length ? `the first ${model.queues.length} of ${model.queuesCount}` : countText(model.queuesCount, "ClusterQueue");
  return panel("Queues", more, barLegend(), table(columns, model.queues, (line) => line.name));
}

function localQueuesPanel(model) {
  if (!model.localQueues.length) return panel("Your queues", "", empty("No queues are visible to you", "Ask for a RoleBinding to `view` in your namespace."));
  const columns = [
    ["queue", "main", (line) => [line.name, h("span", { class: "under" }, line.namespace)]],
    ["pending", "num", (line) => line.pending],
    ["admitted", "num", (line) => line.admitted],
    ["", "", (line) => (line.active ? null : h("span", { class: "warn" }, line.why))],
  ];
  return panel("Your queues", countText(model.localQueues.length, "LocalQueue"), table(columns, model.localQueues, (line) => `${line.namespace}/${line.name}`));
}

function waitingPanel(model) {
  if (!model.waiting.length) return panel("Pending", "", empty("Nothing is pending", "All Workloads have quota."));
  const cells = workloadCells();
  const columns = [cells[0], cells[1], cells[2],
    ["pending for", "num", (row) => since(row.since)],
    ["why", "why", reasonCell]];
  return panel("Pending", h("a", { href: "#/workloads?state=Pending" }, `all ${model.waitingCount.toLocaleString("en")}`), table(columns, model.waiting, (row) => `${row.namespace}/${row.name}`, { hasLinks: true }));
}

function runningPanel(model) {
  if (!model.running.length) return panel("Running", "", empty("Nothing is running", "kubectl create -f job.yaml with the label kueue.x-k8s.io/queue-name, or: batchyard submit -- COMMAND"));
  const cells = workloadCells();
  const columns = [cells[0], cells[1], cells[3],
    ["state", "", (row) => stateBadge(row.state)],
    ["since", "num", (row) => since(row.since)]];
  const more = model.runningCount > model.running.length ? `the latest of ${model.runningCount.toLocaleString("en")}` : "the latest first";
  return panel("Running", more, table(columns, model.running, (row) => `${row.namespace}/${row.name}`, { hasLinks: true }));
}
