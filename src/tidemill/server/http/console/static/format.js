// Values as people read them.

const whole = new Intl.NumberFormat("en-US");

export const count = (n) => (n === null || n === undefined ? "" : whole.format(n));

export function bytes(n) {
  if (n === null || n === undefined) return "";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (n >= 1000 && at < units.length - 1) [n, at] = [n / 1000, at + 1];
  return `${at && n < 100 ? n.toFixed(1) : Math.round(n)} ${units[at]}`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 3_600_000) return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
  return `${Math.floor(ms / 3_600_000)} h ${Math.round((ms % 3_600_000) / 60_000)} min`;
}

export function rate(n) {
  if (n === null || n === undefined || Number.isNaN(n)) return "";
  return n >= 100 || n === 0 ? `${whole.format(Math.round(n))}/s` : `${n.toFixed(1)}/s`;
}

export const time = (ms) => new Date(Number(ms)).toISOString().replace("T", " ").replace("Z", "");

export function value(v) {
  if (v === null || v === undefined) return "NULL";
  if (typeof v === "object") return JSON.stringify(v);
  return v === true ? "t" : v === false ? "f" : String(v);
}

/** The milliseconds of an interval in PostgreSQL's form ("1 day 00:00:01.5"). */
export function intervalMs(text) {
  if (text === null || text === undefined) return null;
  const days = /(-?\d+) days?/.exec(text);
  const clock = /(-?)(\d+):(\d+):(\d+(?:\.\d+)?)/.exec(text);
  let ms = days ? Number(days[1]) * 86_400_000 : 0;
  if (clock) ms += (clock[1] ? -1 : 1) * (clock[2] * 3_600_000 + clock[3] * 60_000 + clock[4] * 1000);
  return ms;
}
