// The list of Workloads: filters, search, pages.

import { h } from "./dom.js";
import { stateWord } from "./format.js";
import { empty, reasonCell, since, stateBadge, table, workloadCells } from "./parts.js";

const FIELDS = ["text", "namespace", "queue", "state", "sort", "offset"];

export const workloadsPage = {
  model: "workloads",
  title: () => "Workloads",
  query: (route) => Object.fromEntries(FIELDS.filter((name) => route.query[name]).map((name) => [name, route.query[name]])),
  show: showWorkloads,
  summary: (model) => `${model.count} workloads match`,
};

function showWorkloads(model, context) {
  const query = context.route.query;
  const set = (changes) => context.go({ ...query, offset: "", ...changes });
  const all = Object.values(model.states).reduce((sum, count) => sum + count, 0);
  return h("div", { class: "page" }, h("h1", {}, "Workloads"),
    h("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
      h("input", { type: "search", id: "search", placeholder: "Filter by name", "aria-label": "Filter by name", value: query.text || "", oninput: (event) => context.later(() => set({ text: event.target.value })) }),
      choice("namespace", "all namespaces", model.namespaces, query.namespace, set),
      model.queues.length ? choice("queue", "all queues", model.queues, query.queue, set) : null,
      h("span", { class: "chips", role: "group", "aria-label": "State" }, chip("", "all", all, query, set), Object.entries(model.states).map(([state, count]) => chip(state, stateWord(state), count, query, set)))),
    model.rows.length ? list(model, { key: query.sort || "", set: (sort) => set({ sort }) }) : empty(all || query.text || query.namespace || query.queue ? "No matching Workloads" : "No Workloads", all ? "Remove a filter." : "A Workload is created for each Job with a queue."),
    pager(model, model.count, context));
}

function list(model, sort) {
  const cells = workloadCells();
  return table([cells[0], cells[1], cells[2], cells[3],
    ["state", "", (row) => stateBadge(row.state), "state"],
    ["since", "num", (row) => since(row.since)],
    ["age", "num", (row) => since(row.created), "created"],
    ["why", "why", reasonCell]], model.rows, (row) => `${row.namespace}/${row.name}`, { sort, hasLinks: true });
}

function choice(name, all, values, value, set) {
  const shown = value && !values.includes(value) ? [value, ...values] : values;
  return h("select", { "aria-label": name, "data-value": value || "", onchange: (event) => set({ [name]: event.target.value }) },
    h("option", { value: "" }, all), shown.map((each) => h("option", { value: each, selected: each === value }, each)));
}

function chip(state, words, count, query, set) {
  return h("button", { type: "button", class: "chip", "data-key": `chip ${state}`, "aria-pressed": String((query.state || "") === state), onclick: () => set({ state }) }, words, " ", h("b", {}, count.toLocaleString("en")));
}

export function pager(model, count, context) {
  if (count <= model.limit && !model.offset) return null;
  const to = (offset) => context.go({ ...context.route.query, offset: offset ? String(offset) : "" });
  const last = Math.min(count, model.offset + model.limit);
  return h("nav", { class: "pager", "aria-label": "Pages" },
    h("button", { type: "button", id: "earlier", disabled: model.offset === 0, onclick: () => to(Math.max(0, model.offset - model.limit)) }, "← previous"),
    h("span", { class: "num" }, `${(model.offset + 1).toLocaleString("en")}–${last.toLocaleString("en")} of ${count.toLocaleString("en")}`),
    h("button", { type: "button", id: "later", disabled: last >= count, onclick: () => to(model.offset + model.limit) }, "next →"));
}
