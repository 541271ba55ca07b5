// One chart: axes, the curves of the visible runs, a cursor, and zoom by dragging.

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
    const rows = this.view.group.rows;
    for (const { row, run, look } of lines) {
      const curve = run[this.series.key];
      inside.append(svg("path", { class: `curve ${look}`, d: outline(curve, from, to, this.x, y, this.width) }));
      const shapes = marks(curve, rows.indexOf(row), rows.length, from, to, this.x, y);
      inside.append(svg("path", { class: `mark ${look}`, d: shapes }));
      const last = Math.min(curve.step.length, firstAt(curve.step, to + 1)) - 1;
      if (last >= 0 && !named.has(row)) named.set(row, { look, place: y(curve.value[last]) + 4 });
    }
    this.letters([...named], top + 8, bottom);
    this.line = svg("line", { class: "cursor", y1: top, y2: bottom });
    this.selection = svg("rect", { class: "zoom", y: top, height: bottom - top, width: 0 });
    this.svg.append(this.line, this.selection);
    this.cursor();
  }

  letters(named, top, bottom) { // at the ends of the curves, without overlap
    if (11 * named.length > bottom - top) return; // no room; the table below has the letters with colours and dashes
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
