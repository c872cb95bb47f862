// The elements of the page. Everything that comes from a store becomes text here, never markup: no
// other file creates elements, and none sets markup. Attributes have fixed names, and an address is
// always one of this page, made by link().

// h returns an element. props are attributes, "on" an object of listeners, and true an attribute
// without a value. Children are elements, texts, or lists of them; null and false are left out.
export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  add(element, children);
  return element;
}

// add appends children to an element.
export function add(element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

// fill replaces the children of an element.
export function fill(element, ...children) {
  element.replaceChildren();
  add(element, ...children);
  return element;
}

// refill replaces the children of an element as fill does. The keyboard focus stays on the link or the
// button that is there again.
export function refill(element, ...children) {
  const focused = element.contains(document.activeElement) ? document.activeElement : null;
  const name = focused && (focused.id ? "#" + CSS.escape(focused.id) : focused.hasAttribute("href") && `a[href="${CSS.escape(focused.getAttribute("href"))}"]`);
  fill(element, ...children);
  if (name) element.querySelector(name)?.focus({ preventScroll: true });
  return element;
}

// address returns an address of this page.
export function address(path, query) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) if (value) params.set(name, value);
  const text = params.toString();
  return "#/" + path.map(encodeURIComponent).join("/") + (text ? "?" + text : "");
}

// link returns a link to an address of this page.
export function link(path, query, ...children) {
  return h("a", { href: address(path, query) }, ...children);
}

// runLink returns a link to a run.
export function runLink(ref, id) {
  return h("a", { href: address(["run", ref]), class: "id" }, id);
}

// badge returns a word with the color of its level.
export function badge(word, level) {
  return word ? h("span", { class: "badge " + (level || "plain") }, word) : null;
}

// table returns a table. columns are titles; rows are lists of cells. The roles remain when a narrow
// screen shows each row as a block, which removes those of the elements.
export function table(caption, columns, rows) {
  const body = h("tbody", { role: "rowgroup" });
  const element = h("table", { role: "table", class: "rows" },
    h("caption", { class: "unseen" }, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map((c) => h("th", { role: "columnheader", scope: "col" }, c)))),
    body);
  element.addRow = (cells, where = "end") => {
    const row = h("tr", { role: "row" }, cells.map((cell, i) =>
      h(i === 0 ? "th" : "td", { role: i === 0 ? "rowheader" : "cell", scope: i === 0 ? "row" : null, "data-label": columns[i] }, h("div", null, cell))));
    if (where === "start") body.prepend(row);
    else body.append(row);
    return row;
  };
  element.trim = (n) => { while (body.rows.length > n) body.rows[body.rows.length - 1].remove(); };
  rows.forEach((cells) => element.addRow(cells));
  return element;
}

// facts returns a list of names and values, without those that are empty.
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false)
    .map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));
}

// announce says something to a screen reader.
export function announce(text) {
  document.getElementById("announce").textContent = text;
}

// notice shows a message above every view, until it is dismissed.
export function notice(level, text) {
  const element = h("div", { class: "problem " + level }, h("p", null, text), h("button", { type: "button", on: { click: () => element.remove() } }, "Dismiss"));
  document.getElementById("notices").append(element);
}

// problem returns an element that shows an error, with a button to try again.
export function problem(error, again) {
  return h("div", { class: "problem bad", role: "alert" }, h("p", null, error.message),
    again && h("button", { type: "button", on: { click: again } }, "Try again"));
}
