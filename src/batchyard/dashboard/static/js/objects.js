// One object as YAML, and the log of a pod.

import { copyButton, quoted } from "./actions.js";
import { h } from "./dom.js";
import { empty, hashOf, linkTo } from "./parts.js";

const LINES_MAX = 5000;
const TAILS = ["100", "500", "2000"];

export const yamlPage = {
  model: "yaml",
  title: (route) => `YAML of ${route.names[2]}`,
  query: (route) => ({ kind: route.names[0], namespace: route.names[1], name: route.names[2], managed: route.query.managed || "false" }),
  show: showYaml,
};

export const logsPage = {
  model: "pod",
  title: (route) => `Log of ${route.names[1]}`,
  query: (route) => ({ namespace: route.names[0], name: route.names[1] }),
  show: showLogs,
};

function showYaml(model, context) {
  const isManaged = context.route.query.managed === "true";
  return h("div", { class: "page" }, h("p", { class: "crumbs" }, model.kind, model.namespace ? ` in ${model.namespace}` : ""), h("h1", {}, model.name),
    h("p", { class: "actions" }, copyButton(model.command), backLink(model),
      h("button", { type: "button", "aria-pressed": String(isManaged), class: "chip", onclick: () => context.go({ managed: isManaged ? "" : "true" }) }, "managedFields")),
    h("pre", { class: "text", tabindex: "0", "aria-label": "YAML" }, model.yaml),
    model.isCut ? h("p", { class: "faint" }, "The text is cut; the command above prints the whole object.") : null);
}

function backLink(model) {
  const view = { Workload: "workload", ClusterQueue: "queue", Node: "node" }[model.kind];
  const names = model.namespace ? [model.namespace, model.name] : [model.name];
  return view ? linkTo(view, names, `Back to the ${model.kind}`, { class: "button" }) : null;
}

function showLogs(model, context) {
  const query = context.route.query, container = query.container || model.containers[0] || "", tail = TAILS.includes(query.tail) ? query.tail : "500";
  const follows = query.follow !== "no", command = `kubectl logs ${quoted(model.name)} -n ${quoted(model.namespace)} -c ${quoted(container)} --tail=${tail}${follows ? " -f" : ""}`;
  const pick = (name, value, is, words) => h("button", { type: "button", class: "chip", "aria-pressed": String(is), "data-key": `${name} ${value}`, onclick: () => context.go({ ...query, [name]: value }) }, words);
  return h("div", { class: "page" }, h("p", { class: "crumbs" }, model.namespace, " / Pod"), h("h1", {}, model.name, h("span", { class: "state" }, model.phase)),
    h("div", { class: "filters" },
      h("span", { class: "chips", role: "group", "aria-label": "Container" }, model.containers.map((name) => pick("container", name, name === container, name))),
      h("span", { class: "chips", role: "group", "aria-label": "Lines" }, TAILS.map((lines) => pick("tail", lines, lines === tail, `last ${lines}`))),
      pick("follow", follows ? "no" : "", follows, "follow"),
      copyButton(command), model.workload ? linkTo("workload", [model.namespace, model.workload], "Workload", { class: "button" }) : null,
      h("a", { class: "button", href: hashOf("yaml", "Pod", model.namespace, model.name) }, "YAML")),
    context.isLive ? logText(model, { container, tail, follows }, context.source) : empty("A report has no logs"));
}

// The text persists across models of the same pod; a new choice of lines or container begins a new text.
function logText(model, wanted, source) {
  const query = new URLSearchParams({ container: wanted.container, tailLines: wanted.tail, follow: String(wanted.follows) });
  const path = `/api/v1/namespaces/${encodeURIComponent(model.namespace)}/pods/${encodeURIComponent(model.name)}/log?${query}`;
  const text = h("pre", { class: "text", tabindex: "0", role: "log", "aria-label": "Log", "data-key": path });
  text.adopt = () => {};
  requestAnimationFrame(() => text.isConnected && readLog(text, path, source));
  return text;
}

async function readLog(text, path, source) {
  const abort = new AbortController();
  window.addEventListener("hashchange", () => abort.abort(), { once: true });
  let lines = [], rest = "", isDirty = false;
  const paint = () => {
    isDirty = false;
    const isAtEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 40;
    text.textContent = [...lines, rest].join("\n");
    if (isAtEnd) text.scrollTop = text.scrollHeight;
  };
  const take = (part) => {
    const added = (rest + part).split("\n");
    rest = added.pop().slice(-65536);
    lines = lines.concat(added).slice(-LINES_MAX);
    if (!isDirty) requestAnimationFrame(paint);
    isDirty = true;
  };
  const problem = await source.text(path, take, abort.signal);
  if (problem && !abort.signal.aborted) text.replaceChildren(h("span", { class: "faint" }, problem));
  else if (!lines.length && !rest && !abort.signal.aborted) text.replaceChildren(h("span", { class: "faint" }, "The log is empty."));
}
