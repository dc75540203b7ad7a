// A line chart of the last quarter of an hour, and the ring. Both are SVG made by hand, drawn anew when data comes.

import { colour, el, percent, svg, text, UNKNOWN } from "./dom.js";

const STEP_S = 5;
const POINTS = 180;
const EDGE = { left: 52, right: 10, top: 8, bottom: 20 };

/** `lines` are {name, title, area}; `format` a value's text; `top` a fixed end of the scale, else the data's. */
export class LineChart {
  constructor(host, lines, format, top = null) {
    this.host = host;
    this.lines = lines;
    this.format = format;
    this.top = top;
    this.points = [];
    this.hover = null;
    this.svg = svg("svg", { role: "img", "aria-label": lines.map((line) => line.title).join(", ") });
    this.tip = el("div", { class: "tip", hidden: true });
    this.empty = el("p", { class: "empty" }, "Nothing measured yet");
    host.append(this.svg, this.tip, this.empty);
    new ResizeObserver(() => this.draw()).observe(host);
    host.addEventListener("pointermove", (event) => this.point(event));
    host.addEventListener("pointerleave", () => this.point(null));
  }

  show(points) {
    this.points = points;
    this.draw();
  }

  point(event) {
    this.hover = event ? event.clientX - this.host.getBoundingClientRect().left : null;
    this.draw();
  }

