// The topologies: the tree of domains with usage and fragmentation, and the domains of one Workload.

import { forbiddenPage } from "./cohorts.js";
import { h } from "./dom.js";
import { countText } from "./format.js";
import { shade } from "./nodes.js";
import { empty, hashOf, linkTo, panel, plainBar, table, workloadLink } from "./parts.js";
import { fact } from "./queue.js";

export const topologyPage = { model: "topologies", title: () => "Topology", query: () => ({}), show: showTopologies };

function showTopologies(model, context) {
  if (model.forbidden) return forbiddenPage(model.forbidden);
  const selected = context.route.query.workload || "";
  return h("div", { class: "page" },
    h("p", { class: "crumbs" }, linkTo("nodes", [], "Nodes"), " / Topology"),
    h("h1", {}, "Topology"),
    selected ? h("p", { class: "facts" }, fact("placement of", workloadLink(selected)), h("a", { href: hashOf("topologies") }, "show all Workloads")) : null,
    model.flavors.length ? h("p", { class: "legend" }, "in use, of allocatable:", [0, 0.25, 0.5, 0.75, 1].map((heat) => h("span", { class: "cell", style: shade(heat), "data-key": String(heat) }, `${heat * 100}%`)), selected ? h("span", { class: "cell cell-own" }, "pods of the Workload") : null)
      : empty("No topologies", "A ResourceFlavor with topologyName has a topology."),
    model.flavors.map((flavor) => flavorPanel(flavor, selected)));
}

function flavorPanel(flavor, selected) {
  const title = `${flavor.topology} · flavor ${flavor.flavor}`;
  if (flavor.missing) return panel(title, "", empty(`The Topology ${flavor.topology} does not exist`, "ClusterQueues with this flavor are inactive."));
  if (!flavor.tree.length) return panel(title, "", empty("No domains", "No ready node has the labels of the flavor and of all levels."));
  const placed = selected ? flavor.tree.reduce((count, domain) => count + podsOf(domain, selected), 0) : 0;
  return panel(title, flavor.usual ? `usual request: ${flavor.usual}` : "nothing is placed here",
    levelTable(flavor),
    selected && !placed ? h("p", { class: "faint more" }, "The Workload has no pods in this flavor.") : null,
    h("div", { class: "tree" }, flavor.levels.length === 1 ? h("div", { class: "cells" }, flavor.tree.map((domain) => domainCell(domain, selected))) : flavor.tree.map((domain) => domainBranch(domain, 0, flavor.levels, selected))),
    flavor.hidden ? h("p", { class: "faint more" }, `and ${countText(flavor.hidden, "more domain")}`) : null);
}

function levelTable(flavor) {
  const columns = [
    ["level", "main", (row) => row.level],
    ["domains", "num", (row) => row.domains],
    ...(flavor.usual ? [
      ["fit the usual request", "num", (row) => row.fitting],
      ["most free pods", "num", (row) => row.largest],
      ["fragmentation", "frag", (row) => h("span", { class: "measured" }, plainBar(row.fragmentation, `fragmentation of ${row.level}`), h("span", { class: "num" }, `${Math.round(row.fragmentation * 100)} %`))],
    ] : []),
  ];
  return table(columns, flavor.levels, (row) => row.level);
}

// The pods of a Workload in a domain and those below it.
function podsOf(domain, workload) {
  if (!domain.children) return domain.workloads.reduce((count, each) => count + (each.workload === workload ? each.pods : 0), 0);
  return domain.children.reduce((count, child) => count + podsOf(child, workload), 0);
}

function domainBranch(domain, depth, levels, selected) {
  const own = selected ? podsOf(domain, selected) : 0;
  const areLeaves = domain.children.length && !domain.children[0].children;
  const top = domain.usage.find((line) => line.share === domain.share);
  return h("div", { class: own ? "branch branch-own" : "branch", "data-key": domain.name, "data-row": true },
    h("div", { class: "level" },
      h("div", {}, h("b", {}, domain.name), own ? h("span", { class: "own" }, countText(own, "pod")) : null,
        h("span", { class: "under" }, levels[depth].level, ` · ${countText(domain.pods, "pod")} placed`, domain.free === null ? "" : ` · ${domain.free} more fit`)),
      h("span", { class: "measured" }, plainBar(domain.share, usageText(domain)), h("span", { class: "num faint" }, top ? `${top.used} / ${top.capacity} ${top.resource}` : ""))),
    areLeaves ? h("div", { class: "cells" }, domain.children.map((child) => domainCell(child, selected)))
      : h("details", { class: "children", open: depth < 2 || own > 0 }, h("summary", {}, countText(domain.children.length, "domain")), domain.children.map((child) => domainBranch(child, depth + 1, levels, selected))));
}

function usageText(domain) {
  return domain.usage.map((line) => `${line.resource} ${line.used} of ${line.capacity}`).join(", ");
}

// A domain of the lowest level, such as a host.
function domainCell(domain, selected) {
  const own = selected ? podsOf(domain, selected) : 0;
  const workloads = domain.workloads.map((each) => `${each.workload || "of another team"}: ${countText(each.pods, "pod")}`);
  const title = [domain.name, ...domain.usage.map((line) => `${line.resource} ${line.used} of ${line.capacity}`), ...(domain.free === null ? [] : [`${domain.free} more pods of the usual request fit`]), ...workloads].join("\n");
  const text = own ? countText(own, "pod") : `${Math.round(domain.share * 100)}`;
  return h("span", { class: own ? "cell cell-own" : selected ? "cell cell-other" : "cell", style: shade(domain.share), title, role: "img", "aria-label": title.replaceAll("\n", ", "), "data-key": domain.name, tabindex: "0" }, h("span", {}, text));
}
