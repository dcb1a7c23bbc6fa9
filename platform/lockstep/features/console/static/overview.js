// All streams.

import { el } from "./draw.js";
import { count, duration, plural, rate } from "./format.js";
import { findTone, makeAge, makeAlarm, makeBadge, refresh } from "./parts.js";

const items = new Map();
let list = null;
let summary = null;

export function showAll(main, cards) {
  if (list === null) {
    summary = el("p", { class: "dim", "aria-live": "polite" });
    list = el("ul", { class: "cards" });
    main.replaceChildren(el("h1", {}, "Streams"), summary, list);
  }
  refresh(summary, describe(cards), () => describe(cards));
  for (const card of cards) {
    if (!items.has(card.name)) items.set(card.name, el("li"));
    const item = items.get(card.name);
    item.className = `card ${findTone(card)}`;
    refresh(item, card, () => build(card));
  }
  const order = cards.map((card) => items.get(card.name));
  if (order.some((item, number) => list.children[number] !== item)) list.replaceChildren(...order);
}

function describe(cards) {
  if (!cards.length) return "No stream is declared in assets/ of the folder in which lockstep console runs.";
  const alarmed = cards.filter((card) => card.alarms.length).length;
  return `${plural(cards.length, "stream")}, ${alarmed ? `${alarmed} with alarms` : "none with an alarm"}`;
}

function build(card) {
  const [first, ...more] = card.alarms;
  return [
    el(
      "div",
      { class: "title" },
      el("h2", { style: null }, el("a", { href: `/streams/${encodeURIComponent(card.name)}` }, card.name)),
      makeBadge(card.state),
      card.reason && !first ? el("span", { class: "dim" }, card.reason) : null,
    ),
    first ? makeAlarm(first) : null,
    more.length ? el("p", { class: "dim" }, `and ${plural(more.length, "further alarm")}`) : null,
    el(
      "dl",
      { class: "figures" },
      makeFigure("behind", card.lag_messages === null ? "unknown" : plural(card.lag_messages, "message")),
      makeFigure("newest row's message", makeAge(card.newest_at)),
      makeFigure("messages/s", rate(card.messages)),
      makeFigure("rows/s", rate(card.rows)),
      makeFigure("time of a batch", card.batch_seconds === null ? "–" : duration(card.batch_seconds)),
      makeFigure("last commit", makeAge(card.committed_at)),
      makeFigure("topics", card.topics === null ? "unknown" : count(card.topics)),
    ),
  ];
}

function makeFigure(name, value) {
  return el("div", {}, el("dt", {}, name), el("dd", {}, value));
}