  draw() {
    const width = this.host.clientWidth;
    const height = this.host.clientHeight;
    if (!width || !height) return;
    const known = this.points.filter((point) => this.lines.some((line) => point[line.name] !== null));
    this.empty.hidden = known.length > 0;
    const end = this.points.length ? this.points[this.points.length - 1].at_s : 0;
    const reach = span(this.points);
    this.drawn = this.points.filter((point) => end - point.at_s <= reach);
    const x = (at_s) => EDGE.left + (1 - (end - at_s) / reach) * (width - EDGE.left - EDGE.right);
    const most = Math.max(...known.flatMap((point) => this.lines.map((line) => point[line.name] ?? 0)), 0);
    const top = this.top ?? nice(most || 1);
    const y = (value) => EDGE.top + (1 - Math.min(value, top) / top) * (height - EDGE.top - EDGE.bottom);

    const parts = [];
    for (let i = 0; i <= 4; i += 2) {
      const value = (top * i) / 4;
      parts.push(
        svg("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: y(value), y2: y(value) }),
        svg("text", { class: "tick", x: EDGE.left - 9, y: y(value) + 4, "text-anchor": "end" }, this.format(value)),
      );
    }
    const minutes = reach / 60;
    for (const ago of width > 360 ? [minutes, (minutes * 2) / 3, minutes / 3] : [minutes]) {
      parts.push(svg("text", { class: "tick", x: x(end - ago * 60), y: height - 4, "text-anchor": ago === minutes ? "start" : "middle" }, `−${ago} min`));
    }
    parts.push(svg("text", { class: "tick", x: width - EDGE.right, y: height - 4, "text-anchor": "end" }, "now"));
    for (const line of this.lines) parts.push(...this.path(line, x, y));
    const tip = this.hover === null ? null : nearest(known, this.hover, x);
    if (tip) {
      parts.push(svg("line", { class: "hair", x1: x(tip.at_s), x2: x(tip.at_s), y1: EDGE.top, y2: height - EDGE.bottom }));
      for (const line of this.lines) {
        if (tip[line.name] !== null) parts.push(svg("circle", { class: `mark ${line.name}`, cx: x(tip.at_s), cy: y(tip[line.name]), r: 3.5 }));
      }
      const ago = Math.round(end - tip.at_s);
      const when = ago < 1 ? "now" : ago < 90 ? `${ago} s ago` : `${Math.round(ago / 60)} min ago`;
      text(this.tip, `${this.lines.map((line) => `${line.title} ${this.format(tip[line.name])}`).join(" · ")} · ${when}`);
      const half = this.tip.offsetWidth / 2;
      this.tip.style.setProperty("left", `${Math.max(half + 2, Math.min(width - half - 2, x(tip.at_s)))}px`);
    }
    this.tip.hidden = !tip;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(...parts);
  }

  /** A line with gaps where nothing is known, and a dot at its end. */
  path(line, x, y) {
    const runs = [];
    let before = null;
    for (const point of this.drawn) {
      const value = point[line.name];
      if (value === null) continue;
      // A quiet half minute is bridged, a longer one is a gap.
      if (before === null || point.at_s - before > 30) runs.push([]);
      before = point.at_s;
      runs[runs.length - 1].push([x(point.at_s), y(value)]);
    }
    const parts = [];
    for (const run of runs) {
      const drawn = run.map(([px, py], i) => `${i ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("");
      if (line.area && run.length > 1) {
        const floor = y(0).toFixed(1);
        parts.push(svg("path", { class: `area ${line.name}`, d: `${drawn}L${run[run.length - 1][0].toFixed(1)} ${floor}L${run[0][0].toFixed(1)} ${floor}Z` }));
      }
      parts.push(svg("path", { class: `line ${line.name}`, d: run.length > 1 ? drawn : `${drawn}h0.1` }));
    }
    const last = runs.length ? runs[runs.length - 1][runs[runs.length - 1].length - 1] : null;
    if (last) parts.push(svg("circle", { class: `end ${line.name}`, cx: last[0], cy: last[1], r: 3 }));
    return parts;
  }
}

/** The seconds to show: a quarter of an hour, less while there is less to show. */
function span(points) {
  const known = points.length ? points[points.length - 1].at_s - points[0].at_s : 0;
  return [180, 360].find((reach) => known <= reach) ?? POINTS * STEP_S;
}

/** The next round number: 1, 2 or 5 with zeros. */
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999) ?? value;
}

function nearest(points, px, x) {
  let best = null;
  for (const point of points) {
    if (best === null || Math.abs(x(point.at_s) - px) < Math.abs(x(best.at_s) - px)) best = point;
  }
  return best;
}

const LEGEND_ROWS = 8;

/** Two rings in one order: what each backend owns of the keys, and what it got of the traffic. */
export class Ring {
  constructor(host) {
    this.svg = svg("svg", { viewBox: "-100 -100 200 200", role: "img", "aria-label": "Share of keys and of traffic" });
    this.legend = el("ul", { class: "legend" });
    this.picked = null;
    this.backends = [];
    host.append(this.svg, this.legend);
    // Arcs and rows are made anew each second, so what the pointer is on is asked of the host.
    host.addEventListener("pointermove", (event) => {
      const index = event.target.closest("[data-index]")?.getAttribute("data-index");
      this.pick(index === undefined ? null : (this.backends[Number(index)]?.name ?? null));
    });
    host.addEventListener("pointerleave", () => this.pick(null));
  }

  show(backends) {
    this.backends = backends;
    this.draw();
  }

  pick(name) {
    if (this.picked === name) return;
    this.picked = name;
    this.draw();
  }

  draw() {
    const backends = this.backends;
    const parts = [
      svg("circle", { class: "ring-track", r: 84, "stroke-width": 18 }),
      svg("circle", { class: "ring-track", r: 62, "stroke-width": 12 }),
      ...this.arcs((backend) => backend.key_share, 84, 18),
      ...this.arcs((backend) => backend.traffic_share, 62, 12),
    ];
    const picked = backends.find((backend) => backend.name === this.picked);
    if (picked) {
      parts.push(
        svg("text", { class: "ring-name", y: -8 }, short(picked.name, 13)),
        svg("text", { class: "ring-note", y: 10 }, `keys ${percent(picked.key_share)}`),
        svg("text", { class: "ring-note", y: 26 }, `traffic ${percent(picked.traffic_share)}`),
      );
    } else {
      const available = backends.filter((backend) => backend.available).length;
      parts.push(
        svg("text", { class: "ring-big", y: 4 }, backends.length ? `${available}/${backends.length}` : UNKNOWN),
        svg("text", { class: "ring-note", y: 24 }, "available"),
      );
    }
    this.svg.replaceChildren(...parts);
    this.list();
  }

  arcs(share, radius, width) {
    const total = this.backends.reduce((sum, backend) => sum + (share(backend) ?? 0), 0);
    if (!total) return [];
    const parts = [];
    let from = 0;
    this.backends.forEach((backend, index) => {
      const part = (share(backend) ?? 0) / total;
      if (!part) return;
      const gap = this.backends.length < 60 ? Math.min(0.004, part / 4) : 0;
      const arc = svg("path", {
        class: `arc${backend.available ? "" : " off"}${this.picked && this.picked !== backend.name ? " dim" : ""}`,
        d: sector(from + gap / 2, from + part - gap / 2, radius),
        "stroke-width": width,
        "data-index": index,
      });
      arc.style.setProperty("stroke", colour(index));
      parts.push(arc);
      from += part;
    });
    return parts;
  }

  list() {
    const shown = this.backends.length > LEGEND_ROWS ? [] : this.backends;
    this.legend.hidden = !shown.length;
    this.legend.replaceChildren(
      el("li", { class: "quiet", "aria-hidden": "true" }, el("i"), el("span"), el("span", {}, "keys"), el("span", {}, "traffic")),
      ...shown.map((backend, index) => {
        const swatch = el("i", { class: "swatch" });
        swatch.style.setProperty("background", colour(index));
        return el(
          "li", { class: backend.available ? null : "off", "data-index": index }, swatch,
          el("span", { class: "name", title: backend.name }, backend.name),
          el("b", {}, percent(backend.key_share)), el("b", {}, percent(backend.traffic_share)),
        );
      }),
    );
  }
}

/** An arc of the circle; 0 is at the top, 1 once around. */
function sector(from, to, radius) {
  const end = Math.min(to, from + 0.9999);
  const place = (part) => {
    const angle = (part - 0.25) * 2 * Math.PI;
    return `${(radius * Math.cos(angle)).toFixed(2)} ${(radius * Math.sin(angle)).toFixed(2)}`;
  };
  return `M${place(from)}A${radius} ${radius} 0 ${end - from > 0.5 ? 1 : 0} 1 ${place(end)}`;
}

export function short(name, length) {
  return name.length > length ? `${name.slice(0, length - 1)}…` : name;
}
