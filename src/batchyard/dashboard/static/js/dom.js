// DOM elements from data. Platform data becomes text, never markup.

const HANDLERS = ["onclick", "oninput", "onchange", "onsubmit", "onkeydown", "onclose"];

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function s(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element[name] = value;
    else if (name === "style") for (const [property, text] of Object.entries(value)) element.style.setProperty(property, text);
    else if (name === "href" && !String(value).startsWith("#")) throw new Error("links must start with #");
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(element, child);
    else if (child instanceof Node) element.appendChild(child);
    else if (child !== null && child !== undefined && child !== false && child !== "") element.appendChild(document.createTextNode(String(child)));
  }
}

// Change the DOM node `old` into `updated` with few changes, so that focus, scroll position and selection remain.
export function morph(old, updated) {
  if (old.nodeType !== updated.nodeType || old.nodeName !== updated.nodeName || keyOf(old) !== keyOf(updated)) {
    old.replaceWith(updated);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== updated.data) old.data = updated.data;
    return;
  }
  for (const name of HANDLERS) if (old[name] !== updated[name]) old[name] = updated[name];
  morphAttributes(old, updated);
  if (updated.adopt) updated.adopt(old);
  else morphChildren(old, updated);
}

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null;
}

function morphAttributes(old, updated) {
  for (const { name } of [...old.attributes]) {
    if (!updated.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of [...updated.attributes]) {
    if (old.getAttribute(name) === value) continue;
    if (name === "open") continue; // a details element stays as the user left it
    if (name === "style") old.style.cssText = updated.style.cssText;
    else old.setAttribute(name, value);
  }
  if (old.nodeName === "INPUT" && old !== document.activeElement && old.value !== updated.value) old.value = updated.value;
  if (old.nodeName === "SELECT" && old !== document.activeElement) queueMicrotask(() => { old.value = updated.getAttribute("data-value") ?? ""; });
}

function morphChildren(old, updated) {
  const keyedChildren = new Map();
  for (const child of old.childNodes) if (keyOf(child) !== null) keyedChildren.set(keyOf(child), child);
  let current = old.firstChild;
  for (const child of [...updated.childNodes]) {
    const match = keyOf(child) !== null ? keyedChildren.get(keyOf(child)) : null;
    if (match && match !== current) old.insertBefore(match, current);
    if (match) current = match;
    if (!current) old.appendChild(child);
    else if (!match && keyOf(child) !== null) old.insertBefore(child, current);
    else {
      const next = current.nextSibling;
      morph(current, child);
      current = next;
    }
  }
  while (current) {
    const next = current.nextSibling;
    current.remove();
    current = next;
  }
}
