// One run: who holds it, what it did last, what is stuck, its terms and its timeline.
import { h, fill, refill, address, link, announce, badge, facts, problem, table } from "./dom.js";
import { when, stamp, seconds, count, tokenText } from "./format.js";
import { get, live } from "./api.js";
import { showTimeline, showRecords, recordEntry } from "./timeline.js";
import { breakDialog } from "./break.js";

// refreshAfter is how old a summary may get, in ms: work becomes late without a change of the run, 30 s
// after it is due (lateAfter of the server). A summary may cost the store 4,000 records.
const refreshAfter = 30000;
// maxWait is how many seconds a request waits for a change of the run.
const maxWait = 25;

const prefixes = [["", "all"], ["decision/", "decisions"], ["effect/", "effects"], ["obligation/", "obligations"], ["gate/", "gates"], ["timer/", "timers"], ["budget", "budget"]];

export async function showRun(place, { rest, query, signal, about }) {
  const ref = rest.join("/");
  const first = await get("run", { run: ref }, signal);
  const view = query.get("view") === "records" ? "records" : "timeline";
  const order = query.get("order") === "oldest" ? "oldest" : "newest";
  const prefix = query.get("prefix") ?? "";

  const head = h("div"), holder = h("section", { class: "card", "aria-labelledby": "lease-title" });
  const last = h("section", { class: "card", "aria-labelledby": "last-title" });
  const problems = h("div"), stuck = h("section", { class: "card", "aria-labelledby": "stuck-title" }, h("h2", { id: "stuck-title" }, "What is stuck"), problems);
  const terms = h("div"), below = h("div"), trouble = h("div"), notes = h("div");
  const newer = h("button", { type: "button", class: "newer", hidden: true, on: { click: () => loadBelow() } }, "Newer events");
  const tab = (name, text, extra) => h("a", { href: address(["run", ref], extra), "aria-current": view === name ? "true" : null }, text);
  fill(place, h("p", { class: "crumbs" }, link(["runs"], {}, "Runs")), head, trouble,
    notes, h("div", { class: "cards" }, holder, stuck, last),
    h("section", { "aria-labelledby": "terms-title" }, h("h2", { id: "terms-title" }, "Terms"), terms),
    h("section", { "aria-labelledby": "below-title" },
      h("h2", { id: "below-title" }, view === "records" ? "Records" : "Timeline"),
      h("div", { class: "bar" }, h("nav", { "aria-label": "Parts of the run" }, tab("timeline", "Timeline"), tab("records", "Records", { view: "records" })),
        view === "timeline"
          ? h("span", null, order === "newest" ? "Newest first. " : "Oldest first. ", link(["run", ref], { order: order === "newest" ? "oldest" : "" }, order === "newest" ? "Oldest first" : "Newest first"))
          : h("nav", { "aria-label": "Ledgers" }, prefixes.map(([p, text]) => h("a", { href: address(["run", ref], { view, prefix: p }), "aria-current": prefix === p ? "true" : null }, text)))),
      newer, below));

  let shownSeq = 0, state = null;
  const loadBelow = async () => {
    newer.hidden = true;
    shownSeq = state.run.last_seq;
    if (view === "records") await showRecords(below, ref, prefix, signal);
    else await showTimeline(below, ref, order, signal);
  };
  // A part that cannot be read says so, and the others go on.
  const part = async (where, read, inner) => {
    const alert = () => where.querySelector(":scope > .problem[role=alert]");
    try {
      await read(inner);
      alert()?.remove();
    } catch (error) {
      if (error.name === "AbortError" || error.kind === "unauthenticated") throw error;
      alert()?.remove();
      where.append(problem(error, () => part(where, read, signal).catch(() => {})));
    }
  };

  // termsOf and rowsOf are the states of the run for which the terms and the summary were last read. A
  // read that was cut off, because the page was hidden, does not count. due is when the summary is read
  // again, on the monotonic clock.
  let termsOf = null, rowsOf = null, summary = null, due = 0;
  const readTerms = async (inner) => {
    const of = `${state.run.lease.token} ${state.run.lease.state}`;
    if (termsOf === of) return;
    await part(terms, async (inner) => showTerms(terms, ref, await get("terms", { run: ref }, inner), signal), inner);
    termsOf = of;
  };
  const readSummary = async (inner) => {
    const of = `${state.run.last_seq} ${state.run.lease.state}`;
    if (rowsOf === of && performance.now() < due) return;
    await part(stuck, async (inner) => {
      summary = await get("summary", { run: ref }, inner);
      showProblems();
    }, inner);
    rowsOf = of;
    due = performance.now() + refreshAfter;
  };
  // showProblems shows what is stuck if that has changed: a record that is open below its problem stays.
  let shownProblems = "";
  const showProblems = () => {
    const all = [...state.problems, ...(summary?.problems ?? [])];
    const text = JSON.stringify([all, summary?.counts, summary?.omitted, summary?.records_more && summary.records_read]);
    if (text === shownProblems) return;
    shownProblems = text;
    showStuck(problems, ref, all, summary, signal);
  };

  // show shows a state of the run. It says aloud only what changes the answer to "who holds it".
  const show = (next) => {
    const before = state;
    state = next;
    const r = next.run;
    refill(head, h("h1", { tabindex: "-1", class: "id" }, r.id), h("p", { class: "under" }, badge(r.status, r.level), " ", r.unlisted && badge("unlisted"), " ",
      [["app", r.tape?.app], ["user", r.tape?.user], ["session", r.tape?.session], ["invocation", r.tape?.invocation], ["tenant", r.tape?.tenant], ["agent", r.tape?.agent]]
        .filter(([, v]) => v).map(([name, v]) => [h("span", { class: "quiet" }, name), " ", v, " · "]),
      count(r.last_seq), " events · created ", when(r.created), r.tape?.ended && [" · ended ", when(r.tape.ended)], r.note && h("span", { class: "quiet" }, " · " + r.note)),
    r.tape?.detail && h("p", { class: "one-line" }, r.tape.detail));
    refill(holder, leaseCard(r, about, ref, notes));
    refill(last, lastCard(next.last));
    showProblems();
    if (before) {
      const l = r.lease, was = before.run.lease;
      if (l.token !== was.token || l.state !== was.state || l.owner !== was.owner) announce(leaseSentence(l));
      if (r.last_seq > shownSeq && view === "timeline") {
        newer.hidden = false;
        newer.textContent = `${count(r.last_seq - shownSeq)} newer ${r.last_seq - shownSeq === 1 ? "event" : "events"}: show`;
      }
    }
  };
  show(first);
  const failed = (error) => fill(trouble, error && problem(error));
  await Promise.all([readTerms(signal), readSummary(signal), loadBelow()]);

  let seen = first.tag; // the last state of which the parts were read, too
  live(signal, 300, async (inner) => {
    const wait = Math.min(maxWait, Math.max(0, Math.ceil((due - performance.now()) / 1000)));
    let next;
    try {
      next = await get("run", { run: ref, seen, wait }, inner);
    } catch (error) {
      if (error.kind !== "busy") throw error;
      await new Promise((resolve) => setTimeout(resolve, 3000)); // too many pages wait
      next = await get("run", { run: ref }, inner);
    }
    if (next.tag !== state.tag) show(next);
    await Promise.all([readTerms(inner), readSummary(inner)]);
    seen = next.tag;
  }, failed);
}

