// Elements, charts and the heat map. All text is set as text, never as HTML.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 320;
const HEIGHT = 110;
const LEFT = 46;
const BOTTOM = 16;

export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export function legend(items) {
  return el("p", { class: "legend" }, items.map(([name, color]) => {
    const mark = el("i");
    mark.style.background = `var(${color})`;
    return el("span", {}, mark, name);
  }));
}

function roundUp(value) {
  const scale = 10 ** Math.floor(Math.log10(value || 1));
  return [1, 2, 5, 10].map((step) => step * scale).find((step) => step >= value) || 1;
}

function frame(caption, top, format, seconds, marks) {
  const axis = [0, 0.5, 1].flatMap((part) => {
    const y = HEIGHT - BOTTOM - part * (HEIGHT - BOTTOM - 8);
    return [
      svg("line", { x1: LEFT, x2: WIDTH, y1: y, y2: y, stroke: "var(--line)" }),
      svg("text", { x: LEFT - 5, y: y + 4, "text-anchor": "end" }, format(top * part)),
    ];
  });
  const ends = [
    svg("text", { x: LEFT, y: HEIGHT - 2 }, `${seconds} s ago`),
    svg("text", { x: WIDTH, y: HEIGHT - 2, "text-anchor": "end" }, "now"),
  ];
  const attributes = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": caption };
  return el("figure", {}, el("figcaption", {}, caption), svg("svg", attributes, axis, marks, ends));
}

function place(age, value, seconds, top) {
  const x = LEFT + (WIDTH - LEFT) * (1 - age / seconds);
  const y = HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 8) * (value / top);
  return [x, y];
}

/** Lines over the last seconds. `lines`: [{name, color, points: [[age in seconds, value]]}]. */
export function drawLines(caption, lines, seconds, format) {
  const shown = lines.map((line) => ({ ...line, points: line.points.filter(([age]) => age <= seconds) }));
  const top = roundUp(Math.max(0, ...shown.flatMap((line) => line.points.map(([, value]) => value))));
  const marks = shown.map((line) => {
    const points = line.points.map(([age, value]) => place(age, value, seconds, top).map((n) => n.toFixed(1)).join(","));
    return svg("polyline", { points: points.join(" "), fill: "none", stroke: `var(${line.color})`, "stroke-width": 2 });
  });
  const figure = frame(caption, top, format, seconds, marks);
  figure.append(legend(shown.map((line) => [line.name, line.color])));
  return figure;
}

/** Stacked bars, one a batch. `bars`: [{age, parts: [value]}]; `names`: [[name, color]] of the parts. */
export function drawBars(caption, bars, names, seconds, format) {
  const shown = bars.filter((bar) => bar.age <= seconds);
  const top = roundUp(Math.max(0, ...shown.map((bar) => bar.parts.reduce((sum, part) => sum + part, 0))));
  const width = Math.max(1, Math.min(8, (WIDTH - LEFT) / Math.max(1, shown.length) - 0.5));
  const marks = shown.flatMap((bar) => {
    let below = 0;
    return bar.parts.map((part, number) => {
      const [x, y] = place(bar.age, below + part, seconds, top);
      const [, foot] = place(bar.age, below, seconds, top);
      below += part;
      return svg("rect", { x: x - width, y, width, height: Math.max(0, foot - y), fill: `var(${names[number][1]})` });
    });
  });
  const figure = frame(caption, top, format, seconds, marks);
  figure.append(legend(names));
  return figure;
}

/** The step of a value on the scale: the number of thresholds that it reaches. */
export function findStep(value, thresholds) {
  return thresholds.filter((threshold) => value >= threshold).length;
}

/** Draw cells {label, step} on a canvas as wide as its box; each is at least four pixels. Returns the columns. */
export function drawHeat(canvas, cells, chosen) {
  const styles = getComputedStyle(document.documentElement);
  const colors = [0, 1, 2, 3, 4, 5].map((step) => styles.getPropertyValue(`--h${step}`));
  const width = canvas.clientWidth || 320;
  const size = Math.max(4, Math.min(24, Math.floor(Math.sqrt((width * 220) / Math.max(1, cells.length)))));
  const columns = Math.max(1, Math.floor(width / size));
  canvas.width = columns * size;
  canvas.height = Math.ceil(cells.length / columns) * size || size;
  canvas.style.maxWidth = `${canvas.width}px`;
  const pen = canvas.getContext("2d");
  const gap = size > 6 ? 1.5 : 0.5;
  cells.forEach((cell, number) => {
    const x = (number % columns) * size;
    const y = Math.floor(number / columns) * size;
    pen.fillStyle = colors[cell.step];
    pen.fillRect(x, y, size - gap, size - gap);
    if (number === chosen) {
      pen.strokeStyle = styles.getPropertyValue("--ink");
      pen.lineWidth = 2;
      pen.strokeRect(x + 1, y + 1, size - gap - 2, size - gap - 2);
    }
  });
  return { columns, size };
}
