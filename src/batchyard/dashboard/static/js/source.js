// Sources of models: a running platform, or the report in this file.

const MODELS = "/apis/ui.batchyard.dev/v1alpha1/";
const TOKEN = "batchyard-token";
const OTHER_TOKEN = "This link contains a token, but this tab already uses another one. Use the link's token, possibly as another user? Agree only if you requested the link.";

// Another site can open a link with the token of its own user, so a present token is replaced only if you agree.
export function takeToken() {
  const match = /^#token=([\w.-]+)(?:&to=(.*))?$/.exec(location.hash);
  if (!match) return;
  history.replaceState(null, "", `${location.pathname}#${match[2] || "/"}`);
  const present = sessionStorage.getItem(TOKEN);
  if (present && present !== match[1] && !window.confirm(OTHER_TOKEN)) return;
  sessionStorage.setItem(TOKEN, match[1]);
}

// A token that no header can hold is replaced: the request then fails as unauthorized, not as a network error.
export function setToken(token) {
  sessionStorage.setItem(TOKEN, /^[\x21-\x7e]*$/.test(token) ? token : "-");
}

export function hasToken() {
  return Boolean(sessionStorage.getItem(TOKEN));
}

function headers() {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

export class LiveSource {
  isLive = true;

  // Call onModel(model, envelope) now and on every change, and reportState(state, text) on errors.
  // Return a function that stops the watch.
  watch(view, query, onModel, reportState) {
    const abort = new AbortController();
    this.#follow(view, query, onModel, reportState, abort.signal);
    return () => abort.abort();
  }

  async get(path) {
    try {
      const response = await fetch(path, { headers: headers() });
      return response.ok ? await response.json() : null;
    } catch {
      return null;
    }
  }

  // Return the error message, or "" on success.
  async post(path, body, more) {
    try {
      const response = await fetch(path, { method: "POST", headers: { ...headers(), "Content-Type": "application/json", ...more }, body: JSON.stringify(body) });
      return response.ok ? "" : await problemOf(response);
    } catch (error) {
      return `The platform does not respond: ${error.message}`;
    }
  }

  // Pass a text to onText() as it arrives; return the error message, or "" at its end.
  async text(path, onText, signal) {
    try {
      const response = await fetch(path, { headers: headers(), signal });
      if (!response.ok) return await problemOf(response);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return "";
        onText(value);
      }
    } catch (error) {
      return `The log ended: ${error.message}`;
    }
  }

  async search(text) {
    const response = await this.get(`${MODELS}search?${new URLSearchParams({ text })}`);
    return response ? response.model.results : [];
  }

  async #follow(view, query, onModel, reportState, signal) {
    for (let delay = 250; !signal.aborted; delay = Math.min(delay * 2, 5000)) {
      try {
        const parameters = new URLSearchParams({ ...query, watch: "true" });
        const response = await fetch(`${MODELS}${view}?${parameters}`, { headers: headers(), signal });
        if (response.status === 401 || response.status === 403) return reportState("unauthorized", "");
        if (response.status === 404) return reportState("missing", "");
        if (!response.ok) throw new Error(`the platform responded with ${response.status}`);
        await this.#read(response.body, onModel);
        delay = 125;
      } catch (error) {
        if (signal.aborted) return;
        reportState("away", error.message);
      }
      await new Promise((resolve) => setTimeout(resolve, delay));
    }
  }

  async #read(body, onModel) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    const model = {};
    for (let incompleteLine = ""; ;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (incompleteLine + value).split("\n");
      incompleteLine = lines.pop();
      for (const line of lines) {
        const change = JSON.parse(line);
        Object.assign(model, change.set);
        for (const name of change.gone || []) delete model[name];
        onModel({ ...model }, change);
      }
    }
  }
}

async function problemOf(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).message || `the platform responded with ${response.status}`;
  } catch {
    return `the platform responded with ${response.status}`;
  }
}

export class ReportSource {
  isLive = false;

  constructor(report) {
    this.report = report;
  }

  watch(view, query, onModel, reportState) {
    const model = this.#model(view, query);
    if (model) queueMicrotask(() => onModel(model, this.report));
    else queueMicrotask(() => reportState("missing", ""));
    return () => {};
  }

  async get() {
    return null;
  }

  // Search as the platform does: at most eight results of each kind.
  async search(text) {
    const { workloads, overview, nodes } = this.report.models, lowerText = text.toLowerCase();
    const results = (kind, items, nameOf, path) => items.filter((item) => nameOf(item).toLowerCase().includes(lowerText)).slice(0, 8)
      .map((item) => ({ kind, path: path(item), title: item.owner ? item.owner.name : item.name, state: item.owner || kind === "Workload" ? item.state : "" }));
    return [
      ...results("Workload", workloads.rows, (row) => `${row.namespace}/${row.name} ${row.owner ? row.owner.name : ""}`, (row) => [row.namespace, row.name]),
      ...results("ClusterQueue", overview.queues || [], (line) => line.name, (line) => [line.name]),
      ...results("Node", (nodes.pools || []).flatMap((pool) => pool.nodes), (node) => node.name, (node) => [node.name]),
    ];
  }

  #model(view, query) {
    const models = this.report.models;
    if (view === "queue" || view === "node") return models[view][query.name];
    if (view === "workload") return models.workload[`${query.namespace}/${query.name}`];
    if (view === "timeline") return models.timeline[query.by === "node" ? "node" : "flavor"];
    if (view === "result") return models.result && { ...models.result, timeline: models.timeline.flavor };
    return view === "workloads" ? filterWorkloads(models.workloads, query) : models[view];
  }
}

// A report contains all Workloads, so they are filtered here.
function filterWorkloads(all, query) {
  const text = (query.text || "").toLowerCase();
  const matchingRows = all.rows.filter((row) =>
    (!query.namespace || row.namespace === query.namespace)
    && (!query.queue || row.clusterQueue === query.queue || row.queue === query.queue)
    && (!text || `${row.namespace}/${row.name} ${row.owner ? row.owner.name : ""}`.toLowerCase().includes(text)));
  const states = {};
  for (const name of Object.keys(all.states)) states[name] = matchingRows.filter((row) => row.state === name).length;
  const sortedRows = sortRows(query.state ? matchingRows.filter((row) => row.state === query.state) : matchingRows, query.sort || "");
  const offset = Number(query.offset || 0), limit = 100;
  return { ...all, rows: sortedRows.slice(offset, offset + limit), count: sortedRows.length, offset, limit, states };
}

// Sort by the keys of the server's list; equal rows keep their order, the newest first.
function sortRows(rows, sort) {
  const name = sort.replace("-", ""), sign = sort.startsWith("-") ? -1 : 1;
  const key = { name: (row) => (row.owner ? row.owner.name : row.name), queue: (row) => row.queue, priority: (row) => row.priority, created: (row) => row.created, state: (row) => row.state }[name];
  if (!key) return rows;
  return [...rows].sort((a, b) => sign * (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0));
}
