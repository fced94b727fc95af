// Numbers and times as people read them. Timestamps are text: they exceed what a number holds.

const whole = new Intl.NumberFormat("en");
const one = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat("en", { day: "numeric", month: "short" });
const wholeTime = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "long" });

export const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";

export const count = (value) => (Math.abs(value) < 100 ? one : whole).format(Math.abs(value) < 100 ? value : Math.round(value));

export function seconds(value) {
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${Math.round(value / 3600)} h`;
  return `${Math.round(value / 86400)} d`;
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return `${value >= 100 || at === 0 ? Math.round(value) : value.toFixed(1)} ${units[at]}`;
}

export const msOf = (ts) => Number(BigInt(ts ?? 0) >> 18n);
export const timeOf = (ms) => clock.format(new Date(ms));

export const fullOf = (ms) => wholeTime.format(new Date(ms));

// The day of another day, with its year in another year; "" today.
export function dayOf(ms) {
  const date = new Date(ms), now = new Date();
  if (date.toDateString() === now.toDateString()) return "";
  return day.format(date) + (date.getFullYear() === now.getFullYear() ? "" : ` ${date.getFullYear()}`);
}

export const momentOf = (ms) => (dayOf(ms) ? `${dayOf(ms)} ${timeOf(ms).slice(0, 5)}` : timeOf(ms));

export const tsTime = (ts) => (BigInt(ts ?? 0) > 0n ? momentOf(msOf(ts)) : "–");
export const plural = (n, word) => `${whole.format(n)} ${word}${n === 1 ? "" : "s"}`;
