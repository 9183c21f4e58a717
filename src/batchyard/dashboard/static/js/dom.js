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

// Change an element into a new one with few DOM changes, so that focus, scroll position and selection remain.
export function morph(old, made) {
  if (old.nodeType !== made.nodeType || old.nodeName !== made.nodeName || keyOf(old) !== keyOf(made)) {
    old.replaceWith(made);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== made.data) old.data = made.data;
    return;
  }
  for (const name of HANDLERS) if (old[name] !== made[name]) old[name] = made[name];
  morphAttributes(old, made);
  if (made.adopt) made.adopt(old);
  else morphChildren(old, made);
}

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null;
}

function morphAttributes(old, made) {
  for (const { name } of [...old.attributes]) {
    if (!made.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of [...made.attributes]) {
    if (old.getAttribute(name) === value) continue;
    if (name === "open") continue; // a details element keeps what the user chose
    if (name === "style") old.style.cssText = made.style.cssText;
    else old.setAttribute(name, value);
  }
  if (old.nodeName === "INPUT" && old !== document.activeElement && old.value !== made.value) old.value = made.value;
  if (old.nodeName === "SELECT" && old !== document.activeElement) queueMicrotask(() => { old.value = made.getAttribute("data-value") ?? ""; });
}

function morphChildren(old, made) {
  const known = new Map();
  for (const child of old.childNodes) if (keyOf(child) !== null) known.set(keyOf(child), child);
  let place = old.firstChild;
  for (const child of [...made.childNodes]) {
    const same = keyOf(child) !== null ? known.get(keyOf(child)) : null;
    if (same && same !== place) old.insertBefore(same, place);
    if (same) place = same;
    if (!place) old.appendChild(child);
    else if (!same && keyOf(child) !== null) old.insertBefore(child, place);
    else {
      const next = place.nextSibling;
      morph(place, child);
      place = next;
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}
