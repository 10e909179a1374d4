"use strict";
// Numbers as the rows that stand in the page show them.

function grouped(digits) {
  const [whole, fraction] = digits.split(".");
  const spaced = whole.replace(/\B(?=(\d{3})+$)/g, ",");
  return fraction === undefined ? spaced : `${spaced}.${fraction}`;
}

/** Digits of a number, halves rounded to the even digit as Python does (`toFixed` rounds them up). */
function fixed(value, decimals) {
  const size = Math.abs(value);
  const scaled = size * 10 ** decimals;
  // Exactly between two numbers only if the binary digits end early enough.
  const isHalf = scaled % 1 === 0.5 && Number.isInteger(size * 2 ** (decimals + 1));
  const even = 2 * Math.round(scaled / 2);
  const digits = (isHalf ? even / 10 ** decimals : size).toFixed(decimals);
  return (value < 0 ? "-" : "") + (digits.includes("e") ? digits : grouped(digits));
}

function shownNumber(value, column) {
  if (typeof value === "string") return value; // an infinity, or more digits than a double has
  const sign = column.signed && value >= 0 ? "+" : "";
  if (column.style === "identifier") {
    return String(Number.isInteger(value) ? value : Number(value.toPrecision(6)));
  }
  if (column.style === "percent") {
    if (!column.signed && value > 0 && value < 0.05) return "<0.1%";
    return `${sign}${fixed(value, 1).replaceAll(",", "")}%`;
  }
  return sign + fixed(value, column.decimals);
}

const shownCount = (count) => grouped(String(count));

// Tables: sorted by their headers, searched, and drawn only as far as they are looked at.

const ROWS_AT_ONCE = 200; // drawn when the end of what is drawn comes into sight
const NEAR_END = 600; // pixels
const LONG_TEXT = 40; // characters
const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

let lowerTexts = null; // made when first searched

function textsThatHold(term, texts) {
  lowerTexts ??= texts.map((text) => text.toLowerCase());
  return Uint8Array.from(lowerTexts, (text) => (text.includes(term) ? 1 : 0));
}

/** What to compare in a column: a number a row; NaN for an empty cell. */
function sortKeys(column, texts) {
  if (column.kind === "number") {
    column.keys ??= Float64Array.from(column.values, (value) => (value === null ? NaN : Number(String(value).replace("inf", "Infinity"))));
  } else if (!column.keys) {
    const distinct = [...new Set(column.values)].filter((code) => code >= 0);
    distinct.sort((a, b) => collator.compare(texts[a], texts[b]));
    const rank = new Map(distinct.map((code, place) => [code, place]));
    column.keys = Float64Array.from(column.values, (code) => rank.get(code) ?? NaN);
  }
  return column.keys;
}

/** Empty cells come last. */
function sorted(rows, keys, descending) {
  const sign = descending ? -1 : 1;
  const compared = rows.filter((row) => !Number.isNaN(keys[row]));
  compared.sort((a, b) => sign * ((keys[a] > keys[b]) - (keys[a] < keys[b])));
  return [...compared, ...rows.filter((row) => Number.isNaN(keys[row]))];
}

class ReportTable {
  constructor(section, table, texts, firstRows) {
    Object.assign(this, { section, table, texts, firstRows });
    this.body = section.querySelector("tbody");
    this.scroll = section.querySelector(".scroll");
    this.status = section.querySelector(".status");
    this.more = section.querySelector(".more");
    this.headers = [...section.querySelectorAll("thead th")];
    this.terms = [];
    this.sort = null; // {place, descending}
    this.open = false; // shows more than the first rows
    this.rows = this.chosen();
    this.connect();
    this.show();
  }

