"use strict";
document.documentElement.classList.add("js");

for (const compare of document.querySelectorAll("[data-compare]")) {
  const slider = compare.querySelector("input");
  const show = () => {
    compare.style.setProperty("--cut", slider.value + "%");
    slider.setAttribute("aria-valuetext", slider.value + " percent original");
  };
  slider.addEventListener("input", show);
  show();
}

const filter = document.getElementById("filter");
if (filter) {
  const cells = [...document.querySelectorAll("#cell-list > .cell")];
  const texts = cells.map((cell) => (cell.querySelector("summary") || cell).textContent.toLowerCase() + " " + cell.id);
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    cells.forEach((cell, index) => {
      cell.hidden = !words.every((word) => texts[index].includes(word));
      shown += !cell.hidden;
    });
    document.getElementById("shown").textContent = words.length ? shown + " of " + cells.length : "";
  });
}

// A link to a folded cell or finding opens it.
const open = () => {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target && target.tagName === "DETAILS") {
    target.open = true;
    target.scrollIntoView();
  }
};
window.addEventListener("hashchange", open);
open();

// On paper findings are open, cells stay folded: they would fill hundreds of pages.
const unfold = () => document.querySelectorAll("details.finding").forEach((one) => { one.open = true; });
window.addEventListener("beforeprint", unfold);
