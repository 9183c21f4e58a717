// Machine costs by team and by pool.

import { charts } from "./charts.js";
import { h } from "./dom.js";
import { timeText } from "./format.js";
import { empty, panel, table } from "./parts.js";

const WORDS = { clusterqueue: "queue" };

export const costsPage = { model: "costs", title: () => "Cost", query: () => ({}), show: showCosts };

function showCosts(model) {
  if (!model.kept) return h("div", { class: "page" }, h("h1", {}, "Cost"), empty("No costs are recorded", "A platform with a Cluster records its machine costs, and so does batchyard simulate --cluster FILE --report FILE.html. You may lack permission to list CostRecords."));
  return h("div", { class: "page" }, h("h1", {}, "Cost"),
    h("section", { class: "figures" }, h("div", { class: "figure" }, h("b", {}, model.total), h("span", {}, model.from ? `${timeText(model.from)} – ${timeText(model.through)}` : "for all machines"))),
    h("p", { class: "legend" }, ["done", "running", "lost", "idle", "booting"].map((use) => h("span", { class: "use", "data-key": use }, h("i", { class: `use-${use}` }), use))),
    model.trend ? panel("Trend", "cost per hour of all machines that you may see, UTC", charts(model.trend)) : null,
    model.tables.map((each) => costPanel(`By ${WORDS[each.by] || each.by}`, WORDS[each.by] || each.by, each.rows)));
}

function costPanel(title, word, parts) {
  const columns = [
    [word, "main", (part) => part.name],
    ["split", "wide", (part) => h("span", { class: "bar uses", role: "img", "aria-label": part.uses.map((each) => `${each.use} ${each.cost}`).join(", "), title: part.uses.map((each) => `${each.use} ${each.cost}`).join("\n") },
      part.uses.map((each, n) => h("i", { class: `use-${each.use}`, style: { width: `${each.percent}%` }, "data-key": String(n) })))],
    ["cost", "num", (part) => part.cost],
    ["share", "num", (part) => `${part.percent.toFixed(1)} %`],
    ["node hours", "num", (part) => part.nodeHours],
    ["accelerator hours", "num", (part) => part.acceleratorHours],
  ];
  return panel(title, "", parts.length ? table(columns, parts, (part) => part.name) : empty("No costs"));
}
