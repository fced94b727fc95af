// The page: listens to /events, remembers the last minutes, and shows how it stands.

import * as acting from "/page/acting.js";
import { Chart } from "/page/chart.js";
import { $, el, moment, show, tsMoment } from "/page/dom.js";
import * as lookup from "/page/lookup.js";
import { bytes, count, dayOf, msOf, plural, seconds, timeOf, tsTime, zone } from "/page/words.js";

const MINUTES = 15, DAY_MINUTES = 24 * 60;
const LEAST = { [MINUTES]: 2, [DAY_MINUTES]: 60 };
const perSecond = (value) => `${count(value)}/s`;
const charts = [
  [1, new Chart($("pictures"), { title: "Lag", name: "lag", format: (value) => seconds(value), least: 1 })],
  [2, new Chart($("pictures"), { title: "Binlogs received", name: "received", format: perSecond, least: 5 })],
  [3, new Chart($("pictures"), { title: "Rows applied", name: "rows", format: perSecond, least: 5 })],
];
let samples = [], minutes = [];
let heard = null;

// --- listening ----------------------------------------------------------------------------------

let events = null;

// A browser has six connections to one place; tabs that nobody sees give theirs back.
function listenWhileSeen() {
  events?.close();
  events = null;
  if (!document.hidden) listen();
}

function listen() {
  const mine = events = new EventSource("/events");
  events.addEventListener("past", (event) => {
    const { samples: past, minutes: before } = JSON.parse(event.data);
    samples = joined(samples, past);
    minutes = joined(minutes, before);
  });
  events.addEventListener("now", (event) => {
    const now = JSON.parse(event.data);
    heard = now.at_ms;
    if (now.sample && now.sample[0] > (samples.at(-1)?.[0] ?? 0)) samples.push(now.sample);
    if (now.minute && now.minute[0] > (minutes.at(-1)?.[0] ?? 0)) minutes.push(now.minute);
    samples = samples.filter(([ms]) => ms > heard - MINUTES * 60000);
    minutes = minutes.filter(([ms]) => ms > heard - DAY_MINUTES * 60000);
    live(true);
    showAll(now);
  });
  events.onerror = () => {
    live(false);
    if (mine.readyState !== EventSource.CLOSED) return;
    setTimeout(() => mine === events && listenWhileSeen(), 3000); // refused: it does not try again by itself
  };
}

// What this page remembers of the time before a process was there, and what the process does.
function joined(mine, told) {
  const first = told.length ? told[0][0] : Infinity;
  return [...mine.filter(([ms]) => ms < first), ...told];
}

function showPictures() {
  const span = Number(document.querySelector("#span input:checked").value);
  const all = span === MINUTES ? samples : [...minutes, ...samples.slice(-1)];
  const from = Math.max(heard - span * 60000, Math.min(all[0]?.[0] ?? heard, heard - LEAST[span] * 60000));
  const gapMs = span === MINUTES ? 10000 : 150000;
  for (const [at, chart] of charts) chart.set(all.map((each) => [each[0], each[at]]), [from, heard], gapMs);
}

function live(isLive) {
  $("live").textContent = isLive ? "live" : "reconnecting";
  $("live").classList.toggle("on", isLive);
  $("stale").hidden = isLive;
  document.body.classList.toggle("stale", !isLive);
  if (!isLive) {
    $("stale").textContent = heard
      ? `Not connected. What you see is from ${timeOf(heard)}. Is the process running? This page comes back by itself.`
      : "Not connected. Is the process running? This page comes back by itself.";
  }
}

// --- showing ------------------------------------------------------------------------------------

function showAll({ status, problems, skips }) {
  showHead(status);
  showProblems(problems, status.drainer);
  showFlow(status);
  showFigures(status);
  showPictures();
  showShards(status);
  showLanes(status);
  showTables(status.drainer);
  showDdls(status.drainer);
  acting.showActing(status, skips);
}

const LOOKS = { online: "good", running: "good", stuck: "bad", retrying: "warn", stopped: "bad", offline: "bad" };

function showHead(status) {
  const { drainer } = status;
  const doing = ["", "online"].includes(drainer.node_state) ? drainer.state : drainer.node_state;
  show($("node"), [status.node_id, status.cluster_id], () =>
    `${status.node_id}${status.cluster_id ? `, cluster ${status.cluster_id}` : ""}, times in ${zone}`);
  show($("states"), [status.state, doing], () => [
    pill("Pump", status.state), pill("Replication", doing)]);
  show($("version"), status.version, () => `version ${status.version}`);
  document.title = `${doing === "running" ? "" : `${doing}: `}${lagWords(status)} · ${status.node_id}`;
}

