
"use strict";
const root = document.documentElement;
root.classList.add("scripted");
const all = (selector, within = document) => [...within.querySelectorAll(selector)];

// Light or dark: the reader's system decides until the button is pressed.
const theme = document.querySelector(".theme");
const dark = matchMedia("(prefers-color-scheme: dark)");
const remembered = {
  get: () => { try { return localStorage.getItem("trustgp-theme"); } catch { return null; } },
  set: (name) => { try { localStorage.setItem("trustgp-theme", name); } catch { /* not kept, no harm */ } },
};
const isDark = () => (root.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
const label = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
if (["light", "dark"].includes(remembered.get())) root.dataset.theme = remembered.get();
theme.setAttribute("aria-label", "Change between light and dark");
theme.hidden = false;
theme.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  remembered.set(root.dataset.theme);
  label();
});
dark.addEventListener("change", label);
label();

// Tables: sort by a header (up, down, as it was), keep groups together or not, filter by words.
const words = new Intl.Collator("en", { numeric: true });
const UP = "ascending", DOWN = "descending", NONE = "none";

function compare(first, second, sign) {
  const rank = (cell) => ("gap" in cell.dataset ? 2 : "value" in cell.dataset ? 0 : 1); // numbers, text, gaps
  if (rank(first) !== rank(second)) return rank(first) - rank(second);
  if (rank(first) === 2) return 0;
  const difference = rank(first) === 0 ? first.dataset.value - second.dataset.value : 0;
  return sign * (difference || words.compare(first.textContent, second.textContent));
}

function prepare(section) {
  const table = section.querySelector("table");
  const bodies = [...table.tBodies];
  const groups = bodies.map((body) => all("tr:not(.group)", body));
  const rows = groups.flat();
  const headers = all("thead th", table);
  const grouping = section.querySelector(".grouping");
  const filter = section.querySelector(".filter");
  const count = section.querySelector("output");
  const home = new Map(rows.map((row, place) => [row, place]));

  function order() {
    const place = headers.findIndex((header) => header.ariaSort !== NONE);
    const sign = place >= 0 && headers[place].ariaSort === DOWN ? -1 : 1;
    const sorted = (some) => [...some].sort((a, b) =>
      (place >= 0 && compare(a.cells[place], b.cells[place], sign)) || home.get(a) - home.get(b));
    const together = !grouping || grouping.checked;
    table.classList.toggle("grouped", Boolean(grouping) && together);
    if (together) bodies.forEach((body, number) => body.append(...sorted(groups[number])));
    else bodies[0].append(...sorted(rows));
  }

  function sift() {
    const asked = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const text = row.textContent.toLowerCase(); // the group's name is in it too, as a hidden cell
      row.hidden = !asked.every((word) => text.includes(word));
    }
    bodies.forEach((body, number) => {
      const heading = body.querySelector(".group");
      if (heading) heading.hidden = groups[number].every((row) => row.hidden);
    });
    const shown = rows.filter((row) => !row.hidden).length;
    count.textContent = shown === rows.length ? `${shown} rows` : `${shown} of ${rows.length} rows`;
  }

  headers.forEach((header) => header.querySelector("button").addEventListener("click", () => {
    const next = { [NONE]: UP, [UP]: DOWN, [DOWN]: NONE }[header.ariaSort];
    headers.forEach((other) => { other.ariaSort = NONE; });
    header.ariaSort = next;
    order();
  }));
  grouping?.addEventListener("change", order);
  filter?.addEventListener("input", sift);
  const box = section.querySelector(".scroll");
  const measure = () => box.style.setProperty("--head", `${table.tHead.offsetHeight}px`); // a group's name stops there
  addEventListener("resize", measure);
  measure();
  box.addEventListener("scroll", () => box.classList.toggle("moved", box.scrollLeft > 0), { passive: true });
}
all("section.table").forEach(prepare);

// Figures: as large as the window; Escape or a click closes.
const dialog = document.querySelector("dialog");
all(".enlarge").forEach((button) => button.addEventListener("click", () => {
  const picture = button.querySelector("img");
  const large = dialog.querySelector("img");
  large.src = picture.src;
  large.alt = picture.alt;
  dialog.querySelector("p").textContent = button.parentElement.querySelector("figcaption strong").textContent;
  dialog.showModal();
}));
dialog.addEventListener("click", () => dialog.close());

// Commands: to the clipboard, or selected where that is not allowed.
all(".copy").forEach((button) => button.addEventListener("click", async () => {
  const code = button.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(code);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 1600);
}));

// Contents: mark the study that is being read.
const entries = new Map(all("nav > ol > li").map((entry) => [entry.firstElementChild.hash.slice(1), entry]));
const articles = all("article");
function mark() {
  const read = articles.findLast((article) => article.getBoundingClientRect().top < innerHeight / 3) ?? articles[0];
  entries.forEach((entry, name) => entry.classList.toggle("here", name === read.id));
}
addEventListener("scroll", mark, { passive: true });
addEventListener("resize", mark);
mark();
