// The queues of the store and of Tape, and the entries of one.
import { h, fill, refill, link, badge, problem, runLink, table } from "./dom.js";
import { when, count } from "./format.js";
import { get, live } from "./api.js";
import { lease } from "./runs.js";
import { rowSummary } from "./timeline.js";

const due = (q) => (q.due ? (q.more ? q.due + "+" : String(q.due)) : "0");

// queueChips fills a place with one link for each queue that has due entries.
export function queueChips(place, { queues }) {
  const waiting = queues.filter((q) => q.due || q.error);
  refill(place, waiting.length === 0 && h("p", { class: "quiet" }, "No queue has due entries."),
    waiting.map((q) => h("a", { class: "chip " + (q.level || "plain"), href: "#/queue/" + encodeURIComponent(q.ref) },
      h("strong", null, q.error ? "!" : due(q)), " ", q.title, q.oldest && [", oldest ", when(q.oldest)])));
}

export async function showQueues(place, { signal }) {
  const name = h("input", { id: "index", required: true, maxlength: "512", autocomplete: "off", spellcheck: "false", placeholder: "claim.due/NAME" });
  const list = h("div");
  const trouble = h("div");
  fill(place, h("h1", { tabindex: "-1" }, "Queues"), trouble, list,
    h("form", { class: "filter", on: { submit: (event) => {
      event.preventDefault();
      location.hash = "#/queue/" + encodeURIComponent(name.value.trim());
    } } }, h("div", { class: "field" }, h("label", { for: "index" }, "Another index, by name"), name),
    h("div", { class: "buttons" }, h("button", { type: "submit" }, "Open"))));
  const columns = ["Queue", "Due", "Oldest", "What is in it"];
  const update = async (inner) => {
    const { queues } = await get("queues", {}, inner);
    refill(list, table("Queues", columns, queues.map((q) => [
      link(["queue", q.ref], {}, q.title), badge(due(q), q.due ? q.level || "plain" : "quiet"),
      q.error ?? (q.oldest ? when(q.oldest) : "–"), [q.remark, " ", h("code", null, q.index)],
    ])));
  };
  await update(signal);
  live(signal, 10000, update, (error) => fill(trouble, error && problem(error)));
}

export async function showQueue(place, { rest, query, signal }) {
  const ref = rest.join("/");
  const all = query.get("all") === "yes";
  const note = h("p", { class: "quiet", role: "status" });
  const more = h("button", { type: "button", hidden: true }, "Later entries");
  const trouble = h("div");
  const rows = table("Entries", ["Due", "Run", "Lease", "Record"], []);
  const title = h("h1", { tabindex: "-1" }, "Queue");
  const remark = h("p", { class: "quiet" });
  fill(place, h("p", { class: "crumbs" }, link(["queues"], {}, "Queues")), title, remark,
    h("p", null, all ? link(["queue", ref], {}, "Only what is due") : link(["queue", ref], { all: "yes" }, "Also what is not due yet")),
    rows, note, trouble, more);
  let cursor = "", shown = 0;
  const next = async () => {
    fill(trouble);
    try {
      const page = await get("queue", { index: ref, all: all ? "yes" : "", cursor }, signal);
      title.textContent = page.title ?? page.index;
      fill(remark, page.remark, page.remark && " · ", h("code", null, page.index));
      for (const e of page.entries) {
        rows.addRow([when(e.at), [runLink(e.run.ref, e.run.id), " ", badge(e.run.status, e.run.level)], lease(e.run.lease),
          e.record ? rowSummary(e.record) : "–"]);
      }
      shown += page.entries.length;
      cursor = page.cursor ?? "";
      note.textContent = shown ? `${count(shown)} entries${cursor ? "; there may be others" : ""}` : all ? "There are no entries." : "Nothing is due.";
      rows.hidden = shown === 0;
      more.hidden = !cursor;
    } catch (error) {
      if (signal.aborted) return;
      if (error.kind === "unauthenticated") throw error;
      fill(trouble, problem(error, next));
    }
  };
  more.addEventListener("click", next);
  await next();
}
