// One editor with what it shows below: rows, a plan, or rows that change.

import { html, useEffect, useRef, useState } from "/console/vendor/preact.js";
import { csv, sql } from "/console/sql.js";
import { useSystem } from "/console/system.js";
import { time } from "/console/format.js";
import { Trouble } from "/console/parts.js";
import { Editor, remember } from "/console/pages/editor.js";
import { Rows } from "/console/pages/rows.js";
import { Plan } from "/console/pages/plan.js";
import { Watched } from "/console/pages/watched.js";

const withoutEnd = (text) => text.trim().replace(/;+\s*$/, "");

export function Pane({ number, first, onClose }) {
  const [text, setText] = useState(first.text || localStorage.getItem(`tidemill.text.${number}`) || "SELECT 1");
  const [at, setAt] = useState(first.at ? Number(first.at) : null);
  const [readOnly, setReadOnly] = useState(localStorage.getItem("tidemill.readOnly") !== "no");
  const [key, setKey] = useState("");
  const [shown, show] = useState(null); // {kind: rows | plan | watch, ...}
  const [error, fail] = useState(null);
  const [busy, setBusy] = useState(false);
  const running = useRef(null);
  const { nodes, now } = useSystem();

  useEffect(() => localStorage.setItem(`tidemill.text.${number}`, text), [text]);
  useEffect(() => () => running.current?.abort(), []);
  useEffect(() => { if (first.watch) watch(); else if (first.at) run(); }, []);

  // From when on the relations that the text names can be read.
  const words = new Set(text.toLowerCase().match(/[a-z_][a-z0-9_]*/g) || []);
  const since = Math.max(0, ...[...nodes.values()].filter((n) => words.has(n.name.toLowerCase()) && n.since).map((n) => n.since));

  async function ask(queries, then) {
    running.current?.abort();
    const stop = (running.current = new AbortController());
    setBusy(true);
    fail(null);
    const began = performance.now();
    try {
      const answers = await sql(queries, { signal: stop.signal });
      if (running.current === stop) then(answers, performance.now() - began);
    } catch (e) {
      if (e.name !== "AbortError" && running.current === stop) { fail(e); show(null); }
    }
    if (running.current === stop) setBusy(false);
  }

  const guarded = (queries) => (readOnly ? ["SET TRANSACTION READ ONLY", ...queries] : queries);

  function run() {
    const asked = withoutEnd(text);
    remember(asked);
    const query = at === null ? asked : `${asked} AS OF ${at}`;
    ask(guarded([query]), (answers, took) => show({ kind: "rows", answer: answers[answers.length - 1], took, at }));
  }
  function explain() {
    ask([`EXPLAIN ${withoutEnd(text)}`], ([answer]) => show({ kind: "plan", lines: answer.rows.map((r) => r[0]) }));
  }
  function watch() {
    running.current?.abort();
    setBusy(false);
    fail(null);
    remember(withoutEnd(text));
    show({ kind: "watch", query: withoutEnd(text), key: key.split(",").map((k) => k.trim()).filter(Boolean), id: Date.now() });
  }
  function stop() {
    running.current?.abort();
    setBusy(false);
    if (shown?.kind === "watch") show(null);
  }
  function download() {
    const { columns, rows } = shown.answer;
    const url = URL.createObjectURL(new Blob([csv(columns.map((c) => c.name), rows)], { type: "text/csv" }));
    Object.assign(document.createElement("a"), { href: url, download: "tidemill.csv" }).click();
    URL.revokeObjectURL(url);
  }
  const keepReadOnly = (on) => { setReadOnly(on); localStorage.setItem("tidemill.readOnly", on ? "yes" : "no"); };

  return html`<section class="pane" aria-label=${`Query ${number + 1}`}>
    <${Editor} text=${text} onText=${setText} onRun=${run} nodes=${nodes} number=${number} />
    <div class="buttons">
      <button onClick=${run} disabled=${busy}>Run</button>
      <button onClick=${watch}>Watch</button>
      <button class="quiet" onClick=${explain}>Explain</button>
      <button class="quiet" onClick=${stop} disabled=${!busy && shown?.kind !== "watch"}>Stop</button>
      ${shown?.kind === "rows" && shown.answer.columns.length > 0 && html`<button class="quiet" onClick=${download}>CSV</button>`}
      ${onClose && html`<button class="quiet" onClick=${onClose}>Close</button>`}
    </div>
    <div class="options">
      <label><input type="checkbox" checked=${readOnly} onChange=${(e) => keepReadOnly(e.target.checked)} /> read only</label>
      <label>key of Watch <input size="12" value=${key} placeholder="id" onInput=${(e) => setKey(e.target.value)} /></label>
      <label><input type="checkbox" checked=${at !== null} onChange=${(e) => setAt(e.target.checked ? now : null)} /> at a time</label>
    </div>
    ${at !== null && html`<div class="past"><label>Time <input type="range" min=${since || now - 3_600_000} max=${now} value=${at}
        onInput=${(e) => setAt(Number(e.target.value))} onChange=${run} /></label> <output>${time(at)}</output></div>`}
    <${Trouble} error=${error} />
    ${busy && html`<p role="status" class="muted">Running ...</p>`}
    ${!error && shown?.kind === "rows" && html`<${Rows} ...${shown} />`}
    ${!error && shown?.kind === "plan" && html`<${Plan} lines=${shown.lines} />`}
    ${!error && shown?.kind === "watch" && html`<${Watched} key=${shown.id} query=${shown.query} by=${shown.key} onError=${fail} />`}
  </section>`;
}