const pill = (what, state) => el("span", { class: `pill ${LOOKS[state] ?? "calm"}` }, `${what} `, el("b", {}, state));
const lagUnknown = ({ drainer }) => (drainer.state === "off" ? "not replicating" : "nothing is applied yet");
const lagWords = (status) => (status.lag_s === null ? lagUnknown(status) : status.lag_s === 0 ? "up to date" : `${seconds(status.lag_s)} behind`);

const DATABASES = { mysql: "MySQL or MariaDB", tidb: "TiDB" };
const TARGETS = { ...DATABASES, sqlite: "SQLite", kafka: "Kafka", file: "binlog files", pb: "binlog files" };
const isConnected = ({ downstream, lanes }) => !(downstream.db_type in DATABASES) || lanes.length > 0;

function showFlow(status) {
  const { upstream, drainer, shards, roles, cluster_id: cluster } = status;
  const asked = upstream.parts.map((each) => (each.address || each.version) && [each.name, each.version, each.address].filter(Boolean).join(" ")).filter(Boolean).join(", ");
  const from = [`${shards.length ? "TiDB" : "Pumps"}${cluster ? `, cluster ${cluster}` : ""}`, `kind = "${upstream.kind}"${asked ? `, ${asked}` : ""}`];
  const into = drainer.state === "off" ? ["nothing", "replication is turned off"]
    : [TARGETS[drainer.downstream.db_type] ?? "", `${drainer.downstream.address}${isConnected(drainer) ? "" : ", not connected yet"}`];
  const tries = drainer.retries ? `, ${plural(drainer.retries, "failed attempt")} since` : "";
  const here = [`this ${roles.join(" and ")}`, `up for ${seconds(status.uptime_s)}${tries}`];
  show($("flow"), [from, here, into], () => [from, here, into].flatMap(([name, more], at) => [
    at ? el("span", { class: "arrow", "aria-label": "to" }, "→") : null,
    el("div", {}, el("b", {}, name), " ", el("span", { class: "dim" }, more))]));
  $("begin").hidden = !shards.length || Boolean(status.newest_commit_ts);
}

function showProblems(problems, drainer) {
  show($("attention"), [problems, drainer.state], () => problems.length
    ? problems.map((each) => el("article", { class: `problem ${each.severity}` },
      el("h2", {}, each.title),
      el("p", { class: "detail" }, each.detail),
      el("p", {}, el("b", {}, "What to do: "), ...coded(each.todo)),
      buttons(each, drainer)))
    : el("p", { class: "notice good" }, "Nothing needs attention."));
}

// What stands between backticks is to be typed.
const coded = (text) => text.split("`").map((part, at) => (at % 2 ? el("code", {}, part) : part));

function buttons({ action, commit_ts: ts }, drainer) {
  const found = [];
  const isStuckAt = drainer.state === "stuck" && ts && String(drainer.failure?.skip_ts) === ts;
  if (ts) found.push(el("button", { type: "button", onclick: () => lookup.lookAt(ts) }, "Look at it"));
  if (action === "retry" || isStuckAt) found.push(el("button", { type: "button", onclick: acting.retry }, "Try again"));
  if (action === "skip") found.push(el("button", { type: "button", class: "danger", onclick: () => acting.offerSkip(ts) }, "Skip it…"));
  if (action === "resume") found.push(el("button", { type: "button", onclick: acting.resume }, "Resume replication"));
  return found.length ? el("p", { class: "buttons" }, ...found) : null;
}

// Lag is upstream time; when nothing new comes it stays small, however long what there is has waited.
let moved = { applied: null, at: 0 };
function stands(status) {
  if (moved.applied !== status.drainer.applied_ts || !status.lag_s) moved = { applied: status.drainer.applied_ts, at: heard };
  const waited = (heard - moved.at) / 1000;
  return waited > 5 ? waited : 0;
}

