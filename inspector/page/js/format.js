// Times, durations and sizes. All times are those of the store clock, in UTC; the clock of this machine
// is used for nothing but the time since the last answer.
import { h } from "./dom.js";

let base = null; // the store clock at the last answer, in ms
let at = 0; // when that was, on the monotonic clock

// setClock takes the store clock of an answer.
export function setClock(now) {
  const ms = Date.parse(now);
  if (!Number.isNaN(ms)) {
    base = ms;
    at = performance.now();
    if (!document.getElementById("clock").textContent) tick();
  }
}

// storeNow returns the store clock in ms, or null before the first answer.
export function storeNow() {
  return base === null ? null : base + performance.now() - at;
}

// span returns a duration in words.
export function span(ms) {
  const s = Math.abs(ms) / 1000;
  if (s < 10) return s.toFixed(1) + " s";
  if (s < 120) return Math.floor(s) + " s";
  if (s < 7200) return Math.floor(s / 60) + " min";
  if (s < 172800) return Math.floor(s / 3600) + " h";
  return Math.floor(s / 86400) + " d";
}

function relative(ms) {
  const now = storeNow();
  if (now === null) return "";
  return ms > now ? "in " + span(ms - now) : span(now - ms) + " ago";
}

const absolute = (text) => text.replace("T", " ").replace(/(\.\d{1,3})?\d*Z$/, "$1Z");

// when returns a time as "3 min ago", which tick() keeps true.
export function when(time) {
  if (!time) return null;
  return h("time", { datetime: time, title: absolute(time), "data-relative": true }, relative(Date.parse(time)));
}

// stamp returns a time as date and time.
export function stamp(time) {
  if (!time) return null;
  const text = absolute(time);
  return h("time", { datetime: time, title: text }, text);
}

// seconds returns a number of seconds in words.
export const seconds = (s) => (s ? span(s * 1000) : null);

// bytes returns a size in words.
export function bytes(n) {
  if (n < 1024) return n + " B";
  if (n < 1 << 20) return (n / 1024).toFixed(1) + " KiB";
  return (n / (1 << 20)).toFixed(1) + " MiB";
}

// count returns a number with separators of thousands.
export const count = (n) => n.toLocaleString("en");

// tokenText returns a token, with its number where it has an epoch.
export const tokenText = (token, text) => (!text || String(token) === text ? String(token) : `${text} (${token})`);

// tick updates the times of the page.
export function tick() {
  const now = storeNow();
  if (now === null) return;
  const clock = document.getElementById("clock");
  const text = new Date(now).toISOString();
  clock.textContent = text.slice(11, 19) + " UTC";
  clock.dateTime = text;
  for (const element of document.querySelectorAll("time[data-relative]")) {
    const words = relative(Date.parse(element.dateTime));
    if (element.textContent !== words) element.textContent = words;
  }
}

// printable escapes what is not printable: control characters, invisible ones, and those that change
// the direction of writing. Line breaks and tabs remain.
export function printable(text) {
  return text.replace(/[^\P{C}\n\t]|[\u2028\u2029]/gu, (c) => "\\u{" + c.codePointAt(0).toString(16) + "}");
}
