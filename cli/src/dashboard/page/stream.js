// Server-sent events, read by fetch: so that the token goes into a header, never into a URL.

let token = null;

export function hasToken() {
  return token !== null;
}

export function setToken(text) {
  token = text || null;
}

// Takes the token out of the fragment in which the command prints it, and returns it; null if none is there.
export function takeToken() {
  const found = /^#token=(.*)$/.exec(location.hash);
  if (!found) return null;
  try {
    token = decodeURIComponent(found[1]);
  } catch {
    token = found[1];
  }
  history.replaceState(null, "", "#/");
  return token;
}

function headers(more = {}) {
  return token === null ? more : { ...more, Authorization: `Bearer ${token}` };
}

export function get(path, signal) {
  return fetch(path, { headers: headers(), cache: "no-store", signal });
}

export function post(path, body) {
  const json = { "Content-Type": "application/json" };
  return fetch(path, { method: "POST", headers: headers(json), body: JSON.stringify(body), cache: "no-store" });
}

// The sentence of a refusal.
export async function refusal(response) {
  try {
    return (await response.json()).error ?? response.statusText;
  } catch {
    return response.statusText || `status ${response.status}`;
  }
}

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 8_000;

// A stream that is opened again whenever it ends, or says nothing for `silenceMs`. `on` has a function for each event, and
// `lost(reason)` and `unauthorized()`, whose promise is awaited before the next attempt.
export class Stream {
  #abort = new AbortController();
  #silenceMs;
  #on;
  #wake = () => {};

  constructor(path, silenceMs, on) {
    this.#silenceMs = silenceMs;
    this.#on = on;
    // The network is back, or somebody looks again: no need to wait until the pause is over.
    const wake = () => this.#wake();
    const { signal } = this.#abort;
    addEventListener("online", wake, { signal });
    document.addEventListener("visibilitychange", wake, { signal });
    this.#run(path);
  }

  close() {
    this.#abort.abort();
    this.#wake();
  }

  #pause(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  async #run(path) {
    const { signal } = this.#abort;
    let pause = FIRST_PAUSE_MS;
    while (!signal.aborted) {
      const attempt = new AbortController();
      const stop = () => attempt.abort();
      signal.addEventListener("abort", stop);
      let reason = "the dashboard does not answer";
      // A server that is stopped accepts the connection, and says nothing.
      const silence = setTimeout(stop, this.#silenceMs);
      try {
        const response = await get(path, attempt.signal);
        clearTimeout(silence);
        if (response.ok) {
          pause = FIRST_PAUSE_MS;
          await this.#read(response.body, attempt);
        } else {
          reason = await refusal(response);
          if (response.status === 401 && !signal.aborted) {
            this.#on.lost(reason);
            await this.#on.unauthorized();
            continue;
          }
        }
      } catch (error) {
        // The next attempt follows in any case. A fault of this page should be seen by those who look for it.
        if (!(error instanceof DOMException) && !(error instanceof TypeError)) console.error(error);
      } finally {
        clearTimeout(silence);
        signal.removeEventListener("abort", stop);
        attempt.abort();
      }
      if (signal.aborted) return;
      this.#on.lost(reason);
      await this.#pause(pause * (0.75 + Math.random() / 2));
      pause = Math.min(pause * 2, LONGEST_PAUSE_MS);
    }
  }

  async #read(body, attempt) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    let silence;
    try {
      for (;;) {
        silence = setTimeout(() => attempt.abort(), this.#silenceMs);
        const { done, value } = await reader.read();
        clearTimeout(silence);
        if (done) return;
        this.#on.heard();
        text += value;
        const events = text.split("\n\n");
        text = events.pop();
        events.forEach((event) => this.#tell(event));
      }
    } finally {
      clearTimeout(silence);
    }
  }

  #tell(text) {
    if (this.#abort.signal.aborted) return;
    const fields = new Map();
    for (const line of text.split("\n")) {
      const at = line.indexOf(": ");
      if (at > 0) fields.set(line.slice(0, at), line.slice(at + 2));
    }
    const tell = this.#on[fields.get("event")];
    if (tell && fields.has("data")) tell(JSON.parse(fields.get("data")));
  }
}
