// What needs attention, the tiles, the decisions as they come, and what the doctor found.

import { attribute, byId, clock, colour, count, el, keyed, percent, rate, seconds, span, text, UNKNOWN } from "./dom.js";
import { short } from "./charts.js";

const MOST_DECISIONS = 60;

export function showFacts(state) {
  const facts = [
    ["policy", state.policy],
    ["up", span(state.uptime_s)],
    ["ring", state.ring.fingerprint.slice(0, 8)],
  ];
  if (state.config) facts.push(["config", `#${state.config.generation}`]);
  if (state.shadow) {
    const { policy, agreed, expected, live_expected: live } = state.shadow;
    facts.push(["shadow", `${policy}: ${percent(agreed)} the same, ${percent(expected)} cached (live ${percent(live)})`]);
  }
  keyed(byId("facts"), facts, ([name]) => name, ([name]) => el("li", {}, el("span", { class: "quiet" }, `${name} `), el("b")), (node, [, value]) => text(node.lastChild, value));
  text(byId("version"), state.version);
}

export function showAlerts(state) {
  const alerts = state.alerts.map((alert, i) => ({ ...alert, id: `${alert.backend}|${alert.code}|${i}` }));
  keyed(
    byId("alerts"), alerts, (alert) => alert.id,
    () => el("p", {}, el("b"), " ", el("span")),
    (node, alert) => {
      attribute(node, "class", `alert ${alert.level}`);
      text(node.firstChild, alert.backend ?? "stickyroute");
      text(node.lastChild, alert.text);
    },
  );
}

export function showTiles(state) {
  const now = state.summary;
  const tiles = [
    ["Hit rate", percent(now.hit_rate), now.saved_tokens ? saved(now) : "of prompt tokens", now.hit_rate !== null && now.hit_rate < 0.3 ? "warn" : ""],
    ["TTFT", seconds(now.ttft_p50_s), now.ttft_p95_s === null ? "median, last minute" : `median; p95 ${seconds(now.ttft_p95_s)}`, ""],
    ["Requests", `${rate(now.requests_s)}/s`, `${count(now.prompt_tokens_s)} prompt tokens/s`, ""],
    ["In flight", count(now.in_flight), now.held ? `and ${count(now.held)} held` : "requests on backends", now.held ? "warn" : ""],
    ["Waiting", count(now.backlog_tokens), "uncached prompt tokens", ""],
    ["Backends", `${now.available}/${now.backends}`, !now.backends ? "none known" : now.available === now.backends ? "all available" : `${now.backends - now.available} not available`, now.available === 0 ? "bad" : now.available < now.backends ? "warn" : "good"],
  ];
  keyed(
    byId("tiles"), tiles, ([title]) => title,
    ([title]) => el("div", { class: "tile" }, el("span", { class: "tile-title" }, title), el("strong"), el("span", { class: "quiet small" })),
    (node, [, value, noted, kind]) => {
      attribute(node, "class", `tile ${kind}`);
      text(node.children[1], value);
      text(node.children[2], noted);
    },
  );
}

/** What was not computed again since the start, and what that is worth where the models have prices. */
function saved(now) {
  const worth = now.saved_cost >= 100 ? count(now.saved_cost) : now.saved_cost.toFixed(2);
  return `${count(now.saved_tokens)} tokens saved${now.saved_cost > 0 ? `: ${worth}` : ""}`;
}

/** Keeps the newest decisions; paused, it leaves what is there. */
export class Decisions {
  constructor() {
    this.rows = [];
    this.paused = false;
    const button = byId("pause");
    button.addEventListener("click", () => {
      this.paused = !this.paused;
      button.setAttribute("aria-pressed", String(this.paused));
      text(button, this.paused ? "Go on" : "Pause");
    });
  }

