// A small line chart in SVG: several series over one x scale, a legend that hides them, and a
// cross-hair. Points may come in any order and again; a step is kept once.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 640, HEIGHT = 240;
const PAD = { left: 46, right: 12, top: 10, bottom: 24 };
const COLOURS = 6;
const POINTS_MAX = 1200;   // drawn points a series; more than a screen has columns
const DRAW_MS = 250;       // live points redraw at most four times a second

export function node(name, attributes = {}) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

export class Chart {
  /** `best` is "max" where the highest value deserves a mark. */
  constructor({ testid, unit = "", floor = null, best = null }) {
    this.series = new Map();
    this.floor = floor;
    this.best = best;
    this.unit = unit;
    this.timer = null;
    this.cursor = null;
    this.element = document.createElement("div");
    this.element.className = "chart";
    this.svg = node("svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "data-testid": testid,
    });
    this.legend = document.createElement("div");
    this.legend.className = "legend";
    this.element.append(this.svg, this.legend);
    this.svg.addEventListener("pointermove", (event) => this.hover(event));
    this.svg.addEventListener("pointerleave", () => { this.cursor = null; this.draw(); });
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  /** Adds one value; `label` is what the legend says, `dashed` sets validation apart. */
  add(name, step, value, { label = name, dashed = false } = {}) {
    if (!Number.isFinite(value)) return;
    let series = this.series.get(name);
    if (!series) {
      series = { name, label, dashed, points: new Map(), sorted: null, hidden: false, colour: 0 };
      this.series.set(name, series);
      this.paint();
    }
    series.points.set(step, value);
    series.sorted = null;
    this.later();
  }

  /** The same quantity in training and validation shares its colour. */
  paint() {
    const labels = [...new Set([...this.series.values()].map((series) => series.label.replace(/^val /, "")))].sort();
    for (const series of this.series.values()) {
      series.colour = labels.indexOf(series.label.replace(/^val /, "")) % COLOURS + 1;
    }
    this.list();
  }

  list() {
    const entries = [...this.series.values()].sort((a, b) => a.label.localeCompare(b.label));
    this.legend.replaceChildren(...entries.map((series) => {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", String(!series.hidden));
      const mark = document.createElement("i");
      mark.style.color = `var(--series-${series.colour})`;
      if (series.dashed) mark.className = "dashed";
      series.output = document.createElement("b");
      button.append(mark, series.label, " ", series.output);
      button.addEventListener("click", () => {
        series.hidden = !series.hidden;
        button.setAttribute("aria-pressed", String(!series.hidden));
        this.draw();
      });
      return button;
    }));
  }

  later() {
    if (this.timer === null) this.timer = setTimeout(() => { this.timer = null; this.draw(); }, DRAW_MS);
  }

  sorted(series) {
    series.sorted ??= [...series.points].sort((a, b) => a[0] - b[0]);
    return series.sorted;
  }

  draw() {
    const shown = [...this.series.values()].filter((series) => !series.hidden && series.points.size > 0);
    const box = this.svg.getBoundingClientRect();
    const width = Math.max(box.width, 200), height = Math.max(box.height, 120);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("aria-label", this.spoken());
    this.svg.replaceChildren();
    if (shown.length === 0) {
      const text = node("text", { class: "axis", x: width / 2, y: height / 2, "text-anchor": "middle" });
      text.textContent = "no values yet";
      this.svg.append(text);
      return;
    }
    const scale = this.scale = this.measure(shown, width, height);
    this.axes(scale, width, height);
    for (const series of shown) {
      const path = node("path", { class: "series", d: this.path(series, scale), "data-series": series.name });
      path.style.stroke = `var(--series-${series.colour})`;
      if (series.dashed) path.setAttribute("stroke-dasharray", "5 4");
      this.svg.append(path);
      if (series.points.size === 1) this.dot(series, this.sorted(series)[0], scale, 3);
    }
    if (this.best === "max") this.markBest(shown, scale);
    this.crossHair(shown, scale, height);
  }

