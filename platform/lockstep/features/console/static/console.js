// The page: all streams at "/", one of them at "/streams/NAME". Facts come as server-sent events.

import { showAll } from "./overview.js";
import { showStream } from "./stream.js";
import { duration, moment } from "./format.js";
import { el } from "./draw.js";

const PATIENCE_SECONDS = 5;
const main = document.getElementById("main");
const link = document.getElementById("link");
const name = location.pathname.startsWith("/streams/") ? decodeURIComponent(location.pathname.slice(9)) : "";
let newest = 0; // monotonic time of the newest event or comment, in milliseconds
let offset = 0; // clock of the server minus that of this browser, in seconds

document.title = name ? `${name} – lockstep` : "lockstep";
if (name) document.getElementById("path").append(" / ", el("a", { href: location.pathname, "aria-current": "page" }, name));

const address = name ? `/api/streams/${encodeURIComponent(name)}/events` : "/api/events";
const events = new EventSource(address);
events.onmessage = (event) => {
  const { now, view } = JSON.parse(event.data);
  offset = now - Date.now() / 1000;
  newest = performance.now();
  (name ? showStream : showAll)(main, view, now);
  showAges();
};
events.onopen = () => {
  newest = performance.now();
};
events.onerror = async () => {
  if (events.readyState !== EventSource.CLOSED) return;
  const answer = await fetch(address).catch(() => null);
  const text = answer && answer.status === 404 ? `No stream is declared with the name ${name}.` : "The server refuses this page.";
  main.replaceChildren(el("p", {}, text, " ", el("a", { href: "/" }, "All streams")));
};

/** Elements with data-at show their age, which grows without an event. */
function showAges() {
  const now = Date.now() / 1000 + offset;
  for (const element of document.querySelectorAll("[data-at]")) {
    const at = Number(element.dataset.at);
    element.textContent = `${duration(Math.max(0, now - at))}${element.dataset.suffix || ""}`;
    element.title = moment(at);
  }
}

function showLink() {
  const isOpen = events.readyState === EventSource.OPEN;
  const silent = (performance.now() - newest) / 1000;
  const isLost = !isOpen && silent > PATIENCE_SECONDS;
  link.classList.toggle("lost", isLost);
  const text = isOpen ? "live" : isLost ? `no connection for ${duration(silent)}: lockstep console has ended, or cannot be reached` : "connecting";
  if (link.textContent !== text) link.textContent = text;
}

setInterval(() => {
  showAges();
  showLink();
}, 1000);
