// The end of the feed, live.
import { h, fill, badge, problem, runLink, table } from "./dom.js";
import { stamp, count } from "./format.js";
import { get, live } from "./api.js";

const kept = 200; // rows

export async function showFeed(place, { signal }) {
  const columns = ["Position", "Time", "Run", "Event", "By", "Data"];
  const rows = table("Events of all runs, the newest first", columns, []);
  const note = h("p", { class: "quiet" });
  const trouble = h("div");
  let paused = false, after = null, seen = 0;
  const button = h("button", { type: "button", "aria-pressed": "false", on: { click: () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    button.textContent = paused ? "Go on" : "Pause";
    note.textContent = paused ? "Paused." : "Live.";
  } } }, "Pause");
  fill(place, h("h1", { tabindex: "-1" }, "Feed"), h("div", { class: "bar" }, button, note), trouble, rows);

  const show = (page) => {
    if (page.restarted) {
      rows.trim(0);
      fill(trouble, h("p", { class: "problem warn", role: "alert" }, "The store was restored: the feed goes on at an earlier position."));
    }
    for (const e of page.events) {
      rows.addRow([h("code", null, e.position), stamp(e.time), e.run ? runLink(e.ref, e.run) : "–",
        e.error ? badge(e.error, "bad") : [h("span", { class: "kind" }, e.kind), " ", badge(e.status, e.level), ` #${e.seq}`],
        e.owner ? `${e.owner} · ${e.token_text}` : "–", h("span", { class: "one-line" }, e.data.text ?? e.data.binary ?? "")], "start");
    }
    rows.trim(kept);
    seen += page.events.length;
    after = page.after;
    note.textContent = `Live: ${count(seen)} events since the page was opened${seen > kept ? `, the last ${kept} are shown` : ""}.`;
  };
  show(await get("feed", { limit: 50 }, signal));
  live(signal, 500, async (inner) => {
    if (paused) return;
    let page;
    try {
      page = await get("feed", { after, wait: 25, limit: 200 }, inner);
    } catch (error) {
      if (error.kind !== "busy") throw error;
      page = await get("feed", { after, limit: 200 }, inner); // too many pages wait
    }
    if (!paused && !inner.aborted) show(page);
  }, (error) => fill(trouble, error && problem(error)));
}
