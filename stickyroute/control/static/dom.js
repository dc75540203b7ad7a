// Nodes and numbers. Everything that comes from outside ends up in textContent or an attribute that runs nothing:
// there is no innerHTML on this page.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An element; `class` and attributes by name, children nodes or texts. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same in SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Set a text only where it differs: an untouched node costs no layout. */
export function text(node, value) {
  if (node.textContent !== value) node.textContent = value;
}

export function attribute(node, name, value) {
  if (value === null || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) {
    node.setAttribute(name, String(value));
  }
}

/** Make `parent`'s children those of `items`, in order, one node a key: `make(item)` once, `update(node, item)` always. */
export function keyed(parent, items, key, make, update) {
  const known = (parent.keyedNodes ??= new Map());
  const wanted = new Set();
  let at = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    wanted.add(name);
    let node = known.get(name);
    if (!node) {
      node = make(item);
      known.set(name, node);
    }
    update(node, item);
    if (node === at) at = at.nextElementSibling;
    else parent.insertBefore(node, at);
  }
  for (const [name, node] of known) {
    if (!wanted.has(name)) {
      node.remove();
      known.delete(name);
    }
  }
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
export const UNKNOWN = "–";

export function percent(value, digits = 0) {
  return isNumber(value) ? `${(value * 100).toFixed(digits)} %` : UNKNOWN;
}

/** A count in at most four characters or so: 950, 12.4k, 3.1M. */
export function count(value) {
  if (!isNumber(value)) return UNKNOWN;
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= size * 0.9995) {
      const scaled = value / size;
      return `${scaled.toFixed(scaled < 99.95 ? 1 : 0)}${unit}`;
    }
  }
  return String(Math.round(value));
}

/** Seconds as a person says them: 85 ms, 1.24 s, 3.1 min. */
export function seconds(value) {
  if (!isNumber(value)) return UNKNOWN;
  if (value < 0.0095) return `${(value * 1000).toFixed(1)} ms`;
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 99.5) return `${value.toFixed(value < 9.995 ? 2 : 1)} s`;
  return span(value);
}

/** A long time: 42 s, 12 min, 3 h 5 min, 2 d 4 h. */
export function span(value) {
  if (!isNumber(value)) return UNKNOWN;
  const whole = Math.floor(value);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

export function rate(value) {
  if (!isNumber(value)) return UNKNOWN;
  return value < 9.95 ? value.toFixed(1) : count(value);
}

export function clock(unixSeconds) {
  return new Date(unixSeconds * 1000).toTimeString().slice(0, 8);
}

/** The colour of the backend with this index: eight that go together, then a walk around the wheel. */
export function colour(index) {
  return index < 8 ? `var(--c${index})` : `hsl(${Math.round((index * 137.5) % 360)} 48% 55%)`;
}
