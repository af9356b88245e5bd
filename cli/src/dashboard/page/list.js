// The list of locks: a window of rows, in the order and with the filter that the server applies.

import { counted, duration, heldFor, number, overdueBy, place, setText, visible } from "./format.js";
import * as link from "./link.js";
import * as plot from "./plot.js";
import { Stream } from "./stream.js";

const LIMIT = 100;
const TYPING_MS = 150;
// The hand-overs come each second.
const SILENCE_MS = 8_000;
const SORTS = ["name", "held", "overdue", "waiters"];

const filter = document.getElementById("filter");
const body = document.querySelector("#locks tbody");
const template = document.getElementById("row");
const empty = document.getElementById("empty");
const range = document.getElementById("range");
const previous = document.getElementById("prev");
const next = document.getElementById("next");
const headers = [...document.querySelectorAll("#locks th[data-sort]")];
const figures = document.querySelectorAll("[data-figure]");

let cursor = parse("");
let stream = null;
let news = null;
let receivedAt = 0;
let typing;
const rows = new Map();

function parse(query) {
  const asked = new URLSearchParams(query);
  const sort = asked.get("sort");
  return {
    sort: SORTS.includes(sort) ? sort : "name",
    reverse: asked.get("reverse") === "true",
    filter: asked.get("filter") ?? "",
    offset: Math.max(0, Number.parseInt(asked.get("offset"), 10) || 0),
  };
}

function query(all = false) {
  const asked = new URLSearchParams();
  if (all || cursor.sort !== "name") asked.set("sort", cursor.sort);
  if (all || cursor.reverse) asked.set("reverse", cursor.reverse);
  if (cursor.filter) asked.set("filter", cursor.filter);
  if (all || cursor.offset > 0) asked.set("offset", cursor.offset);
  if (all) asked.set("limit", LIMIT);
  return asked.toString();
}

// The fragment of this list, for the way back to it.
export function fragment() {
  const asked = query();
  return asked ? `#/?${asked}` : "#/";
}

export function open(asked, unauthorized) {
  cursor = parse(asked);
  if (document.activeElement !== filter) filter.value = cursor.filter;
  showOrder();
  watch(unauthorized);
}

export function close() {
  clearTimeout(typing);
  stream?.close();
  stream = null;
}

let onUnauthorized = async () => {};

function watch(unauthorized = onUnauthorized) {
  onUnauthorized = unauthorized;
  stream?.close();
  stream = new Stream(`api/locks?${query(true)}`, SILENCE_MS, {
    locks: show,
    handovers: plot.add,
    store: link.storeIs,
    heard: link.heard,
    lost: link.streamIsLost,
    unauthorized,
  });
}

function changed() {
  history.replaceState(null, "", fragment());
  showOrder();
  watch();
}

function showOrder() {
  for (const header of headers) {
    // The server's natural order: names rise, figures begin with the most.
    const falls = (header.dataset.sort !== "name") !== cursor.reverse;
    if (header.dataset.sort === cursor.sort) header.setAttribute("aria-sort", falls ? "descending" : "ascending");
    else header.removeAttribute("aria-sort");
  }
}

function show(window) {
  news = window;
  receivedAt = performance.now();
  cursor.offset = window.offset;
  for (const figure of figures) setText(figure, number(window[figure.dataset.figure]));
  document.body.classList.toggle("has-overdue", window.overdue > 0);
  document.getElementById("incomplete").hidden = window.complete;
  const last = window.offset + window.rows.length;
  const some = window.rows.length > 0 ? `${number(window.offset + 1)}–${number(last)}` : "0";
  setText(range, `${some} of ${number(window.matching)}`);
  previous.disabled = window.offset === 0;
  next.disabled = last >= window.matching;
  showRows(window.rows);
  showEmpty(window);
}

let about = { prefix: "/", store: "" };

// Takes in what the dashboard tells of itself.
export function aboutIs(known) {
  about = known;
  if (news) showEmpty(news);
}

function showEmpty(window) {
  const hasFilter = cursor.filter !== "" && window.locks > 0;
  empty.hidden = window.rows.length > 0;
  document.getElementById("empty-filter").hidden = !hasFilter;
  document.getElementById("empty-try").hidden = hasFilter;
  const where = about.prefix === "/" ? "" : ` below ${visible(about.prefix)}`;
  const title = hasFilter ? `No lock matches “${visible(cursor.filter)}”.` : `No locks${where}: nobody holds one, and nobody waits.`;
  setText(document.getElementById("empty-title"), title);
  const name = about.prefix.startsWith("/") && about.prefix !== "/" ? `${about.prefix.replace(/\/$/, "")}/demo` : "demo";
  setText(document.getElementById("empty-command"), visible(`lockkeeper run --url ${about.store} ${name} -- sleep 60`));
}

