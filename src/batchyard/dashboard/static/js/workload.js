// One Workload: history, pods, conditions, reason for waiting, start forecast.

import { actionBar, offerPath } from "./actions.js";
import { comparisonPanel } from "./comparison.js";
import { h } from "./dom.js";
import { clockText, stateWord, timeText } from "./format.js";
import { amountsText, empty, hashOf, linkTo, panel, since, stateBadge, table, workloadLink } from "./parts.js";
import { fact } from "./queue.js";

// Owners that are shown as YAML.
const OWNER_KINDS = ["Job", "JobSet"];
const EVENT_TEXTS = {
  created: "was created", quotaReserved: "got quota", admitted: "was admitted", podsReady: "its pods were ready",
  evicted: "was evicted", preempted: "was preempted", preempts: "preempted", finished: "finished", deleted: "was deleted",
};
// The outcomes of a flavor, as `batchyard why` prints them.
const VERDICTS = {
  short: "short of quota", nobodyToPreempt: "short, no usable victims", preempts: "would preempt", reclaims: "would reclaim",
  exceedsMaximum: "exceeds maximum capacity", taint: "taint not tolerated", affinity: "not selected", notFound: "flavor not found", topology: "topology does not suit",
};

export const workloadPage = {
  model: "workload",
  title: (route) => route.names[1],
  query: (route) => ({ namespace: route.names[0], name: route.names[1] }),
  show: showWorkload,
  // The paths of additional documents; those without a response are not shown.
  extras: (model) => ({ ...model.answers, offer: offerPath(targetOfWorkload(model)) }),
  summary: (model) => `${model.owner ? model.owner.name : model.name}: ${stateWord(model.state)}`,
};

function targetOfWorkload(model) {
  return { kind: "Workload", namespace: model.namespace, name: model.name };
}

function showWorkload(model, context) {
  return h("div", { class: "page" },
    h("p", { class: "crumbs" }, h("a", { href: `#/workloads?namespace=${encodeURIComponent(model.namespace)}` }, model.namespace), " / Workload"),
    h("h1", {}, model.owner ? model.owner.name : model.name, " ", stateBadge(model.state)),
    actionBar(targetOfWorkload(model), context.extras.offer, context),
    h("p", { class: "facts" },
      model.owner ? fact(model.owner.kind, context.isLive && OWNER_KINDS.includes(model.owner.kind) ? linkTo("yaml", [model.owner.kind, model.namespace, model.owner.name]) : model.owner.name) : null, fact("workload", model.name),
      fact("queue", [model.queue, " → ", model.clusterQueue ? linkTo("queue", [model.clusterQueue]) : "none"]),
      fact("priority", `${model.priority}${model.priorityClass ? ` (${model.priorityClass})` : ""}`),
      fact("pods", model.pods), model.position ? fact("position", `#${model.position}`) : null, fact(`${stateWord(model.state)} for`, since(model.since))),
    model.why && !context.extras.why ? h("p", { class: "because" }, model.reason ? h("b", {}, model.reason, " ") : null, model.why) : null,
    comparisonPanel(model.comparison, true), whyPanel(context.extras.why), topologyPanels(context.extras.why, model), etaPanel(context.extras.eta),
    h("div", { class: "columns" }, lifePanel(model), podsPanel(model, context)),
    podSetsPanel(model), conditionsPanel(model), eventsPanel(model.events || context.extras.events?.events));
}

function lifePanel(model) {
  return panel("History", "UTC", h("ol", { class: "life" }, model.life.map((mark, n) => h("li", { class: `mark mark-${mark.what}`, "data-row": true, "data-key": `${n} ${mark.what}` },
    h("time", { datetime: mark.at, class: "num faint" }, timeText(mark.at)),
    h("span", {}, EVENT_TEXTS[mark.what] || mark.what, mark.workload ? [" ", workloadLink(mark.workload)] : null,
      mark.by ? [" by ", workloadLink(mark.by)] : mark.by === "" ? " by a workload that is hidden or gone" : null,
      mark.reason ? h("span", { class: "under", title: mark.message || "" }, mark.reason) : null)))));
}

function podsPanel(model, context) {
  if (!model.podLines) return panel("Pods", "", empty("You may not list pods here"));
  if (!model.podLines.length) return panel("Pods", "", empty("No pods", model.state === "Pending" ? "Pods are created after admission." : ""));
  const columns = [
    ["pod", "main", (pod) => [pod.name, pod.podSet ? h("span", { class: "under" }, pod.podSet) : null]],
    ["phase", "", (pod) => pod.phase],
    ["node", "", (pod) => (pod.node ? linkTo("node", [pod.node]) : h("span", { class: "faint clip", title: pod.why }, pod.why || "none yet"))],
    ["since", "num", (pod) => since(pod.since)],
  ];
  if (context.isLive) columns.push(["", "num", (pod) => [h("a", { href: hashOf("logs", model.namespace, pod.name), "aria-label": `log of ${pod.name}` }, "log"), " ", h("a", { href: hashOf("yaml", "Pod", model.namespace, pod.name), "aria-label": `YAML of ${pod.name}` }, "YAML")]]);
  const more = model.podsCount > model.podLines.length ? `the first ${model.podLines.length} of ${model.podsCount}` : String(model.podsCount);
  return panel("Pods", more, table(columns, model.podLines, (pod) => pod.name));
}

