// Actions on Workloads and queues, which the server offers by the rights of the user, and executes as the user.

import { h } from "./dom.js";
import { hashOf } from "./parts.js";

export const ACTIONS_PATH = "/apis/ui.batchyard.dev/v1alpha1/actions";
const TITLES = { suspend: "Suspend", resume: "Resume", cancel: "Cancel", priority: "Change priority", stop: "Stop" };
const EFFECTS = {
  Workload: {
    suspend: "Its pods are stopped and its quota is released. It stays suspended until you resume it.",
    resume: "It is queued again, and starts when it gets quota.",
    cancel: "The object above and its pods are deleted. You cannot undo this.",
    priority: "The order in the queue changes, and so does who may preempt it.",
  },
  queue: {
    stop: "Hold: nothing more is admitted. HoldAndDrain: admitted Workloads are evicted too.",
    resume: "Workloads are admitted again.",
  },
};

// The path that returns the offered actions on an object {kind, namespace, name}.
export function offerPath(target) {
  return `${ACTIONS_PATH}?${new URLSearchParams(target)}`;
}

// The buttons of an object: offered actions, YAML, and its kubectl command.
export function actionBar(target, offer, context) {
  if (!context.isLive) return null;
  const actions = offer ? offer.actions : [];
  return h("p", { class: "actions", role: "group", "aria-label": "Actions" },
    actions.map((action) => h("button", { type: "button", "data-key": action.name, class: action.name === "cancel" ? "danger" : null, onclick: () => confirmAction(target, offer, action, context) }, TITLES[action.name] || action.name)),
    h("a", { class: "button", href: hashOf("yaml", target.kind, target.namespace || "", target.name), "data-key": "yaml" }, "YAML"),
    copyButton(kubectlCommand(target)),
    offer && offer.readOnly ? h("span", { class: "faint", "data-key": "hint" }, "read-only link; for actions: batchyard page --actions") : null);
}

export function kubectlCommand({ kind, namespace, name }) {
  const plurals = { Workload: "workloads.kueue.x-k8s.io", ClusterQueue: "clusterqueues.kueue.x-k8s.io", LocalQueue: "localqueues.kueue.x-k8s.io" };
  return `kubectl get ${plurals[kind] || kind.toLowerCase()} ${quoted(name)}${namespace ? ` -n ${quoted(namespace)}` : ""} -o yaml`;
}

export function quoted(text) {
  return /^[\w.:@%+=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

export function copyButton(command) {
  return h("button", { type: "button", class: "copy", title: command, "data-key": `copy ${command}`, onclick: (event) => copy(event.currentTarget, command) }, "Copy as kubectl");
}

// Without access to the clipboard, show the text for manual copying.
async function copy(button, command) {
  try {
    await navigator.clipboard.writeText(command);
    announce(`copied: ${command}`);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy as kubectl"; }, 1500);
  } catch {
    const dialog = openDialog("kubectl", h("pre", { tabindex: "0" }, command), h("menu", {}, h("button", { type: "button", onclick: () => dialog.close() }, "Close")));
  }
}

export function announce(text) {
  document.getElementById("live").textContent = text;
}

export function openDialog(title, ...children) {
  const closeOutside = (event) => { if (event.target === dialog) dialog.close(); }; // returning false would cancel the click
  const dialog = h("dialog", { "aria-label": title, onclose: () => dialog.remove(), onclick: closeOutside }, h("h2", {}, title), ...children);
  document.getElementById("over").appendChild(dialog);
  dialog.showModal();
  return dialog;
}

function confirmAction(target, offer, action, context) {
  const title = `${TITLES[action.name] || action.name}: ${target.kind} ${target.name}`;
  const choice = choiceOf(action), problem = h("p", { role: "alert", class: "warn" });
  const submit = h("button", { type: "submit", class: action.name === "cancel" ? "danger" : null }, TITLES[action.name] || action.name);
  const perform = async (event) => {
    event.preventDefault();
    submit.disabled = true;
    problem.textContent = "";
    const error = await send(target, offer, action, choice ? choice.value : "", context.source);
    submit.disabled = false;
    if (error) {
      problem.textContent = error;
      return;
    }
    dialog.close();
    announce(`done: ${title}`);
    context.refresh();
  };
  const effects = EFFECTS[target.kind] || EFFECTS.queue;
  const dialog = openDialog(title, h("form", { onsubmit: perform, class: "confirm" },
    h("p", {}, h("code", {}, action.target)), h("p", {}, effects[action.name] || ""),
    choice ? h("label", {}, action.name === "stop" ? "Stop policy" : "WorkloadPriorityClass", choice) : null, problem,
    h("menu", {}, h("button", { type: "button", onclick: () => dialog.close() }, "Back"), submit)));
}

function choiceOf(action) {
  if (action.values.length) return h("select", {}, action.values.map((value) => h("option", { value }, value)));
  return action.name === "priority" ? h("input", { type: "text", required: true, autocomplete: "off" }) : null;
}

// Return the error message, or "" on success. The action token lasts some minutes: ask for a new one.
async function send(target, offer, action, value, source) {
  const fresh = await source.get(offerPath(target));
  if (!fresh) return "The object is gone, you may no longer read it, or the platform does not respond.";
  const body = { action: action.name, kind: target.kind, namespace: target.namespace || "", name: target.name, uid: offer.uid, value };
  return source.post(ACTIONS_PATH, body, { "X-Batchyard-Action-Token": fresh.token });
}
