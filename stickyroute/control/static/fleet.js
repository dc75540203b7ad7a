// The fleet: a table where there is room for one, cards on a phone.

import { attribute, byId, colour, count, el, keyed, percent, seconds, span, text, UNKNOWN } from "./dom.js";

const MOST_ROWS = 100;
const COLUMNS = [
  ["Backend", ""], ["State", ""], ["KV cache", ""], ["In flight", "number"], ["Waiting", "number"], ["Weight", "number"],
  ["Keys, traffic", ""], ["Hit rate", "number"], ["TTFT", "number"], ["", "actions"],
];
const HIGH_WATER = 0.8;

export class FleetTable {
  /** `act(name, action)` is asked for when somebody presses a button. */
  constructor(host, act) {
    this.act = act;
    this.host = host;
    this.body = el("tbody");
    this.more = el("button", { type: "button", class: "button small", hidden: true });
    this.limit = MOST_ROWS;
    this.filter = byId("filter");
    this.state = null;
    const head = el("tr", {}, ...COLUMNS.map(([title, kind]) => el("th", { scope: "col", class: kind }, title)));
    host.append(el("table", {}, el("thead", {}, head), this.body), this.more);
    this.more.addEventListener("click", () => {
      this.limit = Infinity;
      this.show(this.state);
    });
    this.filter.addEventListener("input", () => this.show(this.state));
  }

  show(state) {
    if (!state) return;
    this.state = state;
    const all = state.backends.map((backend, index) => ({ ...backend, index }));
    const wanted = this.filter.value.trim().toLowerCase();
    const found = wanted ? all.filter((backend) => said(backend).includes(wanted)) : all;
    const shown = found.slice(0, this.limit);
    this.filter.hidden = all.length < 9;
    this.more.hidden = shown.length === found.length;
    text(this.more, `Show all ${found.length}`);
    text(byId("fleet-note"), note(state, found.length));
    attribute(this.host, "data-empty", all.length ? null : "No backend is configured, or discovery has found none yet");
    const most = Math.max(...all.map((backend) => Math.max(backend.key_share ?? 0, backend.traffic_share ?? 0)), 0.0001);
    keyed(this.body, shown, (backend) => backend.name, (backend) => this.row(backend), (row, backend) => this.fill(row, backend, most, state.access));
  }

  row(backend) {
    const part = {};
    const cell = (name, ...children) => el("td", { "data-label": name }, ...children);
    const put = (name, tag, kind, ...children) => (part[name] = el(tag, { class: kind }, ...children));
    const swatch = el("i", { class: "swatch" });
    swatch.style.setProperty("background", colour(backend.index));
    part.swatch = swatch;
    const button = (name, title) => {
      const made = put(name, "button", "button small", title);
      made.type = "button";
      made.addEventListener("click", () => this.act(part.name, made.dataset.action, made));
      return made;
    };
    part.name = backend.name;
    const row = el(
      "tr", {},
      el("td", { class: "who" }, el("div", {}, swatch, el("div", {}, put("title", "strong", "name", backend.name), put("models", "span", "quiet small")))),
      cell("State", put("state", "span", "state"), put("why", "span", "quiet small")),
      cell("KV cache", el("div", { class: "kv" }, put("kv", "div", "meter", put("kvFill", "i", "")), put("kvText", "b", "")), put("kvNote", "span", "quiet small")),
      el("td", { "data-label": "In flight", class: "number" }, put("flying", "b", ""), put("limit", "span", "quiet small")),
      el("td", { "data-label": "Waiting", class: "number" }, put("backlog", "b", ""), put("queue", "span", "quiet small")),
      el("td", { "data-label": "Weight", class: "number" }, put("weight", "b", ""), put("effective", "span", "small quiet")),
      el("td", { class: "split", "data-label": "Keys, traffic" }, el("div", { class: "shares" }, share(put, "keys"), share(put, "traffic"))),
      el("td", { "data-label": "Hit rate", class: "number" }, put("hits", "b", "")),
      el("td", { "data-label": "TTFT", class: "number" }, put("ttft", "b", "")),
      el("td", { class: "actions" }, button("first", ""), button("second", "")),
    );
    row.pieces = part;
    return row;
  }