function waitsFor(status) {
  const { lag_s: lag, drainer } = status;
  if (lag === null) return lagUnknown(status);
  if (!["", "online"].includes(drainer.node_state)) return `replication is ${drainer.node_state}`;
  if (drainer.state === "stuck") return "replication is stuck";
  if (lag === 0) return "all that arrived is applied";
  if (stands(status)) return `has not moved for ${seconds(stands(status))}`;
  return drainer.blocking && !drainer.error ? `waits for ${drainer.blocking}` : "from arrived to applied";
}

function exportsTile({ running, stage, done, total, waiting, finished }) {
  const behind = waiting ? `, ${plural(waiting, "export")} waiting` : "";
  if (running === null) return ["Exports", finished.done ? plural(finished.done, "snapshot") : "none", finished.failed ? `${finished.failed} failed` : "by this process", finished.failed ? "warn" : ""];
  return ["Exports", `number ${running}`, `${stage || "starting"}${total ? ` ${Math.floor(100 * done / total)} %` : ""}${behind}`];
}

// The day, where it is not today's, and the time below it; then what a restart begins at.
function appliedUpTo(ts, checkpoint) {
  if (!ts) return ["Applied up to", "–", "nothing yet"];
  const ms = msOf(ts);
  const saved = !checkpoint.commit_ts ? "not saved yet"
    : checkpoint.commit_ts !== ts ? `saved up to ${tsTime(checkpoint.commit_ts)}`
      : checkpoint.consistent ? "saved, consistent" : "saved; some lanes are further";
  return ["Applied up to", dayOf(ms) || timeOf(ms), dayOf(ms) ? `${timeOf(ms)}, ${saved}` : saved, "", String(ts)];
}

function showFigures(status) {
  const { drainer, checkpoint } = status;
  const [, , received = 0, rows = 0] = samples.at(-1) ?? [];
  const used = status.capacity_bytes ? status.free_bytes / status.capacity_bytes : 1;
  const tiles = [
    ["Lag", status.lag_s === null ? "–" : status.lag_s === 0 ? "none" : seconds(status.lag_s),
      waitsFor(status), status.lag_s > 30 || stands(status) || drainer.state === "stuck" ? "warn" : ""],
    ["Received", perSecond(received), status.newest_commit_ts ? `newest from ${tsTime(status.newest_commit_ts)}` : "no binlog yet"],
    ["Applied", `${perSecond(rows)}`, `${plural(drainer.transactions ?? 0, "transaction")}, ${plural(drainer.rows ?? 0, "row")}`],
    appliedUpTo(drainer.applied_ts, checkpoint),
    ["Free space", bytes(status.free_bytes), status.capacity_bytes ? `${Math.round(used * 100)} % of ${bytes(status.capacity_bytes)}` : "", used < 0.1 ? "warn" : ""],
  ];
  if (status.exports) tiles.push(exportsTile(status.exports));
  show($("figures"), tiles, () => tiles.map(([name, value, more, look, ts]) =>
    el("div", { class: `tile ${look ?? ""}` }, el("dt", {}, name), el("dd", {}, el("strong", {}, value), el("span", { class: "dim", title: more }, more), ts && el("span", { class: "dim mono", title: "commit_ts" }, ts)))));
}

// How far a position lies behind the newest commit, in seconds; nothing is behind when nothing waits, and null
// says that it is not known: 0 is before everything, and not 1970.
const behind = (status, ts) => (status.lag_s === 0 ? 0 : BigInt(ts) === 0n ? null : Math.max(0, msOf(status.newest_commit_ts) - msOf(ts)) / 1000);

function table(caption, heads, rows) {
  return el("div", { class: "scroll" }, el("table", {}, el("caption", { class: "hidden" }, caption),
    el("thead", {}, el("tr", {}, ...heads.map(([head, looks]) => el("th", { scope: "col", class: looks }, head)))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((cell, at) =>
      el(at ? "td" : "th", { scope: at ? null : "row", class: heads[at][1] }, cell)))))));
}

function track(value, most) {
  const inner = el("i");
  inner.style.width = `${Math.min(100, (value / Math.max(most, 1)) * 100)}%`;
  return el("span", { class: "track", "aria-hidden": "true" }, inner);
}

function bar(value, most) {
  if (!value) return value === null ? "–" : "up to date";
  return el("span", { class: "behind" }, track(value, most), el("span", {}, seconds(value)));
}

