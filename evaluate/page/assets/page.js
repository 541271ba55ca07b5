// The whole page: views, tooltips, keyboard navigation, and the download.

for (const place of document.querySelectorAll(".curves")) {
  new View(place, data.groups[Number(place.dataset.group)], place.dataset.group);
}

// One tooltip for all figures: it shows the title of a figure on hover, focus and touch; Escape closes it.
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
document.addEventListener("pointerover", (event) => (figureOf(event) ? openTip(figureOf(event)) : closeTip()));
document.addEventListener("focusin", (event) => (figureOf(event) ? openTip(figureOf(event)) : closeTip()));
document.addEventListener("click", (event) => { if (figureOf(event)) openTip(figureOf(event)); });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") closeTip(); });
document.addEventListener("scroll", () => { // a focused figure scrolls into view and keeps its tooltip
  if (owner && owner === document.activeElement) placeTip(); else closeTip();
}, { capture: true, passive: true });

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
