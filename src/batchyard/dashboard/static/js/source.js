// Sources of models: a running platform, or the report in this file.

const MODELS = "/apis/ui.batchyard.dev/v1alpha1/";
const TOKEN = "batchyard-token";

export function takeToken() {
  const found = /^#token=([\w.-]+)(?:&to=(.*))?$/.exec(location.hash);
  if (!found) return;
  sessionStorage.setItem(TOKEN, found[1]);
  history.replaceState(null, "", `${location.pathname}#${found[2] || "/"}`);
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

  // Call take(model, envelope) now and on every change, and tell(state, text) on errors; return a function that stops it.
  watch(view, query, take, tell) {
    const abort = new AbortController();
    this.#follow(view, query, take, tell, abort.signal);
    return () => abort.abort();
  }

  async get(path) {
    try {
      const answer = await fetch(path, { headers: headers() });
      return answer.ok ? await answer.json() : null;
    } catch {
      return null;
    }
  }

  // Return the error message, or "" on success.
  async post(path, body, more) {
    try {
      const answer = await fetch(path, { method: "POST", headers: { ...headers(), "Content-Type": "application/json", ...more }, body: JSON.stringify(body) });
      return answer.ok ? "" : await problemOf(answer);
    } catch (error) {
      return `The platform does not answer: ${error.message}`;
    }
  }

  // Pass a text to take() as it arrives; return the error message, or "" at its end.
  async text(path, take, signal) {
    try {
      const answer = await fetch(path, { headers: headers(), signal });
      if (!answer.ok) return await problemOf(answer);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return "";
        take(value);
      }
    } catch (error) {
      return `The log ended: ${error.message}`;
    }
  }

  async search(text) {
    const answer = await this.get(`${MODELS}search?${new URLSearchParams({ text })}`);
    return answer ? answer.model.results : [];
  }

  async #follow(view, query, take, tell, signal) {
    for (let wait = 250; !signal.aborted; wait = Math.min(wait * 2, 5000)) {
      try {
        const asked = new URLSearchParams({ ...query, watch: "true" });
        const answer = await fetch(`${MODELS}${view}?${asked}`, { headers: headers(), signal });
        if (answer.status === 401 || answer.status === 403) return tell("unauthorized", "");
        if (answer.status === 404) return tell("missing", "");
        if (!answer.ok) throw new Error(`the platform responded with ${answer.status}`);
        await this.#read(answer.body, take);
        wait = 125;
      } catch (error) {
        if (signal.aborted) return;
        tell("away", error.message);
      }
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }

  async #read(body, take) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    const model = {};
    for (let rest = ""; ;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const told = JSON.parse(line);
        Object.assign(model, told.set);
        for (const name of told.gone || []) delete model[name];
        take({ ...model }, told);
      }
    }
  }
}

async function problemOf(answer) {
  const text = await answer.text();
  try {
    return JSON.parse(text).message || `the platform responded with ${answer.status}`;
  } catch {
    return `the platform responded with ${answer.status}`;
  }
}

export class ReportSource {
  isLive = false;

  constructor(report) {
    this.report = report;
  }

  watch(view, query, take, tell) {
    const model = this.#model(view, query);
    if (model) queueMicrotask(() => take(model, this.report));
    else queueMicrotask(() => tell("missing", ""));
    return () => {};
  }

  async get() {
    return null;
  }

  // As the platform's search, of at most eight results of each kind.
  async search(text) {
    const { workloads, overview, nodes } = this.report.models, wanted = text.toLowerCase();
    const found = (kind, items, nameOf, path) => items.filter((item) => nameOf(item).toLowerCase().includes(wanted)).slice(0, 8)
      .map((item) => ({ kind, path: path(item), title: item.owner ? item.owner.name : item.name, state: item.owner || kind === "Workload" ? item.state : "" }));
    return [
      ...found("Workload", workloads.rows, (row) => `${row.namespace}/${row.name} ${row.owner ? row.owner.name : ""}`, (row) => [row.namespace, row.name]),
      ...found("ClusterQueue", overview.queues || [], (line) => line.name, (line) => [line.name]),
      ...found("Node", (nodes.pools || []).flatMap((pool) => pool.nodes), (node) => node.name, (node) => [node.name]),
    ];
  }

  #model(view, query) {
    const models = this.report.models;
    if (view === "queue" || view === "node") return models[view][query.name];
    if (view === "workload") return models.workload[`${query.namespace}/${query.name}`];
    if (view === "timeline") return models.timeline[query.by === "node" ? "node" : "flavor"];
    if (view === "result") return models.result && { ...models.result, timeline: models.timeline.flavor };
    return view === "workloads" ? chosen(models.workloads, query) : models[view];
  }
}

// A report contains all Workloads, so they are filtered here.
function chosen(all, query) {
  const text = (query.text || "").toLowerCase();
  const meant = all.rows.filter((row) =>
    (!query.namespace || row.namespace === query.namespace)
    && (!query.queue || row.clusterQueue === query.queue || row.queue === query.queue)
    && (!text || `${row.namespace}/${row.name} ${row.owner ? row.owner.name : ""}`.toLowerCase().includes(text)));
  const states = {};
  for (const name of Object.keys(all.states)) states[name] = meant.filter((row) => row.state === name).length;
  const found = sorted(query.state ? meant.filter((row) => row.state === query.state) : meant, query.sort || "");
  const offset = Number(query.offset || 0), limit = 100;
  return { ...all, rows: found.slice(offset, offset + limit), count: found.length, offset, limit, states };
}

// The keys of the server's list; equal rows keep their order, the newest first.
function sorted(rows, sort) {
  const name = sort.replace("-", ""), sign = sort.startsWith("-") ? -1 : 1;
  const key = { name: (row) => (row.owner ? row.owner.name : row.name), queue: (row) => row.queue, priority: (row) => row.priority, created: (row) => row.created, state: (row) => row.state }[name];
  if (!key) return rows;
  return [...rows].sort((a, b) => sign * (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0));
}