  measure(shown, width, height) {
    let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const series of shown) {
      const points = this.sorted(series);
      left = Math.min(left, points[0][0]);
      right = Math.max(right, points.at(-1)[0]);
      for (const [, value] of points) { low = Math.min(low, value); high = Math.max(high, value); }
    }
    if (this.floor !== null) low = Math.min(low, this.floor);
    if (right === left) right = left + 1;
    if (high === low) high = low + (Math.abs(low) || 1) * 0.1;
    const step = niceStep((high - low) / 4);
    low = Math.floor(low / step) * step;
    high = Math.ceil(high / step) * step;
    const x = (value) => PAD.left + (value - left) / (right - left) * (width - PAD.left - PAD.right);
    const y = (value) => height - PAD.bottom - (value - low) / (high - low) * (height - PAD.top - PAD.bottom);
    const back = (pixel) => left + (pixel - PAD.left) / (width - PAD.left - PAD.right) * (right - left);
    return { left, right, low, high, step, x, y, back };
  }

  axes(scale, width, height) {
    const digits = Math.max(0, -Math.floor(Math.log10(scale.step) + 1e-9));
    for (let value = scale.low; value <= scale.high + scale.step / 2; value += scale.step) {
      const y = scale.y(value);
      this.svg.append(node("line", { class: "rule", x1: PAD.left, x2: width - PAD.right, y1: y, y2: y }));
      const text = node("text", { class: "axis", x: PAD.left - 7, y: y + 4, "text-anchor": "end" });
      text.textContent = value.toFixed(digits);
      this.svg.append(text);
    }
    const step = Math.max(1, niceStep((scale.right - scale.left) / Math.max(2, width / 130)));
    for (let value = Math.ceil(scale.left / step) * step; value <= scale.right; value += step) {
      const text = node("text", { class: "axis", x: scale.x(value), y: height - 6, "text-anchor": "middle" });
      text.textContent = Math.round(value).toLocaleString("en");
      this.svg.append(text);
    }
  }

  path(series, scale) {
    const points = thinned(this.sorted(series));
    return points.map(([step, value], index) =>
      `${index === 0 ? "M" : "L"}${scale.x(step).toFixed(1)} ${scale.y(value).toFixed(1)}`).join("");
  }

  dot(series, [step, value], scale, radius) {
    const dot = node("circle", { class: "dot", cx: scale.x(step), cy: scale.y(value), r: radius });
    dot.style.fill = `var(--series-${series.colour})`;
    this.svg.append(dot);
  }

  markBest(shown, scale) {
    for (const series of shown) {
      const points = this.sorted(series);
      if (points.length < 2) continue;
      this.dot(series, points.reduce((best, point) => point[1] > best[1] ? point : best), scale, 4);
    }
  }

  hover(event) {
    if (!this.scale) return;
    const box = this.svg.getBoundingClientRect();
    this.cursor = this.scale.back(event.clientX - box.left);
    this.draw();
  }

  /** The legend shows the values under the cross-hair, or the newest ones. */
  crossHair(shown, scale, height) {
    const inside = this.cursor !== null && this.cursor >= scale.left && this.cursor <= scale.right;
    if (inside) {
      const x = scale.x(this.cursor);
      this.svg.append(node("line", { class: "cross", x1: x, x2: x, y1: PAD.top, y2: height - PAD.bottom }));
    }
    for (const series of shown) {
      const points = this.sorted(series);
      const point = inside ? nearest(points, this.cursor) : points.at(-1);
      if (inside) this.dot(series, point, scale, 4);
      if (series.output) series.output.textContent = `${short(point[1])}${this.unit}`;
    }
  }

  spoken() {
    const parts = [...this.series.values()].map((series) => `${series.label} ${short(this.sorted(series).at(-1)[1])}`);
    return parts.length ? `Newest values: ${parts.join(", ")}` : "No values yet";
  }
}

/** A line without axes, for the host's samples. */
export function spark(values, ceiling = null) {
  const svg = node("svg", { viewBox: "0 0 100 30", preserveAspectRatio: "none", "aria-hidden": "true" });
  if (values.length > 0) {
    if (values.length === 1) values = [values[0], values[0]];
    const high = ceiling ?? (Math.max(...values) || 1);
    const step = 100 / (values.length - 1);
    const points = values.map((value, index) =>
      `${index ? "L" : "M"}${(index * step).toFixed(2)} ${(28 - Math.min(1, value / high) * 26).toFixed(2)}`);
    svg.append(node("path", { d: points.join("") }));
  }
  return svg;
}

/** Three or four digits, whatever the size. */
export function short(value) {
  const size = Math.abs(value);
  if (size !== 0 && size < 0.001) return value.toExponential(1);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 2 : 3);
}

function niceStep(raw) {
  const power = 10 ** Math.floor(Math.log10(raw));
  const factor = raw / power;
  return power * (factor <= 1 ? 1 : factor <= 2 ? 2 : factor <= 5 ? 5 : 10);
}

/** Keeps the extremes of each bucket, so that no spike is lost. */
function thinned(points) {
  if (points.length <= POINTS_MAX) return points;
  const bucket = Math.ceil(points.length / (POINTS_MAX / 2));
  const kept = [];
  for (let start = 0; start < points.length; start += bucket) {
    const part = points.slice(start, start + bucket);
    let [low, high] = [part[0], part[0]];
    for (const point of part) {
      if (point[1] < low[1]) low = point;
      if (point[1] > high[1]) high = point;
    }
    kept.push(...(low[0] <= high[0] ? [low, high] : [high, low]));
  }
  return kept;
}

function nearest(points, step) {
  let [first, last] = [0, points.length - 1];
  while (last - first > 1) {
    const middle = (first + last) >> 1;
    if (points[middle][0] <= step) first = middle; else last = middle;
  }
  return step - points[first][0] <= points[last][0] - step ? points[first] : points[last];
}