function podSetsPanel(model) {
  const columns = [
    ["pod set", "main", (set) => set.name],
    ["pods", "num", (set) => set.count],
    ["requests per pod", "", (set) => Object.entries(set.requests).map(([name, amount]) => `${amount} ${name}`).join(", ") || "nothing"],
    ["holds", "", (set) => (set.flavors ? amountsText(set.flavors.map((each) => ({ ...each, amount: each.used }))) : h("span", { class: "faint" }, "no quota"))],
  ];
  return panel("Pod sets", "", table(columns, model.podSets, (set) => set.name));
}

function conditionsPanel(model) {
  const columns = [
    ["condition", "main", (each) => each.type],
    ["status", "", (each) => each.status],
    ["reason", "", (each) => each.reason],
    ["message", "why", (each) => each.message],
    ["since", "num", (each) => since(each.since)],
  ];
  const checks = model.checks.length ? table([["check", "main", (each) => each.name], ["state", "", (each) => each.state], ["message", "why", (each) => each.message]], model.checks, (each) => each.name) : null;
  return panel("Conditions", "", checks, model.conditions.length ? table(columns, model.conditions, (each) => each.type) : empty("None yet"));
}

function eventsPanel(events) {
  if (!events || !events.length) return null;
  const columns = [
    ["when", "when", (each) => since(each.at)],
    ["about", "", (each) => each.about],
    ["reason", "", (each) => each.reason],
    ["message", "why", (each) => each.message + (each.count > 1 ? ` (${each.count} times)` : "")],
  ];
  return panel("Events", "the latest first", table(columns, events, (each) => `${each.at} ${each.reason} ${each.message}`));
}

function whyPanel(why) {
  if (!why) return null;
  const changes = (why.changes || []).map((change, n) => h("li", { "data-key": String(n) }, change.text, change.proven ? h("span", { class: "proven", title: "verified in a simulation of the current state: with this change the workload is admitted" }, "proven") : null));
  return panel("Why", why.state || "",
    h("p", { class: "summary" }, why.summary),
    why.binding ? h("p", { class: "facts" }, Object.entries(why.binding).filter(([name]) => name !== "message").map(([name, value]) => (name === "limit" ? fact("limit", words(value)) : fact(name, named(value))))) : null,
    why.preemption ? preemptionFacts(why.preemption) : null,
    why.holders && why.holders.length ? holdersTable(why.holders) : null,
    changes.length ? h("div", {}, h("h3", {}, "Changes that would help"), h("ul", { class: "changes" }, changes)) : null,
    why.podSets && why.podSets.length ? h("details", { class: "levels" }, h("summary", {}, "By flavor"), why.podSets.map(verdicts)) : null);
}

// The last eviction; its text begins the summary.
function preemptionFacts({ by, rule, at, alternatives }) {
  return [h("p", { class: "facts" }, by ? fact("preempted by", by.includes("/") ? workloadLink(by) : by) : null, fact(by ? "reason" : "evicted for", rule), fact("at", timeText(at))),
    alternatives ? h("div", {}, h("h3", {}, "Workloads that were not preempted instead"), h("ul", { class: "changes" }, alternatives.map((text, n) => h("li", { "data-key": String(n) }, text)))) : null];
}

// Where the pods of an admitted Workload are, or how many pods of a pending one fit at each level.
function topologyPanels(why, model) {
  const name = `${model.namespace}/${model.name}`;
  return ((why && why.topology) || []).map((part) => panel(`Topology: ${part.podSet}`, [part.topology, part.flavor ? ` · flavor ${part.flavor}` : ""],
    part.levels ? (part.fits === undefined ? placementTable(part, name) : roomTables(part)) : h("p", { class: "summary" }, part.reason)));
}

function placementTable(part, name) {
  const columns = [
    ["level", "main", (row) => row.level],
    ["domains", "num", (row) => row.count],
    ["pods", "why", (row) => `${row.domains.map((each) => `${each.domain}: ${each.pods}`).join(", ")}${row.count > row.domains.length ? `, and ${row.count - row.domains.length} more` : ""}`],
  ];
  return [table(columns, part.levels, (row) => row.level), h("p", { class: "more" }, h("a", { href: `${hashOf("topologies")}?workload=${encodeURIComponent(name)}` }, "Show it in the topology"))];
}

