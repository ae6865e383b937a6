// A query followed by server-sent events: its rows now, changed ones marked, and a chart.

import { html, useEffect, useReducer, useRef, useState } from "/console/vendor/preact.js";
import { SqlError } from "/console/sql.js";
import { count, time, value } from "/console/format.js";
import { Chart } from "/console/chart.js";
import { isNumber } from "/console/pages/rows.js";

// So many rows are drawn; all are counted.
const SHOWN = 500;
// A stream that changes faster is drawn this often, so that the page stays quick.
const DRAW_MS = 250;
const MARKED_MS = 1500;
const POINTS = 300;
const LINES = 6;
// Rows that the page holds. With more, it stops and says so.
const MOST_ROWS = 200_000;

/** The rows of the query at the last complete time. Without a key a row is known by all its columns. */
class Result {
  constructor(columns, key) {
    this.columns = columns; // as in the events: mz_state or mz_diff first
    this.names = columns.slice(1);
    this.at = key.map((name) => columns.findIndex((c) => c.name === name) - 1);
    this.rows = new Map(); // id -> {cells, copies, marked: [ms by column]}
    this.pending = [];
    this.time = null;
    this.changes = 0;
  }

  take(data, fresh) {
    this.pending.push(...data.rows);
    if (data.more) return;
    const rows = this.pending;
    this.pending = [];
    if (fresh) this.rows.clear();
    const now = fresh ? 0 : performance.now();
    for (const [first, ...cells] of rows) this.at.length ? this.upsert(first, cells, now) : this.add(first, cells, now);
    if (!fresh) this.changes += rows.length;
    this.time = data.time;
  }

  upsert(state, cells, now) {
    const id = JSON.stringify(this.at.map((i) => cells[i]));
    const before = this.rows.get(id);
    if (state === "delete") this.rows.delete(id);
    else this.rows.set(id, {
      cells, copies: 1, violated: state !== "upsert",
      marked: cells.map((c, i) => (before && value(before.cells[i]) === value(c) ? before.marked[i] : now)),
    });
  }

  add(diff, cells, now) {
    const id = JSON.stringify(cells);
    const row = this.rows.get(id) || { cells, copies: 0, marked: cells.map(() => now) };
    row.copies += diff;
    if (row.copies) this.rows.set(id, row);
    else this.rows.delete(id);
  }
}

/** The column of the chart: the chosen one, else the first that looks like an amount. */
const columnOfChart = (numbers, chosen, by) =>
  numbers.find((c) => c.name === chosen) ||
  numbers.find((c) => !by.includes(c.name) && !/(^|_)id$/.test(c.name)) ||
  numbers.find((c) => !by.includes(c.name));

