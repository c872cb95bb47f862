// The timeline of a run: its events, and its records where they changed last.
import { h, add, fill, badge, facts, problem } from "./dom.js";
import { stamp, when, count } from "./format.js";
import { get } from "./api.js";
import { value } from "./values.js";

const oneLine = (content) => (content.hidden ? "not shown" : (content.text ?? content.binary ?? "")).replace(/\s+/g, " ");
const by = (owner, text) => (text ? h("span", { class: "by" }, owner ? `${owner} · ` : "", "token ", text) : h("span", { class: "by quiet" }, "no fence"));

// entry returns a line that opens to show more. The content is made when it is opened first.
function entry(kind, id, line, open) {
  const body = h("div", { class: "body" });
  let made = false;
  const details = h("details", { on: { toggle: () => {
    if (details.open && !made) {
      made = true;
      add(body, open());
    }
  } } }, h("summary", null, line), body);
  return h("li", { class: kind, id }, details);
}

function eventEntry(run, e) {
  return entry("event", null, [
    h("span", { class: "seq" }, "#" + e.seq), " ", stamp(e.time), " ",
    h("span", { class: "what" }, h("span", { class: "kind" }, e.kind), " ", badge(e.status, e.level)), " ",
    by(e.owner, e.token_text), " ", h("span", { class: "one-line" }, oneLine(e.data)),
  ], () => [
    facts([["Time", stamp(e.time)], ["Age", when(e.time)], ["Owner", e.owner], ["Token", e.token_text], ["Position in the feed", e.position]]),
    value(e.data, { run, seq: e.seq }),
  ]);
}

// rowSummary returns a record in one line.
export function rowSummary(r) {
  if (!r.row) return [h("code", null, r.key), " ", h("span", { class: "one-line" }, oneLine(r.value))];
  return [h("span", { class: "kind" }, r.row.ledger), " ", r.row.name !== r.row.ledger && h("strong", null, r.row.name), " ", badge(r.row.state, r.row.level),
    r.row.facts && h("span", { class: "one-line quiet" }, r.row.facts.slice(0, 4).flatMap((f, i) => [i ? " · " : " ", f.name, " ", f.time ? when(f.time) : f.value]))];
}

// recordEntry returns a record as a line that opens.
export function recordEntry(run, r, id) {
  return entry("record", id, [
    h("span", { class: "seq", "aria-hidden": "true" }, "↳"), " ", stamp(r.updated.time), " ", h("span", { class: "what" }, rowSummary(r)), " ",
    h("span", { class: "by" }, "version ", r.version, r.updated.token_text ? " · token " + r.updated.token_text : ""),
  ], () => [
    r.row?.why && h("p", { class: "problem " + r.row.level }, r.row.why),
    facts([["Record", h("code", null, r.key)], ...(r.row?.facts ?? []).map((f) => [f.name, f.time ? [stamp(f.time), " (", when(f.time), ")"] : f.value]),
      ["Created", [`#${r.created.seq} `, stamp(r.created.time), r.created.token_text && " · token " + r.created.token_text]],
      ["Changed", [`#${r.updated.seq} `, stamp(r.updated.time), r.updated.token_text && " · token " + r.updated.token_text]],
      ["Version", r.version]]),
    (r.row?.bodies ?? []).map((b) => [h("h4", null, b.part), value(b, { run, record: r.ref, part: b.part })]),
    r.row?.bodies ? null : [h("h4", null, "value"), value(r.value, { run, record: r.ref })],
  ]);
}

// paged fills a place with a list that grows page by page. read returns {items, cursor, note}.
export async function paged(place, label, moreLabel, signal, read) {
  const list = h("ol", { class: "timeline", "aria-label": label });
  const note = h("p", { class: "quiet", role: "status" });
  const trouble = h("div");
  const more = h("button", { type: "button", hidden: true }, moreLabel);
  fill(place, list, note, trouble, more);
  let cursor = "";
  const next = async () => {
    more.disabled = true;
    fill(trouble);
    try {
      const page = await read(cursor);
      const first = page.items[0];
      list.append(...page.items);
      if (cursor) first?.querySelector("summary")?.focus();
      cursor = page.cursor ?? "";
      note.textContent = `${count(list.children.length)} entries${cursor ? "" : ", all of them"}. ${page.note ?? ""}`;
      more.hidden = !cursor;
    } catch (error) {
      if (signal.aborted) return;
      if (error.kind === "unauthenticated") document.dispatchEvent(new CustomEvent("unauthenticated"));
      else fill(trouble, problem(error, next));
    } finally {
      more.disabled = false;
    }
  };
  more.addEventListener("click", next);
  await next();
}

// showTimeline fills a place with the timeline of a run.
export async function showTimeline(place, ref, order, signal) {
  await paged(place, "Timeline", order === "oldest" ? "Later events" : "Earlier events", signal, async (cursor) => {
    const page = await get("timeline", { run: ref, order, cursor }, signal);
    const notes = [];
    if (page.records_error) notes.push(`Records are missing: ${page.records_error}.`);
    if (page.records_more) notes.push(`The run has more than ${count(page.records_read)} records: those that were not looked at are in the list of records only.`);
    if (page.omitted) notes.push(`${count(page.omitted)} records of these events are in the list of records only.`);
    return {
      items: page.items.map((i) => (i.event ? eventEntry(ref, i.event) : recordEntry(ref, i.record))),
      cursor: page.cursor, note: notes.join(" "),
    };
  });
}

// showRecords fills a place with the records of a run, by key.
export async function showRecords(place, ref, prefix, signal) {
  await paged(place, "Records", "More records", signal, async (cursor) => {
    const page = await get("records", { run: ref, prefix, cursor }, signal);
    return { items: page.records.map((r) => recordEntry(ref, r)), cursor: page.cursor };
  });
}
