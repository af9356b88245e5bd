// One lock: its holders and those who wait, in order.

import { counted, dateTime, duration, heldFor, number, overdueBy, place, role, setText, visible, visibleLines } from "./format.js";
import * as link from "./link.js";
import * as revoke from "./revoke.js";
import { Stream } from "./stream.js";

const LIMIT = 100;
// An idle stream has a comment each 15 s.
const SILENCE_MS = 25_000;
// Places of the picture of the queue, and of the holders in it.
const MAX_SQUARES = 60;
const MAX_HOLDERS = 6;

const title = document.getElementById("lock-path");
const summary = document.getElementById("lock-summary");
const queue = document.getElementById("queue");
const strip = document.getElementById("strip");
const legend = document.getElementById("legend");
const gone = document.getElementById("gone");
const unreadable = document.getElementById("unreadable");
const pager = document.getElementById("queue-pager");
const range = document.getElementById("queue-range");
const previous = document.getElementById("queue-prev");
const next = document.getElementById("queue-next");
const template = document.getElementById("entry");

let path = null;
let offset = 0;
let stream = null;
let news = null;
let receivedAt = 0;
let unauthorized = async () => {};
const items = new Map();

export function open(asked, onUnauthorized) {
  path = asked;
  offset = 0;
  news = null;
  unauthorized = onUnauthorized;
  setText(title, visible(path));
  setText(summary, "");
  queue.replaceChildren();
  items.clear();
  for (const part of [strip, legend, gone, unreadable, pager]) part.hidden = true;
  watch();
}

export function close() {
  stream?.close();
  stream = null;
  path = null;
}

function watch() {
  stream?.close();
  const asked = new URLSearchParams({ path, offset, limit: LIMIT });
  stream = new Stream(`api/lock?${asked}`, SILENCE_MS, {
    lock: show,
    unreadable: ({ error }) => {
      unreadable.hidden = false;
      setText(unreadable, `The queue cannot be read: ${visible(error)}`);
    },
    store: link.storeIs,
    heard: link.heard,
    lost: link.streamIsLost,
    unauthorized,
  });
}

function show(lock) {
  news = lock;
  receivedAt = performance.now();
  offset = lock.offset;
  unreadable.hidden = true;
  setText(title, visible(lock.lock));
  title.title = visible(lock.path);
  gone.hidden = lock.exists;
  const counts = `${counted(lock.holder_count, "holder")} · ${number(lock.waiters)} waiting`;
  setText(summary, lock.exists ? `${lock.kind} · ${counts}` : lock.kind);
  showEntries(lock);
  showStrip(lock);
  const last = offset + lock.queue.length;
  pager.hidden = lock.waiters <= lock.queue.length;
  setText(range, `waiters ${number(offset + 1)}–${number(last)} of ${number(lock.waiters)}`);
  previous.disabled = offset === 0;
  next.disabled = last >= lock.waiters;
  revoke.holdersAre(lock);
}

// What the dashboard allows was told only now.
export function showAgain() {
  if (news) showEntries(news);
}

function showEntries(lock) {
  const focused = document.activeElement;
  const entries = [...lock.holders, ...lock.queue];
  const wanted = new Set(entries.map(key));
  for (const [known, item] of items) {
    if (wanted.has(known)) continue;
    item.remove();
    items.delete(known);
  }
  entries.forEach((entry, at) => {
    let item = items.get(key(entry));
    if (!item) {
      item = template.content.firstElementChild.cloneNode(true);
      item.dataset.entry = entry.entry;
      item.querySelector("[data-revoke]").addEventListener("click", () => revoke.ask(news, item.holder));
      items.set(key(entry), item);
    }
    if (queue.children[at] !== item) queue.insertBefore(item, queue.children[at] ?? null);
    fill(item, entry, lock);
  });
  // An entry that was moved has lost the focus.
  if (queue.contains(focused) && document.activeElement !== focused) focused.focus({ preventScroll: true });
}

// Some libraries use the name of an entry again: the token tells them apart.
function key(entry) {
  return `${entry.token} ${entry.entry}`;
}

function fill(item, entry, lock) {
  item.holder = entry;
  item.className = entry.holds ? "holder" : "waiter";
  const part = role(entry.entry);
  setText(item.querySelector(".position"), entry.holds ? "holds" : number(entry.position));
  setText(item.querySelector(".role"), part);
  item.dataset.role = part;
  setText(item.querySelector(".label"), visible(entry.label || entry.data || "without a label"));
  const since = entry.holds ? ` · joined the queue at ${dateTime(entry.joined_ms)}` : "";
  setText(item.querySelector(".where"), `${place(entry)} · token ${entry.token}${since}`);
  setText(item.querySelector(".reason"), notes(entry).join(" · "));
  const backtrace = item.querySelector(".backtrace");
  backtrace.hidden = !entry.backtrace;
  setText(backtrace.querySelector("pre"), visibleLines(entry.backtrace));
  item.querySelector("[data-revoke]").hidden = !(entry.holds && revoke.isAllowed());
  tickItem(item, lock.now_ms, 0);
}

