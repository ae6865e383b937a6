// The editor of a pane: names and key words complete with Tab, earlier statements are in a list.

import { html, useEffect, useRef, useState } from "/console/vendor/preact.js";
import { quoted, sql } from "/console/sql.js";

const KEPT = 50;
const SHOWN = 8;
const WORDS = `SELECT FROM WHERE GROUP BY ORDER LIMIT JOIN LEFT ON USING HAVING DISTINCT UNION ALL WITH AS OF VALUES
  CREATE MATERIALIZED VIEW SOURCE TABLE SINK CONNECTION SECRET DROP INSERT INTO UPDATE DELETE SUBSCRIBE EXPLAIN SHOW
  count sum avg min max coalesce now mz_now date_trunc`.split(/\s+/);

export function history() {
  try {
    return JSON.parse(localStorage.getItem("tidemill.history")) || [];
  } catch {
    return [];
  }
}

export function remember(text) {
  if (!text) return;
  const kept = [text, ...history().filter((t) => t !== text)].slice(0, KEPT);
  localStorage.setItem("tidemill.history", JSON.stringify(kept));
}

let columns = null; // names of all columns, asked for once

export function Editor({ text, onText, onRun, nodes, number }) {
  const area = useRef();
  const [found, find] = useState([]);
  const [chosen, choose] = useState(0);

  useEffect(() => {
    if (columns !== null) return;
    columns = [];
    sql(["SELECT DISTINCT name FROM mz_columns WHERE id LIKE 'u%'"]).then(([r]) => (columns = r.rows.map((x) => x[0])), () => (columns = null));
  }, []);

  function look(value, at) {
    const word = /[A-Za-z_][A-Za-z0-9_]*$/.exec(value.slice(0, at))?.[0];
    if (!word || word.length < 2) return find([]);
    const start = word.toLowerCase();
    const names = [...new Set([...[...nodes.values()].map((n) => n.name), ...(columns || []), ...WORDS])];
    choose(0);
    find(names.filter((n) => n.toLowerCase().startsWith(start) && n.toLowerCase() !== start).slice(0, SHOWN));
  }
  function take(name) {
    const at = area.current.selectionStart;
    const before = text.slice(0, at).replace(/[A-Za-z_][A-Za-z0-9_]*$/, WORDS.includes(name) ? name : quoted(name));
    onText(before + text.slice(at));
    find([]);
    requestAnimationFrame(() => { area.current.focus(); area.current.setSelectionRange(before.length, before.length); });
  }
  function pressed(e) {
    if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) { e.preventDefault(); find([]); onRun(); }
    else if (!found.length) return;
    else if (e.key === "Tab") { e.preventDefault(); take(found[chosen]); }
    else if (e.key === "ArrowDown") { e.preventDefault(); choose((chosen + 1) % found.length); }
    else if (e.key === "ArrowUp") { e.preventDefault(); choose((chosen + found.length - 1) % found.length); }
    else if (e.key === "Escape") find([]);
  }
  const lines = Math.min(16, Math.max(3, text.split("\n").length));
  const earlier = history();
  return html`<div class="editor">
    <label class="hidden" for=${`sql-${number}`}>SQL</label>
    <textarea id=${`sql-${number}`} ref=${area} rows=${lines} spellcheck=${false} autocomplete="off" value=${text}
      aria-controls=${`names-${number}`} aria-autocomplete="list"
      aria-activedescendant=${found.length ? `name-${number}-${chosen}` : undefined}
      onInput=${(e) => { onText(e.target.value); look(e.target.value, e.target.selectionStart); }}
      onKeyDown=${pressed} onBlur=${() => setTimeout(() => find([]), 150)}></textarea>
    <ul id=${`names-${number}`} role="listbox" aria-label="Names" class=${found.length ? "names" : "names none"}>
      ${found.map((n, i) => html`<li id=${`name-${number}-${i}`} role="option" aria-selected=${i === chosen}
        onMouseDown=${(e) => { e.preventDefault(); take(n); }}>${n}</li>`)}</ul>
    <p class="muted hintline">Ctrl+Enter runs, Tab completes.</p>
    ${earlier.length > 0 && html`<label class="earlier">Earlier <select value="" onChange=${(e) => { onText(earlier[e.target.value]); e.target.value = ""; }}>
      <option value="">...</option>${earlier.map((t, i) => html`<option value=${i}>${t.replace(/\s+/g, " ").slice(0, 80)}</option>`)}</select></label>`}
  </div>`;
}
