"use strict";
// Sorting: a click on a heading sorts its table by that column, a second click turns it round.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th");
    const rows = head.closest("table").tBodies[0];
    const column = head.cellIndex;
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
    const compare = (a, b) => {
      const x = key(a), y = key(b);
      if (x === "" || y === "") return (x === "") - (y === "");  // what has no number stands last
      const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
      return up ? order : -order;
    };
    [...rows.rows].sort(compare).forEach((row) => rows.append(row));
  });
}

// The words of a mark: beside the pointer; of what has the focus, by keyboard or touch, beside it.
const tip = document.getElementById("tip");
const hide = () => { tip.style.display = "none"; };
const show = (mark, x, top, bottom) => {
  const room = 14;
  tip.style.display = "block";
  tip.textContent = mark.dataset.tip;
  tip.style.left = `${Math.max(room, Math.min(x, innerWidth - tip.offsetWidth - room))}px`;
  const below = bottom + room + tip.offsetHeight < innerHeight;
  tip.style.top = `${below ? bottom + room : Math.max(0, top - room - tip.offsetHeight)}px`;
};
document.addEventListener("pointermove", (event) => {
  const mark = event.target.closest("[data-tip]");
  if (mark) show(mark, event.clientX + 14, event.clientY, event.clientY);
  else hide();
});
document.addEventListener("focusin", (event) => {
  if (!event.target.matches("[data-tip]")) return;
  const box = event.target.getBoundingClientRect();
  show(event.target, box.left, box.top, box.bottom);
});
document.addEventListener("focusout", hide);
document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

// A chart or table is one stop of the Tab key; arrow keys lead from mark to mark.
for (const group of document.querySelectorAll("svg.chart, table")) {
  const marks = () => [...group.querySelectorAll("[data-tip]")];
  marks().forEach((mark, at) => {
    mark.setAttribute("tabindex", at ? -1 : 0);
    if (group.matches("table")) return;
    mark.setAttribute("role", "img");
    mark.setAttribute("aria-label", mark.dataset.tip);
  });
  group.addEventListener("keydown", (event) => {
    const by = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
    const every = marks(), at = every.indexOf(document.activeElement);
    if (!by || at < 0) return;
    event.preventDefault();
    const next = every[(at + by + every.length) % every.length];
    every[at].setAttribute("tabindex", -1);
    next.setAttribute("tabindex", 0);
    next.focus();
  });
}

document.addEventListener("pointerover", (event) => {
  const arm = event.target.closest("[data-arm]")?.dataset.arm;
  for (const mark of document.querySelectorAll(".lit")) mark.classList.remove("lit");
  document.body.classList.toggle("chosen", arm !== undefined);
  if (arm === undefined) return;
  for (const mark of document.querySelectorAll(`[data-arm="${CSS.escape(arm)}"]`)) mark.classList.add("lit");
});

// Buttons: a chart as SVG, a table as CSV, the LaTeX table.
const button = (after, words, act) => {
  const made = Object.assign(document.createElement("button"), {type: "button", className: "act", textContent: words});
  made.addEventListener("click", async () => {
    try {
      made.textContent = await act();
    } catch {
      made.textContent = "the browser refused";
    }
    setTimeout(() => { made.textContent = words; }, 2000);
  });
  after.after(made);
};
const copy = async (text) => { await navigator.clipboard.writeText(text); return "copied"; };
const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
const csv = (table) => [...table.rows].map((row) => [...row.cells].map((cell) => quoted(
  cell.dataset.value ?? (cell.querySelector("button") ?? cell).textContent.trim())).join(",")).join("\n");
for (const table of document.querySelectorAll("#arms, #seeds table"))
  button(table.parentElement, "Copy as CSV", () => copy(`${csv(table)}\n`));
for (const source of document.querySelectorAll("pre.copied"))
  button(source, "Copy LaTeX", () => copy(source.textContent));
for (const chart of document.querySelectorAll("svg.chart"))
  button(chart, "Save as SVG", () => {
    const page = getComputedStyle(document.documentElement), whole = chart.cloneNode(true);
    const box = chart.viewBox.baseVal, name = chart.getAttribute("aria-label").replace(/[^\w.=-]+/g, "_");
    const attributes = {xmlns: "http://www.w3.org/2000/svg", width: box.width, height: box.height,
      style: `background: var(--back); fill: var(--ink); font-family: ${getComputedStyle(document.body).fontFamily}`};
    for (const [key, value] of Object.entries(attributes)) whole.setAttribute(key, value);
    for (const text of whole.querySelectorAll("text")) text.style.fill ||= "var(--ink)";
    for (const mark of whole.querySelectorAll("*"))
      for (const key of ["tabindex", "role", "data-tip", "data-arm"]) mark.removeAttribute(key);
    // Charts of one figure share clips and markers, which stand in the first of them.
    for (const [, id] of whole.outerHTML.matchAll(/#([\w-]+)/g))
      if (!whole.querySelector(`[id="${id}"]`)) whole.append(document.getElementById(id)?.cloneNode(true) ?? "");
    const text = new XMLSerializer().serializeToString(whole)
      .replace(/var\((--[\w-]+)\)/g, (_, key) => page.getPropertyValue(key).trim());
    const address = URL.createObjectURL(new Blob([text], {type: "image/svg+xml"}));
    Object.assign(document.createElement("a"), {href: address, download: `${name}.svg`}).click();
    URL.revokeObjectURL(address);
    return "saved";
  });

// What is folded is printed, too.
const folded = document.querySelectorAll("details:not([open])");
addEventListener("beforeprint", () => folded.forEach((one) => { one.open = true; }));
addEventListener("afterprint", () => folded.forEach((one) => { one.open = false; }));
