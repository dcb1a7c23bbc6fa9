// One stream.

import { drawBars, drawLines, el } from "./draw.js";
import { bytes, count, duration, moment, plural, rate } from "./format.js";
import { makeHeat } from "./heat.js";
import { makeAge, makeAlarm, makeBadge, makeCommand, refresh } from "./parts.js";

const SECONDS = 120;
// Fields of a batch in a report (control/live_report.py).
const [AT, MESSAGES, ROWS, PLAN, TASKS, CHECKS, COMMIT, FRESHNESS] = [1, 2, 3, 5, 6, 7, 8, 11];
const PHASES = [["plan", "--c0"], ["tasks", "--c1"], ["checks with Kafka", "--c3"], ["commit", "--c2"]];
const OUTCOMES = { passed: "good", failed: "bad", "check crashed": "bad" };
const SHOWN_LAGS = 10;
let parts = null;

export function showStream(main, view, now) {
  if (parts === null) parts = makeParts(main);
  const { card, detail, declared } = view;
  const name = declared.name;
  refresh(parts.title, [name, card.state, declared.description], () => [
    el("div", { class: "title" }, el("h1", {}, name), makeBadge(card.state)),
    declared.description ? el("p", { class: "dim" }, declared.description) : null,
  ]);
  refresh(parts.alarms, [card.alarms, card.reason], () => showAlarms(card));
  refresh(parts.answers, { ...view, batches: null, detail: null, topics: view.topics.length }, () => showAnswers(view));
  refresh(parts.charts, view.batches, () => showCharts(view.batches, now));
  parts.heat.update(view.topics, now);
  refresh(parts.lags, view.topics.map(([topic, , lags]) => [topic, lags]), () => showLags(view.topics));
  refresh(parts.disk, [detail.growth], () => showDisk(detail.growth));
  refresh(parts.quarantine, [detail.quarantine, detail.quarantine_more], () => showQuarantine(name, detail));
  refresh(parts.checks, [detail.check, detail.proof], () => showChecks(name, detail));
  refresh(parts.history, [detail.history, detail.problem], () => showHistory(name, detail));
}

function makeParts(main) {
  const heat = makeHeat();
  const found = { heat };
  for (const part of ["title", "answers", "charts", "lags", "disk", "quarantine", "checks", "history"]) {
    found[part] = el("section");
  }
  found.alarms = el("section", { "aria-live": "polite", "aria-label": "Alarms" });
  const { title, alarms, answers, charts, lags, disk, quarantine, checks, history } = found;
  main.replaceChildren(title, alarms, answers, charts, heat.element, lags, quarantine, checks, disk, history);
  return found;
}

function showAlarms(card) {
  if (card.alarms.length) return card.alarms.map(makeAlarm);
  return card.reason ? el("p", {}, card.reason) : el("p", { class: "good" }, "No alarm.");
}

function showAnswers(view) {
  const { card, complete } = view;
  
  return el(
    "div",
    { class: "tiles" },
    makeTile("Which topics are read?", card.topics === null ? "unknown" : plural(card.topics, "topic"), [
      view.declared.topics,
      view.waiting.length ? `not read yet: ${view.waiting.slice(0, 5).join(", ")}${view.waiting.length > 5 ? " …" : ""}` : null,
    ]),
    makeTile("How far behind?", card.lag_messages === null ? "unknown" : plural(card.lag_messages, "message"), [
      el("span", {}, "newest row's message: ", makeAge(card.newest_at)),
      view.headroom_seconds === null ? null : `Kafka deletes the first unread message in ${duration(view.headroom_seconds)}`,
    ]),
    makeTile("Is it complete?", complete === null ? "unknown" : complete.is_complete ? "yes" : "no", [
      complete === null ? null : complete.sentence,
      view.declared.integrity,
    ], complete === null ? "" : complete.is_complete ? "good" : "bad"),
    makeTile("Why the last start?", view.claimed_at === null ? "never" : makeAge(view.claimed_at), [
      view.cause,
      view.epoch === null ? null : `epoch ${view.epoch}, run ${view.run_id || "by hand"}`,
    ]),
    makeTile("How fast?", card.messages === null ? "–" : `${rate(card.messages)} messages/s`, [
      card.rows === null ? null : `${rate(card.rows)} rows/s`,
      card.batch_seconds === null ? null : `${duration(card.batch_seconds)} a batch, ${card.cpu_cores.toFixed(2)} cores for tasks`,
      view.declared.trigger,
    ]),
    makeTile("Last commit", makeAge(card.committed_at), [`batch ${count(view.batch)}, generation ${view.generation}`]),
  );
}

function makeTile(question, answer, lines, tone = "") {
  return el(
    "div",
    { class: "tile" },
    el("h3", {}, question),
    el("p", { class: `big ${tone}` }, answer),
    lines.filter(Boolean).map((line) => el("p", { class: "dim" }, line)),
  );
}

function showCharts(batches, now) {
  const ages = batches.map((batch) => [Math.max(0, now - batch[AT]), batch]);
  const rates = (field) => ages.slice(1).map(([age, batch], number) => {
    const seconds = Math.max(0.05, batch[AT] - batches[number][AT]);
    return [age, batch[field] / seconds];
  });
  const fresh = ages.filter(([, batch]) => batch[FRESHNESS] !== null).map(([age, batch]) => [age, batch[FRESHNESS]]);
  const bars = ages.map(([age, batch]) => ({ age, parts: [batch[PLAN], batch[TASKS], batch[CHECKS], batch[COMMIT]] }));
  return [
    el("h2", {}, "The last two minutes"),
    el(
      "div",
      { class: "charts" },
      drawLines("per second", [
        { name: "messages", color: "--c0", points: rates(MESSAGES) },
        { name: "rows", color: "--c1", points: rates(ROWS) },
      ], SECONDS, (value) => count(Math.round(value))),
      drawLines("age of a batch's newest message at its commit", [{ name: "latency", color: "--c3", points: fresh }], SECONDS, duration),
      drawBars("time of a batch by phase", bars, PHASES, SECONDS, duration),
    ),
  ];
}