function roomTables(part) {
  const layers = part.sliceLayers || (part.sliceSize ? [{ size: part.sliceSize, level: part.sliceLevel }] : []);
  const slices = layers.length ? `, slices ${layers.map((each) => `of ${each.size} per ${each.level}`).join(", ")}` : "";
  const columns = [
    ["level", "main", (row) => [row.level, row.binds ? h("span", { class: "warn" }, "binds") : null]],
    ["domains", "num", (row) => row.domains],
    ["with room", "num", (row) => row.fitting],
    ["largest", "", (row) => row.largest],
    ["free", "num", (row) => `${row.free} of ${part.pods}`],
    ["free if idle", "num", (row) => row.idle],
    ["free in total", "num", (row) => row.total],
  ];
  const occupants = [
    ["workload", "main", (each) => (each.workload.includes("/") ? workloadLink(each.workload) : h("span", { class: "faint" }, "of another team"))],
    ["queue", "", (each) => linkTo("queue", [each.clusterQueue])],
    ["priority", "num", (each) => each.priority],
    ["pods", "num", (each) => each.pods],
    ["frees room for", "num", (each) => each.frees],
    ["", "", (each) => each.stays || ""],
  ];
  return [h("p", { class: "facts" }, fact("request", `${part.pods} pods, ${part.request} ${part.level}${slices}`)),
    table(columns, part.levels, (row) => row.level),
    part.occupants ? h("h3", {}, `Workloads in ${part.domain || part.topology}`) : null,
    part.occupants ? table(occupants, part.occupants, (each) => `${each.workload} ${each.pods}`) : null,
    part.occupantsMore ? h("p", { class: "faint more" }, `and ${part.occupantsMore} more`) : null];
}

function holdersTable(holders) {
  const columns = [
    ["holder", "main", (each) => (each.workload ? workloadLink(each.workload) : h("span", { class: "faint" }, "of another team"))],
    ["queue", "", (each) => (each.clusterQueue ? linkTo("queue", [each.clusterQueue]) : "")],
    ["priority", "num", (each) => each.priority],
    ["holds", "", (each) => amountsText(each.holds || [])],
    ["why it stays", "why", (each) => [each.borrows ? "borrows; " : "", each.preempted ? "it is being preempted" : each.stays]],
    ["since", "num", (each) => since(each.since)],
  ];
  return table(columns, holders, (each) => `${each.workload} ${each.since}`);
}

// The request for each flavor, and the availability at each level of the tree.
function verdicts(set) {
  const rows = (set.flavors || []).flatMap((each) => {
    const parts = (each.resources || []).flatMap((part) => (part.levels || [{}]).map((level) => ({ ...each, ...part, level })));
    return parts.length ? parts : [{ ...each, resource: "", level: {} }];
  });
  const columns = [
    ["flavor", "", (row) => row.flavor],
    ["verdict", "why", (row) => (row.bindingResource && row.bindingResource !== row.resource ? "" : [VERDICTS[row.verdict] || row.verdict, row.obstacle ? `: ${plain(row.obstacle)}` : ""])],
    ["resource", "", (row) => row.resource],
    ["requested", "num", (row) => row.asked],
    ["missing", "num", (row) => row.missing],
    ["level", "", (row) => named(row.level)],
    ["used", "num", (row) => row.level.used],
    ["quota", "num", (row) => row.level.subtree],
    ["available", "num", (row) => row.level.available],
  ];
  return h("div", {}, h("h3", {}, `${set.name} × ${set.count}`), table(columns, rows, (row) => `${row.flavor} ${row.resource} ${row.level.name}`));
}

// Split a code such as `headOfLine` into words.
function words(code) {
  return code.replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`);
}

// Format an object with kind and name as `kind name`, and any other value as text.
function named(value) {
  return value && value.kind && value.name ? `${value.kind} ${value.name}` : plain(value);
}

function etaPanel(eta) {
  if (!eta) return null;
  const times = eta.startsAt || {};
  const when = (text) => (text ? clockText(Date.parse(text)) : "not within the forecast");
  return panel("When", eta.basis ? `run times: ${eta.basis}` : "",
    h("p", { class: "summary" }, times.p50 ? ["about ", h("b", {}, when(times.p50)), `, most likely between ${when(times.p10)} and ${when(times.p90)}`] : "It is not expected to start in the current state."),
    eta.within !== undefined && eta.forks ? h("p", { class: "faint more" }, `It started in ${Math.round(eta.within * 100)} % of ${eta.forks} simulations.`) : null,
    eta.dependsOn && eta.dependsOn.length ? h("ul", { class: "changes" }, eta.dependsOn.map((text, n) => h("li", { "data-key": String(n) }, text))) : null);
}

// Any value of a document as text.
function plain(value) {
  if (value === null || value === undefined) return "";
  if (Array.isArray(value)) return value.map(plain).join(", ");
  return typeof value === "object" ? Object.entries(value).map(([name, each]) => `${name} ${plain(each)}`).join(", ") : String(value);
}
