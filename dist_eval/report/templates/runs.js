"use strict";
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const bar = document.querySelector(".chosen"), words = document.getElementById("chosen-words");
  let chosen = [];

  const sort = (table, head, column) => {
    const isUp = (head.getAttribute("aria-sort") || (head.dataset.sort === "up" ? "descending" : "ascending")) !== "ascending";
    const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
    const compare = (one, other) => {
      const [a, b] = [value(one), value(other)];
      if (a === "" || b === "") return (a === "") - (b === "");
      return (isUp ? 1 : -1) * (a - b || a.localeCompare(b, undefined, { numeric: true }));
    };
    all("th[aria-sort]", table).forEach((one) => one.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", isUp ? "ascending" : "descending");
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
  };
  all("table.sortable").forEach((table) => all("th[data-sort]", table).forEach((head) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => sort(table, head, head.cellIndex));
  }));

  const rowOf = (number) => document.querySelector(`tr[data-run="${number}"]`);
  const nameOf = (number) => rowOf(number).dataset.name;
  const copyOf = (table) => {
    const wide = table.closest(".wide").cloneNode(true);
    wide.removeAttribute("aria-label");
    all("tbody tr", wide).forEach((row) => {
      if (!chosen.includes(row.dataset.run ?? row.dataset.optionsOf)) row.remove();
      delete row.dataset.run;
      row.classList.remove("is-chosen");
    });
    all(".choose", wide).forEach((box) => box.remove());
    all("th button", wide).forEach((button) => button.replaceWith(...button.childNodes));
    all("th", wide).forEach((head) => ["aria-sort", "data-sort"].forEach((one) => head.removeAttribute(one)));
    return wide;
  };
  const showUntested = (section) => {
    const place = section.querySelector(".untested");
    place.replaceChildren(...all("table.sortable", section).map(copyOf));
    place.hidden = false;
    place.scrollIntoView({ block: "nearest" });
  };
  const show = () => {
    all(".untested").forEach((one) => { one.hidden = true; one.replaceChildren(); });
    all("tr[data-run]").forEach((row) => {
      const isChosen = chosen.includes(row.dataset.run);
      row.querySelector("input").checked = isChosen;
      row.classList.toggle("is-chosen", isChosen);
    });
    const found = all(".pair").filter((pair) => {
      const runs = pair.dataset.runs.split(" "), isMeant = chosen.every((number) => runs.includes(number));
      pair.hidden = !isMeant && chosen.some((number) => pair.closest("section").contains(rowOf(number)));
      return isMeant;
    });
    bar.hidden = chosen.length === 0;
    if (chosen.length === 1) words.textContent = `${nameOf(chosen[0])}: choose a second run.`;
    if (chosen.length < 2) return;
    const [one, other] = chosen.map(nameOf), isOneTable = new Set(chosen.map((number) => rowOf(number).closest("table"))).size === 1;
    if (found.length) {
      words.textContent = `${one} and ${other}: side by side under Pairs.`;
      found[0].open = true;
      found[0].scrollIntoView({ block: "nearest" });
    } else if (isOneTable) {
      words.textContent = `${one} and ${other}: side by side under Pairs; their test is printed by dist-eval compare.`;
      showUntested(rowOf(chosen[0]).closest("section"));
    } else words.textContent = `${one} and ${other} are on other data: they cannot be compared.`;
  };
  all(".choose").forEach((box) => box.addEventListener("input", () => {
    const { run } = box.closest("tr").dataset;
    chosen = box.checked ? [...chosen, run].slice(-2) : chosen.filter((number) => number !== run);
    show();
  }));
  document.getElementById("clear").addEventListener("click", () => {
    chosen = [];
    show();
  });
  all(".choose, .scripts").forEach((one) => { one.hidden = false; });
})();
