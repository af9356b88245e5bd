// Texts from values. What others wrote is made visible here, and only ever set as text.

const numbers = new Intl.NumberFormat("en");

export function number(value) {
  return numbers.format(value);
}

export function counted(value, one, many = `${one}s`) {
  return `${number(value)} ${value === 1 ? one : many}`;
}

// The two largest units, as the command writes them.
export function duration(ms) {
  const seconds = Math.floor(Math.max(0, ms) / 1000);
  if (seconds < 60) return `${seconds}s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m ${seconds % 60}s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)}h ${Math.floor(seconds / 60) % 60}m`;
  return `${Math.floor(seconds / 86400)}d ${Math.floor(seconds / 3600) % 24}h`;
}

function two(value) {
  return String(value).padStart(2, "0");
}

// A time of the day, as the user's clock shows it.
export function clockTime(ms) {
  const at = new Date(ms);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function dateTime(ms) {
  const at = new Date(ms);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clockTime(ms)}`;
}

// Time for which a holder has held; where the store does not know it, the time since it joined the queue.
export function heldFor(entry, nowMs, elapsed) {
  if (entry.held_ms === null) return `queued ${duration(nowMs - entry.joined_ms)}`;
  return duration(entry.held_ms + elapsed);
}

// Time by which a holder is overdue at a time of the server; negative if it is not, or states nothing.
export function overdueBy(entry, news, nowMs) {
  if (entry.due_ms !== undefined) return entry.due_ms === null ? -1 : nowMs - entry.due_ms;
  return entry.overdue_ms == null ? -1 : entry.overdue_ms + nowMs - news.now_ms;
}

// Controls, marks of direction and characters without width: with them a name could look like another one.
const INVISIBLE =
  /[\p{Cc}\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

const SHORT = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

// As the command writes them.
function escaped(character) {
  return SHORT[character] ?? `\\u{${character.codePointAt(0).toString(16)}}`;
}

export function visible(text) {
  return String(text ?? "").replace(INVISIBLE, escaped);
}

export function visibleLines(text) {
  return String(text ?? "")
    .split(/\r?\n/)
    .map(visible)
    .join("\n");
}

// The part of an entry in its lock, by its name.
export function role(entry) {
  const name = entry.slice(entry.lastIndexOf("/") + 1);
  if (/__READ__|-read-|__rlock__/.test(name)) return "reader";
  if (/__WRIT__|-write-/.test(name)) return "writer";
  if (/-lease-/.test(name)) return "permit";
  if (/-latch-|__election__/.test(name)) return "candidate";
  return "";
}

// Host, process and session of an entry.
export function place(entry) {
  const parts = [];
  if (entry.host) parts.push(visible(entry.host));
  if (entry.pid) parts.push(`pid ${entry.pid}`);
  parts.push(visible(entry.session));
  return parts.join(" · ");
}

// A text of others among ours: its direction ends where it ends.
export function isolated(text) {
  const element = document.createElement("bdi");
  element.textContent = visible(text);
  return element;
}

// Sets a text only if it changes, so that nothing is laid out again for it.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
