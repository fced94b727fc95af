// Looking for a transaction, and showing what it changed.

import { ask } from "/page/acting.js";
import { $, el } from "/page/dom.js";
import { bytes, momentOf, msOf, plural } from "/page/words.js";

const form = () => $("look-form").elements;
const local = (value) => new Date(value).toISOString();

function question() {
  const { kind, ts, table, row, from, to } = form();
  if (kind.value === "ts") return `/transactions/${encodeURIComponent(ts.value.trim())}`;
  const query = new URLSearchParams();
  if (kind.value === "row") {
    query.set("table", table.value.trim());
    for (const each of row.value.split(",")) if (each.trim()) query.append("row", each.trim());
  }
  if (kind.value !== "newest") {
    if (from.value) query.set("from", local(from.value));
    if (to.value) query.set("to", local(to.value));
  }
  return `/transactions?${query}`;
}

const HINTS = {
  newest: "The last 20 transactions of this log.",
  row: "What became of a row: its last 20 changes, the newest first. A key is found at once.",
  ts: "One transaction, by its commit_ts or start_ts.",
  time: "The first 20 transactions from a time on.",
};

function choose() {
  const kind = form().kind.value;
  if (!$("found").hasChildNodes()) {
    $("look-state").className = "dim";
    $("look-state").textContent = HINTS[kind];
  }
  for (const each of $("look-form").querySelectorAll("[data-for]")) {
    each.hidden = !each.dataset.for.split(" ").includes(kind);
  }
  form().ts.required = kind === "ts";
  form().table.required = kind === "row";
  form().from.required = kind === "time";
}

let asking = null;

async function look(event) {
  event?.preventDefault();
  asking?.abort();
  const mine = asking = new AbortController();
  const state = $("look-state");
  state.className = "dim busy";
  state.textContent = "Reading the log…";
  try {
    const [status, answer] = await ask("GET", question(), { signal: mine.signal });
    if (asking !== mine) return;
    if (status !== 200) throw new Error(answer.message);
    $("found").replaceChildren(...answer.transactions.map(transaction), ...answer.records.map(record));
    state.className = "dim";
    state.textContent = summary(answer);
  } catch (error) {
    if (error.name === "AbortError") return;
    $("found").replaceChildren();
    state.className = "notice bad";
    state.textContent = error.message;
  }
}

function summary({ transactions, records, complete, looked_from: from }) {
  const n = transactions.length;
  const kind = form().kind.value;
  const what = n ? `${plural(n, "transaction")}${kind === "time" ? ", in commit order" : n > 1 ? ", the newest first" : ""}`
    : records.length ? "It has no commit in this log" : "Nothing in this log";
  const until = complete ? "" : ` The time for a look-up was over before all was read${from ? ` (read back to ${momentOf(msOf(from.ts))})` : ""}: narrow it by a time, or use binlogd dump.`;
  return `${what}.${until}`;
}

function transaction(found) {
  const rows = found.rows.length || !found.note ? plural(found.rows.length, "row") + (found.has_more_rows ? " and more" : "") : "rows not known";
  return el("article", { class: "txn" },
    el("header", {},
      el("h3", {}, el("time", { datetime: found.time, title: found.time }, momentOf(msOf(found.commit_ts)))),
      el("span", { class: "mono ts", title: found.start_ts ? `start_ts ${found.start_ts}` : null }, found.commit_ts),
      el("span", { class: "dim" }, `${found.ddl ? "DDL" : rows}, ${bytes(found.size_bytes)}`)),
    found.note && el("p", { class: "notice warn" }, found.note),
    found.ddl && el("pre", {}, (found.ddl.database ? `use ${found.ddl.database};\n` : "") + found.ddl.sql),
    ...found.rows.map(row),
    found.has_more_rows && el("p", { class: "dim" }, `Not all of its rows are shown: binlogd txn ${found.commit_ts}`),
    el("p", { class: "place dim mono" }, found.place));
}

const WORD = { insert: "inserted", update: "changed", delete: "deleted" };
const SIGN = { insert: "+", update: "~", delete: "−" };

function row({ kind, database, table, columns }) {
  const told = kind === "update" ? columns.filter((each) => each.changed || each.key) : columns;
  const rest = columns.filter((each) => !told.includes(each));
  return el("div", { class: `row ${kind}` },
    el("p", { class: "what" }, el("span", { class: "sign", "aria-hidden": "true" }, SIGN[kind]),
      el("span", {}, `${database}.${table}`), el("span", { class: "dim" }, WORD[kind])),
    cells(kind, told),
    rest.length ? el("details", {}, el("summary", {}, `${plural(rest.length, "column")} as before`), cells("same", rest)) : null);
}

function cells(kind, columns) {
  return el("dl", { class: "cells" }, ...columns.map((each) => el("div", { class: each.changed ? "changed" : null },
    el("dt", { title: each.type }, each.name, each.key ? el("abbr", { title: "part of the key" }, " key") : ""),
    el("dd", {}, ...values(kind, each)))));
}

function values(kind, { old, new: now, changed }) {
  if (kind === "update" && changed) return [el("del", {}, old), el("span", { class: "arrow" }, " → "), el("ins", {}, now)];
  return [el("span", { class: old === "NULL" || now === "NULL" ? "dim" : null }, (kind === "delete" ? old : now) ?? "")];
}

function record(found) {
  return el("article", { class: "txn" },
    el("header", {}, el("h3", {}, found.kind), el("span", { class: "mono ts" }, found.start_ts),
      el("span", { class: "dim" }, `${found.detail} ${bytes(found.size_bytes)}`)),
    el("p", { class: "notice warn" }, found.kind === "rollback"
      ? "It was rolled back." : "No commit of it is in this log: it is open, was rolled back, or its outcome went to another Pump."),
    el("p", { class: "place dim mono" }, found.place));
}

export function lookAt(ts) {
  form().kind.value = "ts";
  form().ts.value = ts;
  choose();
  $("lookup").scrollIntoView({ block: "start" });
  $("lookup").focus({ preventScroll: true });
  look();
}

export function listen() {
  $("look-form").addEventListener("submit", look);
  $("look-form").addEventListener("change", (event) => event.target.name === "kind" && choose());
  choose();
}
