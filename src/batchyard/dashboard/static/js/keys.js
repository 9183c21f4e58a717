// Keyboard: / searches, j and k move between lines, g and a letter opens a view, ? shows the help.

import { openDialog } from "./actions.js";
import { h } from "./dom.js";

const GOTO = { o: ["#/", "overview"], c: ["#/cohorts", "cohorts"], w: ["#/workloads", "workloads"], t: ["#/timeline", "timeline"], n: ["#/nodes", "nodes"], m: ["#/costs", "cost"] };
const HELP = [
  ["/", "search workloads, queues, nodes"], ["j  k", "next and previous line"], ["Enter", "open the line"],
  ...Object.entries(GOTO).map(([key, [, name]]) => [`g ${key}`, name]),
  ["[  ]", "previous and next page"], ["+  −  ←  →  0", "timeline: zoom, move, show all"], ["d", "dark or light"], ["?", "this help"], ["Esc", "close, leave the search"],
];

export function listen(actions) {
  let isGoing = false;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.nodeName);
    if (event.key === "Escape" && typing) event.target.blur();
    if (typing) return;
    if (isGoing) {
      isGoing = false;
      if (GOTO[event.key]) location.hash = GOTO[event.key][0];
      return;
    }
    const act = { "/": actions.search, j: () => step(1), k: () => step(-1), g: () => { isGoing = true; }, "?": help, d: actions.theme, "[": () => press("earlier"), "]": () => press("later") }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}

function step(by) {
  const rows = [...document.querySelectorAll("#main [data-row]")].filter((row) => row.offsetParent);
  const links = rows.map((row) => (row.matches("a, summary") ? row : row.querySelector("a"))).filter(Boolean);
  if (!links.length) return;
  const at = links.indexOf(document.activeElement);
  const next = links[Math.min(links.length - 1, Math.max(0, at + by))];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

function press(id) {
  const button = document.getElementById(id);
  if (button) button.click();
}

export function help() {
  const dialog = openDialog("Keys", h("dl", {}, HELP.map(([keys, what]) => [h("dt", {}, keys.split("  ").map((key) => [h("kbd", {}, key), " "])), h("dd", {}, what)])),
    h("button", { type: "button", onclick: () => dialog.close() }, "Close"));
}
