// The hand-overs of the last ten minutes, as bars of five seconds each.

import { clockTime, counted, number, setText } from "./format.js";

const SECONDS = 600;
// Seconds of a bar, and of a row of the table.
const STEP = 5;
const MINUTE = 60;
const HEIGHT = 112;
const EDGE = { left: 34, right: 2, top: 8, bottom: 20 };

let counts = [];
// The end of the last count, in seconds since 1970 by the server's clock.
let end = 0;
// The bar under the pointer or the keyboard, counted from the newest.
let selected = null;
let drawn = "";

const figure = document.getElementById("handovers");
const image = figure.querySelector("svg");
const axis = figure.querySelector(".axis");
const bars = figure.querySelector(".bars");
const bar = figure.querySelector(".plot-bar");
const words = document.getElementById("handovers-text");
const details = figure.querySelector("details");
const values = document.querySelector("#handovers-values tbody");

// Takes in the newest counts: all at the start, then those of the seconds since.
export function add(news) {
  const newEnd = Math.round(news.end_ms / 1000);
  const missing = newEnd - news.counts.length - end;
  const isAll = news.counts.length >= SECONDS || missing < 0 || missing > SECONDS;
  const known = isAll ? [] : counts.concat(new Array(missing).fill(0));
  counts = known.concat(news.counts).slice(-SECONDS);
  end = newEnd;
  draw();
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

// Returns [first second, hand-overs] of each group of seconds. Groups begin at whole multiples of the clock: a bar keeps
// its seconds while it moves.
function groups(size) {
  const found = [];
  counts.forEach((count, index) => {
    const second = end - counts.length + index;
    const from = second - (second % size);
    if (found.at(-1)?.[0] === from) found.at(-1)[1] += count;
    else found.push([from, count]);
  });
  return found;
}

// A round, even number that is not below: half of it is at a line, too.
function ceiling(value) {
  for (let power = 1; ; power *= 10) {
    const limit = [2, 4, 6, 8, 10].map((factor) => factor * power).find((it) => it >= value);
    if (limit) return limit;
  }
}

function part(name, attributes, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
  element.textContent = text;
  return element;
}

function draw() {
  const width = image.clientWidth;
  const state = `${width} ${end} ${selected}`;
  if (width === 0 || counts.length === 0 || state === drawn) return;
  drawn = state;
  const shown = groups(STEP);
  const most = shown.reduce((best, group) => (group[1] > best[1] ? group : best));
  const top = ceiling(most[1]);
  const inner = { width: width - EDGE.left - EDGE.right, height: HEIGHT - EDGE.top - EDGE.bottom };
  const x = (second) => EDGE.left + ((second - end + SECONDS) / SECONDS) * inner.width;
  const y = (count) => EDGE.top + inner.height * (1 - count / top);
  image.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  drawAxis(x, y, top, width);
  bars.replaceChildren(
    ...shown.map(([from, count], index) => {
      const left = Math.max(x(from), EDGE.left);
      const right = x(Math.min(from + STEP, end));
      return part("rect", {
        class: shown.length - 1 - index === selected ? "bar selected" : "bar",
        x: left.toFixed(1),
        y: y(count).toFixed(1),
        width: Math.max(right - left - 1, 1).toFixed(1),
        height: (y(0) - y(count)).toFixed(1),
      });
    }),
  );
  showWords(shown, most);
}

function drawAxis(x, y, top, width) {
  const lines = [0, top / 2, top].flatMap((count) => [
    part("line", { x1: EDGE.left, x2: width - EDGE.right, y1: y(count), y2: y(count) }),
    part("text", { x: EDGE.left - 6, y: y(count) + 4, "text-anchor": "end" }, number(count)),
  ]);
  const marks = width < 480 ? [10, 5, 0] : [10, 8, 6, 4, 2, 0];
  const times = marks.map((minutes) => {
    const anchor = minutes === 0 ? "end" : minutes === 10 ? "start" : "middle";
    const text = minutes === 0 ? "now" : `−${minutes} min`;
    return part("text", { x: x(end - minutes * MINUTE), y: HEIGHT - 4, "text-anchor": anchor }, text);
  });
  axis.replaceChildren(...lines, ...times);
}

function showWords(shown, [at, most]) {
  const all = sum(counts);
  const peak = all > 0 ? `; at most ${number(most)} in ${STEP} s, at ${clockTime(at * 1000)}` : "";
  setText(words, `${counted(all, "hand-over")} in 10 minutes, ${number(sum(counts.slice(-MINUTE)))} in the last one${peak}`);
  const group = selected === null ? null : shown[shown.length - 1 - selected];
  setText(bar, group ? `${clockTime(group[0] * 1000)}: ${number(group[1])} in ${STEP} s` : `in each ${STEP} s`);
  if (details.open) showValues();
}

function showValues() {
  const rows = groups(MINUTE).reverse();
  values.replaceChildren(
    ...rows.map(([from, count]) => {
      const row = document.createElement("tr");
      const head = document.createElement("th");
      head.scope = "row";
      head.textContent = clockTime(from * 1000);
      row.append(head, document.createElement("td"));
      row.lastElementChild.textContent = number(count);
      return row;
    }),
  );
}

function select(index) {
  selected = index;
  draw();
}

image.addEventListener("pointermove", (event) => {
  const { left, width } = image.getBoundingClientRect();
  const share = (event.clientX - left - EDGE.left) / (width - EDGE.left - EDGE.right);
  const second = end - SECONDS + Math.min(Math.max(share, 0), 1) * SECONDS;
  const shown = groups(STEP);
  const index = shown.findLastIndex(([from]) => from <= second);
  select(index < 0 ? null : shown.length - 1 - index);
});

image.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: 1, ArrowRight: -1 }[event.key];
  if (!step || counts.length === 0) return;
  event.preventDefault();
  const next = selected === null ? 0 : selected + step;
  select(Math.min(Math.max(next, 0), groups(STEP).length - 1));
});

for (const left of ["pointerleave", "blur"]) image.addEventListener(left, () => select(null));
details.addEventListener("toggle", showValues);
new ResizeObserver(draw).observe(image);
