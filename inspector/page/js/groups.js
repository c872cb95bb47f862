// A group: its live members, and who holds its shards.
import { h, fill, refill, address, badge, problem, runLink, table } from "./dom.js";
import { when, count, printable, tokenText } from "./format.js";
import { get, live } from "./api.js";
import { lease } from "./runs.js";

export async function showGroups(place, { query, signal }) {
  const name = query.get("name") ?? "";
  const input = h("input", { id: "group", value: name, required: true, maxlength: "96", autocomplete: "off", spellcheck: "false" });
  const found = h("div");
  const trouble = h("div");
  fill(place, h("h1", { tabindex: "-1" }, name ? "Group " + printable(name) : "Groups"),
    h("form", { class: "filter", on: { submit: (event) => {
      event.preventDefault();
      location.hash = address(["groups"], { name: input.value.trim() });
    } } }, h("div", { class: "field" }, h("label", { for: "group" }, "Name of a group"), input),
    h("div", { class: "buttons" }, h("button", { type: "submit", class: "main" }, "Show"))),
    trouble, found);
  if (!name) {
    found.append(h("p", { class: "quiet" }, "A store keeps no list of its groups: enter the name that your program gives to lease/group."));
    return;
  }
  let pages = 1;
  const update = async (inner) => {
    let group = null, cursor = "";
    const shards = [];
    for (let i = 0; i < pages; i++) {
      group = await get("group", { name, cursor, limit: 100 }, inner);
      shards.push(...group.shards);
      cursor = group.cursor ?? "";
      if (!cursor) break;
    }
    refill(found,
      h("p", null, "Its run: ", runLink(group.ref, "group/" + group.name), `, assignment ${count(group.generation)}, ${count(group.total)} shards`),
      h("h2", null, `Members (${count(group.members.length)} live)`),
      group.members.length ? table("Members", ["Member", "Token", "Joined", "Shards", "Attributes"], group.members.map((m) => [
        runLink(m.ref, m.name), tokenText(m.token, m.token_text), when(m.joined), count(m.assigned), m.attributes.text ?? m.attributes.binary ?? "–"]))
        : h("p", { class: "quiet" }, "No member is live."),
      h("h2", null, "Shards"),
      shards.length ? table("Shards", ["Shard", "Assigned to", "Lease", "Token", "State"], shards.map((s) => [
        runLink(s.ref, String(s.shard)), s.owner, lease(s.lease), s.lease.token ? tokenText(s.lease.token, s.lease.token_text) : "–", s.why ? badge(s.why, s.level) : "held"]))
        : h("p", { class: "quiet" }, "The group has shared no shards."),
      cursor && h("button", { type: "button", id: "more-shards", on: { click: () => { pages++; update(signal).catch((e) => fill(trouble, problem(e))); } } }, "More shards"));
  };
  await update(signal);
  live(signal, 5000, update, (error) => fill(trouble, error && problem(error)));
}
