// The heat map: one cell for each partition, or for each topic where there are very many; lag or age, by mouse and keys.

import { drawHeat, el, findStep, legend } from "./draw.js";
import { count, duration } from "./format.js";

const CELLS_MAX = 6000;
const LAGS = [1, 100, 1000, 10000, 100000];
const AGES = [5, 60, 600, 3600, 86400];
const SCALES = {
  lag: [["none behind", "--h0"], ["1", "--h1"], ["100", "--h2"], ["1,000", "--h3"], ["10,000", "--h4"], ["100,000 messages or more", "--h5"]],
  age: [["under 5 s", "--h0"], ["5 s", "--h1"], ["1 min", "--h2"], ["10 min", "--h3"], ["1 h", "--h4"], ["1 day or more, or no message", "--h5"]],
};

export function makeHeat() {
  const canvas = el("canvas", { class: "heat", tabindex: 0, role: "img" });
  const said = el("p", { class: "dim", "aria-live": "polite" }, "Point at a cell, or focus the map and use the arrow keys.");
  const scale = el("div");
  const heading = el("h2", {}, "Partitions");
  const state = { by: "lag", chosen: -1, topics: [], cells: [], now: 0, shape: { columns: 1, size: 1 } };
  const buttons = ["lag", "age"].map((by) => el("button", { type: "button", "aria-pressed": by === "lag", onclick: () => choose(by) }, by === "lag" ? "messages behind" : "age of the newest message"));
  const element = el("section", {}, heading, el("p", {}, buttons[0], " ", buttons[1]), canvas, scale, said);

  function choose(by) {
    state.by = by;
    buttons.forEach((button, number) => button.setAttribute("aria-pressed", String((number === 0) === (by === "lag"))));
    render();
  }

  function point(number) {
    if (!state.cells.length) return;
    state.chosen = Math.max(0, Math.min(state.cells.length - 1, number));
    render();
  }

  function render() {
    state.cells = listCells(state.topics, state.by, state.now);
    element.hidden = !state.cells.length;
    if (element.hidden) return;
    state.shape = drawHeat(canvas, state.cells, state.chosen);
    canvas.setAttribute("aria-label", describe(state.cells, state.by));
    scale.replaceChildren(legend(SCALES[state.by]));
    const cell = state.cells[state.chosen];
    if (cell && said.textContent !== cell.label) said.textContent = cell.label;
  }

  canvas.addEventListener("mousemove", (event) => {
    const ratio = canvas.width / canvas.clientWidth;
    const column = Math.floor((event.offsetX * ratio) / state.shape.size);
    const row = Math.floor((event.offsetY * ratio) / state.shape.size);
    const number = row * state.shape.columns + column;
    if (column < state.shape.columns && number < state.cells.length && number !== state.chosen) point(number);
  });
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -state.shape.columns, ArrowDown: state.shape.columns };
    if (!(event.key in steps)) return;
    event.preventDefault();
    point(state.chosen + steps[event.key]);
  });
  new ResizeObserver(render).observe(element);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", render);

  let before = "";
  return {
    element,
    update(topics, now) {
      const text = JSON.stringify(topics);
      if (text === before && (state.by === "lag" || now - state.now < 5)) return;
      before = text;
      state.topics = topics;
      state.now = now;
      render();
    },
  };
}

function listCells(topics, by, now) {
  const total = topics.reduce((sum, [, partitions]) => sum + partitions.length, 0);
  return topics.flatMap(([topic, partitions, lags, newest]) => {
    const cells = partitions.map((partition, number) => makeCell(`${topic}/${partition}`, lags[number], newest[number], by, now));
    if (total <= CELLS_MAX) return cells;
    const worst = cells.reduce((one, other) => (other.step > one.step ? other : one));
    return [{ ...worst, label: `${topic}, its worst partition ${worst.label}` }];
  });
}

function makeCell(place, lag, newest, by, now) {
  const age = newest ? Math.max(0, now - newest / 1000) : Infinity;
  const step = by === "lag" ? findStep(lag, LAGS) : findStep(age, AGES);
  const newestText = newest ? `newest message ${duration(age)} ago` : "no message yet";
  return { step, label: `${place}: ${count(lag)} behind, ${newestText}` };
}

function describe(cells, by) {
  const bad = cells.filter((cell) => cell.step >= 3).length;
  const limit = by === "lag" ? "1,000 messages or more behind" : "without a message for 10 minutes or more";
  return `${count(cells.length)} cells, ${count(bad)} of them ${limit}`;
}
