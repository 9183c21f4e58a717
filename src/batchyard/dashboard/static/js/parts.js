// Elements shared by several views.

import { h, s } from "./dom.js";
import { ageText, nowOf, stateWord, timeText } from "./format.js";

export function hashOf(view, ...names) {
  return `#/${[view, ...names.map(encodeURIComponent)].join("/")}`;
}

export function linkTo(view, names, text, attributes) {
  return h("a", { href: hashOf(view, ...names), ...attributes }, text ?? names[names.length - 1]);
}

export function workloadLink(key, text) {
  return linkTo("workload", key.split("/"), text ?? key);
}

export function since(time) {
  if (!time) return h("span", { class: "faint" }, "–");
  return h("time", { datetime: time, title: timeText(time), "data-since": time }, ageText(nowOf() - Date.parse(time)));
}

export function stateBadge(state) {
  return h("span", { class: `state state-${state}` }, stateWord(state));
}

export function panel(title, aside, ...children) {
  return h("section", { class: "panel", "aria-label": title },
    h("header", {}, h("h2", {}, title), h("span", { class: "aside" }, aside)), ...children);
}

export function empty(text, hint) {
  return h("p", { class: "empty" }, text, hint ? h("span", {}, hint) : null);
}

// A table; columns are [title, class, cell of a row, sort key]. Keys move between rows with a link.
// `sort` is {key, set}: the current sort key, with - for descending, and a function that changes it.
// Rows with links need no tab stop for scrolling. On phones the rows become blocks of lines with the titles in them.
export function table(columns, rows, key, { sort = null, hasLinks = false } = {}) {
  return h("div", { class: "scroll", tabindex: hasLinks ? null : "0", role: hasLinks ? null : "group", "aria-label": hasLinks ? null : "table" }, h("table", { class: "stacked" },
    h("thead", {}, h("tr", {}, columns.map((column) => heading(column, sort)))),
    h("tbody", {}, rows.map((row) => h("tr", { "data-row": true, "data-key": key(row) },
      columns.map(([title, kind, cell]) => h("td", { class: kind, "data-title": title || null }, cell(row))))))));
}

function heading([title, kind, , name], sort) {
  if (!title) return h("td", { class: kind });
  if (!sort || !name) return h("th", { class: kind, scope: "col" }, title);
  const isUp = sort.key === name, isDown = sort.key === `-${name}`;
  return h("th", { class: kind, scope: "col", "aria-sort": isUp ? "ascending" : isDown ? "descending" : "none" },
    h("button", { type: "button", class: "sort", onclick: () => sort.set(isUp ? `-${name}` : isDown ? "" : name) }, title, isUp ? " ↑" : isDown ? " ↓" : ""));
}

// A pending reason in few words, with the whole message as title.
export function reasonCell(row) {
  return h("span", { class: "clip", title: row.why }, row.scarce ? h("b", { class: "scarce" }, row.scarce.replace("nvidia.com/gpu", "GPU")) : null, row.scarce ? " " : null, row.brief || row.why || (row.state === "Pending" ? "waits for its turn in its queue" : ""));
}

export function bar(line) {
  const title = `${line.flavor} ${line.resource}: ${line.used} of ${line.quota}`
    + (line.isBorrowing ? `, ${line.borrowed} borrowed` : "") + (line.isLending ? `, ${line.lent} lent` : "");
  return h("span", { class: "bar", role: "img", "aria-label": title, title },
    h("i", { class: "filled", style: { width: `${line.filled * 100}%` } }),
    h("i", { class: "over", style: { width: `${line.over * 100}%` } }),
    h("i", { class: "lent", style: { width: `${line.lentShare * 100}%` } }));
}

// What the parts of a quota bar mean.
export function barLegend() {
  const parts = [["filled", "used of its own quota"], ["over", "borrowed"], ["lent", "lent to others"]];
  return h("p", { class: "legend" }, "quota:", parts.map(([kind, words]) => h("span", { class: "use", "data-key": kind }, h("i", { class: kind }), words)));
}

// The dominant resource of each flavor.
export function flavorBars(lines) {
  return h("div", { class: "barlist" }, lines.map((each) => h("span", { class: "labelled", "data-key": each.flavor },
    h("span", { class: "label", title: `${each.flavor} ${each.resource}` }, each.flavor), bar(each), h("span", { class: "num faint" }, `${each.used} / ${each.quota}`))));
}

export function plainBar(share, title) {
  return h("span", { class: "bar", role: "img", "aria-label": title, title },
    h("i", { class: share > 0.9 ? "filled full" : "filled", style: { width: `${share * 100}%` } }));
}

export function usageTable(lines) {
  if (!lines.length) return empty("No quota", "Neither this level nor any below it has quota.");
  const limits = lines.some((line) => line.borrowingLimit || line.lendingLimit);
  const columns = [
    ["flavor", "", (line) => line.flavor],
    ["resource", "", (line) => line.resource],
    ["use", "wide", bar],
    ["used", "num", (line) => line.used],
    ["quota", "num", (line) => line.quota],
    ["nominal", "num faint", (line) => line.nominal],
    ["borrowed", "num", (line) => (line.isBorrowing ? h("b", { class: "borrowed" }, line.borrowed) : h("span", { class: "faint" }, "–"))],
    ["lent", "num", (line) => (line.isLending ? h("b", { class: "lends" }, line.lent) : h("span", { class: "faint" }, "–"))],
  ];
  if (limits) columns.push(["limits", "faint", (line) => [line.borrowingLimit ? `borrows ≤ ${line.borrowingLimit} ` : "", line.lendingLimit ? `lends ≤ ${line.lendingLimit}` : ""]]);
  return table(columns, lines, (line) => `${line.flavor} ${line.resource}`);
}

export function workloadCells() {
  return [
    ["workload", "main", (row) => [linkTo("workload", [row.namespace, row.name], row.owner ? row.owner.name : row.name),
      h("span", { class: "under" }, row.namespace, row.owner ? ` · ${row.owner.kind}` : "")], "name"],
    ["queue", "queue", (row) => (row.clusterQueue ? linkTo("queue", [row.clusterQueue]) : row.queue), "queue"],
    ["priority", "num", (row) => row.priority, "priority"],
    ["pods", "num", (row) => row.pods],
  ];
}

// The amounts by flavor: `4 cpu, 20Gi memory of spot`.
export function amountsText(holdings) {
  const flavors = [...new Set(holdings.map((holding) => holding.flavor))];
  return flavors.map((flavor) => `${holdings.filter((holding) => holding.flavor === flavor).map((holding) => `${holding.amount} ${holding.resource}`).join(", ")} of ${flavor}`).join(" · ");
}

// Step functions over time, stacked; lines are {name, values, most, class}.
export function chart(series, lines, label) {
  const width = 600, height = 44;
  return h("div", { class: "charts" }, lines.map((line) => {
    const top = Math.max(1, ...line.values), step = width / line.values.length;
    const path = line.values.map((value, n) => `${n ? "L" : "M"}${(n * step).toFixed(1)} ${(height - (value / top) * (height - 4)).toFixed(1)}H${((n + 1) * step).toFixed(1)}`);
    return h("figure", { "data-key": line.name },
      h("figcaption", {}, h("span", {}, line.name), h("span", { class: "faint" }, `max ${line.most}`)),
      s("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": `${label}: ${line.name}, max ${line.most}`, class: line.kind },
        s("path", { class: "area", d: `${path.join("")}V${height}H0Z` }), s("path", { class: "line", d: path.join("") })));
  }), h("p", { class: "axis faint" }, h("span", {}, timeText(series.from)), h("span", {}, timeText(series.to))));
}
