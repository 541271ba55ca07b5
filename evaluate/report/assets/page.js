"use strict";
// Every page works without this script. It adds: tables that sort by a column and copy as CSV, and one tooltip that
// shows the formula of a figure on hover, focus and touch.

const textOf = (cell) => (cell.querySelector(".figure, small") ? cell.innerText.split("\n")[0] : cell.innerText).trim();
const numberOf = (text) => parseFloat(text.replaceAll(",", ""));

function compare(a, b) {
  const [x, y] = [numberOf(a), numberOf(b)];
  if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y) || a.localeCompare(b);
  return x - y;
}

function field(text) { // no cell of a spreadsheet may become a formula
  const safe = /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text.replaceAll(",", "").replace(/[x%]$/, ""))) ? `'${text}` : text;
  return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((head, place) => {
    if (body.rows.length < 2) return;
    const button = Object.assign(document.createElement("button"), { type: "button", className: "sort" });
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const isDescending = head.getAttribute("aria-sort") === "ascending";
      for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
      const rows = [...body.rows].sort((a, b) => compare(textOf(a.cells[place]), textOf(b.cells[place])));
      body.append(...(isDescending ? rows.reverse() : rows));
    });
  });
  const copy = Object.assign(document.createElement("button"), { type: "button", className: "copy", textContent: "Copy as CSV" });
  copy.setAttribute("aria-label", `Copy as CSV: ${table.caption.textContent}`);
  copy.addEventListener("click", async () => {
    const text = [...table.rows].map((row) => [...row.cells].map(textOf).map(field).join(",")).join("\n");
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = "Copied";
    } catch {
      copy.textContent = "The browser refused; select the table";
    }
  });
  table.parentNode.after(copy);
}

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
  figure.removeAttribute("title"); // otherwise the browser shows its own tooltip too
  figure.setAttribute("aria-describedby", "tip");
  tip.hidden = false;
  placeTip();
}

function placeTip() {
  const box = owner.getBoundingClientRect(), room = document.documentElement.clientWidth;
  const above = box.top - tip.offsetHeight - 6;
  tip.style.left = `${Math.max(8, Math.min(box.right - tip.offsetWidth, room - tip.offsetWidth - 8))}px`;
  tip.style.top = `${above >= 0 ? above : box.bottom + 6}px`;
}

const figureOf = (event) => (event.target instanceof Element ? event.target.closest(".figure") : null);
for (const name of ["pointerover", "focusin", "click"]) {
  document.addEventListener(name, (event) => { if (figureOf(event)) openTip(figureOf(event)); else if (name !== "click") closeTip(); });
}
document.addEventListener("keydown", (event) => { if (event.key === "Escape") closeTip(); });
document.addEventListener("scroll", () => { // a focused figure scrolls into view and keeps its tooltip
  if (owner && owner === document.activeElement) placeTip(); else closeTip();
}, { capture: true, passive: true });

// The figures of a table are one stop of the Tab key; arrows, Home and End move inside it.
for (const table of document.querySelectorAll("table")) {
  const grid = () => [...table.tBodies[0].rows].map((row) => [...row.querySelectorAll(".figure")]).filter((row) => row.length);
  grid().flat().forEach((figure, index) => { figure.tabIndex = index ? -1 : 0; });
  table.addEventListener("keydown", (event) => {
    const rows = grid(), row = rows.findIndex((figures) => figures.includes(event.target));
    if (row < 0) return;
    const column = rows[row].indexOf(event.target), last = rows[row].length - 1;
    const target = {
      ArrowDown: [row + 1, column], ArrowUp: [row - 1, column], ArrowRight: [row, column + 1],
      ArrowLeft: [row, column - 1], Home: [row, 0], End: [row, last],
    }[event.key];
    if (!target) return;
    event.preventDefault();
    const next = rows[target[0]] && rows[target[0]][target[1]];
    if (!next) return;
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
}