function showShards(status) {
  const waits = status.shards.map((each) => behind(status, each.max_commit_ts));
  const most = Math.max(...waits, 5);
  const isBehind = status.shards.some((each) => each.chaser === "on"); // the index of a shard is being caught up
  const rows = status.shards.map((each, at) => [
    each.name, bar(waits[at], most), tsMoment(each.max_commit_ts), count(each.open_prewrites), count(each.queued),
    ...(isBehind ? [each.chaser === "on" ? "catches up" : "–"] : []), bytes(each.log_bytes)]);
  show($("shards"), status.shards.map((each, at) => [each, waits[at]]), () => table("Shards",
    [["Shard", ""], ["Behind", ""], ["Up to", "wide"], ["Open", "number"], ["Queued", "number"], ...(isBehind ? [["Index", "wide"]] : []), ["Log", "number wide"]], rows));
}

function showLanes(status) {
  const { lanes = [], sources = [] } = status.drainer;
  const waits = lanes.map((ts) => behind(status, ts));
  const most = Math.max(...waits, 5);
  show($("lanes"), [lanes, waits, status.drainer.state], () => lanes.length
    ? table("Lanes", [["Lane", ""], ["Behind", ""], ["Applied up to", ""], ["commit_ts", "wide mono"]],
      lanes.map((ts, at) => [`lane ${at}`, bar(waits[at], most), tsMoment(ts), String(ts)]))
    : el("p", { class: "dim" }, status.drainer.state === "off" ? "Replication is turned off."
      : isConnected(status.drainer) ? "This downstream has no lanes: transactions go out one after the other."
        : "The downstream is not connected yet. Its lanes are shown from then on."));
  const others = sources.filter((each) => !status.shards.some((shard) => shard.name === each.name));
  show($("sources"), others, () => others.length && [
    el("h3", {}, "Other Pumps"),
    table("Other Pumps", [["Pump", ""], ["State", ""], ["Behind", "number"], ["Silent", "number"], ["Waiting", "number"]],
      others.map((each) => [each.name, each.trouble || each.state, each.lag_s === null ? "–" : seconds(each.lag_s), seconds(each.silent_s), count(each.binlogs_waiting)]))]);
}

const TABLES_SHOWN = 6; // beside four shards: as high as these
function showTables({ busy_tables: tables = [] }) {
  const most = tables[0]?.rows ?? 1;
  show($("tables"), tables, () => tables.length
    ? table("Tables with the most rows", [["Table", ""], ["Rows", "number"], ["Compared", "wide"]],
      tables.slice(0, TABLES_SHOWN).map((each) => [el("span", { class: "name", title: each.table }, each.table), count(each.rows), track(each.rows, most)]))
    : el("p", { class: "dim" }, "None yet."));
}

function showDdls(drainer) {
  const { ddl, last_ddls: all = [] } = drainer;
  show($("ddl-now"), ddl, () => ddl && el("div", { class: "notice warn" },
    el("p", {}, el("b", {}, `At work for ${seconds(ddl.elapsed_s)}`), ddl.stage ? ` (${ddl.stage})` : ""),
    ddl.percent ? el("progress", { max: 100, value: ddl.percent, "aria-label": "How far the DDL is" }) : null,
    el("pre", {}, ddl.statement)));
  const applied = BigInt(drainer.applied_ts ?? 0);
  const rows = [...all].reverse().map((each) => [each, BigInt(each.commit_ts) <= applied]);
  show($("ddls"), rows.map(([each, isDone]) => [each.commit_ts, isDone]), () => rows.length
    ? el("ol", { class: "list ddls", tabindex: "0", "aria-label": "The last DDLs, the newest first" }, ...rows.map(([each, isDone]) => el("li", {},
      el("div", { class: "line" },
        moment(msOf(each.commit_ts)),
        el("span", { class: `pill small ${each.is_skipped ? "calm" : isDone ? "good" : "warn"}` }, each.is_skipped ? "passed over" : isDone ? "applied" : "waits"),
        el("button", { type: "button", class: "plain", "aria-label": `Look up ${each.commit_ts}`, onclick: () => lookup.lookAt(String(each.commit_ts)) }, "look")),
      el("code", {}, each.statement),
      each.reason ? el("p", { class: "dim" }, each.reason) : null)))
    : el("p", { class: "dim" }, "None yet."));
}

$("span").addEventListener("change", () => heard && showPictures());
acting.listen();
lookup.listen();
document.addEventListener("visibilitychange", listenWhileSeen);
listenWhileSeen();
