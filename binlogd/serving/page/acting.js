// What changes something: asked first, sent with the admin token. It is kept for this tab only, and may come
// with the link of `binlogd page`, behind the #, which no browser sends anywhere.

import { $, el, moment, show } from "/page/dom.js";

const KEPT = "binlogd-admin-token";
const token = () => sessionStorage.getItem(KEPT);

const GIVEN = "#token=";
if (location.hash.startsWith(GIVEN)) {
  sessionStorage.setItem(KEPT, decodeURIComponent(location.hash.slice(GIVEN.length)));
  history.replaceState(null, "", location.pathname);
}

// Asks the process; a 401 asks for the token, and once more with it. Returns [HTTP status, document].
export async function ask(method, path, { signal } = {}) {
  for (let attempt = 0; ; attempt += 1) {
    const headers = token() ? { Authorization: `Bearer ${token()}` } : {};
    const answer = await fetch(path, { method, headers, signal, cache: "no-store" });
    if (answer.status !== 401) return [answer.status, await read(answer)];
    if (!(await askForToken(attempt ? "That token is not the one." : ""))) return [401, { message: "not allowed without the token" }];
  }
}

async function read(answer) {
  const text = await answer.text();
  try { return JSON.parse(text); } catch { return { message: text.trim() || answer.statusText }; }
}

function askForToken(wrong) {
  $("token-text").textContent = `${wrong} It stays in this tab, and is forgotten when the tab is closed.`.trim();
  $("token-value").value = "";
  return new Promise((done) => {
    const dialog = $("token");
    const over = (value) => { dialog.onclose = null; dialog.close(); showToken(); done(value); };
    $("token-form").onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEPT, $("token-value").value.trim());
      $("token-value").value = "";
      over(true);
    };
    $("token-no").onclick = () => over(false);
    dialog.onclose = () => over(false);
    dialog.showModal();
  });
}

const showToken = () => { $("forget").hidden = !token(); };

function isSure(title, text, yes) {
  $("sure-title").textContent = title;
  $("sure-text").textContent = text;
  $("sure-yes").textContent = yes;
  return new Promise((done) => {
    const dialog = $("sure");
    const over = (value) => { dialog.onclose = null; dialog.close(); done(value); };
    $("sure-yes").onclick = () => over(true);
    $("sure-no").onclick = () => over(false);
    dialog.onclose = () => over(false);
    dialog.showModal();
  });
}

function said(place, isDone, text) {
  $(place).className = isDone ? "notice good" : "notice bad";
  $(place).textContent = text;
}

async function act(method, path, done, place = "acted") {
  $(place).className = "notice busy";
  $(place).textContent = "The process is asked.";
  try {
    const [status, answer] = await ask(method, path);
    const isDone = status === 200 && answer.code === 200;
    said(place, isDone, isDone ? done : `Refused: ${answer.message}`);
    return isDone;
  } catch (error) {
    said(place, false, `The process did not answer: ${error.message}`);
    return false;
  }
}

const ids = { pump: "", drainer: "" };
const state = (half, action) => `/state/${encodeURIComponent(ids[half])}/${action}`;

export const resume = () => act("PUT", state("drainer", "resume"), "Replication goes on.");

export const retry = () => act("PUT", state("drainer", "resume"), "Replication tries again.");

async function pause() {
  if (!await isSure("Pause replication?", "What was pulled is applied, then nothing more until it is resumed. Binlogs are received and kept meanwhile.", "Pause")) return;
  await act("PUT", state("drainer", "pause"), "Replication pauses when what was pulled is applied.");
}

async function end(action) {
  const what = action === "pause"
    ? "What was received is applied, a consistent checkpoint is saved, and the process ends. TiDB is refused until it is started again."
    : "No prewrite is taken from now on. The process ends when nobody needs it any more, and leaves the cluster.";
  if (!await isSure(action === "pause" ? "Pause the whole node?" : "Close the whole node?", what, action === "pause" ? "Pause the node" : "Close the node")) return;
  await act("PUT", state("pump", action), action === "pause" ? "The node pauses, and ends." : "The node closes.");
}

// Of one transaction, or of any.
export function offerSkip(ts = "") {
  const { ts: of, reason } = $("skip-form").elements;
  of.value = ts;
  of.readOnly = ts !== "";
  reason.value = "";
  $("skip-said").className = $("skip-said").textContent = "";
  $("skip").showModal();
  (ts ? reason : of).focus();
}

async function skip(event) {
  event.preventDefault();
  const { ts, reason } = $("skip-form").elements;
  const path = `/skips/${ts.value.trim()}?reason=${encodeURIComponent(reason.value.trim())}`;
  if (!await act("PUT", path, "", "skip-said")) return;
  $("skip").close();
  said("acted", true, `commit_ts ${ts.value.trim()} is passed over.`);
}

export function showActing(status, skips) {
  ids.pump = status.node_id;
  ids.drainer = status.drainer.node_id;
  const now = status.drainer.node_state;
  $("pause").disabled = now !== "online";
  $("resume").disabled = !["paused", "offline"].includes(now);
  show($("skips"), skips, () => skips.length && el("details", {},
    el("summary", {}, `${skips.length} skipped so far`),
    el("ul", { class: "list" }, ...skips.map((each) => el("li", {},
      el("span", { class: "mono" }, String(each.commit_ts)), " ", each.reason,
      each.decided_ms ? el("span", { class: "dim" }, " (decided ", moment(each.decided_ms), ")") : "")))));
}

export function listen() {
  $("pause").onclick = pause;
  $("resume").onclick = resume;
  $("pump-pause").onclick = () => end("pause");
  $("pump-close").onclick = () => end("close");
  $("skip-any").onclick = () => offerSkip();
  $("skip-no").onclick = () => $("skip").close();
  $("skip-form").onsubmit = skip;
  $("forget").onclick = () => { sessionStorage.removeItem(KEPT); showToken(); };
  showToken();
}
