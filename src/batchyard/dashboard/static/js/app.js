// The page: routing, the model of the current view, rendering.

import { cohortsPage } from "./cohorts.js";
import { costsPage } from "./costs.js";
import { h, morph } from "./dom.js";
import { ageText, clockText, nowOf, setClock } from "./format.js";
import { focusSearch, help, listen } from "./keys.js";
import { nodePage, nodesPage } from "./nodes.js";
import { overviewPage } from "./overview.js";
import { empty } from "./parts.js";
import { queuePage } from "./queue.js";
import { resultPage } from "./result.js";
import { hasToken, LiveSource, ReportSource, setToken, takeToken } from "./source.js";
import { timelinePage } from "./timeline.js";
import { workloadPage } from "./workload.js";
import { workloadsPage } from "./workloads.js";

const PAGES = {
  "": overviewPage, cohorts: cohortsPage, queue: queuePage, workloads: workloadsPage, workload: workloadPage,
  timeline: timelinePage, nodes: nodesPage, node: nodePage, costs: costsPage, result: resultPage,
};
const NAV = [["", "Overview"], ["cohorts", "Cohorts"], ["workloads", "Workloads"], ["timeline", "Time line"], ["nodes", "Nodes"], ["costs", "Cost"]];
const WITHIN = { queue: "cohorts", workload: "workloads", node: "nodes" };
const main = document.getElementById("main");
const embedded = document.getElementById("report");
const source = embedded ? new ReportSource(JSON.parse(embedded.textContent)) : new LiveSource();
const hasResult = Boolean(embedded && source.report.models.result);
if (hasResult) NAV.unshift(["result", "Result"]);
if (hasResult && !location.hash) history.replaceState(null, "", "#/result");
const seen = { route: null, page: null, model: null, besides: {}, stop: () => {}, state: "loading", typing: 0 };

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
  const route = routeOf(location.hash);
  const page = PAGES[route.view] || PAGES[""];
  const isSame = seen.route && seen.route.path === route.path;
  seen.stop();
  Object.assign(seen, { route, page, besides: isSame ? seen.besides : {}, state: "loading", model: isSame ? seen.model : null });
  document.title = `${page.title(route)} · batchyard`;
  seen.stop = source.watch(page.model, page.query(route), take, (state, text) => {
    Object.assign(seen, { state, text, model: state === "away" ? seen.model : null });
    draw();
  });
  drawTop();
  if (!isSame) {
    main.replaceChildren();
    document.querySelector("#top [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
    window.scrollTo(0, 0);
  }
}

function take(model, envelope) {
  setClock(envelope);
  const isFirst = seen.model === null;
  Object.assign(seen, { model, state: source.isLive ? "live" : "report" });
  draw();
  if (isFirst) focusSearch();
  if (seen.page.besides) askBesides(model);
}

// These requests cost more than models: repeat them when the state changes, or 10 s later when the reason changes.
function askBesides(model) {
  const { route, besides } = seen, asked = seen.page.besides(model);
  const isSame = besides.state === model.state, isNews = besides.why?.summary !== undefined && besides.of !== model.why;
  if (isSame && !(isNews && Date.now() - besides.at > 10000)) return;
  seen.besides = { ...Object.fromEntries(Object.keys(asked).map((name) => [name, besides[name]])), state: model.state, of: model.why, at: Date.now() };
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
    const context = { route: seen.route, go, later, redraw: draw, besides: seen.besides, isLive: source.isLive };
    show(seen.page.show(seen.model, context));
    performance.mark("batchyard-drawn");
  } else if (seen.state === "unauthorized") {
    show(signIn());
  } else if (seen.state === "missing") {
    show(h("div", { class: "page" }, empty("Not found", "It does not exist, or you may not see it. Press `g w` to list the workloads.")));
  } else if (seen.state === "away") {
    show(h("div", { class: "page" }, empty("The platform does not answer", "Retrying every few seconds.")));
  }
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
  const words = { live: "live", loading: "…", away: "reconnecting", report: "report", unauthorized: "signed out", missing: "live" };
  const made = h("header", { id: "top" },
    h("a", { href: "#/", class: "brand" }, "batchyard"),
    h("nav", { "aria-label": "Views" }, NAV.map(([name, title]) => h("a", { href: `#/${name}`, "aria-current": (WITHIN[view] || view) === name ? "page" : null, "data-key": name }, title))),
    h("span", { class: `status status-${seen.state}`, role: "status" }, h("i", {}), words[seen.state]),
    h("time", { class: "num clock", id: "clock", title: "the platform's time, UTC" }, clockText(nowOf())),
    h("button", { type: "button", class: "quiet", title: "dark or light (d)", "aria-label": "dark or light", onclick: switchTheme }, "◐"),
    h("button", { type: "button", class: "quiet", title: "keys (?)", "aria-label": "keys", onclick: help }, "?"));
  morph(document.getElementById("top"), made);
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
listen({ theme: switchTheme });
window.addEventListener("hashchange", open);
open();
if (source.isLive) setInterval(tick, 1000);
