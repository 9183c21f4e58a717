// Shadow mode: agreement and divergences between Kueue's decisions and batchyard's.

import { h } from "./dom.js";
import { countText, timeText } from "./format.js";
import { empty, panel, workloadLink } from "./parts.js";

export function comparisonPanel(found, isOfOne) {
  if (!found || (isOfOne && !found.partings.length)) return null;
  const counts = `${countText(found.agreed, "decision")} agree, ${found.parted.toLocaleString("en")} diverge`;
  const body = found.partings.length
    ? h("ol", { class: "partings" }, found.partings.map((each, n) => parting(each, n, isOfOne)))
    : empty("Kueue and batchyard agree", "Divergences are listed here, with their reason and where to look.");
  return panel("Divergences from Kueue", isOfOne ? "" : counts, body);
}

function parting(each, n, isOfOne) {
  return h("li", { "data-row": true, "data-key": `${each.at} ${each.type} ${each.workload} ${n}` },
    h("p", {}, h("b", { class: `parted parted-${each.type}` }, each.type), " ", isOfOne ? null : [workloadLink(each.workload), " "],
      h("time", { datetime: each.since, class: "num faint", title: `reported at ${timeText(each.at)}` }, timeText(each.since))),
    h("p", {}, each.message),
    each.why ? h("p", { class: "faint" }, each.why) : null,
    each.look.length ? h("details", {}, h("summary", {}, "Where to look"), h("ul", {}, each.look.map((line) => h("li", {}, h("code", {}, line))))) : null);
}
