// The two charts of a group and their shared controls: slider, zoom, boxes that hide runs, and the values at a step.

class View { // one cursor and one read-out for both charts
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
      const shape = MARKS[this.group.rows.indexOf(lines[0].row) % MARKS.length]([14, 5]);
      swatch.append(svg("path", { class: `mark ${lines[0].look}`, d: shape }));
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
    return low === high ? shown(low) : `${shown(median(known))}, min to max ${shown(low)} to ${shown(high)}`;
  }

  announce() {
    const values = this.entries.filter(({ check }) => check.checked).slice(0, ANNOUNCED).map(({ name, cells }) => (
      `${name}: ${SERIES.map(({ unit }, index) => `${cells[index].textContent} ${unit}`).join(", ")}`));
    this.live.textContent = `Step ${this.step}. ${values.join("; ")}`;
  }
}
