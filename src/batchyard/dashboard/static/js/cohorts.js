// The trees of Cohorts: what each level has, uses, borrows and lends.

import { h } from "./dom.js";
import { empty, flavorBars, linkTo, usageTable } from "./parts.js";

export const cohortsPage = { model: "cohorts", title: () => "Cohorts", query: () => ({}), show: showCohorts };

function showCohorts(model) {
  if (model.forbidden) return forbiddenPage(model.forbidden);
  return h("div", { class: "page" }, h("h1", {}, "Cohorts"),
    h("p", { class: "lead" }, "A queue may use its own quota and, within limits, what others of its cohort leave idle. Quota is lent by nobody in particular: what a queue is said to lend is the most that it may be."),
    model.trees.length ? model.trees.map((tree) => h("section", { class: "panel tree", "aria-label": tree.name, "data-key": `${tree.kind} ${tree.name}` }, branch(tree)))
      : empty("There are no queues", "Cohorts come to be where ClusterQueues name one."));
}

export function forbiddenPage(what) {
  return h("div", { class: "page" }, empty(`You may not list ${what}`, "A ClusterRoleBinding to kueue-batch-admin-role lets you. Your own Workloads are under Workloads."));
}

function branch(node) {
  const name = node.kind === "ClusterQueue" ? linkTo("queue", [node.name]) : h("b", {}, node.name);
  return h("div", { class: "branch", "data-key": `${node.kind} ${node.name}`, "data-row": true },
    h("div", { class: "level" },
      h("div", {}, name, h("span", { class: "under" }, node.kind, " · ", node.pending ? h("b", { class: "waits" }, `${node.pending} wait`) : "none waits", ` · ${node.admitted} hold quota`)),
      flavorBars(node.bars)),
    h("details", {}, h("summary", {}, "all figures"), usageTable(node.usage)),
    node.children.map((child) => branch(child)));
}
