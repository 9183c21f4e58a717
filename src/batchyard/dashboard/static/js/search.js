// The search over Workloads, queues and nodes, opened with /.

import { announce, openDialog } from "./actions.js";
import { h } from "./dom.js";
import { countText, stateWord } from "./format.js";
import { empty, hashOf } from "./parts.js";

const VIEWS_OF = { Workload: "workload", ClusterQueue: "queue", Node: "node" };

export function openSearch(source) {
  let timer = 0, asked = 0;
  const list = h("ul", { class: "results", id: "results", "aria-label": "Results" });
  const look = async () => {
    const own = ++asked, text = field.value.trim();
    const results = text ? await source.search(text) : [];
    if (own !== asked) return;
    list.replaceChildren(...(results.length ? results.map(resultRow) : [h("li", {}, empty(text ? "Nothing found" : "Type a part of a name"))]));
    if (text) announce(countText(results.length, "result"));
  };
  const field = h("input", { type: "search", id: "find", "aria-label": "Search workloads, queues and nodes", placeholder: "Search workloads, queues, nodes", autocomplete: "off", spellcheck: "false", oninput: () => { clearTimeout(timer); timer = setTimeout(look, 150); }, onkeydown: (event) => move(event, list, field) });
  const dialog = openDialog("Search", field, list, h("menu", {}, h("a", { class: "button", href: "#/workloads", onclick: () => dialog.close() }, "All workloads"), h("button", { type: "button", onclick: () => dialog.close() }, "Close")));
  list.onkeydown = (event) => move(event, list, field);
  list.onclick = (event) => { if (event.target.closest("a")) dialog.close(); };
  look();
  field.focus();
}

function resultRow(result) {
  const names = result.path, where = names.slice(0, -1).join("/");
  const href = result.kind === "LocalQueue" ? `#/workloads?${new URLSearchParams({ namespace: names[0], queue: names[1] })}` : hashOf(VIEWS_OF[result.kind], ...names);
  return h("li", {}, h("a", { href }, h("b", {}, result.title), h("span", { class: "under" }, [result.kind, where, result.state ? stateWord(result.state) : ""].filter(Boolean).join(" · "))));
}

// Arrow keys move between the field and the results; Enter in the field opens the first result.
function move(event, list, field) {
  const stops = [field, ...list.querySelectorAll("a")], at = stops.indexOf(document.activeElement);
  if (event.key === "Escape") { // the first press would only clear the field
    event.preventDefault();
    field.closest("dialog").close();
    return;
  }
  if (event.key === "Enter" && at === 0 && stops[1]) stops[1].click();
  const next = { ArrowDown: at + 1, ArrowUp: at - 1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  stops[Math.max(0, Math.min(stops.length - 1, next))].focus();
}
