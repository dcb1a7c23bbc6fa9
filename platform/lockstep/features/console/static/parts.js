// Parts that both views use.

import { el } from "./draw.js";

const STATES = {
  running: "good",
  starting: "warn",
  degraded: "bad",
  halted: "bad",
  "no writer": "bad",
  unreadable: "bad",
};

/** The class of a card: that of its state, or of its worst alarm. */
export function findTone(card) {
  if (STATES[card.state] === "bad" || card.alarms.some((alarm) => alarm.severity === "error")) return "bad";
  return card.alarms.length ? "warn" : STATES[card.state] || "off";
}

export function makeBadge(state) {
  return el("span", { class: `badge ${STATES[state] || "off"}` }, state);
}

/** An age that grows by itself: see console.js. */
export function makeAge(at, suffix = " ago") {
  return at === null || at === undefined ? "unknown" : el("time", { "data-at": at, "data-suffix": suffix });
}

export function makeCommand(text) {
  const button = el("button", { type: "button", "aria-label": `Copy: ${text}` }, "copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch {
      button.textContent = "select it and copy by hand";
    }
    setTimeout(() => (button.textContent = "copy"), 2000);
  });
  return el("span", { class: "command" }, el("code", {}, text), button);
}

const COMMAND = /lockstep [a-z][a-z-]*(?: (?:'[^']*'|[^\s,;()']+))*/g;

/** The commands of a sentence as code with a button each, and its other words as text. */
export function splitCommands(text) {
  const parts = [];
  let end = 0;
  for (const found of text.matchAll(COMMAND)) {
    parts.push(text.slice(end, found.index), makeCommand(found[0]));
    end = found.index + found[0].length;
  }
  return [...parts, text.slice(end)].filter((part) => part !== "");
}

export function makeAlarm(alarm) {
  const tone = alarm.severity === "error" ? "bad" : "warn";
  return el(
    "div",
    { class: `alarm ${tone}` },
    el("p", {}, el("strong", { class: tone }, `${alarm.severity}: ${alarm.kind}`), ` – ${alarm.problem}`),
    alarm.next_step ? el("p", {}, "Next: ", splitCommands(alarm.next_step)) : null,
  );
}

const shown = new WeakMap();

/** Build the content of an element again if its facts have changed: focus and selection stay otherwise. */
export function refresh(element, facts, build) {
  const text = JSON.stringify(facts);
  if (shown.get(element) === text) return;
  shown.set(element, text);
  element.replaceChildren(...[build()].flat().filter((child) => child !== null));
}