export function Watched({ query, by, onError }) {
  const [, draw] = useReducer((n) => n + 1, 0);
  const [charted, chartColumn] = useState("");
  const wanted = useRef("");
  wanted.current = charted;
  const [ended, setEnded] = useState("");
  const result = useRef(null);
  const points = useRef({ t: [], lines: new Map() });

  useEffect(() => {
    const url = new URLSearchParams({ query });
    for (const k of by) url.append("key", k);
    const events = new EventSource(`/api/subscribe?${url}`);
    let timer = null;
    let over = false;
    const soon = () => { timer ??= setTimeout(() => { timer = null; if (!over) { sample(); draw(); } }, DRAW_MS); };
    const data = (e) => JSON.parse(e.data);
    const end = (text) => { over = true; events.close(); setEnded(text); };
    events.addEventListener("columns", (e) => {
      const { columns } = data(e);
      result.current = new Result(columns, by);
      soon();
    });
    const taken = (fresh) => (e) => {
      result.current.take(data(e), fresh);
      if (result.current.rows.size > MOST_ROWS) {
        end("");
        onError(new SqlError({ message: `the result has more than ${count(MOST_ROWS)} rows`, hint: "Watch a query with fewer: a WHERE, a GROUP BY or a LIMIT." }));
      }
      soon();
    };
    events.addEventListener("snapshot", taken(true));
    events.addEventListener("changes", taken(false));
    events.addEventListener("error", (e) => {
      if (e.data) { end(""); onError(new SqlError(data(e))); }
      else if (events.readyState === EventSource.CLOSED) refused();
    });
    events.addEventListener("end", () => end("The result cannot change any more."));
    // A refusal has its reason in the body, which EventSource does not show.
    async function refused() {
      over = true;
      try {
        const stop = new AbortController();
        const answer = await fetch(`/api/subscribe?${url}`, { signal: stop.signal });
        if (answer.ok) return stop.abort();
        onError(new SqlError((await answer.json()).error));
      } catch (e) {
        onError(new SqlError({ message: "the server does not answer" }));
      }
    }
    const faded = setInterval(() => { if (!over && !document.hidden) soon(); }, 1000);
    return () => { over = true; clearTimeout(timer); clearInterval(faded); events.close(); };
  }, []);

  const numbers = result.current ? result.current.names.map((c, i) => ({ ...c, i })).filter(isNumber) : [];
  const column = columnOfChart(numbers, charted, by);

  function sample() {
    const found = result.current;
    if (!found || found.time === null) return;
    const kept = points.current;
    const of = columnOfChart(result.current.names.map((c, i) => ({ ...c, i })).filter(isNumber), wanted.current, by);
    const now = new Map();
    if (of) {
      if (by.length || found.rows.size === 1) {
        for (const [id, row] of [...found.rows].slice(0, LINES)) now.set(by.length ? JSON.parse(id).join(", ") : of.name, Number(row.cells[of.i]));
      } else {
        let sum = 0;
        for (const row of found.rows.values()) sum += row.copies * Number(row.cells[of.i] ?? 0);
        now.set(`sum of ${of.name}`, sum);
      }
    } else now.set("rows", found.rows.size);
    if (kept.of !== of?.name) { kept.t = []; kept.lines = new Map(); kept.of = of?.name; }
    kept.t.push(Date.now() / 1000);
    for (const name of now.keys()) if (!kept.lines.has(name) && kept.lines.size < LINES) kept.lines.set(name, Array(kept.t.length - 1).fill(null));
    for (const [name, values] of kept.lines) values.push(now.get(name) ?? null);
    if (kept.t.length > POINTS) { kept.t.shift(); for (const values of kept.lines.values()) values.shift(); }
  }

  const found = result.current;
  if (!found || found.time === null) return html`<p role="status" class="muted">Waiting for the first rows ...</p>`;
  const at = performance.now();
  const rows = [...found.rows.values()];
  const shown = rows.slice(0, SHOWN);
  const kept = points.current;
  return html`
    <p class="muted" role="status">${ended || html`<span class="live">live</span>`} ${count(rows.length)} ${rows.length === 1 ? "row" : "rows"} at ${time(found.time)}, ${count(found.changes)} changes seen</p>
    <${Chart} label=${column ? `${column.name} over time` : "rows over time"} t=${kept.t} height=${140}
      series=${[...kept.lines].map(([label, values]) => ({ label, values }))} format=${(v) => count(Math.round(v * 100) / 100)} />
    ${numbers.length > 1 && html`<label class="options">chart of <select value=${column?.name} onChange=${(e) => chartColumn(e.target.value)}>
      ${numbers.map((c) => html`<option value=${c.name}>${c.name}</option>`)}</select></label>`}
    <div class="scroll" tabindex="0" role="region" aria-label="Live result"><table>
      <thead><tr>${found.names.map((c) => html`<th scope="col" class=${isNumber(c) ? "end" : ""}>${c.name}</th>`)}</tr></thead>
      <tbody>${shown.map((row) => html`<tr class=${row.violated ? "bad" : ""}>
        ${row.cells.map((c, i) => html`<td class=${`${isNumber(found.names[i]) ? "end " : ""}${row.marked[i] && at - row.marked[i] < MARKED_MS ? "changed" : ""}`}>
          ${c === null ? html`<span class="null">NULL</span>` : value(c)}</td>`)}</tr>`)}</tbody>
    </table></div>
    ${rows.length > SHOWN && html`<p class="muted">The first ${SHOWN} of ${count(rows.length)} rows.</p>`}`;
}
