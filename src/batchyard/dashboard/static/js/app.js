// The page: routing, the model of the current view, rendering.

import { announce } from "./actions.js";
import { cohortsPage } from "./cohorts.js";
import { costsPage } from "./costs.js";
import { h, morph } from "./dom.js";
import { ageText, clockText, nowOf, setClock, speedOf } from "./format.js";
import { help, listen } from "./keys.js";
import { nodePage, nodesPage } from "./nodes.js";
import { logsPage, yamlPage } from "./objects.js";
import { overviewPage } from "./overview.js";
import { empty } from "./parts.js";
import { queuePage } from "./queue.js";
import { resultPage } from "./result.js";
import { hasToken, LiveSource, ReportSource, setToken, takeToken } from "./source.js";
import { openSearch } from "./search.js";
import { topologyPage } from "./topology.js";
import { timelinePage } from "./timeline.js";
import { workloadPage } from "./workload.js";
import { workloadsPage } from "./workloads.js";

const PAGES = {
  "": overviewPage, cohorts: cohortsPage, queue: queuePage, workloads: workloadsPage, workload: workloadPage,
  timeline: timelinePage, nodes: nodesPage, node: nodePage, topologies: topologyPage, costs: costsPage, result: resultPage,
  yaml: yamlPage, logs: logsPage,
};
const ANNOUNCE_INTERVAL = 5000;
const NAV = [["", "Overview"], ["cohorts", "Cohorts"], ["workloads", "Workloads"], ["timeline", "Timeline"], ["nodes", "Nodes"], ["costs", "Cost"]];
const PARENT_VIEWS = { queue: "cohorts", workload: "workloads", node: "nodes", topologies: "nodes" };
const main = document.getElementById("main");
const embedded = document.getElementById("report");
const source = embedded ? new ReportSource(JSON.parse(embedded.textContent)) : new LiveSource();
const hasResult = Boolean(embedded && source.report.models.result);
if (hasResult) NAV.unshift(["result", "Result"]);
if (hasResult && !location.hash) history.replaceState(null, "", "#/result");
const current = { route: null, page: null, model: null, extras: {}, stop: () => {}, state: "loading", typing: 0, announcedText: "", announcedAt: 0 };

function routeOf(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const [view, ...names] = path.split("/").map(unescaped);
  return { view, names, query: Object.fromEntries(new URLSearchParams(query || "")), path };
}