  connect() {
    for (const control of this.section.querySelectorAll("label.scripted")) control.hidden = false;
    this.headers.forEach((header, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = header.textContent;
      button.addEventListener("click", () => this.sortBy(place));
      header.dataset.name = header.textContent; // printed: a button is not repeated on every page
      header.replaceChildren(button);
    });
    const search = this.section.querySelector("input[type=search]");
    let waiting = 0;
    search?.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => this.search(search.value), 120);
    });
    const whole = this.section.querySelector("input.whole");
    whole?.addEventListener("change", () => {
      this.section.classList.toggle("whole-names", whole.checked);
    });
    this.more.addEventListener("click", () => {
      this.open = !this.open;
      this.show();
    });
    this.scroll.addEventListener("scroll", () => {
      const { scrollTop, clientHeight, scrollHeight } = this.scroll;
      if (this.open && scrollTop + clientHeight > scrollHeight - NEAR_END) this.extend();
    });
    this.body.addEventListener("click", (event) => {
      const button = event.target.closest(".copy");
      if (button) this.copyCommand(button);
      const clip = event.target.closest(".clip");
      if (clip && getSelection().isCollapsed) clip.classList.toggle("open");
    });
  }

  /** A first click sorts numbers from the largest, texts from A; a third restores the order. */
  sortBy(place) {
    const numbers = this.table.columns[place].kind === "number";
    if (this.sort?.place !== place) this.sort = { place, descending: numbers };
    else if (this.sort.descending === numbers) this.sort = { place, descending: !numbers };
    else this.sort = null;
    this.headers.forEach((header, at) => {
      if (this.sort?.place !== at) header.removeAttribute("aria-sort");
      else header.setAttribute("aria-sort", this.sort.descending ? "descending" : "ascending");
    });
    this.rows = this.chosen();
    this.show();
  }

  /** Rows stay in which every word is found in some text. */
  search(words) {
    this.terms = words.toLowerCase().split(/\s+/).filter(Boolean);
    this.rows = this.chosen();
    this.show();
  }

  chosen() {
    let rows = Array.from({ length: this.table.rows }, (_, row) => row);
    const columns = this.table.columns.filter((column) => column.kind === "text");
    for (const term of this.terms) {
      const holds = textsThatHold(term, this.texts);
      rows = rows.filter((row) => columns.some((column) => holds[column.values[row]] === 1));
    }
    if (!this.sort) return rows;
    const keys = sortKeys(this.table.columns[this.sort.place], this.texts);
    return sorted(rows, keys, this.sort.descending);
  }

  show() {
    this.body.replaceChildren();
    this.drawn = 0;
    this.scroll.classList.toggle("open", this.open && this.rows.length > this.firstRows);
    this.scroll.scrollTop = 0;
    this.extend();
  }

  extend() {
    const limit = this.open ? this.drawn + ROWS_AT_ONCE : this.firstRows;
    const stop = Math.min(limit, this.rows.length);
    const added = document.createDocumentFragment();
    for (; this.drawn < stop; this.drawn += 1) added.append(this.line(this.rows[this.drawn]));
    this.body.append(added);
    this.say();
  }

  line(row) {
    const line = document.createElement("tr");
    this.table.columns.forEach((column, place) => {
      const value = column.values[row];
      line.append(column.kind === "number" ? numberCell(value, column) : this.textCell(value, place));
    });
    const command = this.table.command;
    if (command && this.textOf(row, command.column)) line.firstChild.append(commandButton(command, row));
    return line;
  }

  textOf(row, place) {
    const code = this.table.columns[place].values[row];
    return code < 0 ? "" : this.texts[code];
  }

  async copyCommand(button) {
    const { label } = this.table.command;
    const command = button.title;
    if (!(await copied(command))) {
      this.status.textContent = `Copy this command: ${command}`;
      return;
    }
    button.textContent = "copied";
    setTimeout(() => { button.textContent = label; }, 1500);
  }

  textCell(code, place) {
    const cell = document.createElement(place === 0 ? "th" : "td");
    if (place === 0) cell.scope = "row";
    const clip = document.createElement("span");
    clip.className = "clip";
    const text = code < 0 ? "" : this.texts[code];
    clip.textContent = text;
    if (text.length > LONG_TEXT) clip.title = text;
    cell.append(clip);
    return cell;
  }

  say() {
    const { rows, total } = this.table;
    const found = this.rows.length;
    const seen = this.open ? found : this.drawn;
    const things = total === 1 ? "row" : "rows";
    let said = `${shownCount(seen)} of ${shownCount(found)} ${things}`;
    if (this.terms.length) said = `${shownCount(seen)} of ${shownCount(found)} found in ${shownCount(rows)} ${things}`;
    if (rows < total) said += ` (the first ${shownCount(rows)} of ${shownCount(total)}; the CSV files have all)`;
    this.status.textContent = said;
    this.section.dataset.drawn = this.drawn; // what is printed
    this.more.hidden = found <= this.firstRows;
    this.more.textContent = this.open ? "Show fewer" : `Show all ${shownCount(found)}`;
    this.more.setAttribute("aria-expanded", this.open);
  }
}

function commandButton(command, row) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = command.label;
  button.title = command.text.replace("{row}", () => String(row + 1));
  button.setAttribute("aria-label", `Copy the command: ${button.title}`);
  return button;
}

/** Copy a text, also where a browser has no clipboard for pages; gives whether that worked. */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const worked = document.execCommand("copy");
    area.remove();
    return worked;
  }
}

function numberCell(value, column) {
  const cell = document.createElement("td");
  cell.className = "number";
  if (value === null) return cell;
  cell.textContent = shownNumber(value, column);
  if (column.style === "percent" && !column.signed && typeof value === "number") {
    cell.classList.add("bar");
    cell.style.setProperty("--share", `${Math.min(Math.max(value, 0), 100).toFixed(2)}%`);
  }
  return cell;
}
