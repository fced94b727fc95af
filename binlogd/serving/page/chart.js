// A small picture of one figure over the last minutes: a line, what is below it, and what it is at the
// pointer. Drawn anew once a second, from samples that the process and this page remember.

import { el, svg } from "/page/dom.js";
import { timeOf } from "/page/words.js";

const HEIGHT = 132;
const STEPS = [1, 2, 3, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720]; // minutes between two times of the axis
const LEFT = 52, RIGHT = 8, TOP = 10, BOTTOM = 20;

// Round steps for an axis from zero up to at least `top`.
export function ticks(top, most = 3) {
  const rough = Math.max(top, 1e-9) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999);
  const found = [];
  for (let at = 0; at <= most + 1; at += 1) {
    found.push(at * step);
    if (at * step >= top) break;
  }
  return found;
}

// Where a picture ends: at its peak, unless that is one moment far above all the rest.
export function highest(values, least) {
  const sorted = [...values].sort((one, other) => one - other);
  const usual = Math.max(least, sorted[Math.floor(0.98 * (sorted.length - 1))] ?? 0);
  const most = sorted.at(-1) ?? 0;
  return sorted.length > 50 && most > 10 * usual ? 2 * usual : most;
}

export class Chart {
  constructor(place, { title, name, format, least }) {
    Object.assign(this, { title, name, format, least });
    this.points = [];
    this.pointer = null;
    this.peak = el("span", { class: "dim" });
    this.canvas = svg("svg", { role: "img", class: `chart ${name}`, height: HEIGHT });
    place.append(el("figure", { class: "card picture" },
      el("figcaption", {}, el("span", { class: "dot " + name }), el("span", {}, title), this.peak), this.canvas));
    this.canvas.addEventListener("pointermove", (event) => { this.pointer = event.offsetX; this.draw(); });
    this.canvas.addEventListener("pointerleave", () => { this.pointer = null; this.draw(); });
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  // `points` are [ms, value or null], the oldest first; `span` is [from ms, to ms]; two points further apart than
  // `gapMs` are not joined.
  set(points, span, gapMs) {
    Object.assign(this, { points, span, gapMs });
    this.draw();
  }

  draw() {
    const width = this.canvas.clientWidth;
    if (!width || !this.span) return;
    const known = this.points.filter(([, value]) => value !== null);
    const most = known.reduce((top, [, value]) => Math.max(top, value), 0);
    const top = highest(known.map(([, value]) => value), this.least);
    const steps = ticks(Math.max(top, this.least));
    const [from, to] = this.span;
    const x = (ms) => LEFT + ((ms - from) / (to - from)) * (width - LEFT - RIGHT);
    const y = (value) => HEIGHT - BOTTOM - (Math.min(value, steps.at(-1)) / steps.at(-1)) * (HEIGHT - TOP - BOTTOM);
    const last = known.at(-1);
    this.peak.textContent = last ? `peak ${this.format(most)}${most > steps.at(-1) ? ", beyond the picture" : ""}` : "";
    this.canvas.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.canvas.setAttribute("aria-label",
      last ? `${this.title}: now ${this.format(last[1])}, peak ${this.format(most)} since ${timeOf(from)}` : `${this.title}: not known`);
    this.canvas.replaceChildren(
      ...steps.flatMap((value) => [
        svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
        svg("text", { class: "tick", x: LEFT - 7, y: y(value) + 3.5, "text-anchor": "end" }, value ? this.format(value) : "0"),
      ]),
      ...this.minutes(from, to, width, x),
      ...this.runs().flatMap((run) => this.shape(run, x, y)),
      ...this.at(known, x, y, width),
    );
  }

  minutes(from, to, width, x) {
    const rough = (to - from) / 60000 / Math.max(2, Math.floor(width / 110));
    const step = (STEPS.find((each) => each >= rough) ?? STEPS.at(-1)) * 60000;
    const found = [];
    for (let ms = Math.ceil(from / step) * step; ms <= to; ms += step) {
      if (x(ms) < LEFT + 16 || x(ms) > width - 22) continue;
      found.push(svg("text", { class: "tick", x: x(ms), y: HEIGHT - 4, "text-anchor": "middle" }, timeOf(ms).slice(0, 5)));
    }
    return found;
  }

  // Stretches without a gap: a process that was away has none of its seconds.
  runs() {
    const found = [];
    let before = null;
    for (const point of this.points) {
      if (point[1] === null) { before = null; continue; }
      if (before === null || point[0] - before > this.gapMs) found.push([]);
      found.at(-1).push(point);
      before = point[0];
    }
    return found;
  }

  shape(run, x, y) {
    const line = run.map(([ms, value]) => `${x(ms).toFixed(1)},${y(value).toFixed(1)}`).join("L");
    const floor = y(0);
    return [
      svg("path", { class: "area", d: `M${x(run[0][0]).toFixed(1)},${floor}L${line}L${x(run.at(-1)[0]).toFixed(1)},${floor}Z` }),
      svg("path", { class: "line", d: `M${line}` }),
    ];
  }

  at(known, x, y, width) {
    if (this.pointer === null || !known.length) return [];
    const near = known.reduce((best, each) =>
      (Math.abs(x(each[0]) - this.pointer) < Math.abs(x(best[0]) - this.pointer) ? each : best));
    const cx = x(near[0]), left = cx > width / 2;
    return [
      svg("line", { class: "cross", x1: cx, x2: cx, y1: TOP, y2: HEIGHT - BOTTOM }),
      svg("circle", { class: "mark", cx, cy: y(near[1]), r: 4 }),
      svg("text", { class: "said", x: cx + (left ? -9 : 9), y: TOP + 10, "text-anchor": left ? "end" : "start" },
        `${this.format(near[1])} at ${timeOf(near[0])}`),
    ];
  }
}
