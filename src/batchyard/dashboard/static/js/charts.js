// Charts over time with axes and values under the pointer, drawn by uPlot.

import { h } from "./dom.js";
import { clockText } from "./format.js";

const HEIGHT = 150;
// By the style of a line: its color, whether it is filled, and its dashes.
const LINE_STYLES = {
  used: { color: "--used", isFilled: true }, nodes: { color: "--good" }, capacity: { color: "--faint" },
  quota: { color: "--over", dash: [6, 4] }, pending: { color: "--wait", isFilled: true }, running: { color: "--good" },
};

// Charts of a model: {times: seconds, charts: [{name, unit, lines: [{name, style, values}]}]}.
export function charts(model) {
  return h("div", { class: "plots" }, model.charts.map((chart) => plotBox(chart, model.times)));
}

function plotBox(chart, times) {
  const last = chart.lines.map((line) => `${line.name} ${valueText(line.values[line.values.length - 1], chart.unit)}`).join(", ");
  const box = h("div", { class: "plot", role: "img", "aria-label": `${chart.name} over time; now ${last}` });
  box.adopt = (old) => old.plot.take(chart, times);
  box.plot = new Plot(box, chart, times);
  return h("figure", { "data-key": chart.name },
    h("figcaption", {}, h("b", {}, chart.name), chart.unit ? h("span", { class: "faint" }, ` ${chart.unit}`) : null), box);
}

// The time of a tick; the date where a day begins or the day is the first shown.
function tickText(seconds, n, ticks) {
  const [day, time] = clockText(seconds * 1000).split(" "), before = n ? clockText(ticks[n - 1] * 1000).split(" ")[0] : "";
  const step = ticks.length > 1 ? ticks[1] - ticks[0] : 60, shown = step % 60 ? time : time.slice(0, 5);
  if (step >= 86400) return day.slice(5);
  return day === before ? shown : `${shown}\n${day.slice(5)}`;
}

// The latest value of a line, which the legend shows when the pointer is elsewhere.
function latest(plot, n) {
  return plot.data[n][plot.data[n].length - 1];
}

function valueText(value, unit) {
  if (value === null || value === undefined) return "–";
  return `${value.toLocaleString("en", { maximumFractionDigits: 2 })}${unit ? ` ${unit}` : ""}`;
}

// uPlot draws on a canvas, which persists across models.
class Plot {
  constructor(box, chart, times) {
    Object.assign(this, { box, chart, times, names: "", library: null });
    new ResizeObserver(() => this.paint()).observe(box);
  }

  take(chart, times) {
    Object.assign(this, { chart, times });
    this.paint();
  }

  paint() {
    const width = Math.floor(this.box.clientWidth), data = [this.times, ...this.chart.lines.map((line) => line.values)];
    if (!width) return;
    const names = this.chart.lines.map((line) => line.name).join("\n");
    if (this.library && this.names === names) {
      if (this.library.width !== width) this.library.setSize({ width, height: HEIGHT });
      this.library.setData(data);
      return;
    }
    this.library?.destroy();
    this.names = names;
    this.library = new uPlot(this.options(width), data, this.box);
  }

  options(width) {
    const color = (name) => () => getComputedStyle(this.box).getPropertyValue(name).trim();
    const axis = { stroke: color("--faint"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1, size: 4 }, font: "11px system-ui, sans-serif" };
    return {
      width, height: HEIGHT,
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
      cursor: { sync: { key: "batchyard" }, drag: { x: true, y: false } },
      scales: { y: { range: (_, low, high) => [Math.min(0, low), Math.max(1, high * 1.08)] } },
      axes: [{ ...axis, space: 70, size: 34, values: (_, ticks) => ticks.map(tickText) }, { ...axis, size: 46 }],
      series: [{ label: "UTC", value: (plot, seconds, n, at) => clockText((at === null ? latest(plot, n) : seconds) * 1000) }, ...this.chart.lines.map((line) => this.series(line, color))],
    };
  }

  series(line, color) {
    const { color: name, isFilled, dash } = LINE_STYLES[line.style] || LINE_STYLES.used;
    const fill = isFilled ? () => `color-mix(in srgb, ${color(name)()} 18%, transparent)` : undefined;
    return { label: line.name, stroke: color(name), fill, dash, width: 1.5, points: { show: false }, paths: uPlot.paths.stepped({ align: -1 }), value: (plot, value, n, at) => valueText(at === null ? latest(plot, n) : value, this.chart.unit) };
  }
}
