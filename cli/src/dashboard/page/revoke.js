// The dialog by which a lock is revoked: that of the very holder that was shown.

import { isolated, place, setText, visible } from "./format.js";
import { hasToken, post, refusal, setToken } from "./stream.js";

// The outcomes of a revocation, and the time for which they are shown.
const DONE = {
  asked: "The holder was asked to release the lock.",
  removed: "The lock was taken away from the holder.",
  gone: "The holder had released the lock already.",
};
const TOAST_MS = 8_000;

const dialog = document.getElementById("revoke");
const who = document.getElementById("revoke-who");
const where = document.getElementById("revoke-where");
const toast = document.getElementById("toast");
const force = document.getElementById("revoke-force");
const reason = document.getElementById("revoke-reason");
const tokenField = document.getElementById("revoke-token-field");
const token = document.getElementById("revoke-token");
const confirm = document.getElementById("revoke-confirm");
const error = document.getElementById("revoke-error");

let allowed = false;
let target = null;
let isUnderWay = false;

export function allow(isAllowed) {
  allowed = isAllowed;
}

export function isAllowed() {
  return allowed;
}

export function ask({ lock, path }, holder) {
  target = { path, holder };
  const name = holder.label || holder.host || `session ${holder.session}`;
  who.replaceChildren(isolated(lock), " is held by ", isolated(name), `, with token ${holder.token}.`);
  setText(where, place(holder));
  document.getElementById("revoke-ask").checked = true;
  reason.value = "";
  token.value = "";
  tokenField.hidden = hasToken();
  say("");
  confirm.disabled = false;
  showHow();
  dialog.showModal();
}

// The holder that the dialog is about may have left meanwhile.
export function holdersAre(lock) {
  // Under way or refused: that is the better message.
  if (!dialog.open || confirm.disabled || target?.path !== lock.path) return;
  const { entry, token: shown } = target.holder;
  if (lock.holders.some((holder) => holder.entry === entry && holder.token === shown)) return;
  say("This holder has left meanwhile: there is nothing to revoke.");
  confirm.disabled = true;
}

function say(text) {
  error.hidden = text === "";
  setText(error, text);
}

async function send() {
  if (isUnderWay || confirm.disabled) return;
  if (!tokenField.hidden) setToken(token.value.trim());
  const { path, holder } = target;
  const body = { path, entry: holder.entry, token: holder.token, force: force.checked, reason: reason.value };
  let isOver = false;
  isUnderWay = true;
  confirm.disabled = true;
  say("");
  try {
    const response = await post("api/revoke", body);
    if (response.ok) {
      dialog.close();
      told((await response.json()).result);
      return;
    }
    if (response.status === 401) {
      setToken(null);
      tokenField.hidden = false;
      token.focus();
    }
    isOver = response.status === 409;
    say(`Refused: ${visible(await refusal(response))}`);
  } catch {
    say("The dashboard did not answer: whether it was done will show in the queue.");
  } finally {
    isUnderWay = false;
    // The holder of now is not the one that the user meant.
    confirm.disabled = isOver;
  }
}

let toastTimer;

function told(result) {
  setText(toast, DONE[result] ?? "");
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => setText(toast, ""), TOAST_MS);
}

function showHow() {
  setText(confirm, force.checked ? "Take it away" : "Ask the holder");
  confirm.className = force.checked ? "danger" : "primary";
}

dialog.addEventListener("change", showHow);

document.getElementById("revoke-cancel").addEventListener("click", () => dialog.close());
dialog.querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