function showRows(locks) {
  const focused = document.activeElement;
  const hadFocus = body.contains(focused) ? focused.closest("tr") : null;
  const index = hadFocus ? [...body.children].indexOf(hadFocus) : -1;
  const wanted = new Set(locks.map((lock) => lock.path));
  for (const [path, row] of rows) {
    if (wanted.has(path)) continue;
    row.remove();
    rows.delete(path);
  }
  locks.forEach((lock, at) => {
    let row = rows.get(lock.path);
    if (!row) {
      row = template.content.firstElementChild.cloneNode(true);
      row.dataset.path = lock.path;
      const anchor = row.querySelector("a");
      anchor.href = `#/lock/${encodeURIComponent(lock.path)}`;
      setText(anchor, visible(lock.lock));
      anchor.title = visible(lock.path);
      rows.set(lock.path, row);
    }
    if (body.children[at] !== row) body.insertBefore(row, body.children[at] ?? null);
    fill(row, lock);
  });
  // The row of the focus has gone: its place stays.
  if (hadFocus && !body.contains(hadFocus)) focusRow(Math.min(index, locks.length - 1));
  // A row that was moved has lost it.
  else if (hadFocus && document.activeElement !== focused) focused.focus({ preventScroll: true });
}

function fill(row, lock) {
  row.lock = lock;
  const [holder] = lock.holders;
  setText(row.querySelector(".kind"), lock.kind);
  setText(row.querySelector(".holder bdi"), holder ? holderText(lock, holder) : "");
  setText(row.querySelector(".place"), holder ? place(holder) : "");
  setText(row.querySelector(".expected"), holder?.expected_ms != null ? duration(holder.expected_ms) : "");
  setText(row.querySelector(".waiters"), lock.waiters > 0 ? number(lock.waiters) : "");
  tickRow(row, 0);
}

function holderText(lock, holder) {
  const name = visible(holder.label || holder.data || holder.host || `session ${holder.session}`);
  const more = lock.holder_count > 1 ? ` and ${counted(lock.holder_count - 1, "other")}` : "";
  return `${name}${more}`;
}

// Shows the times as they are now.
function tickRow(row, elapsed) {
  const [holder] = row.lock.holders;
  const nowMs = news.now_ms + elapsed;
  const overdue = Math.max(...row.lock.holders.map((it) => overdueBy(it, news, nowMs)), -1);
  row.classList.toggle("overdue", overdue >= 0);
  row.classList.toggle("free", !holder);
  setText(row.querySelector(".held"), holder ? heldFor(holder, nowMs, elapsed) : "");
  const asked = holder?.revocation ? "asked to release" : "held";
  const state = holder ? asked : "free";
  setText(row.querySelector(".state"), overdue >= 0 ? `overdue ${duration(overdue)}` : state);
}

function tick() {
  if (!stream || !news || document.body.dataset.link !== "live") return;
  const elapsed = performance.now() - receivedAt;
  for (const row of body.children) tickRow(row, elapsed);
}

export function focusRow(index) {
  body.children[Math.max(0, index)]?.querySelector("a").focus();
}

// Moves the focus among the rows.
export function move(step) {
  const at = [...body.children].indexOf(document.activeElement?.closest?.("tr"));
  focusRow(at < 0 ? 0 : Math.min(at + step, body.children.length - 1));
}

// Shows all rows again; false if no filter was set.
export function dropFilter() {
  clearTimeout(typing);
  if (filter.value === "" && cursor.filter === "") return false;
  filter.value = "";
  cursor.filter = "";
  cursor.offset = 0;
  changed();
  return true;
}

// Sorts as the heading of the column does.
export function sortBy(sort) {
  headers.find((header) => header.dataset.sort === sort).querySelector("button").click();
}

export function page(step) {
  const button = step > 0 ? next : previous;
  if (!button.disabled) button.click();
}

filter.addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => {
    cursor.filter = filter.value;
    cursor.offset = 0;
    changed();
  }, TYPING_MS);
});

document.getElementById("empty-all").addEventListener("click", () => {
  dropFilter();
  filter.focus();
});

for (const header of headers) {
  header.querySelector("button").addEventListener("click", () => {
    const { sort } = header.dataset;
    cursor.reverse = cursor.sort === sort && !cursor.reverse;
    cursor.sort = sort;
    cursor.offset = 0;
    changed();
  });
}

previous.addEventListener("click", () => {
  cursor.offset = Math.max(0, cursor.offset - LIMIT);
  changed();
});

next.addEventListener("click", () => {
  cursor.offset += LIMIT;
  changed();
});

setInterval(tick, 1000);