function notes(entry) {
  const notes = [];
  if (entry.reason) notes.push(`reason: ${visible(entry.reason)}`);
  if (entry.label && entry.data) notes.push(`data: ${visible(entry.data)}`);
  if (entry.expected_ms != null) notes.push(`expects to hold for ${duration(entry.expected_ms)}`);
  if (entry.alert_ms != null) notes.push(`worth an alarm after ${duration(entry.alert_ms)}`);
  if (entry.auto_unlock_ms != null) notes.push(`may be unlocked after ${duration(entry.auto_unlock_ms)}`);
  if (entry.revocation) notes.push(`asked to release it by ${visible(entry.revocation.by || "somebody")}`);
  return notes;
}

function tickItem(item, nowMs, elapsed) {
  const entry = item.holder;
  const age = duration(nowMs + elapsed - entry.joined_ms);
  const overdue = entry.holds ? overdueBy(entry, news, nowMs + elapsed) : -1;
  const isOverdue = overdue >= 0;
  const held = `${entry.held_ms === null ? "" : "held for "}${heldFor(entry, nowMs + elapsed, elapsed)}`;
  item.classList.toggle("overdue", isOverdue);
  setText(item.querySelector(".age"), entry.holds ? held : `waits ${age}`);
  setText(item.querySelector(".state"), isOverdue ? `overdue ${duration(overdue)}` : "");
}

function tick() {
  if (!stream || !news || document.body.dataset.link !== "live") return;
  const elapsed = performance.now() - receivedAt;
  for (const item of queue.children) tickItem(item, news.now_ms, elapsed);
  tickStrip(elapsed);
}

function tickStrip(elapsed) {
  for (const { entry, classList } of strip.children) {
    if (entry?.holds) classList.toggle("overdue", overdueBy(entry, news, news.now_ms + elapsed) >= 0);
  }
}

// The queue as a picture: the holders in front, and behind the gate the waiters with their positions.
function showStrip(lock) {
  strip.hidden = !lock.exists;
  legend.hidden = !lock.exists || lock.kind !== "rwlock";
  const holders = lock.holders.slice(0, MAX_HOLDERS);
  const places = MAX_SQUARES - holders.length;
  // Other pages begin further back: their first squares stand behind a gap.
  const waiters = lock.queue.slice(0, places);
  const squares = [];
  holders.forEach((entry) => squares.push(square("holder", entry)));
  if (lock.holder_count > holders.length) squares.push(more(lock.holder_count - holders.length));
  if (lock.exists) squares.push(part("gate", ""));
  if (offset > 0) squares.push(more(offset));
  waiters.forEach((entry) => squares.push(square("waiter", entry)));
  const rest = lock.waiters - offset - waiters.length;
  if (rest > 0) squares.push(more(rest));
  if (lock.exists && lock.waiters === 0) squares.push(part("more", "nobody waits"));
  strip.replaceChildren(...squares);
  tickStrip(0);
  strip.setAttribute("aria-label", `${counted(lock.holder_count, "holder")}, ${counted(lock.waiters, "waiter")} behind`);
}

function part(name, text) {
  const element = document.createElement("span");
  element.className = name;
  element.textContent = text;
  return element;
}

function square(name, entry) {
  const who = visible(entry.label || entry.host || entry.session);
  const element = part(name, entry.holds ? who : number(entry.position));
  element.dataset.role = role(entry.entry);
  element.entry = entry;
  element.title = who;
  return element;
}

function more(count) {
  return part("more", `+${number(count)}`);
}

// Opens the dialog for the first holder.
export function revokeFirst() {
  if (news?.holders.length > 0 && revoke.isAllowed()) revoke.ask(news, news.holders[0]);
}

// Moves the focus among the entries.
export function move(step) {
  const entries = [...queue.children];
  const at = entries.indexOf(document.activeElement?.closest?.("li"));
  entries[at < 0 ? 0 : Math.min(Math.max(at + step, 0), entries.length - 1)]?.focus();
}

export function page(step) {
  const button = step > 0 ? next : previous;
  if (!pager.hidden && !button.disabled) button.click();
}

previous.addEventListener("click", () => {
  offset = Math.max(0, offset - LIMIT);
  watch();
});

next.addEventListener("click", () => {
  offset += LIMIT;
  watch();
});

setInterval(tick, 1000);
