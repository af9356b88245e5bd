// The page: which view is shown, the keys, and the token.

import { setText, visible } from "./format.js";
import * as link from "./link.js";
import * as list from "./list.js";
import * as lock from "./lock.js";
import * as revoke from "./revoke.js";
import { get, hasToken, setToken, takeToken } from "./stream.js";

const LOCK = "#/lock/";
const tokenDialog = document.getElementById("token");
const tokenValue = document.getElementById("token-value");
const help = document.getElementById("help");

let askedForToken = null;
let lastList = "#/";
let lastPath = null;

// Asks for the token, once for all that wait for it.
function askForToken() {
  askedForToken ??= new Promise((resolve) => {
    tokenValue.value = "";
    document.getElementById("token-error").hidden = !hasToken();
    tokenDialog.showModal();
    tokenDialog.addEventListener(
      "close",
      () => {
        setToken(tokenValue.value.trim());
        askedForToken = null;
        about();
        resolve();
      },
      { once: true },
    );
  });
  return askedForToken;
}

async function about() {
  try {
    const response = await get("api/about");
    if (!response.ok) return;
    const known = await response.json();
    const below = known.prefix === "/" ? "" : `, below ${visible(known.prefix)}`;
    setText(document.getElementById("store"), `${visible(known.store)}${below}`);
    list.aboutIs(known);
    revoke.allow(known.revoke);
    lock.showAgain();
  } catch {
    setTimeout(about, 2000);
  }
}

function pathOf(fragment) {
  if (!fragment.startsWith(LOCK)) return null;
  try {
    return decodeURIComponent(fragment.slice(LOCK.length));
  } catch {
    return null;
  }
}

function route() {
  const path = pathOf(location.hash);
  const isLock = path !== null;
  document.body.dataset.view = isLock ? "lock" : "list";
  document.getElementById("lock").hidden = !isLock;
  document.getElementById("list").hidden = isLock;
  document.title = `${isLock ? visible(path) : "Locks"} – Lockkeeper`;
  link.begin();
  list.close();
  lock.close();
  if (isLock) {
    document.getElementById("back").href = lastList;
    lock.open(path, askForToken);
    document.getElementById("lock-path").focus();
    lastPath = path;
  } else {
    const at = location.hash.indexOf("?");
    list.open(at < 0 ? "" : location.hash.slice(at + 1), askForToken);
    const row = [...document.querySelectorAll("#locks tbody tr")].findIndex((it) => it.dataset.path === lastPath);
    if (row >= 0) list.focusRow(row);
  }
}

function back() {
  location.hash = lastList;
}

const KEYS = {
  list: {
    "/": () => document.getElementById("filter").focus(),
    j: () => list.move(1),
    ArrowDown: () => list.move(1),
    k: () => list.move(-1),
    ArrowUp: () => list.move(-1),
    n: () => list.page(1),
    p: () => list.page(-1),
    N: () => list.sortBy("name"),
    T: () => list.sortBy("held"),
    O: () => list.sortBy("overdue"),
    W: () => list.sortBy("waiters"),
    Escape: list.dropFilter,
  },
  lock: {
    Escape: back,
    j: () => lock.move(1),
    ArrowDown: () => lock.move(1),
    k: () => lock.move(-1),
    ArrowUp: () => lock.move(-1),
    r: lock.revokeFirst,
    n: () => lock.page(1),
    p: () => lock.page(-1),
  },
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || document.querySelector("dialog[open]")) return;
  const isTyping = event.target.matches("input");
  if (isTyping) {
    if (["Escape", "Enter", "ArrowDown"].includes(event.key)) {
      event.preventDefault();
      // Out of the field in any case: the keys of the list are to work.
      if (event.key === "Escape" && list.dropFilter()) event.target.blur();
      else list.focusRow(0);
    }
    return;
  }
  if (event.key === "?") {
    help.showModal();
    return;
  }
  const act = KEYS[document.body.dataset.view][event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

// The fragment names the view: that of this link must not replace it.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
});

document.getElementById("help-open").addEventListener("click", () => help.showModal());
window.addEventListener("hashchange", () => {
  const token = takeToken();
  if (token !== null && tokenDialog.open) {
    // As if it had been typed.
    tokenValue.value = token;
    tokenDialog.close();
  } else if (token !== null) {
    about();
  }
  route();
  if (document.body.dataset.view === "list") lastList = list.fragment();
});
document.addEventListener("click", (event) => {
  if (event.target.closest("a.lock")) lastList = list.fragment();
});

takeToken();
about();
route();
