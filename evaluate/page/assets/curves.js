"use strict";
// The script of compare.html is the concatenation of curves.js, chart.js, view.js and page.js. It inserts every text as
// text (textContent), never as markup. This file: the embedded data, and curves as numbers and outlines.

const source = document.getElementById("data").textContent;
const data = JSON.parse(source);
const MOST_LINES = 40; // with more runs, the read-out has one line for each system
const FEW_LINES = 12; // with more runs, the read-out lists single runs only if a box is ticked
const ANNOUNCED = 12; // most lines of the read-out that a screen reader announces
const SERIES = [
  { key: "step_time_seconds", title: "Step time", unit: "s", skipsFirst: true },
  { key: "loss_nats_per_token", title: "Loss", unit: "nats/token", skipsFirst: false },
];

function html(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function svg(name, attributes = {}, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

function shown(value) {
  if (value === null || value === undefined) return "\u2013";
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en-US") : String(Number(value.toPrecision(4)));
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

function firstAt(steps, wanted) { // index of the first step >= `wanted`
  let low = 0, high = steps.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < wanted) low = middle + 1; else high = middle;
  }
  return low;
}

function valueAt(curve, step) { // value at the step, or at the nearest one of a thinned curve
  const index = firstAt(curve.step, step);
  if (curve.step[index] === step) return curve.value[index];
  if (data.samples_kept_per_curve === null || !curve.step.length) return null;
  const after = Math.min(index, curve.step.length - 1), before = Math.max(0, index - 1);
  return curve.value[step - curve.step[before] <= curve.step[after] - step ? before : after];
}

function ticks(low, high, wanted) {
  const raw = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(raw));
  const width = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw);
  const found = [];
  for (let at = Math.ceil(low / width); at * width <= high; at += 1) found.push(at * width);
  return found;
}

function limits(lines, series, from, to) {
  let low = Infinity, high = -Infinity;
  const take = (after) => {
    for (const { run } of lines) {
      const { step, value } = run[series.key];
      for (let i = firstAt(step, Math.max(from, after(run))); i < step.length && step[i] <= to; i += 1) {
        low = Math.min(low, value[i]);
        high = Math.max(high, value[i]);
      }
    }
  };
  take((run) => (series.skipsFirst ? run.first_steps_left_out + 1 : from));
  if (low > high) take(() => from);
  if (low > high) return null;
  const room = (high - low) * 0.06 || Math.abs(high) * 0.02 || 1;
  return [low - room, high + room];
}

function outline(curve, from, to, x, y, width) { // at most two samples per pixel: the smallest and the largest
  const start = Math.max(0, firstAt(curve.step, from) - 1);
  const end = Math.min(curve.step.length, firstAt(curve.step, to + 1) + 1);
  const stretch = Math.max(1, Math.ceil((end - start) / width / 2) * 2);
  const parts = [];
  for (let i = start; i < end; i += stretch) {
    let picked = [i];
    if (stretch > 2) {
      let least = i, most = i;
      for (let j = i; j < Math.min(end, i + stretch); j += 1) {
        if (curve.value[j] < curve.value[least]) least = j;
        if (curve.value[j] > curve.value[most]) most = j;
      }
      picked = least === most ? [least] : [Math.min(least, most), Math.max(least, most)];
    } else if (stretch === 2 && i + 1 < end) picked = [i, i + 1];
    for (const j of picked) parts.push(`${x(curve.step[j]).toFixed(1)} ${y(curve.value[j]).toFixed(1)}`);
  }
  return parts.length ? `M${parts.join("L")}` : "";
}

const MARKS = [ // one shape for each row of a group in turn, around a point
  ([x, y]) => `M${x - 3} ${y}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0Z`,
  ([x, y]) => `M${x - 3} ${y - 3}h6v6h-6Z`,
  ([x, y]) => `M${x} ${y - 4}L${x + 4} ${y + 3}H${x - 4}Z`,
  ([x, y]) => `M${x} ${y - 4}L${x + 4} ${y}L${x} ${y + 4}L${x - 4} ${y}Z`,
  ([x, y]) => `M${x} ${y + 4}L${x + 4} ${y - 3}H${x - 4}Z`,
  ([x, y]) => `M${x - 3} ${y - 3}L${x + 3} ${y + 3}M${x - 3} ${y + 3}L${x + 3} ${y - 3}`,
  ([x, y]) => `M${x - 4} ${y}h8M${x} ${y - 4}v8`,
];
const MARKS_A_CURVE = 6;

function marks(curve, row, rows, from, to, x, y) { // outline of the marks of a row's curve, shifted from row to row
  const start = firstAt(curve.step, from), count = firstAt(curve.step, to + 1) - start;
  const spacing = Math.max(1, count / MARKS_A_CURVE), parts = [];
  for (let at = spacing * ((row + 0.5) / rows); at < count; at += spacing) {
    const i = start + Math.floor(at);
    parts.push(MARKS[row % MARKS.length]([Math.round(x(curve.step[i])), Math.round(y(curve.value[i]))]));
  }
  return parts.join("");
}
