// Values of events and records: the first bytes, and the whole on demand.
import { h, fill, problem } from "./dom.js";
import { bytes, printable } from "./format.js";
import { getBytes } from "./api.js";

// value returns an element that shows a value. where names it to the API.
export function value(content, where) {
  if (!content || content.bytes === 0) return h("p", { class: "quiet" }, "empty");
  if (content.hidden) return h("p", { class: "quiet" }, `${bytes(content.bytes)}, not shown: the id of a grant lets its reader write as the holder`);
  const text = h("pre", { tabindex: "0", role: "region", "aria-label": "Value" }, content.binary ? content.binary : pretty(content.cut ? null : content.text, content.text));
  const notes = h("p", { class: "quiet" }, content.binary ? `binary, ${bytes(content.bytes)}` : bytes(content.bytes), content.cut ? ", cut" : "");
  const box = h("div", { class: "value" }, text, notes);
  if (content.cut) {
    const load = h("button", { type: "button", on: { click: () => loadWhole(box, content, where, load) } }, `Load all ${bytes(content.bytes)}`);
    notes.append(" ", load);
  }
  return box;
}

// pretty returns JSON with line breaks, and any other text as it is.
function pretty(json, text) {
  if (json !== null && json.length <= 1 << 18 && /^\s*[[{]/.test(json)) {
    try {
      return JSON.stringify(JSON.parse(json, keepNumbers), null, 2);
    } catch {
      // not JSON
    }
  }
  return text;
}

// keepNumbers keeps the digits of numbers that a float would change.
function keepNumbers(key, parsed, context) {
  if (typeof parsed === "number" && context?.source && String(parsed) !== context.source && JSON.rawJSON) return JSON.rawJSON(context.source);
  return parsed;
}

async function loadWhole(box, content, where, button) {
  button.disabled = true;
  try {
    const data = await getBytes(where);
    let text;
    try {
      text = new TextDecoder("utf-8", { fatal: true }).decode(data);
    } catch {
      text = null;
    }
    const binary = text === null || text.includes("\0");
    const shown = binary ? dump(data) : printable(pretty(text, text));
    const save = h("button", { type: "button", on: { click: () => saveFile(data) } }, "Save as a file");
    fill(box, h("pre", { tabindex: "0", role: "region", class: "whole", "aria-label": "Whole value" }, shown),
      h("p", { class: "quiet" }, binary ? `binary, ${bytes(data.length)}` : bytes(data.length), " ", save));
    box.querySelector("pre").focus();
  } catch (error) {
    button.disabled = false;
    box.querySelector(".problem")?.remove();
    box.append(problem(error));
  }
}

const dumped = 1 << 14; // bytes: 1,024 lines

// dump returns bytes in hexadecimal and as characters.
function dump(data) {
  const rows = [];
  for (let i = 0; i < Math.min(data.length, dumped); i += 16) {
    const row = [...data.subarray(i, i + 16)];
    const hex = row.map((b) => b.toString(16).padStart(2, "0")).join(" ");
    rows.push(i.toString(16).padStart(6, "0") + "  " + hex.padEnd(47) + "  " + row.map((b) => (b > 31 && b < 127 ? String.fromCharCode(b) : ".")).join(""));
  }
  if (data.length > dumped) rows.push(`… ${bytes(data.length - dumped)} more: save it as a file`);
  return rows.join("\n");
}

function saveFile(data) {
  const url = URL.createObjectURL(new Blob([data], { type: "application/octet-stream" }));
  const anchor = h("a", { href: url, download: "value.bin" });
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