// leaseSentence describes the holder of a run.
function leaseSentence(l) {
  if (l.state === "live") return `${l.owner} holds the run under token ${l.token_text}.`;
  if (l.state === "expired") return `The lease of ${l.owner} under token ${l.token_text} has expired; nothing has taken the run over.`;
  return l.token ? `The lease is free; the last token is ${l.token_text}.` : "The lease is free, and was never granted.";
}

function leaseCard(r, about, ref, notes) {
  const l = r.lease;
  const held = l.state !== "free";
  const role = l.reactor ? ` as ${l.reactor}` : "";
  return [
    h("h2", { id: "lease-title" }, "Who holds it"),
    h("p", { class: "big" }, badge(l.state, l.state === "live" ? "good" : l.state === "expired" ? "warn" : "plain"), " ",
      held ? [h("strong", { class: "owner" }, l.owner), role] : l.token ? "no holder" : "never granted"),
    facts([
      ["Token", l.token ? h("span", { class: "token" }, tokenText(l.token, l.token_text)) : null],
      [l.state === "expired" ? "Expired" : held ? "Expires" : "Last expiry", when(l.expires)],
      ["Last renewed", when(l.renewed)], ["Last commit", held && when(l.progressed)], ["Granted", when(l.granted)],
      ["TTL", seconds(l.ttl_seconds)], ["Longest stall", seconds(l.max_stall_seconds)], ["Strict", l.strict ? "yes" : null],
      ["Grant before", l.former && [l.former, l.preempted_from && ` from ${l.preempted_from}: ${l.preempted_reason}`]],
    ]),
    held && about.break && h("button", { type: "button", class: "danger", id: "break", on: { click: () => breakDialog(r, ref, about, notes) } }, "Break the lease…"),
  ];
}

