// The timeline: quota intervals by flavor or by node, and preemptions.

import { h } from "./dom.js";
import { ageText, clockText, nowOf } from "./format.js";
import { empty, panel, table, workloadLink } from "./parts.js";

const TOP = 24, GAP = 10;
// The width of lane names in pixels.
let LEFT = 170;
const PERIODS = [["600", "10 min"], ["3600", "1 h"], ["21600", "6 h"], ["86400", "1 d"], ["all", "all"]];
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800];

export const timelinePage = {
  model: "timeline",
  title: () => "Timeline",
  query: (route) => ({ by: route.query.by || "flavor", last: route.query.last || "3600" }),
  show: showTimeline,
};

function showTimeline(model, context) {
  const query = context.route.query, by = model.by, last = query.last || "3600";
  const pick = (name, value, words, is) => h("button", { type: "button", class: "chip", "aria-pressed": String(is), "data-key": `${name} ${value}`, onclick: () => context.go({ ...query, [name]: value }) }, words);
  return h("div", { class: "page" }, h("h1", {}, "Timeline"),
    h("div", { class: "filters" }, h("span", { class: "chips", role: "group", "aria-label": "By" }, pick("by", "flavor", "by flavor", by === "flavor"), pick("by", "node", "by node", by === "node")),
      context.isLive ? h("span", { class: "chips", role: "group", "aria-label": "How far back" }, PERIODS.map(([value, words]) => pick("last", value, words, last === value))) : null,
      timelineLegend(model)),
    model.lanes.length ? drawing(model) : empty("No Workload had quota in this period", "Choose a longer period."),
    model.lanes.length ? h("p", { class: "faint more" }, "Wheel or + and − zoom, drag or ← and → move, 0 shows all, a click opens the workload.", model.dropped ? ` Showing the latest ${model.workloads.length.toLocaleString("en")}; ${model.dropped.toLocaleString("en")} older bars are omitted.` : "") : null,
    preemptionsPanel(model));
}

// What the colors, the brightness and the curves of the drawing mean.
export function timelineLegend(model) {
  const marks = [["holds quota now", "span-open"], ["ended", "span-ended"], ["evicted", "span-evicted"], ["preemption", "span-preempts"]];
  const queues = model.queues.map((name, n) => [name || "unknown", `hue-${n % 8}`]);
  return [["queue:", queues], ["bar:", marks]].map(([title, parts]) => h("span", { class: "legend", "data-key": title }, title,
    parts.map(([words, kind]) => h("span", { class: "use", "data-key": words }, h("i", { class: kind }), words))));
}

function preemptionsPanel(model) {
  if (!model.preemptions.length) return null;
  const origin = Date.parse(model.origin);
  const columns = [
    ["when", "when", (each) => clockText(origin + each.at * 1000)],
    ["preempted", "main", (each) => workloadLink(model.workloads[each.victim][0])],
    ["by", "main", (each) => workloadLink(model.workloads[each.by][0])],
  ];
  return panel("Preemptions", String(model.preemptions.length), table(columns, model.preemptions.slice(-100).reverse(), (each) => `${each.at} ${each.victim}`));
}

// The canvas and its zoom persist across models.
export function drawing(model) {
  const canvas = h("canvas", { class: "gantt", id: "gantt", tabindex: "0", role: "img", "aria-label": `Timeline of ${model.workloads.length} workloads in ${model.lanes.length} lanes` });
  canvas.adopt = (old) => { old.gantt.take(model); };
  canvas.gantt = new Gantt(canvas, model);
  requestAnimationFrame(() => canvas.isConnected && canvas.gantt.paint());
  return h("div", { class: "gantt-box" }, canvas);
}