// A hand-written address may contain a literal %.
function unescaped(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function open() {
  takeToken();
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  const route = routeOf(location.hash);
  const page = Object.hasOwn(PAGES, route.view) ? PAGES[route.view] : null;
  const isSame = current.route && current.route.path === route.path;
  current.stop();
  Object.assign(current, { route, page, extras: isSame ? current.extras : {}, state: "loading", model: isSame ? current.model : null, announcedText: "" });
  if (!isSame) main.replaceChildren();
  if (!page) {
    Object.assign(current, { state: "unknown", stop: () => {} });
    document.title = "Unknown address · batchyard";
    return draw();
  }
  document.title = `${page.title(route)} · batchyard`;
  current.stop = source.watch(page.model, page.query(route), take, (state, text) => {
    Object.assign(current, { state, text, model: state === "away" ? current.model : null });
    draw();
  });
  drawTop();
  if (!isSame) window.scrollTo(0, 0);
}

function take(model, envelope) {
  setClock(envelope);
  Object.assign(current, { model, state: source.isLive ? "live" : "report" });
  draw();
  if (current.page.extras) requestExtras(model);
  announceChanges(model);
}

// Announce changes to screen readers, at most every few seconds.
function announceChanges(model) {
  const text = current.page.summary ? current.page.summary(model) : "";
  const isNews = text && current.announcedText && text !== current.announcedText && Date.now() - current.announcedAt > ANNOUNCE_INTERVAL;
  if (isNews) {
    announce(text);
    current.announcedAt = Date.now();
  }
  if (isNews || !current.announcedText) current.announcedText = text;
}

// Extras cost more than models: request them again when the state changes, or after 10 s when the reason changes.
function requestExtras(model) {
  const { route, extras } = current, paths = current.page.extras(model);
  const state = current.page.stateOf ? current.page.stateOf(model) : model.state;
  const isSame = extras.state === state, isNews = extras.why?.summary !== undefined && extras.of !== model.why;
  if (isSame && !(isNews && Date.now() - extras.at > 10000)) return;
  current.extras = { ...Object.fromEntries(Object.keys(paths).map((name) => [name, extras[name]])), state, of: model.why, at: Date.now() };
  for (const [name, path] of Object.entries(paths)) {
    source.get(path).then((response) => {
      if (current.route !== route) return;
      current.extras = { ...current.extras, [name]: response };
      draw();
    });
  }
}

function go(query) {
  const parameters = Object.entries(query).filter(([, value]) => value);
  location.hash = `#/${current.route.path}${parameters.length ? `?${new URLSearchParams(parameters)}` : ""}`;
}

// Debounce typing.
function later(act) {
  clearTimeout(current.typing);
  current.typing = setTimeout(act, 150);
}

function draw() {
  drawTop();
  if (current.model) {
    const context = { route: current.route, go, later, redraw: draw, extras: current.extras, isLive: source.isLive, source, refresh };
    show(current.page.show(current.model, context));
    performance.mark("batchyard-drawn");
  } else if (current.state === "unauthorized") {
    show(signIn());
  } else if (current.state === "missing") {
    show(messagePage("Not found", "The object does not exist, or you may not view it."));
  } else if (current.state === "unknown") {
    show(messagePage("Unknown address", `This page has no view for “${current.route.path}”.`));
  } else if (current.state === "away") {
    show(h("div", { class: "page" }, empty("The platform does not respond", "Retrying every few seconds.")));
  }
}

// Request the extras again, because an action changed the object.
function refresh() {
  current.extras = { ...current.extras, state: undefined };
  if (current.model && current.page.extras) requestExtras(current.model);
}

function messagePage(title, hint) {
  return h("div", { class: "page" }, h("h1", { class: "sr" }, title), empty(title, [hint, " ", h("a", { href: "#/" }, "Go to the overview"), source.isLive ? [" or ", h("a", { href: "#/workloads" }, "list the workloads")] : null, "."]));
}

function show(made) {
  if (main.firstChild) morph(main.firstChild, made);
  else main.appendChild(made);
}

function signIn() {
  return h("form", { class: "page sign-in", onsubmit: (event) => { event.preventDefault(); setToken(event.target.querySelector("input").value.trim()); open(); } },
    h("h1", {}, "Sign in"), hasToken() ? h("p", { role: "alert" }, "The token is invalid or has expired.") : null, h("p", {}, "Paste a token, or open the link that this command prints:"), h("pre", {}, "batchyard page"),
    h("label", {}, "Token", h("input", { type: "password", autocomplete: "off", spellcheck: "false" })), h("button", { type: "submit" }, "Sign in"));
}

function drawTop() {
  const { view } = current.route;
  const words = { live: "live", loading: "…", away: "reconnecting", report: "report", unauthorized: "signed out", missing: "live", unknown: "" };
  const made = h("header", { id: "top" },
    h("a", { href: "#/", class: "brand" }, "batchyard"),
    h("nav", { "aria-label": "Views" }, NAV.map(([name, title]) => h("a", { href: `#/${name}`, "aria-current": (PARENT_VIEWS[view] || view) === name ? "page" : null, "data-key": name }, title))),
    words[current.state] ? h("span", { class: `status status-${current.state}`, role: "status" }, h("i", {}), words[current.state]) : h("span", { class: "status" }),
    speedChip(),
    h("time", { class: "num clock", id: "clock", title: "the platform's time, UTC" }, clockText(nowOf())),
    h("button", { type: "button", class: "quiet", title: "search (/)", "aria-label": "search", onclick: () => openSearch(source) }, "⌕"),
    h("button", { type: "button", class: "quiet", title: "dark or light (d)", "aria-label": "dark or light", onclick: switchTheme }, "◐"),
    h("button", { type: "button", class: "quiet", title: "keys (?)", "aria-label": "keys", onclick: help }, "?"));
  morph(document.getElementById("top"), made);
}

// The speed of virtual time, if it differs from real time.
function speedChip() {
  const speed = speedOf();
  if (!source.isLive || speed === 1) return null;
  const text = speed ? `Virtual time runs ${speed}× as fast: a real minute is ${ageText(speed * 60000)} here.` : "Virtual time is stopped.";
  return h("span", { class: "speed", title: text, "data-key": "speed" }, speed ? `time ${speed}×` : "time stopped", h("span", { class: "sr" }, text));
}

function switchTheme() {
  const isDark = getComputedStyle(document.documentElement).getPropertyValue("--is-dark").trim() === "1";
  setTheme(isDark ? "light" : "dark");
  draw();
}

function setTheme(theme) {
  if (!theme) return;
  document.documentElement.setAttribute("data-theme", theme);
  localStorage.setItem("batchyard-theme", theme);
}

function tick() {
  const now = nowOf();
  document.getElementById("clock").textContent = clockText(now);
  for (const each of document.querySelectorAll("time[data-since]")) each.textContent = ageText(now - Date.parse(each.getAttribute("data-since")));
}

setTheme(localStorage.getItem("batchyard-theme"));
listen({ theme: switchTheme, search: () => openSearch(source) });
window.addEventListener("hashchange", open);
open();
if (source.isLive) setInterval(tick, 1000);
