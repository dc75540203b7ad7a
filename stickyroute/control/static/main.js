// The feed and who shows what of it. A page that nobody looks at lets go of the feed.

import { LineChart, Ring } from "./charts.js";
import { byId, percent, seconds, text } from "./dom.js";
import { FleetTable } from "./fleet.js";
import { Decisions, showAlerts, showDoctor, showFacts, showTiles } from "./lists.js";
import { Operator } from "./operate.js";

const POINTS = 180;
const LATE_MS = 5000;

const operator = new Operator();
const table = new FleetTable(byId("fleet"), (name, action, button) => operator.act(name, action, button));
const hits = new LineChart(byId("hit"), [{ name: "hit_rate", title: "hit rate", area: true }], (value) => percent(value), 1);
const ttft = new LineChart(byId("ttft"), [{ name: "ttft_p95_s", title: "p95" }, { name: "ttft_p50_s", title: "median", area: true }], (value) => (value === 0 ? "0" : seconds(value)));
const ring = new Ring(byId("ring"));
const decisions = new Decisions();

let points = [];
let feed = null;
let late = null;

function live(kind, said) {
  byId("live").className = `live ${kind}`;
  text(byId("live").lastElementChild, said);
}

function heard() {
  clearTimeout(late);
  live("on", "live");
  late = setTimeout(() => live("late", "no news"), LATE_MS);
}

function begin(beginning) {
  points = beginning.points;
  draw();
}

function draw() {
  hits.show(points);
  ttft.show(points);
}

function show(state) {
  const point = state.point;
  if (point && (!points.length || point.at_s > points[points.length - 1].at_s)) {
    points = [...points, point].slice(-POINTS);
    draw();
  }
  operator.available = (name) => state.backends.filter((backend) => backend.available && backend.name !== name).length;
  operator.show(state.access);
  showFacts(state);
  showAlerts(state);
  showTiles(state);
  ring.show(state.backends);
  table.show(state);
  decisions.show(state);
  showDoctor(state);
  document.title = `${state.summary.available}/${state.summary.backends} · stickyroute`;
}

function open() {
  if (feed) return;
  feed = new EventSource("events");
  feed.addEventListener("beginning", (event) => begin(JSON.parse(event.data)));
  feed.addEventListener("state", (event) => {
    heard();
    show(JSON.parse(event.data));
  });
  feed.addEventListener("error", () => {
    clearTimeout(late);
    live("off", "disconnected");
    if (feed.readyState === EventSource.CLOSED) {
      // The browser gives up after an answer that is no feed, such as "too many watch".
      close();
      setTimeout(() => document.hidden || open(), LATE_MS);
    }
  });
}

function close() {
  feed?.close();
  feed = null;
  clearTimeout(late);
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    close();
    live("late", "resting");
  } else {
    open();
  }
});
open();
