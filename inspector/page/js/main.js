// The page: which view an address shows, and the token.
import { h, fill, address, announce, problem } from "./dom.js";
import { printable, tick } from "./format.js";
import { get, getToken, setToken, askTabs } from "./api.js";
import { showRuns } from "./runs.js";
import { showRun } from "./run.js";
import { showQueues, showQueue } from "./queues.js";
import { showFeed } from "./feed.js";
import { showGroups } from "./groups.js";

const main = document.getElementById("main");
let view = new AbortController(); // ends the requests of the view that is shown
let about = null;

const views = {
  runs: { title: () => "Runs", show: showRuns },
  run: { title: (rest) => "Run " + rest.join("/"), show: showRun, nav: "runs" },
  queues: { title: () => "Queues", show: showQueues },
  queue: { title: (rest) => "Queue " + rest.join("/"), show: showQueue, nav: "queues" },
  feed: { title: () => "Feed", show: showFeed },
  groups: { title: () => "Groups", show: showGroups },
};

// route returns what an address names. The parts of an address may be malformed.
function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  try {
    const [name, ...rest] = path.split("/").map(decodeURIComponent);
    return { name: name || "runs", rest, words: rest.map(printable), query: new URLSearchParams(query) };
  } catch {
    return { name: "", rest: [], words: [], query: new URLSearchParams() };
  }
}

async function show(focus) {
  view.abort();
  view = new AbortController();
  const signal = view.signal;
  const { name, rest, words, query } = route();
  const found = Object.hasOwn(views, name) ? views[name] : null;
  document.title = (found ? found.title(words) : "Not found") + " · Tapestore inspector";
  for (const item of document.querySelectorAll("#views a")) {
    const current = item.getAttribute("href") === "#/" + (found?.nav ?? name);
    if (current) item.setAttribute("aria-current", "page");
    else item.removeAttribute("aria-current");
  }
  if (!found) {
    fill(main, h("h1", { tabindex: "-1" }, "Not found"), h("p", null, "This page has no such view."));
    return;
  }
  const place = h("div", { class: "view" });
  fill(main, place);
  try {
    about ??= await get("about");
    document.getElementById("store").textContent = [about.engine, about.version?.split(" ")[0]].filter(Boolean).join(" ");
    if (!signal.aborted) await found.show(place, { rest, query, signal, about });
  } catch (error) {
    if (signal.aborted) return;
    if (error.kind === "unauthenticated") askForToken();
    else {
      if (!place.querySelector("h1")) place.prepend(h("h1", { tabindex: "-1" }, found.title(words)));
      place.append(problem(error, () => show(true)));
    }
  }
  if (focus && !signal.aborted) {
    main.querySelector("h1")?.focus();
    window.scrollTo(0, 0);
  }
}

// askForToken shows a form for the token that the server asks for.
function askForToken() {
  view.abort();
  const wrong = getToken() !== null;
  const input = h("input", { id: "token", type: "password", required: true, autocomplete: "off", spellcheck: "false" });
  const form = h("form", { class: "narrow", on: { submit: (event) => {
    event.preventDefault();
    setToken(input.value.trim());
    about = null;
    show(true);
  } } },
  h("h1", { tabindex: "-1" }, "Token"),
  wrong && h("p", { class: "problem bad", role: "alert" }, "The server refuses the token of this page."),
  h("p", null, "This server asks for a token. tapestore ui prints it as a part of the address, after #token=; it is a new one each time the command starts."),
  h("label", { for: "token" }, "Token"), input, h("button", { type: "submit", class: "main" }, "Go on"));
  document.title = "Token · Tapestore inspector";
  fill(main, form);
  input.focus();
}

document.addEventListener("unauthenticated", askForToken);
window.addEventListener("hashchange", () => { if (!takeToken()) show(true); });

// takeToken takes the token from an address and removes it there, so that it is in no history.
function takeToken() {
  const found = /^#token=([^&]+)(?:&to=(.*))?$/.exec(location.hash);
  if (!found) return false;
  setToken(decodeURIComponent(found[1]));
  history.replaceState(null, "", found[2]?.startsWith("/") ? "#" + found[2] : "#/runs");
  about = null;
  show(false);
  return true;
}

document.getElementById("skip").addEventListener("click", () => main.focus());
document.getElementById("goto").addEventListener("submit", (event) => {
  event.preventDefault();
  const input = document.getElementById("goto-id");
  const id = input.value.trim();
  if (!id) return announce("Name a run.");
  input.value = "";
  location.hash = address(["run", id]);
});

setInterval(() => { if (!document.hidden) tick(); }, 1000);

if (!takeToken()) {
  if (!getToken()) {
    const token = await askTabs();
    if (token) setToken(token);
  }
  show(false);
}
