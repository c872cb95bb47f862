// The list of runs, with what waits in the queues above it.
import { h, add, fill, address, announce, badge, problem, runLink, table } from "./dom.js";
import { when, stamp, count, tokenText } from "./format.js";
import { get, live } from "./api.js";
import { queueChips } from "./queues.js";

const pageRows = 50;
const fields = ["prefix", "status", "lease", "app", "user", "session", "tenant", "from", "until"];
const rarely = ["app", "user", "session", "tenant", "from", "until"];
// A search looks at up to 4,000 runs in one request, and continues for this many requests without being asked.
const autoRequests = 25;

const statuses = ["runnable", "running", "waiting", "compensating", "stuck", "failed", "cancelled", "terminal"];

export async function showRuns(place, { query, signal }) {
  const filter = Object.fromEntries(fields.map((f) => [f, query.get(f) ?? ""]));
  const chips = h("div", { class: "chips" });
  const results = h("div");
  fill(place, h("h1", { tabindex: "-1" }, "Runs"),
    h("section", { "aria-label": "Queues" }, chips), form(filter), results);
  const trouble = h("div");
  chips.after(trouble);
  live(signal, 10000, async (inner) => queueChips(chips, await get("queues", {}, inner)),
    (error) => fill(trouble, error && problem(error)));
  await list(results, filter, signal);
}

function form(filter) {
  const field = (name, title, element) => h("div", { class: "field" }, h("label", { for: "f-" + name }, title), element);
  const input = (name, title, props) => field(name, title, h("input", { id: "f-" + name, name, value: filter[name], autocomplete: "off", spellcheck: "false", ...props }));
  const select = (name, title, options) => field(name, title, h("select", { id: "f-" + name, name },
    options.map(([value, text]) => h("option", { value, selected: filter[name] === value }, text))));
  const time = (name, title) => input(name, title, { type: "datetime-local", step: "1", value: filter[name].replace(/Z$/, "") });
  return h("form", { class: "filter", role: "search", "aria-label": "Filter runs", on: { submit: (event) => {
    event.preventDefault();
    const values = Object.fromEntries(new FormData(event.target));
    for (const f of ["from", "until"]) if (values[f]) values[f] = (values[f].length === 16 ? values[f] + ":00" : values[f]) + "Z";
    const to = address(["runs"], values);
    if (location.hash === to) window.dispatchEvent(new HashChangeEvent("hashchange"));
    else location.hash = to;
  } } },
  input("prefix", "Id begins with"),
  select("status", "Status", [["", "any"], ...statuses.map((s) => [s, s])]),
  select("lease", "Lease", [["", "any"], ["live", "live"], ["expired", "expired, not taken over"], ["held", "held (live or expired)"], ["free", "none"]]),
  h("details", { open: rarely.some((f) => filter[f]) }, h("summary", null, "More"),
    h("div", { class: "fields" }, input("app", "App"), input("user", "User"), input("session", "Session"), input("tenant", "Tenant"),
      time("from", "Created from (UTC)"), time("until", "Created until (UTC)"))),
  h("div", { class: "buttons" }, h("button", { type: "submit", class: "main" }, "Show"), h("a", { href: address(["runs"]) }, "Clear")));
}

const columns = ["Run", "Status", "Lease", "Token", "Events", "App · user", "Created"];

function cells(run) {
  return [
    [runLink(run.ref, run.id), run.unlisted && badge("unlisted")],
    badge(run.status, run.level),
    lease(run.lease),
    run.lease.token ? tokenText(run.lease.token, run.lease.token_text) : "–",
    count(run.last_seq),
    run.tape ? [run.tape.app, run.tape.user && " · " + run.tape.user] : "–",
    when(run.created),
  ];
}

// lease returns the holder of a run, in one line.
export function lease(l) {
  if (l.state === "free") return h("span", { class: "quiet" }, l.token ? "free" : "never granted");
  return [h("span", { class: "owner" }, l.owner), " ", l.state === "expired" ? badge("expired", "warn") : "· expires", " ", when(l.expires)];
}

async function list(place, filter, signal) {
  const filtered = Object.entries(filter).some(([name, value]) => value && name !== "from" && name !== "until");
  const rows = table("Runs, the newest first", columns, []);
  const exact = h("div");
  const note = h("p", { class: "quiet", role: "status" });
  const more = h("button", { type: "button", hidden: true });
  const trouble = h("div");
  fill(place, exact, rows, note, trouble, h("div", { class: "buttons" }, more));
  let cursor = "", shown = 0, looked = 0, oldest = null, stopped = false;

  const say = (busy) => {
    fill(note, `${count(shown)} shown, looked at ${count(looked)} ${looked === 1 ? "run" : "runs"}`,
      oldest && [", back to ", stamp(oldest)], busy ? " …" : cursor ? "" : ": there are no others.");
    more.hidden = false;
    more.textContent = busy ? "Stop" : filtered ? "Look further" : "Older runs";
    if (!busy && !cursor) more.hidden = true;
  };
  const next = async () => {
    stopped = false;
    fill(trouble);
    const wanted = shown + pageRows;
    try {
      for (let request = 0; request < autoRequests && shown < wanted && !stopped && !signal.aborted; request++) {
        say(true);
        const page = await get("runs", { ...filter, cursor, limit: Math.min(pageRows, wanted - shown) }, signal);
        if (page.exact) add(exact, h("p", { class: "exact" }, "The run of exactly this id: ", runLink(page.exact.ref, page.exact.id), " ",
          badge(page.exact.status, page.exact.level), " ", lease(page.exact.lease)));
        for (const run of page.runs) rows.addRow(cells(run));
        shown += page.runs.length;
        looked += page.looked;
        oldest = page.oldest ?? oldest;
        cursor = page.cursor ?? "";
        if (!cursor) break;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error.kind === "unauthenticated") throw error;
      fill(trouble, problem(error, () => run().catch(raise)));
    }
    rows.hidden = shown === 0;
    say(false);
    announce(note.textContent);
  };
  let busy = false;
  const raise = () => document.dispatchEvent(new CustomEvent("unauthenticated"));
  const run = async () => {
    busy = true;
    try { await next(); } finally { busy = false; }
  };
  more.addEventListener("click", () => { if (busy) stopped = true; else run().catch(raise); });
  rows.hidden = true;
  await run();
}