function lastCard(e) {
  return [h("h2", { id: "last-title" }, "What it did last"), e
    ? [h("p", { class: "big" }, h("span", { class: "kind" }, e.kind), " ", badge(e.status, e.level), " ", when(e.time)),
      facts([["Event", "#" + e.seq], ["Time", stamp(e.time)], ["By", e.owner], ["Token", e.token_text]]),
      h("p", { class: "one-line" }, h("code", null, (e.data.text ?? e.data.binary ?? "").replace(/\s+/g, " ")))]
    : h("p", { class: "quiet" }, "It has no events.")];
}

// showStuck shows problems. Without a summary it does not say that there are no others.
function showStuck(place, ref, all, summary, signal) {
  const counts = summary?.counts.filter((c) => c.ledger !== "other" || summary.counts.length === 1) ?? [];
  refill(place,
    all.length === 0 ? summary && h("p", { class: "big" }, badge("nothing", "good"), " needs attention") : h("ul", { class: "problems" }, all.map((p) =>
      h("li", { class: "problem " + (p.level || "plain") }, h("strong", null, p.what), ": ", p.why, p.since && [" (", when(p.since), ")"], " ",
        p.ref && h("button", { type: "button", on: { click: (event) => openRecord(event.target, ref, p.ref, signal) } }, "Show")))),
    summary?.omitted ? h("p", { class: "quiet" }, `${count(summary.omitted)} further problems are not listed.`) : null,
    counts.length ? h("p", { class: "quiet counts" }, counts.map((c) => `${count(c.count)} ${c.ledger}${c.count === 1 ? "" : "s"} ${c.state ?? ""}`.trim()).join(" · ")) : null,
    summary?.records_more && h("p", { class: "problem warn" }, `Only the first ${count(summary.records_read)} records were looked at.`));
}

// openRecord shows a record below the problem that it has.
async function openRecord(button, ref, record, signal) {
  try {
    const page = await get("records", { run: ref, prefix: record, limit: 1 }, signal);
    const list = h("ol", { class: "timeline" }, page.records.map((r) => recordEntry(ref, r)));
    button.replaceWith(list);
    const details = list.querySelector("details");
    if (details) {
      details.open = true;
      details.querySelector("summary").focus();
    }
  } catch (error) {
    if (!signal.aborted) button.after(problem(error));
  }
}

function showTerms(place, ref, page, signal) {
  const columns = ["Token", "Owner", "Granted", "Events", "First write", "Last write", "Ended"];
  const cells = (t) => [tokenText(t.token, t.token_text), t.reactor ? `${t.owner} (${t.reactor})` : t.owner ?? "–", stamp(t.granted) ?? "–",
    t.events ? `${count(t.events)} (#${t.first_seq}–${t.last_seq})` : "none", stamp(t.first_write) ?? "–", stamp(t.last_write) ?? "–", badge(t.end, t.level || (t.end === "current" ? "good" : "plain")) ?? "–"];
  const terms = page.terms;
  const rows = table("Terms, the newest first", columns, terms.map(cells));
  let cursor = page.cursor ?? "", looked = page.looked, open = terms.at(-1);
  const note = h("p", { class: "quiet" });
  const say = () => { note.textContent = cursor ? `From the last ${count(looked)} events.` : ""; more.hidden = !cursor; };
  const more = h("button", { type: "button", on: { click: async () => {
    try {
      const next = await get("terms", { run: ref, cursor }, signal);
      for (const t of next.terms) {
        if (open?.token === t.token) { // it began on this page
          Object.assign(open, { events: open.events + t.events, first_seq: t.first_seq, first_write: t.first_write, owner: t.owner ?? open.owner, last_seq: open.last_seq ?? t.last_seq, last_write: open.last_write ?? t.last_write });
          rows.tBodies[0].lastElementChild.remove();
          rows.addRow(cells(open));
        } else {
          open = t;
          rows.addRow(cells(t));
        }
      }
      cursor = next.cursor ?? "";
      looked += next.looked;
      say();
    } catch (error) {
      if (!signal.aborted) note.textContent = error.message;
    }
  } } }, "Earlier terms");
  say();
  refill(place, terms.length ? rows : h("p", { class: "quiet" }, "No token was ever granted."), note, more);
}