class Gantt {
  constructor(canvas, model) {
    Object.assign(this, { canvas, model, from: null, to: null, hits: [], at: null, isDirty: false });
    canvas.onwheel = (event) => { event.preventDefault(); this.zoom(Math.exp(event.deltaY * 0.0015), this.timeAt(event.offsetX)); };
    canvas.onpointerdown = (event) => { this.drag = { x: event.offsetX, moved: false }; canvas.setPointerCapture(event.pointerId); };
    canvas.onpointermove = (event) => this.point(event);
    canvas.onpointerup = (event) => { if (this.drag && !this.drag.moved) this.follow(event); this.drag = null; };
    canvas.onpointerleave = () => { this.at = null; this.repaint(); };
    canvas.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.repaint()).observe(canvas);
  }

  take(model) {
    this.model = model;
    this.repaint();
  }

  repaint() {
    if (this.isDirty) return;
    this.isDirty = true;
    requestAnimationFrame(() => { this.isDirty = false; this.paint(); });
  }

  // The latest time; it advances between models, which come only on changes.
  end() {
    return Math.max(1, this.model.to, (nowOf() - Date.parse(this.model.origin)) / 1000);
  }

  first() {
    let earliest = Infinity;
    for (const lane of this.model.lanes) for (const bar of lane.bars) earliest = Math.min(earliest, bar[0]);
    return Math.max(0, earliest);
  }

  range() {
    const end = this.end();
    const [from, to] = this.from === null ? [this.first(), end] : [this.from, this.to];
    return [from, Math.max(to, from + 1)];
  }

  timeAt(x) {
    const [from, to] = this.range();
    return from + ((x - LEFT) / (this.canvas.clientWidth - LEFT)) * (to - from);
  }

  zoom(factor, around) {
    const [from, to] = this.range();
    const end = this.end();
    this.from = Math.max(0, around - (around - from) * factor);
    this.to = Math.min(end, around + (to - around) * factor);
    if (this.to - this.from < 1) this.to = this.from + 1;
    if (this.from <= this.first() && this.to >= end) this.from = this.to = null;
    this.repaint();
  }

  move(by) {
    if (this.from === null) return;
    const [from, to] = this.range(), end = this.end();
    const shift = Math.max(-from, Math.min(end - to, by));
    [this.from, this.to] = [from + shift, to + shift];
    this.repaint();
  }

  key(event) {
    const [from, to] = this.range(), middle = (from + to) / 2;
    const act = { "+": () => this.zoom(0.7, middle), "=": () => this.zoom(0.7, middle), "-": () => this.zoom(1.4, middle), ArrowLeft: () => this.move((from - to) / 5), ArrowRight: () => this.move((to - from) / 5), 0: () => { this.from = this.to = null; this.repaint(); } }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  point(event) {
    if (this.drag) {
      const [from, to] = this.range(), moved = event.offsetX - this.drag.x;
      if (Math.abs(moved) > 3) this.drag.moved = true;
      if (this.drag.moved) { this.move((-moved / (this.canvas.clientWidth - LEFT)) * (to - from)); this.drag.x = event.offsetX; }
    }
    this.at = this.hit(event.offsetX, event.offsetY);
    this.canvas.title = this.at ? this.words(this.at) : "";
    this.canvas.style.cursor = this.at ? "pointer" : "default";
    this.repaint();
  }

  words(bar) {
    const [key, queue, priority] = this.model.workloads[bar[3]], origin = Date.parse(this.model.origin);
    const last = bar[1] === null ? "now" : clockText(origin + bar[1] * 1000);
    return `${key}\n${this.model.queues[queue] || ""}, priority ${priority}\n${clockText(origin + bar[0] * 1000)} – ${last}\n${ageText(((bar[1] ?? this.end()) - bar[0]) * 1000)}${bar[4] ? `, ${bar[4]}` : ""}`;
  }

  hit(x, y) {
    const match = this.hits.find((each) => x >= each.x && x <= each.x + each.width && y >= each.y && y <= each.y + each.height);
    return match ? match.bar : null;
  }

  follow(event) {
    const bar = this.hit(event.offsetX, event.offsetY);
    if (bar) location.hash = `#/workload/${this.model.workloads[bar[3]][0].split("/").map(encodeURIComponent).join("/")}`;
  }

  paint() {
    const { canvas, model } = this, width = canvas.clientWidth;
    if (!width) return;
    LEFT = width < 600 ? 92 : 170;
    const rows = model.lanes.reduce((sum, lane) => sum + lane.rows, 0);
    const rowHeight = rows > 400 ? 2 : rows > 150 ? 7 : rows > 60 ? 11 : 16;
    const height = TOP + rows * rowHeight + model.lanes.length * GAP + 6, ratio = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
    }
    const pen = canvas.getContext("2d"), style = getComputedStyle(canvas);
    const color = (name) => style.getPropertyValue(name).trim();
    const hues = [0, 1, 2, 3, 4, 5, 6, 7].map((n) => color(`--hue-${n}`));
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = `11px ${style.fontFamily}`;
    pen.textBaseline = "middle";
    const [from, to] = this.range(), scale = (width - LEFT) / (to - from), end = this.end();
    const x = (time) => LEFT + (time - from) * scale;
    this.paintAxis(pen, { from, to, x, width, height, color });
    this.hits = [];
    const middles = new Map();
    let y = TOP;
    for (const lane of model.lanes) {
      pen.fillStyle = color("--text");
      pen.fillText(ending(pen, lane.name, LEFT - 14), 0, y + Math.min(8, (lane.rows * rowHeight) / 2));
      pen.save();
      pen.beginPath();
      pen.rect(LEFT, y, width - LEFT, lane.rows * rowHeight);
      pen.clip();
      for (const bar of lane.bars) this.paintBar(pen, bar, { x, y: y + bar[2] * rowHeight, height: rowHeight > 6 ? rowHeight - 2 : rowHeight > 2 ? rowHeight - 1 : rowHeight, end, width, hues, color, middles });
      pen.restore();
      y += lane.rows * rowHeight + GAP;
    }
    this.paintPreemptions(pen, x, middles, color);
  }

  paintBar(pen, bar, layout) {
    const start = Math.max(LEFT, layout.x(bar[0])), stop = Math.min(layout.width, layout.x(bar[1] ?? layout.end));
    if (stop < LEFT || start > layout.width) return;
    const width = Math.max(1.5, stop - start - (bar[1] === null ? 0 : 1)), [key, queue, priority] = this.model.workloads[bar[3]];
    pen.fillStyle = queue < 0 ? layout.color("--faint") : layout.hues[queue % 8];
    pen.globalAlpha = bar[1] === null ? 1 : 0.62;
    pen.fillRect(start, layout.y, width, layout.height);
    pen.globalAlpha = 1;
    if (bar[4] === "evicted") { pen.fillStyle = layout.color("--bad"); pen.fillRect(start + width - 2, layout.y, 2, layout.height); }
    if (this.at === bar || (this.at && this.at[3] === bar[3])) { pen.strokeStyle = layout.color("--text"); pen.strokeRect(start + 0.5, layout.y + 0.5, width - 1, layout.height - 1); }
    if (layout.height > 12 && width > 40) { pen.fillStyle = layout.color(bar[1] === null ? "--on-hue" : "--text"); pen.fillText(short(pen, key.split("/")[1], width - 8), start + 4, layout.y + layout.height / 2 + 0.5); }
    this.hits.push({ x: start, y: layout.y, width, height: layout.height, bar, priority });
    if (!layout.middles.has(bar[3])) layout.middles.set(bar[3], []);
    layout.middles.get(bar[3]).push({ bar, y: layout.y + layout.height / 2 });
  }

  paintAxis(pen, { from, to, x, width, height, color }) {
    const origin = Date.parse(this.model.origin) / 1000, step = STEPS.find((each) => (each / (to - from)) * (width - LEFT) > 90) || STEPS[STEPS.length - 1];
    pen.strokeStyle = color("--line");
    pen.fillStyle = color("--faint");
    for (let time = Math.ceil((origin + from) / step) * step - origin; time <= to; time += step) {
      pen.beginPath();
      pen.moveTo(Math.round(x(time)) + 0.5, TOP - 6);
      pen.lineTo(Math.round(x(time)) + 0.5, height);
      pen.stroke();
      const text = new Date((origin + time) * 1000).toISOString();
      const label = step >= 86400 ? text.slice(5, 10) : step >= 60 ? text.slice(11, 16) : text.slice(11, 19);
      if (x(time) + 4 + pen.measureText(label).width <= width) pen.fillText(label, x(time) + 4, 9);
    }
  }

  // Curves from preempted to preempting Workloads.
  paintPreemptions(pen, x, middles, color) {
    pen.strokeStyle = color("--bad");
    for (const each of this.model.preemptions) {
      const victims = middles.get(each.victim), preemptors = middles.get(each.by);
      const victim = victims && nearest(victims, each.at), preemptor = preemptors && nearest(preemptors, each.at);
      if (!victim || !preemptor || ((this.model.by === "node" || this.model.preemptions.length > 80) && !(this.at && (this.at[3] === each.victim || this.at[3] === each.by)))) continue;
      const at = Math.max(LEFT, x(each.at));
      pen.beginPath();
      pen.moveTo(at, victim.y);
      pen.quadraticCurveTo(at + 14, (victim.y + preemptor.y) / 2, Math.max(LEFT, x(preemptor.bar[0])), preemptor.y);
      pen.stroke();
    }
  }
}

function nearest(places, time) {
  return places.reduce((best, each) => (Math.abs(each.bar[0] - time) < Math.abs(best.bar[0] - time) ? each : best));
}

// The end of a name that is too long: node names share their prefix.
function ending(pen, text, room) {
  let cut = 0;
  while (cut < text.length && pen.measureText(cut ? `…${text.slice(cut)}` : text).width > room) cut += 1;
  return cut ? `…${text.slice(cut)}` : text;
}

function short(pen, text, room) {
  if (pen.measureText(text).width <= room) return text;
  let length = text.length;
  while (length > 1 && pen.measureText(`${text.slice(0, length)}…`).width > room) length -= 1;
  return length > 1 ? `${text.slice(0, length)}…` : "";
}