  fill(row, backend, most, access) {
    const part = row.pieces;
    part.swatch.style.setProperty("background", colour(backend.index));
    attribute(row, "class", backend.available ? null : "off");
    attribute(part.title, "title", backend.url);
    text(part.models, models(backend));
    const [kind, word] = condition(backend);
    attribute(part.state, "class", `state ${kind}`);
    text(part.state, word);
    text(part.why, why(backend));
    attribute(part.why, "title", backend.why || null);
    const kv = backend.kv;
    attribute(part.kv, "class", `meter${kv === null ? " unknown" : kv >= HIGH_WATER ? (kv >= 0.92 ? " full" : " high") : ""}${backend.kv_stale ? " stale" : ""}`);
    part.kvFill.style.setProperty("width", `${Math.min(1, kv ?? 0) * 100}%`);
    text(part.kvText, percent(kv));
    text(part.kvNote, engine(backend));
    text(part.flying, count(backend.in_flight));
    text(part.limit, backend.max_in_flight === null ? "" : `of ${backend.max_in_flight}`);
    text(part.backlog, count(backend.backlog_tokens));
    text(part.queue, backend.backlog_tokens >= 0.5 ? "tokens" : "");
    text(part.weight, String(backend.weight));
    text(part.effective, backend.room < 0.995 && backend.weight && backend.available ? `acts as ${(backend.weight * backend.room).toFixed(2)}` : "");
    attribute(part.effective, "title", part.effective.textContent ? "Too full, a moment ago at least, or warming up: load goes elsewhere, keys stay" : null);
    for (const [name, value] of [["keys", backend.key_share], ["traffic", backend.traffic_share]]) {
      part[`${name}Bar`].style.setProperty("width", `${((value ?? 0) / most) * 100}%`);
      text(part[`${name}Text`], percent(value));
    }
    text(part.hits, percent(backend.hit_rate));
    text(part.ttft, seconds(backend.ttft_s));
    this.buttons(part, backend, access);
  }

  buttons(part, backend, access) {
    const offers = {
      active: [["drain", "Drain", "Send no new sessions; what runs finishes"], ["disable", "Disable", "Send nothing at all from now on"]],
      draining: [["undrain", "Undrain", "Take it back"], ["disable", "Disable", "Send nothing at all from now on"]],
      disabled: [["enable", "Enable", "Take it back"], null],
    }[backend.operator] ?? [null, null];
    [part.first, part.second].forEach((button, i) => {
      const offer = offers[i];
      button.hidden = !offer;
      if (!offer) return;
      if (button.dataset.action !== offer[0]) {
        button.dataset.action = offer[0];
        text(button, offer[1]);
        attribute(button, "aria-label", `${offer[1]} ${backend.name}`);
      }
      button.disabled = access === "closed";
      attribute(button, "title", access === "closed" ? "Set admin_token to change anything here" : offer[2]);
    });
  }
}

function share(put, name) {
  return el("div", { class: `share ${name}` }, el("span", { class: "track" }, put(`${name}Bar`, "i", "")), put(`${name}Text`, "span", ""));
}

function said(backend) {
  return [backend.name, backend.url, backend.operator, backend.health, backend.why, ...backend.models].join(" ").toLowerCase();
}

function note(state, found) {
  const all = state.backends.length;
  const pools = state.many_pools ? ", which serve different models" : "";
  const leaving = state.leaving.map((backend) => `; ${backend.name} is leaving, ${backend.in_flight} left`).join("");
  return found === all ? `${all} ${all === 1 ? "backend" : "backends"}${pools}${leaving}` : `${found} of ${all}`;
}

function models(backend) {
  if (!backend.models.length) return backend.models_count === null ? "models unknown" : "";
  const more = backend.models_count - 1;
  return more > 0 ? `${backend.models[0]} and ${more} more` : backend.models[0];
}

/** What a person calls it, worst first, with the class of its mark. */
export function condition(backend) {
  if (backend.operator === "disabled") return ["idle", "disabled"];
  if (backend.health === "unhealthy") return ["bad", "unhealthy"];
  if (backend.refused) return ["bad", "down"];
  if (backend.ejected) return ["bad", "ejected"];
  if (backend.operator === "draining") return ["idle", backend.in_flight ? "draining" : "drained"];
  if (!backend.available) return ["bad", "unavailable"];
  if (backend.warnings.length) return ["warn", "warned"];
  return backend.health === "unknown" ? ["quiet", "unproven"] : ["good", "healthy"];
}

function why(backend) {
  const since = backend.for_s === null ? "" : `for ${span(backend.for_s)}`;
  if (backend.operator === "draining" && backend.health !== "unhealthy") {
    return backend.in_flight ? `${backend.in_flight} left` : since;
  }
  if (backend.available && !backend.why) return "";
  return [backend.why, since].filter(Boolean).join(", ");
}

function engine(backend) {
  const parts = [];
  if (backend.running !== null) parts.push(`${backend.running} running`);
  if (backend.waiting) parts.push(`${backend.waiting} waiting`);
  if (backend.kv_stale) parts.push(`${span(backend.sample_age_s)} old`);
  return parts.join(", ") || (backend.kv === null ? "not told" : "");
}
