// The node map by pool, and one node with its pods.

import { forbiddenPage } from "./cohorts.js";
import { h } from "./dom.js";
import { countText } from "./format.js";
import { empty, linkTo, panel, plainBar, table } from "./parts.js";
import { fact } from "./queue.js";

const NODE_WORDS = { ready: "ready", booting: "booting", going: "draining", notReady: "not ready" };

export const nodesPage = { model: "nodes", title: () => "Nodes", query: () => ({}), show: showNodes };
export const nodePage = { model: "node", title: (route) => route.names[0], query: (route) => ({ name: route.names[0] }), show: showNode };

function showNodes(model, context) {
  const of = context.route.query.of || "";
  if (model.forbidden) return forbiddenPage(model.forbidden);
  if (!model.pools.length) return h("div", { class: "page" }, h("h1", {}, "Nodes"), empty("No nodes", "Pods are not bound to nodes: start the platform with --cluster FILE or --cluster local to have nodes."));
  return h("div", { class: "page" }, h("h1", {}, "Nodes"),
    h("div", { class: "filters" }, model.topologies ? linkTo("topologies", [], "Topology", { class: "button" }) : null, h("span", { class: "chips", role: "group", "aria-label": "Resource" }, ["", ...model.resources].map((name) => h("button", { type: "button", class: "chip", "aria-pressed": String(of === name), "data-key": name || "scarcest", onclick: () => context.go({ of: name }) }, name || "dominant resource")))),
    h("p", { class: "legend" }, "requested, of allocatable:", [0, 0.25, 0.5, 0.75, 1].map((heat) => h("span", { class: "cell", style: shade(heat), "data-key": String(heat) }, `${heat * 100}%`)), h("span", { class: "cell cell-booting" }, "booting"), h("span", { class: "cell cell-going" }, "draining"), h("span", { class: "cell cell-notReady" }, "not ready")),
    model.pools.map((pool) => panel(pool.name, [pool.machine, pool.provisioning ? ` · ${pool.provisioning}` : "", " · ", Object.entries(pool.counts).map(([state, count]) => `${count} ${NODE_WORDS[state]}`).join(", ")],
      h("div", { class: "cells" }, pool.nodes.map((node) => cell(node, of))))));
}

export function shade(heat) {
  return { "--heat": String(Math.round(heat * 100)) + "%" };
}

function cell(node, of) {
  const line = of ? node.usage.find((each) => each.resource === of) : { share: node.heat };
  const title = [node.name, NODE_WORDS[node.state], node.zone, countText(node.pods, "pod"), ...node.usage.map((line) => `${line.resource} ${line.used} of ${line.capacity}`)].join("\n");
  const attributes = { class: `cell cell-${node.state}`, style: shade(line ? line.share : 0), title, "aria-label": title.replaceAll("\n", ", "), "data-key": node.name, "data-row": true };
  const inside = [h("span", {}, node.state === "booting" ? "…" : line ? `${Math.round(line.share * 100)}` : "–")];
  return node.state === "booting" ? h("span", attributes, inside) : linkTo("node", [node.name], inside, attributes);
}

function showNode(model) {
  if (model.forbidden) return forbiddenPage(model.forbidden);
  const pods = [
    ["pod", "main", (pod) => [pod.workload ? linkTo("workload", [pod.namespace, pod.workload], pod.name) : pod.name, h("span", { class: "under" }, pod.namespace)]],
    ["phase", "", (pod) => pod.phase],
    ["requests", "", (pod) => pod.requests],
  ];
  return h("div", { class: "page" }, h("p", { class: "crumbs" }, linkTo("nodes", [], "Nodes"), ` / ${model.pool}`), h("h1", {}, model.name),
    h("p", { class: "facts" }, fact("state", NODE_WORDS[model.state]), fact("machine", model.machine), fact("zone", model.zone)),
    panel("Requested", "", table([["resource", "main", (line) => line.resource], ["use", "wide", (line) => plainBar(line.share, line.resource)], ["requested", "num", (line) => line.used], ["allocatable", "num", (line) => line.capacity]], model.usage, (line) => line.resource)),
    panel("Pods", countText(model.pods.length, "pod"), model.pods.length ? table(pods, model.pods, (pod) => `${pod.namespace}/${pod.name}`) : empty("No pods"), model.hidden ? h("p", { class: "faint more" }, `and ${model.hidden} of other teams`) : null),
    panel("Labels", "", h("p", { class: "labels" }, Object.entries(model.labels).map(([name, value]) => h("code", { "data-key": name }, `${name}=${value}`)))));
}
