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
import { timelinePage } from "./timeline.js";
import { workloadPage } from "./workload.js";
import { workloadsPage } from "./workloads.js";

const PAGES = {
  "": overviewPage, cohorts: cohortsPage, queue: queuePage, workloads: workloadsPage, workload: workloadPage,
  timeline: timelinePage, nodes: nodesPage, node: nodePage, costs: costsPage, result: resultPage,
  yaml: yamlPage, logs: logsPage,
};
const ANNOUNCE_INTERVAL = 5000;
const NAV = [["", "Overview"], ["cohorts", "Cohorts"], ["workloads", "Workloads"], ["timeline", "Timeline"], ["nodes", "Nodes"], ["costs", "Cost"]];
const WITHIN = { queue: "cohorts", workload: "workloads", node: "nodes" };
const main = document.getElementById("main");
const embedded = document.getElementById("report");
const source = embedded ? new ReportSource(JSON.parse(embedded.textContent)) : new LiveSource();
const hasResult = Boolean(embedded && source.report.models.result);
if (hasResult) NAV.unshift(["result", "Result"]);
if (hasResult && !location.hash) history.replaceState(null, "", "#/result");
const seen = { route: null, page: null, model: null, besides: {}, stop: () => {}, state: "loading", typing: 0, said: "", saidAt: 0 };

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
  const isSame = seen.route && seen.route.path === route.path;
  seen.stop();
  Object.assign(seen, { route, page, besides: isSame ? seen.besides : {}, state: "loading", model: isSame ? seen.model : null, said: "" });
  if (!isSame) main.replaceChildren();
  if (!page) {
    Object.assign(seen, { state: "unknown", stop: () => {} });
    document.title = "Unknown address · batchyard";
    return draw();
  }
  document.title = `${page.title(route)} · batchyard`;
  seen.stop = source.watch(page.model, page.query(route), take, (state, text) => {
    Object.assign(seen, { state, text, model: state === "away" ? seen.model : null });
    draw();
  });
  drawTop();
  if (!isSame) window.scrollTo(0, 0);
}

function take(model, envelope) {
  setClock(envelope);
  Object.assign(seen, { model, state: source.isLive ? "live" : "report" });
  draw();
  if (seen.page.besides) askBesides(model);
  say(model);
}

// Tell screen readers what changed, at most every few seconds.
function say(model) {
  const text = seen.page.summary ? seen.page.summary(model) : "";
  const isNews = text && seen.said && text !== seen.said && Date.now() - seen.saidAt > ANNOUNCE_INTERVAL;
  if (isNews) {
    announce(text);
    seen.saidAt = Date.now();
  }
  if (isNews || !seen.said) seen.said = text;
}

// These requests cost more than models: repeat them when the state changes, or 10 s later when the reason changes.
function askBesides(model) {
  const { route, besides } = seen, asked = seen.page.besides(model);
  const state = seen.page.stateOf ? seen.page.stateOf(model) : model.state;
  const isSame = besides.state === state, isNews = besides.why?.summary !== undefined && besides.of !== model.why;
  if (isSame && !(isNews && Date.now() - besides.at > 10000)) return;
  seen.besides = { ...Object.fromEntries(Object.keys(asked).map((name) => [name, besides[name]])), state, of: model.why, at: Date.now() };
  for (const [name, path] of Object.entries(asked)) {
    source.get(path).then((answer) => {
      if (seen.route !== route) return;
      seen.besides = { ...seen.besides, [name]: answer };
      draw();
    });
  }
}

function go(query) {
  const kept = Object.entries(query).filter(([, value]) => value);
  location.hash = `#/${seen.route.path}${kept.length ? `?${new URLSearchParams(kept)}` : ""}`;
}

// Debounce typing.
function later(act) {
  clearTimeout(seen.typing);
  seen.typing = setTimeout(act, 150);
}

function draw() {
  drawTop();
  if (seen.model) {
    const context = { route: seen.route, go, later, redraw: draw, besides: seen.besides, isLive: source.isLive, source, refresh };
    show(seen.page.show(seen.model, context));
    performance.mark("batchyard-drawn");
  } else if (seen.state === "unauthorized") {
    show(signIn());
  } else if (seen.state === "missing") {
    show(messagePage("Not found", "It does not exist, or you may not see it."));
  } else if (seen.state === "unknown") {
    show(messagePage("Unknown address", `This page has no view for “${seen.route.path}”.`));
  } else if (seen.state === "away") {
    show(h("div", { class: "page" }, empty("The platform does not answer", "Retrying every few seconds.")));
  }
}

// Ask again for what is shown beside the model, because an action changed the object.
function refresh() {
  seen.besides = { ...seen.besides, state: undefined };
  if (seen.model && seen.page.besides) askBesides(seen.model);
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
  const { view } = seen.route;
  const words = { live: "live", loading: "…", away: "reconnecting", report: "report", unauthorized: "signed out", missing: "live", unknown: "" };
  const made = h("header", { id: "top" },
    h("a", { href: "#/", class: "brand" }, "batchyard"),
    h("nav", { "aria-label": "Views" }, NAV.map(([name, title]) => h("a", { href: `#/${name}`, "aria-current": (WITHIN[view] || view) === name ? "page" : null, "data-key": name }, title))),
    words[seen.state] ? h("span", { class: `status status-${seen.state}`, role: "status" }, h("i", {}), words[seen.state]) : h("span", { class: "status" }),
    speedChip(),
    h("time", { class: "num clock", id: "clock", title: "the platform's time, UTC" }, clockText(nowOf())),
    h("button", { type: "button", class: "quiet", title: "search (/)", "aria-label": "search", onclick: () => openSearch(source) }, "⌕"),
    h("button", { type: "button", class: "quiet", title: "dark or light (d)", "aria-label": "dark or light", onclick: switchTheme }, "◐"),
    h("button", { type: "button", class: "quiet", title: "keys (?)", "aria-label": "keys", onclick: help }, "?"));
  morph(document.getElementById("top"), made);
}

// Why ages and times run faster than the clock on the wall.
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
