// Numbers and times as people read them. Timestamps are text: they exceed what a number holds.

const whole = new Intl.NumberFormat("en");
const one = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat("en", { day: "numeric", month: "short", year: "numeric" });

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

export function momentOf(ms) {
  const date = new Date(ms);
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? clock.format(date) : `${day.format(date)}, ${clock.format(date)}`;
}

export const tsTime = (ts) => (BigInt(ts ?? 0) > 0n ? momentOf(msOf(ts)) : "nothing yet");
export const plural = (n, word) => `${whole.format(n)} ${word}${n === 1 ? "" : "s"}`;
