"use strict";
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

for (const button of all(".copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
}

for (const filter of all(".filter")) {
  const text = document.getElementById("filter");
  const only = document.getElementById("only");
  const rows = all(".matrix tbody tr");
  filter.hidden = false;
  const show = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const said = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => said.includes(word)) || !(only.value === "" || row.dataset.verdict === only.value);
    }
    document.getElementById("shown").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  };
  text.addEventListener("input", show);
  only.addEventListener("change", show);
}

const tip = document.getElementById("tip");
function read(plot) {
  const [layers, positions, rows] = plot.dataset.values.split("|");
  return { layers: layers.split(","), positions: positions.split(",").map(Number), rows: rows.split(";").map((row) => row.split(",")) };
}
function tell(plot, row, column) {
  const { layers, positions, rows } = read(plot);
  row = Math.min(Math.max(row, 0), rows.length - 1);
  column = Math.min(Math.max(column, 0), positions.length - 1);
  const to = positions[column + 1] - 1;
  const where = to > positions[column] ? `positions ${positions[column]} to ${to}` : `position ${positions[column]}`;
  const value = rows[row][column];
  tip.textContent = `${layers[row] ? `layer ${layers[row]}, ` : ""}${where}: ${value ? `${value} ${plot.dataset.unit}` : "no row"}`;
  tip.hidden = false;
  const box = plot.getBoundingClientRect();
  const x = box.left + ((column + 0.5) / positions.length) * box.width;
  const y = box.top + ((row + 0.5) / rows.length) * box.height;
  tip.style.left = `${Math.max(Math.min(x + 10, innerWidth - tip.offsetWidth - 4), 4)}px`;
  tip.style.top = `${y > 60 ? y - tip.offsetHeight - 8 : y + 14}px`;
  plot.dataset.at = `${row},${column}`;
}
const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
for (const plot of all(".plot")) {
  const at = () => (plot.dataset.at || "0,0").split(",").map(Number);
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    const { positions, rows } = read(plot);
    tell(plot, Math.floor(((event.clientY - box.top) / box.height) * rows.length), Math.floor(((event.clientX - box.left) / box.width) * positions.length));
  });
  plot.addEventListener("focus", () => plot.matches(":focus-visible") && tell(plot, ...at()));
  plot.addEventListener("keydown", (event) => {
    if (event.key === "Escape") tip.hidden = true;
    if (!steps[event.key]) return;
    event.preventDefault();
    const [row, column] = at();
    tell(plot, row + steps[event.key][0], column + steps[event.key][1]);
  });
  for (const gone of ["pointerleave", "blur"]) plot.addEventListener(gone, () => (tip.hidden = true));
}

function reveal() {
  const named = location.hash && document.getElementById(location.hash.slice(1));
  if (named && named.tagName === "DETAILS") {
    named.open = true; // what it lies in is opened by the browser
    named.scrollIntoView();
  }
}
addEventListener("hashchange", reveal);
reveal();

let closed = [];
addEventListener("beforeprint", () => {
  closed = all("details:not([open])");
  for (const one of closed) one.open = true;
});
addEventListener("afterprint", () => {
  for (const one of closed) one.open = false;
});