function showLags(topics) {
  const lags = topics
    .map(([topic, partitions, behind]) => [topic, partitions.length, behind.reduce((sum, each) => sum + each, 0)])
    .sort((one, other) => other[2] - one[2] || one[0].localeCompare(other[0]));
  if (!lags.length) return [];
  const table = makeTable(["topic", "partitions", "messages behind"], lags.slice(0, SHOWN_LAGS).map(([topic, partitions, lag]) => [topic, count(partitions), count(lag)]), [1, 2]);
  return [table, lags.length > SHOWN_LAGS ? el("p", { class: "dim" }, `and ${plural(lags.length - SHOWN_LAGS, "topic")} with less`) : null];
}

function showDisk(growth) {
  if (growth === null) return [];
  const rows = growth.kinds.map((kind) => [kind.kind, count(kind.files), bytes(kind.bytes), kind.bytes_in_30_days === null ? "unknown" : bytes(kind.bytes_in_30_days)]);
  return [
    el("h2", {}, "State and disk"),
    makeTable(["files of", "number", "size", "in 30 days"], rows, [1, 2, 3]),
    el("p", { class: "dim" }, `measured ${growth.measured_at.replace("T", " ").slice(0, 16)} UTC by housekeeping`),
  ];
}

function showQuarantine(name, detail) {
  if (!detail.quarantine.length) return [];
  const groups = detail.quarantine.map((group) => {
    const place = `${group.topic}/${group.partition}@${group.first_offset}`;
    return el(
      "div",
      { class: "alarm warn" },
      el("p", {}, el("strong", {}, group.cause), ` – ${plural(group.messages, "message")} of ${group.topic}/${group.partition}`, group.session === null ? "" : `, session ${group.session}`),
      el("p", {}, makeMessageButton(name, group), " ", makeCommand(`lockstep quarantine show ${name} ${place}`)),
      el("p", {}, "Apply again, once the code is correct: ", makeCommand(`lockstep rewind ${name} --to ${place} --plan`)),
    );
  });
  const more = detail.quarantine_more ? el("p", { class: "dim" }, `and ${plural(detail.quarantine_more, "group")}: `, makeCommand(`lockstep quarantine list ${name}`)) : null;
  return [el("h2", {}, `Quarantine: ${plural(detail.quarantine_messages, "message")}`), ...groups, more];
}

function makeMessageButton(name, group) {
  const box = el("pre", { hidden: "" });
  const path = [group.topic, group.partition, group.first_offset].map(encodeURIComponent).join("/");
  const button = el("button", { type: "button", "aria-expanded": "false" }, "message");
  button.addEventListener("click", async () => {
    if (box.hidden && !box.textContent) {
      const answer = await fetch(`/api/streams/${encodeURIComponent(name)}/quarantine/${path}`).catch(() => null);
      box.textContent = answer === null ? "no connection" : await answer.text();
    }
    box.hidden = !box.hidden;
    button.setAttribute("aria-expanded", String(!box.hidden));
  });
  return el("span", {}, button, box);
}

function showChecks(name, { check, proof }) {
  const proven = proof === null
    ? el("p", {}, "Not verified yet. ", makeCommand(`lockstep verify ${name}`))
    : el("p", { class: proof.status === "proven" ? "good" : "bad" }, `lockstep verify: ${proof.status} up to batch ${count(proof.batch)}, `, makeAge(proof.at), proof.violations ? `, ${plural(proof.violations, "violation")}` : "");
  const heading = el("h2", {}, "Checks and proof");
  if (check === null) return [heading, proven, el("p", {}, "Not checked yet. ", makeCommand(`lockstep check ${name}`))];
  const rows = check.rules.map((rule) => [el("span", { class: OUTCOMES[rule.outcome] || "dim" }, rule.outcome), rule.rule, rule.reason || rule.sentence]);
  return [heading, proven, el("p", { class: "dim" }, "last check: ", makeAge(check.at)), makeTable(["outcome", "rule", "promise"], rows)];
}

function showHistory(name, { history, problem }) {
  const tone = (event) => (/halt|foreign/.test(event.event) ? "bad" : /writer|resum/.test(event.event) ? "good" : "");
  const items = [...history].reverse().map((event) =>
    el(
      "li",
      { class: tone(event) },
      el("time", {}, event.at === null ? "unknown" : moment(Date.parse(event.at) / 1000)),
      el("strong", {}, event.count > 1 ? `${count(event.count)} ${event.event}` : event.event),
      event.batch === null ? "" : ` (batch ${count(event.batch)}, epoch ${event.epoch})`,
      event.detail ? ` – ${event.detail}` : "",
    ),
  );
  if (!items.length && !problem) return [];
  return [el("h2", {}, "History"), problem ? el("p", { class: "bad" }, problem) : null, el("ol", { class: "timeline", reversed: "" }, items), makeCommand(`lockstep history ${name}`)];
}

function makeTable(columns, rows, numeric = []) {
  const last = columns.length - 1;
  const kind = (number) => (numeric.includes(number) ? "num" : number === last ? "text" : null);
  return el(
    "div",
    { class: "wide" },
    el(
      "table",
      {},
      el("thead", {}, el("tr", {}, columns.map((column, number) => el("th", { class: kind(number), scope: "col" }, column)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, number) => el("td", { class: kind(number) }, cell))))),
    ),
  );
}
