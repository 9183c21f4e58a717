// What the machines cost, by team and by pool.

import { forbiddenPage } from "./cohorts.js";
import { h } from "./dom.js";
import { empty, panel, table } from "./parts.js";

export const costsPage = { model: "costs", title: () => "Cost", query: () => ({}), show: showCosts };

function showCosts(model) {
  if (model.forbidden) return forbiddenPage(model.forbidden);
  if (!model.kept) return h("div", { class: "page" }, h("h1", {}, "Cost"), empty("Nobody keeps books here", "A simulation with a Cluster has them: batchyard simulate --cluster FILE --report FILE.html"));
  return h("div", { class: "page" }, h("h1", {}, "Cost"),
    h("section", { class: "figures" }, h("div", { class: "figure" }, h("b", {}, model.total), h("span", {}, "for all machines"))),
    h("p", { class: "legend" }, ["done", "running", "lost", "idle", "booting"].map((use) => h("span", { class: "use", "data-key": use }, h("i", { class: `use-${use}` }), use))),
    costPanel("By team", "team", model.teams), costPanel("By pool", "pool", model.pools));
}

function costPanel(title, word, parts) {
  const columns = [
    [word, "main", (part) => part.name],
    ["", "wide", (part) => h("span", { class: "bar uses", role: "img", "aria-label": part.uses.map((each) => `${each.use} ${each.cost}`).join(", "), title: part.uses.map((each) => `${each.use} ${each.cost}`).join("\n") },
      part.uses.map((each, n) => h("i", { class: `use-${each.use}`, style: { width: `${each.share * 100}%` }, "data-key": String(n) })))],
    ["cost", "num", (part) => part.cost],
    ["share", "num", (part) => `${(part.share * 100).toFixed(1)} %`],
    ["machine hours", "num", (part) => part.machineHours],
    ["accelerator hours", "num", (part) => part.acceleratorHours],
  ];
  return panel(title, "", parts.length ? table(columns, parts, (part) => part.name) : empty("Nothing was spent"));
}
