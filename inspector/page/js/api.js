// Requests to the API.
import { setClock } from "./format.js";

// ApiError is an error of the API, or of the connection (kind "network").
export class ApiError extends Error {
  constructor(kind, message, status, token) {
    super(message);
    this.kind = kind;
    this.status = status;
    this.token = token;
  }
}

// The token that the server asks for is kept for this tab. Other tabs of this page ask for it here.
const key = "tapestore-token";
const tabs = new BroadcastChannel("tapestore-inspector");
tabs.onmessage = (event) => {
  if (event.data?.ask && getToken()) tabs.postMessage({ token: getToken() });
};

export const getToken = () => sessionStorage.getItem(key);
export const setToken = (token) => sessionStorage.setItem(key, token);

// askTabs returns the token of another tab, or null if none answers in time.
export function askTabs() {
  return new Promise((resolve) => {
    const channel = new BroadcastChannel("tapestore-inspector");
    const timer = setTimeout(() => done(null), 300);
    const done = (token) => {
      clearTimeout(timer);
      channel.close();
      resolve(token);
    };
    channel.onmessage = (event) => {
      if (typeof event.data?.token === "string") done(event.data.token);
    };
    channel.postMessage({ ask: true });
  });
}

async function request(path, options) {
  const headers = { ...options.headers };
  if (getToken()) headers.Authorization = "Bearer " + getToken();
  let response;
  try {
    response = await fetch("api/" + path, { ...options, headers, redirect: "error", credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("network", "The inspector does not answer. Is tapestore still running?", 0);
  }
  if (response.ok) return response;
  let body = null;
  try {
    body = (await response.json()).error;
  } catch {
    // a proxy answered
  }
  throw new ApiError(body?.kind ?? "http", body?.message ?? `The server answers with status ${response.status}.`, response.status, body?.token);
}

const query = (params) => {
  const all = new URLSearchParams();
  for (const [name, value] of Object.entries(params ?? {})) {
    if (value !== "" && value !== null && value !== undefined) all.set(name, value);
  }
  return all.toString();
};

// get reads JSON.
export async function get(path, params, signal) {
  const text = query(params);
  const response = await request(text ? path + "?" + text : path, { signal });
  const result = await response.json();
  if (result.now) setClock(result.now);
  return result;
}

// getBytes reads the whole of a value.
export async function getBytes(params, signal) {
  const response = await request("value?" + query(params), { signal });
  return new Uint8Array(await response.arrayBuffer());
}

// breakTimeout, in ms, is twice that of the server, so that a connection that is lost ends a break.
const breakTimeout = 60000;

// postBreak breaks a lease.
export async function postBreak(body) {
  const response = await request("break", {
    method: "POST", body: JSON.stringify(body), signal: AbortSignal.timeout(breakTimeout),
    headers: { "Content-Type": "application/json", "X-Tapestore-Inspector": "break" },
  });
  return response.json();
}

const pause = (ms, signal) => new Promise((resolve) => {
  const timer = setTimeout(resolve, ms);
  signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
});

// whenVisible waits until the page is visible.
const whenVisible = (signal) => new Promise((resolve) => {
  if (!document.hidden || signal.aborted) return resolve();
  const listen = () => { if (!document.hidden) { document.removeEventListener("visibilitychange", listen); resolve(); } };
  document.addEventListener("visibilitychange", listen);
  signal.addEventListener("abort", () => { document.removeEventListener("visibilitychange", listen); resolve(); }, { once: true });
});

// live calls step again and again until the signal ends, at most once each gap ms. It stops while the
// page is hidden, and cancels the request that is under way then. After an error it waits longer, up
// to 30 s, and calls failed; failed(null) says that it works again.
export async function live(signal, gap, step, failed) {
  let wait = gap;
  while (!signal.aborted) {
    await whenVisible(signal);
    if (signal.aborted) return;
    const hidden = new AbortController();
    const hide = () => { if (document.hidden) hidden.abort(); };
    document.addEventListener("visibilitychange", hide);
    try {
      await step(AbortSignal.any([signal, hidden.signal]));
      if (wait > gap) failed?.(null);
      wait = gap;
    } catch (error) {
      if (signal.aborted) return;
      if (error.name !== "AbortError") {
        if (error.kind === "unauthenticated") {
          document.dispatchEvent(new CustomEvent("unauthenticated"));
          return;
        }
        wait = Math.min(Math.max(wait * 2, 2000), 30000);
        failed?.(error);
      }
    } finally {
      document.removeEventListener("visibilitychange", hide);
    }
    await pause(wait, signal);
  }
}
