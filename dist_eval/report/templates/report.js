"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
  if (!data.rows.length) return;
  const [list, template, search, label, prediction] = ["list", "row", "search", "filter-label", "filter-prediction"].map(byId);
  data.rows.forEach((row) => [1, 2].forEach((column) => { row[column] = row[column].replace(/\r\n?/g, "\n"); }));  // as HTML does
  const haystacks = data.rows.map((row) => row.join("\n").toLowerCase());
  let found = [], page = 0;

  const element = (row) => {
    const item = template.content.firstElementChild.cloneNode(true);
    ["position", "label", "prediction", "score", "text"].forEach((name, column) => {
      item.querySelector("." + name).textContent = row[column];
    });
    return item;
  };
  const pairs = [...document.querySelectorAll(".filters-mistakes tbody tr")].map((row) => {
    const [label, prediction, count] = [...row.cells].map((cell) => cell.textContent);
    return { row, label, prediction, count };
  });
  const left = () => {
    const pair = pairs.find((one) => chosen(label) === one.label && chosen(prediction) === one.prediction);
    const here = pair && data.rows.filter((row) => row[1] === pair.label && row[2] === pair.prediction).length;
    return pair && here < pair.count ? `; ${here} of ${pair.count} are in this file` : "";
  };
  const show = () => {
    const start = page * data.page_size, stop = Math.min(start + data.page_size, found.length);
    list.replaceChildren(...found.slice(start, stop).map((number) => element(data.rows[number])));
    byId("where").textContent = (found.length ? `${start + 1} to ${stop} of ${found.length}` : "Nothing found") + left();
    byId("previous").disabled = page === 0;
    byId("next").disabled = stop === found.length;
  };
  const filter = () => {
    const words = search.value.trim().toLowerCase();
    const fits = (row, number) => (!words || haystacks[number].includes(words))
      && [label, prediction].every((select, place) => [undefined, row[1 + place]].includes(chosen(select)));
    found = data.rows.flatMap((row, number) => fits(row, number) ? [number] : []);
    page = 0;
    show();
  };
  const turn = (step) => {
    page += step;
    show();
    byId("mistakes").scrollIntoView();
  };
  const names = [];  // names of classes, by the value of their options: a name may be empty
  const add = (select, name) => select.append(new Option(name, names.push(name)));
  const chosen = (select) => names[select.value - 1];
  const choose = (select, name) => {
    const find = () => [...select.options].find((option) => names[option.value - 1] === name);
    if (!find()) add(select, name);
    select.value = find().value;
  };
  const fill = (select, column) => {
    const values = [...new Set(data.rows.map((row) => row[column]))].sort();
    if (values.length > data.most_choices) {
      select.parentElement.hidden = true;
      return;
    }
    values.forEach((value) => add(select, value));
  };

  fill(label, 1);
  fill(prediction, 2);
  [search, label, prediction].forEach((one) => one.addEventListener("input", filter));
  document.querySelector(".filters").addEventListener("submit", (event) => event.preventDefault());
  byId("reset").addEventListener("click", () => {
    search.value = label.value = prediction.value = "";
    filter();
  });
  byId("previous").addEventListener("click", () => turn(-1));
  byId("next").addEventListener("click", () => turn(1));
  pairs.forEach((pair) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "show";
    button.textContent = "show";
    button.setAttribute("aria-label", `Show mistakes: ${pair.label} taken for ${pair.prediction}`);
    button.addEventListener("click", () => {
      search.value = "";
      choose(label, pair.label);
      choose(prediction, pair.prediction);
      filter();
      byId("mistakes").scrollIntoView();
      search.focus({ preventScroll: true });
    });
    pair.row.cells[3].append(" ", button);
  });
  document.querySelectorAll(".filters, .pages").forEach((one) => { one.hidden = false; });
  filter();
})();
