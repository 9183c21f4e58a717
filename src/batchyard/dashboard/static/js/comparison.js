// Beside another Kueue: how often both decided alike, and where they did not.

import { h } from "./dom.js";
import { countText, timeText } from "./format.js";
import { empty, panel, workloadLink } from "./parts.js";

export function comparisonPanel(found, isOfOne) {
  if (!found || (isOfOne && !found.partings.length)) return null;
  const counts = `${countText(found.agreed, "decision")} as foreseen, ${found.parted.toLocaleString("en")} otherwise`;
  const body = found.partings.length
    ? h("ol", { class: "partings" }, found.partings.map((each, n) => parting(each, n, isOfOne)))
    : empty("Kueue decides as batchyard would", "Where it does not, it is told here, with why and where to look.");
  return panel("Where Kueue decides otherwise", isOfOne ? "" : counts, body);
}

function parting(each, n, isOfOne) {
  return h("li", { "data-row": true, "data-key": `${each.at} ${each.type} ${each.workload} ${n}` },
    h("p", {}, h("b", { class: `parted parted-${each.type}` }, each.type), " ", isOfOne ? null : [workloadLink(each.workload), " "],
      h("time", { datetime: each.since, class: "num faint", title: `told at ${timeText(each.at)}` }, timeText(each.since))),
    h("p", {}, each.message),
    each.why ? h("p", { class: "faint" }, each.why) : null,
    each.look.length ? h("details", {}, h("summary", {}, "Where to look"), h("ul", {}, each.look.map((line) => h("li", {}, h("code", {}, line))))) : null);
}
