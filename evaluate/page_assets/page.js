"use strict";
// Curves, tooltips and the download of compare.html. Every text goes in as text (textContent), never as markup.
(() => {
  const source = document.getElementById("data").textContent;
  const data = JSON.parse(source);
  const MOST_LINES = 40; // of more runs than these the read-out shows a system in one line
  const FEW_LINES = 12; // of more runs than these the systems come first, and a box shows the runs
  const ANNOUNCED = 12;
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

  function firstAt(steps, wanted) { // index of the first step that is not before `wanted`
    let low = 0, high = steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle] < wanted) low = middle + 1; else high = middle;
    }
    return low;
  }

  function valueAt(curve, step) { // of the step, or of the nearest one where the curve was thinned out
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

  function outline(curve, from, to, x, y, width) { // at most two samples a pixel: the smallest and the largest
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

  class Chart {
    constructor(series, view, number) {
      this.series = series;
      this.view = view;
      this.clip = `clip-${number}-${series.key}`;
      this.svg = svg("svg", { class: "chart", role: "img", "aria-label": `${series.title} over steps, each run` });
      const caption = html("figcaption", { textContent: `${series.title} (${series.unit})` });
      this.figure = html("figure", {}, caption, this.svg);
      this.start = null;
      this.svg.addEventListener("pointermove", (event) => this.move(event));
      this.svg.addEventListener("pointerdown", (event) => {
        if (event.button !== 0 || event.pointerType === "touch") return;
        this.start = this.stepAt(event);
        this.svg.setPointerCapture(event.pointerId);
      });
      this.svg.addEventListener("pointerup", (event) => this.release(event));
      this.svg.addEventListener("pointercancel", () => { this.start = null; this.view.cursor(); });
      this.svg.addEventListener("dblclick", () => this.view.zoom(this.view.first, this.view.last));
    }

    stepAt(event) {
      const share = (event.clientX - this.svg.getBoundingClientRect().left - this.left) / this.width;
      const { from, to } = this.view;
      return Math.round(from + Math.min(1, Math.max(0, share)) * (to - from));
    }

    move(event) {
      this.view.go(this.stepAt(event));
      if (this.start === null || !this.selection) return;
      const ends = [this.x(this.start), this.x(this.view.step)].sort((a, b) => a - b);
      this.selection.setAttribute("x", ends[0]);
      this.selection.setAttribute("width", ends[1] - ends[0]);
    }

    release(event) {
      const ends = [this.start, this.stepAt(event)].sort((a, b) => a - b);
      const isDrag = this.start !== null && ends[1] - ends[0] >= 2 && this.x(ends[1]) - this.x(ends[0]) > 8;
      this.start = null;
      if (isDrag) this.view.zoom(...ends); else this.draw();
    }

    draw() {
      const { from, to } = this.view, lines = this.view.visible();
      const total = this.svg.clientWidth || 560, height = this.svg.clientHeight || 240;
      this.left = 52;
      this.width = total - this.left - 22;
      const bottom = height - 24, top = 8, range = limits(lines, this.series, from, to);
      this.svg.setAttribute("viewBox", `0 0 ${total} ${height}`);
      this.svg.replaceChildren();
      if (!range) {
        this.svg.append(svg("text", { x: this.left, y: height / 2 }, "No value to draw."));
        this.line = this.selection = null;
        return;
      }
      this.x = (step) => this.left + (to > from ? (step - from) / (to - from) : 0.5) * this.width;
      const y = (value) => bottom - ((value - range[0]) / (range[1] - range[0])) * (bottom - top);
      this.axes(range, y, bottom, top, total);
      const clip = svg("clipPath", { id: this.clip });
      clip.append(svg("rect", { x: this.left, y: 0, width: this.width, height: bottom }));
      const inside = svg("g", { "clip-path": `url(#${this.clip})` });
      this.svg.append(clip, inside);
      const named = new Map();
      for (const { row, run, look } of lines) {
        const curve = run[this.series.key];
        inside.append(svg("path", { class: `curve ${look}`, d: outline(curve, from, to, this.x, y, this.width) }));
        const last = Math.min(curve.step.length, firstAt(curve.step, to + 1)) - 1;
        if (last >= 0 && !named.has(row)) named.set(row, { look, place: y(curve.value[last]) + 4 });
      }
      this.letters([...named], top + 8, bottom);
      this.line = svg("line", { class: "cursor", y1: top, y2: bottom });
      this.selection = svg("rect", { class: "zoom", y: top, height: bottom - top, width: 0 });
      this.svg.append(this.line, this.selection);
      this.cursor();
    }

    letters(named, top, bottom) { // at the ends of the curves, none over another as long as there is room
      named.sort(([, a], [, b]) => a.place - b.place);
      let lowest = bottom - 11 * (named.length - 1), before = top - 11;
      for (const [row, { look, place }] of named) {
        before = Math.max(before + 11, Math.min(place, lowest));
        lowest += 11;
        const at = { x: this.left + this.width + 5, y: before, class: `letter ${look}` };
        this.svg.append(svg("text", at, row.letter));
      }
    }

    axes(range, y, bottom, top, total) {
      for (const value of ticks(...range, 4)) {
        const at = y(value).toFixed(1);
        this.svg.append(svg("line", { class: "grid", x1: this.left, x2: this.left + this.width, y1: at, y2: at }));
        const text = String(Number(value.toPrecision(6)));
        this.svg.append(svg("text", { x: this.left - 6, y: Number(at) + 4, "text-anchor": "end" }, text));
      }
      this.svg.append(svg("line", { class: "axis", x1: this.left, x2: this.left, y1: top, y2: bottom }));
      const { from, to } = this.view;
      for (const step of ticks(from, Math.max(to, from + 1), Math.max(2, total / 110))) {
        if (!Number.isInteger(step) || step > to || this.x(step) > total - 50) continue;
        this.svg.append(svg("text", { x: this.x(step), y: bottom + 16, "text-anchor": "middle" }, step.toLocaleString("en-US")));
      }
      this.svg.append(svg("text", { x: total - 2, y: bottom + 16, "text-anchor": "end" }, "step"));
    }

    cursor() {
      if (!this.line) return;
      const at = this.x(this.view.step);
      this.line.setAttribute("x1", at);
      this.line.setAttribute("x2", at);
      if (this.start === null) this.selection.setAttribute("width", 0);
    }
  }

  class View { // the two charts of a group, with one cursor and one read-out
    constructor(place, group, number) {
      this.lines = group.rows.flatMap((row, index) => row.runs.map((run) => (
        { row, run, look: `line p-${row.platform} f-${row.framework} d-${index % 4}`, isShown: true })));
      this.group = group;
      const ends = this.lines.flatMap(({ run }) => [run.step_time_seconds.step[0], run.step_time_seconds.step.at(-1)]);
      const known = ends.filter((step) => step !== undefined);
      this.first = this.from = known.length ? known.reduce((a, b) => Math.min(a, b)) : 1;
      this.last = this.to = this.step = known.length ? known.reduce((a, b) => Math.max(a, b)) : 1;
      this.charts = SERIES.map((series) => new Chart(series, this, number));
      place.append(html("div", { className: "charts" }, ...this.charts.map((chart) => chart.figure)));
      place.append(this.controls(), this.readout());
      this.live = html("p", { className: "unseen" });
      this.live.setAttribute("aria-live", "polite");
      place.append(this.live);
      new ResizeObserver(() => this.draw()).observe(place);
      this.draw();
    }

    visible() { return this.lines.filter((line) => line.isShown); }

    controls() {
      this.slider = html("input", { type: "range", step: 1 });
      this.slider.addEventListener("input", () => this.go(Number(this.slider.value), true));
      this.now = html("output");
      this.bounds = ["from", "to"].map((name) => {
        const input = html("input", { type: "number", step: 1 });
        input.addEventListener("change", () => {
          const value = Math.round(Number(input.value));
          this.zoom(name === "from" ? value : this.from, name === "to" ? value : this.to);
        });
        return input;
      });
      const whole = html("button", { type: "button", textContent: "Whole run" });
      whole.addEventListener("click", () => this.zoom(this.first, this.last));
      this.each = html("input", { type: "checkbox", checked: this.lines.length <= FEW_LINES });
      this.each.addEventListener("change", () => this.fold());
      const hasRuns = this.lines.length > this.group.rows.length && this.lines.length <= MOST_LINES;
      const fold = hasRuns ? [html("label", {}, this.each, "List each run")] : [];
      return html("div", { className: "controls" },
        html("label", {}, "Step ", this.slider), this.now,
        html("label", {}, "Zoom from ", this.bounds[0]), html("label", {}, "to ", this.bounds[1]), whole,
        ...fold);
    }

    readout() {
      const perRun = this.lines.length <= MOST_LINES;
      this.entries = [];
      const body = html("tbody");
      for (const row of this.group.rows) {
        const mine = this.lines.filter((line) => line.row === row);
        body.append(this.entry(`${row.name} ${row.device}`, mine, "system"));
        if (perRun && mine.length > 1) for (const line of mine) body.append(this.entry(line.run.label, [line], "run"));
      }
      const titles = ["Shown", ...SERIES.map(({ title, unit }) => `${title} (${unit})`)];
      const head = html("tr", {}, ...titles.map((textContent, index) => (
        html("th", { scope: "col", textContent, className: index ? "number" : "" }))));
      const caption = html("caption", { className: "unseen", textContent: "Values at the step" });
      this.table = html("table", {}, caption, html("thead", {}, head), body);
      this.fold();
      const box = html("div", { className: "scroll", tabIndex: 0 }, this.table);
      box.setAttribute("role", "region");
      box.setAttribute("aria-label", "Values at the step");
      return box;
    }

    fold() { this.table.className = this.each.checked ? "readout" : "readout systems"; }

    entry(name, lines, kind) {
      const check = html("input", { type: "checkbox", checked: true });
      check.addEventListener("change", () => {
        for (const line of lines) line.isShown = check.checked;
        this.draw();
      });
      const label = html("label", {}, check);
      if (kind === "system") {
        const swatch = svg("svg", { class: `swatch ${lines[0].look}`, viewBox: "0 0 28 10", "aria-hidden": "true" });
        swatch.append(svg("path", { class: `curve ${lines[0].look}`, d: "M0 5H28" }));
        label.append(swatch);
      }
      label.append(html("span", { textContent: name }));
      const cells = SERIES.map(() => html("td", { className: "number" }));
      this.entries.push({ name, lines, check, cells });
      return html("tr", { className: kind }, html("th", { scope: "row" }, label), ...cells);
    }

    go(step, isAloud = false) {
      this.step = Math.min(this.to, Math.max(this.from, step));
      this.cursor();
      if (!isAloud) return;
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.announce(), 300);
    }

    zoom(from, to) {
      this.from = Math.max(this.first, Math.min(from, this.last));
      this.to = Math.min(this.last, Math.max(to, this.from));
      if (this.to === this.from && this.first < this.last) {
        if (this.to < this.last) this.to += 1; else this.from -= 1;
      }
      this.step = Math.min(this.to, Math.max(this.from, this.step));
      this.draw();
    }

    draw() {
      for (const chart of this.charts) chart.draw();
      for (const { check, lines } of this.entries) {
        const count = lines.filter((line) => line.isShown).length;
        check.checked = count > 0;
        check.indeterminate = count > 0 && count < lines.length;
      }
      this.cursor();
    }

    cursor() {
      for (const chart of this.charts) chart.cursor();
      Object.assign(this.slider, { min: this.from, max: this.to, value: this.step });
      this.bounds.forEach((input, index) => {
        Object.assign(input, { min: this.first, max: this.last, value: index ? this.to : this.from });
      });
      this.now.textContent = `${this.step.toLocaleString("en-US")} of ${this.last.toLocaleString("en-US")}`;
      for (const { lines, cells } of this.entries) {
        SERIES.forEach((series, index) => { cells[index].textContent = this.summary(lines, series); });
      }
    }

    summary(lines, series) {
      const values = lines.filter((line) => line.isShown).map(({ run }) => valueAt(run[series.key], this.step));
      const known = values.filter((value) => value !== null);
      if (!known.length) return "\u2013";
      if (known.length === 1) return shown(known[0]);
      const [low, high] = [known.reduce((a, b) => Math.min(a, b)), known.reduce((a, b) => Math.max(a, b))];
      return low === high ? shown(low) : `${shown(median(known))} (${shown(low)}\u2013${shown(high)})`;
    }

    announce() {
      const said = this.entries.filter(({ check }) => check.checked).slice(0, ANNOUNCED).map(({ name, cells }) => (
        `${name}: ${SERIES.map(({ unit }, index) => `${cells[index].textContent} ${unit}`).join(", ")}`));
      this.live.textContent = `Step ${this.step}. ${said.join("; ")}`;
    }
  }

  const views = [...document.querySelectorAll(".curves")].map((place) => (
    new View(place, data.groups[Number(place.dataset.group)], place.dataset.group)));

  // One tooltip for all figures: the title of a figure, shown on hover, focus and touch; Escape closes it.
  const tip = document.getElementById("tip");
  let owner = null;

  function closeTip() {
    if (!owner) return;
    owner.title = tip.textContent;
    owner.removeAttribute("aria-describedby");
    owner = null;
    tip.hidden = true;
  }

  function openTip(figure) {
    if (figure === owner) return;
    closeTip();
    owner = figure;
    tip.textContent = figure.title;
    figure.removeAttribute("title"); // or the browser would show its own as well
    figure.setAttribute("aria-describedby", "tip");
    tip.hidden = false;
    const box = figure.getBoundingClientRect(), room = document.documentElement.clientWidth;
    const above = box.top - tip.offsetHeight - 6;
    tip.style.left = `${Math.max(8, Math.min(box.right - tip.offsetWidth, room - tip.offsetWidth - 8))}px`;
    tip.style.top = `${above >= 0 ? above : box.bottom + 6}px`;
  }

  const figureOf = (event) => (event.target instanceof Element ? event.target.closest(".figure") : null);
  document.addEventListener("pointerover", (event) => (figureOf(event) ? openTip(figureOf(event)) : closeTip()));
  document.addEventListener("focusin", (event) => (figureOf(event) ? openTip(figureOf(event)) : closeTip()));
  document.addEventListener("click", (event) => { if (figureOf(event)) openTip(figureOf(event)); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") closeTip(); });
  document.addEventListener("scroll", closeTip, { capture: true, passive: true });

  // A table of figures is one stop of the Tab key; arrows, Home and End move inside it.
  for (const table of document.querySelectorAll(".metrics")) {
    const rows = [...table.rows].map((row) => [...row.querySelectorAll(".figure")]).filter((row) => row.length);
    table.setAttribute("role", "grid");
    rows.flat().forEach((figure, index) => { figure.tabIndex = index ? -1 : 0; });
    table.addEventListener("keydown", (event) => {
      const row = rows.findIndex((figures) => figures.includes(event.target));
      if (row < 0) return;
      const column = rows[row].indexOf(event.target), last = rows[row].length - 1;
      const target = {
        ArrowDown: [row + 1, column], ArrowUp: [row - 1, column], ArrowRight: [row, column + 1],
        ArrowLeft: [row, column - 1], Home: [row, 0], End: [row, last],
      }[event.key];
      const next = target && rows[target[0]] && rows[target[0]][target[1]];
      if (!target) return;
      event.preventDefault();
      if (!next) return;
      event.target.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    });
  }

  const download = document.getElementById("download");
  download.hidden = false;
  download.addEventListener("click", () => {
    const address = URL.createObjectURL(new Blob([JSON.stringify(data, null, 1)], { type: "application/json" }));
    const link = html("a", { href: address, download: "compare-data.json" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  });

  window.addEventListener("beforeprint", () => {
    for (const folded of document.querySelectorAll("details:not([open])")) {
      folded.open = true;
      folded.dataset.opened = "";
    }
    for (const view of views) view.draw();
  });
  window.addEventListener("afterprint", () => {
    for (const opened of document.querySelectorAll("details[data-opened]")) {
      opened.open = false;
      delete opened.dataset.opened;
    }
  });
})();
