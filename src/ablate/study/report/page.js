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

// Hovering: the words of a mark beside the pointer, and its arm brought out in every chart.
const tip = document.getElementById("tip");
document.addEventListener("pointermove", (event) => {
  const mark = event.target.closest("[data-tip]");
  tip.style.display = mark ? "block" : "none";
  if (!mark) return;
  tip.textContent = mark.dataset.tip;
  const room = 14;
  const left = Math.min(event.clientX + room, innerWidth - tip.offsetWidth - room);
  const below = event.clientY + room + tip.offsetHeight < innerHeight;
  tip.style.left = `${Math.max(room, left)}px`;
  tip.style.top = `${below ? event.clientY + room : event.clientY - room - tip.offsetHeight}px`;
});
document.addEventListener("pointerover", (event) => {
  const arm = event.target.closest("[data-arm]")?.dataset.arm;
  for (const mark of document.querySelectorAll(".lit")) mark.classList.remove("lit");
  document.body.classList.toggle("chosen", arm !== undefined);
  if (arm === undefined) return;
  for (const mark of document.querySelectorAll(`[data-arm="${CSS.escape(arm)}"]`)) mark.classList.add("lit");
});
