// Tells whether what is on the screen is up to date.

import { clockTime, setText, visible } from "./format.js";

const banner = document.getElementById("banner");
const pill = document.getElementById("link");

let stream = "the dashboard is being connected";
let store = { state: "reading", reason: null };
let wasLive = false;
let lostAt = 0;
let heardAt = Date.now();

export function streamIsLost(reason) {
  stream = reason;
  show();
}

export function heard() {
  heardAt = Date.now();
}

export function storeIs(news) {
  stream = null;
  store = news;
  show();
}

// A new view begins without knowledge.
export function begin() {
  store = { state: "reading", reason: null };
}

function trouble() {
  if (stream !== null) return stream;
  if (store.state === "connected") return null;
  if (store.state === "reading") return "the locks are being read";
  const state = store.state === "suspended" ? "the connection to the store is interrupted" : "the store is away";
  return store.reason ? `${state}: ${visible(store.reason)}` : state;
}

export function show() {
  const why = trouble();
  const isLive = why === null;
  if (isLive) wasLive = true;
  const isBeginning = !isLive && (!wasLive || (stream === null && store.state === "reading"));
  if (isLive || isBeginning) lostAt = 0;
  else lostAt ||= heardAt;
  document.body.dataset.link = isLive ? "live" : isBeginning ? "connecting" : "old";
  setText(pill, isLive ? "live" : isBeginning ? "connecting …" : "not live");
  const hint = isLive ? store.reason : null;
  banner.hidden = isLive ? !hint : isBeginning && stream === null;
  if (isLive) setText(banner, hint ? visible(hint) : "");
  else if (isBeginning) setText(banner, `Not connected yet: ${why}.`);
  else setText(banner, `This is old: it is from ${clockTime(lostAt)} or before, as ${why}. It is tried again by itself.`);
}
