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
    const answer = await fetch(path, { headers: headers() });
    return answer.ok ? answer.json() : null;
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
  const found = query.state ? meant.filter((row) => row.state === query.state) : meant;
  const offset = Number(query.offset || 0), limit = 100;
  return { ...all, rows: found.slice(offset, offset + limit), count: found.length, offset, limit, states };
}