  show(state) {
    const host = byId("decisions");
    if (state.decisions === null) {
      attribute(host, "data-empty", "Decisions are not kept (decisions: 0)");
      keyed(host, [], (row) => row.id, () => el("div"), () => {});
      return;
    }
    this.reasons(state.reasons);
    if (this.paused) return;
    const colours = new Map(state.backends.map((backend, index) => [backend.name, colour(index)]));
    const rows = state.decisions.slice(0, MOST_DECISIONS);
    attribute(host, "data-empty", rows.length ? null : "No request yet");
    keyed(host, rows, (row) => row.id, (row) => decision(row, colours), (node, row) => fillDecision(node, row));
  }

  reasons(reasons) {
    const total = Object.values(reasons).reduce((sum, value) => sum + value, 0);
    const rows = Object.entries(reasons).filter(([, value]) => value / total >= 0.005).sort((a, b) => b[1] - a[1]).slice(0, 4);
    keyed(byId("reasons"), rows, ([name]) => name, ([name]) => el("span", { class: `reason ${kind(name)}` }), (node, [name, value]) => text(node, `${name.replace("_", " ")} ${percent(value / total)}`));
  }
}

function decision(row, colours) {
  const swatch = el("i", { class: "swatch" });
  swatch.style.setProperty("background", colours.get(row.backend) ?? "var(--line)");
  return el(
    "div", { class: "decision", title: row.about },
    el("time", {}, clock(row.at)),
    el("span", { class: `reason ${kind(row.reason)}` }, (row.reason || "none").replace("_", " ")),
    el("span", { class: "where", title: row.backend }, swatch, el("span", { class: "name" }, row.backend || UNKNOWN)),
    el("span", { class: "quiet what", title: row.model }, short(row.model || UNKNOWN, 28)),
    el("span", { class: "cached" }, el("span", { class: "track" }, el("i", { class: "expected" }), el("i", { class: "achieved" })), el("b")),
    el("b", { class: "took" }),
  );
}

function fillDecision(node, row) {
  const [, , , , cached, took] = node.children;
  const [expected, achieved] = cached.firstChild.children;
  expected.style.setProperty("width", `${(row.expected ?? 0) * 100}%`);
  achieved.style.setProperty("width", `${(row.achieved ?? 0) * 100}%`);
  attribute(cached, "title", `expected ${percent(row.expected)} cached, found ${percent(row.achieved)}`);
  text(cached.lastChild, percent(row.achieved ?? row.expected));
  const said = row.failed ? "failed" : row.ttft_s === null ? "whole" : "first";
  text(took, row.failed ? row.failed.replace("_", " ") : seconds(row.ttft_s ?? row.duration_s));
  attribute(took, "class", `took ${said}`);
  attribute(took, "title", { failed: row.failed, whole: "to the whole reply, which did not stream", first: "to the first token" }[said]);
}

function kind(reason) {
  return { home: "home", warm: "warm", spill: "spill", failover: "failover", no_key: "nokey" }[reason] ?? "other";
}

export function showDoctor(state) {
  const host = byId("doctor");
  const doctor = state.doctor;
  if (!doctor) {
    text(byId("doctor-note"), "");
    attribute(host, "data-empty", "The doctor is off (doctor.enabled)");
    keyed(host, [], (card) => card.id, () => el("article"), () => {});
    return;
  }
  text(byId("doctor-note"), doctor.note);
  const cards = [
    ...doctor.findings.map((finding) => ({ ...finding, note: `${count(finding.lost_tokens_per_hour)} tokens/h lost` })),
    ...doctor.rules.map((rule) => ({ id: `rule ${rule}`, level: "note", title: "", note: "", where: rule, advice: "" })),
  ];
  attribute(host, "data-empty", doctor.findings.length ? null : "Nothing breaks a prefix");
  keyed(
    host, cards, (card) => card.id,
    () => el("article", {}, el("div", { class: "finding-head" }, el("b"), el("span", { class: "quiet small" })), el("p"), el("p", { class: "advice" })),
    (node, card) => {
      attribute(node, "class", `finding ${card.level}`);
      node.children[0].hidden = !card.title;
      text(node.children[0].children[0], card.title);
      text(node.children[0].children[1], card.note);
      text(node.children[1], card.where);
      text(node.children[2], card.advice);
    },
  );
}
