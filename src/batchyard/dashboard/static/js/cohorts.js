// The Cohort trees: quota, usage, borrowing and lending at each level.

import { h } from "./dom.js";
import { countText } from "./format.js";
import { barLegend, empty, flavorBars, linkTo, usageTable } from "./parts.js";

// Deeper levels are closed at first.
const OPEN_LEVELS = 2;

export const cohortsPage = { model: "cohorts", title: () => "Cohorts", query: () => ({}), show: showCohorts };

function showCohorts(model) {
  if (model.forbidden) return forbiddenPage(model.forbidden);
  return h("div", { class: "page" }, h("h1", {}, "Cohorts"),
    h("p", { class: "lead" }, "A queue may use its own quota and, within limits, the unused quota of its cohort. Borrowed quota has no particular lender: the lent amount of a queue is an upper bound."),
    model.trees.length ? barLegend() : null,
    model.trees.length ? model.trees.map((tree) => h("section", { class: "panel tree", "aria-label": tree.name, "data-key": `${tree.kind} ${tree.name}` }, branch(tree, 0)))
      : empty("No queues", "A Cohort exists when a ClusterQueue names it."));
}

export function forbiddenPage(what) {
  return h("div", { class: "page" }, empty(`You may not list ${what}`, "It requires a ClusterRoleBinding to kueue-batch-admin-role. Your own Workloads are under Workloads."));
}

function branch(node, depth) {
  const name = node.kind === "ClusterQueue" ? linkTo("queue", [node.name]) : h("b", {}, node.name);
  return h("div", { class: "branch", "data-key": `${node.kind} ${node.name}`, "data-row": true },
    h("div", { class: "level" },
      h("div", {}, name, h("span", { class: "under" }, node.kind, " · ", node.pending ? h("b", { class: "waits" }, `${node.pending} pending`) : "none pending", ` · ${node.admitted} hold quota`)),
      flavorBars(node.bars)),
    h("details", {}, h("summary", {}, "all resources"), usageTable(node.usage)),
    node.children.length ? h("details", { class: "children", open: depth < OPEN_LEVELS }, h("summary", {}, countText(node.children.length, "member")), node.children.map((child) => branch(child, depth + 1))) : null);
}
