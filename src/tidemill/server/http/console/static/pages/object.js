// One object: what it is, how it is, how far it is, and since when.

import { html, useEffect, useState } from "/console/vendor/preact.js";
import { quoted, records, sql } from "/console/sql.js";
import { criticalPath, fullName, system, useSystem } from "/console/system.js";
import { bytes, count, duration, rate, time } from "/console/format.js";
import { Grid, Progress, Status, Trouble } from "/console/parts.js";
import { Chart } from "/console/chart.js";

const BINDINGS = 200;
const PARTITIONS = 500;
// Details of a source are asked for less often than its figures.
const EVERY_MS = 4000;

const name = (node) => [node.database, node.schema, node.name].filter(Boolean).map(quoted).join(".");
const queryAt = (node, at) =>
  `#/query?sql=${encodeURIComponent(`SELECT * FROM ${name(node)} LIMIT 100`)}${at ? `&at=${at}` : ""}`;

function useDetails(id) {
  const [found, set] = useState({ bindings: [], partitions: [], errors: [] });
  const [error, fail] = useState(null);
  useEffect(() => {
    let over = false;
    let timer;
    async function ask() {
      if (!document.hidden) {
        try {
          const answers = await sql([
            { query: `SELECT mz_timestamp, partition, value FROM mz_internal.mz_source_bindings WHERE source_id = $1
                      ORDER BY mz_timestamp DESC, partition LIMIT ${BINDINGS}`, params: [id] },
            { query: `SELECT partition, offset_known, offset_committed FROM mz_internal.mz_source_partitions
                      WHERE source_id = $1 ORDER BY partition LIMIT ${PARTITIONS}`, params: [id] },
            { query: `SELECT name, error, detail, partition, "offset", mz_timestamp, count FROM mz_internal.mz_source_errors
                      WHERE source_id = $1 OR object_id = $1 ORDER BY mz_timestamp DESC`, params: [id] },
          ]);
          if (over) return;
          const [bindings, partitions, errors] = answers.map(records);
          set({ bindings, partitions, errors });
          fail(null);
        } catch (e) {
          if (!over) fail(e);
        }
      }
      if (!over) timer = setTimeout(ask, EVERY_MS);
    }
    ask();
    return () => { over = true; clearTimeout(timer); };
  }, [id]);
  return [found, error];
}

function Snapshot({ node }) {
  const s = node.statistics;
  const all = s?.snapshot_records_known ?? 0;
  const done = s?.snapshot_records_staged ?? 0;
  if (!s || !all || done >= all) return null;
  const kept = system.history.get(node.id);
  const speeds = kept ? kept.rate.filter((r) => r > 0).slice(-15) : [];
  const speed = speeds.length ? speeds.reduce((a, b) => a + b) / speeds.length : null;
  const left = speed ? `${duration(((all - done) / speed) * 1000)} left at ${rate(speed)}` : "";
  return html`<section><h2>Snapshot</h2>
    <${Progress} label="Snapshot" done=${done} all=${all} />
    <p>${count(done)} of ${count(all)} rows
      ${s.snapshot_bytes_known ? `, ${bytes(s.snapshot_bytes_staged)} of ${bytes(s.snapshot_bytes_known)}` : ""}. ${left}</p></section>`;
}

function Source({ node }) {
  const [{ bindings, partitions, errors }, failed] = useDetails(node.id);
  const times = [...new Map(bindings.map((b) => [b.mz_timestamp, null])).keys()];
  return html`
    <${Trouble} error=${failed} />
    ${errors.length > 0 && html`<section><h2>Errors</h2>
      <${Grid} label="Errors of messages" rows=${errors} columns=${[
        { name: "relation", cell: (e) => e.name },
        { name: "error", cell: (e) => e.error },
        { name: "detail", cell: (e) => e.detail || "" },
        { name: "partition", cell: (e) => e.partition ?? "" },
        { name: "offset", end: true, cell: (e) => e.offset ?? "" },
        { name: "time", cell: (e) => time(e.mz_timestamp) },
        { name: "times", end: true, cell: (e) => count(e.count) },
      ]} /></section>`}
    <section><h2>Partitions</h2>
      <${Grid} label="Partitions" rows=${partitions} empty="The upstream has not been asked yet." columns=${[
        { name: "partition", cell: (p) => p.partition ?? "(one)" },
        { name: "known", end: true, cell: (p) => count(p.offset_known) },
        { name: "committed", end: true, cell: (p) => count(p.offset_committed) },
        { name: "behind", end: true, cell: (p) => (p.offset_known === null ? "" : count(p.offset_known - p.offset_committed)) },
      ]} /></section>
    <section><h2>Bindings</h2>
      <p class="muted">When which position of the upstream became visible. A time opens the relation as it was then.</p>
      <${Grid} label="Bindings" rows=${bindings} empty="Nothing is bound yet." columns=${[
        { name: "time", cell: (b) => (node.usage
          ? html`<a href=${queryAt(node, b.mz_timestamp)}>${time(b.mz_timestamp)}</a>` : time(b.mz_timestamp)) },
        { name: "partition", cell: (b) => b.partition ?? "(one)" },
        { name: "position", end: true, cell: (b) => count(b.value) },
      ]} />
      <p class="muted">${times.length ? `The last ${times.length} times.` : ""}</p></section>`;
}

function Shares({ shares }) {
  return html`<section><h2>Readers</h2>
    <p class="muted">Changes after a position are kept until its reader acknowledges them, within the limits.</p>
    <${Grid} label="Readers" rows=${shares} keyOf=${(s) => s.share} empty="Nothing is known of it yet." columns=${[
      { name: "share", cell: (s) => s.share ?? "(one)" },
      { name: "read now", cell: (s) => (s.reading ? "yes" : "no") },
      { name: "acknowledged before", cell: (s) => time(s.position) },
      { name: "behind", end: true, cell: (s) => duration(Number(s.lag)) },
      { name: "kept for it", end: true, cell: (s) => bytes(s.unacknowledged_bytes) },
      { name: "since", cell: (s) => (s.unacknowledged_since === null ? "" : time(s.unacknowledged_since)) },
      { name: "limits", cell: (s) => `${duration(Number(s.retain))}, ${bytes(s.retain_size)}` },
    ]} /></section>`;
}

export function ObjectPage({ id }) {
  const state = useSystem();
  const node = state.nodes.get(id);
  const [definition, define] = useState("");
  useEffect(() => {
    if (!node) return;
    const words = { "materialized-view": "MATERIALIZED VIEW" };
    sql([`SHOW CREATE ${words[node.kind] || node.kind.toUpperCase()} ${name(node)}`])
      .then(([r]) => define(r.rows[0][r.rows[0].length - 1]), (e) => define(`(${e.message})`));
  }, [id, Boolean(node)]);
  if (!node) {
    return html`<h1>Object</h1><p class="muted">${state.ready ? `There is no object ${id}.` : "Connecting ..."} <a href="#/overview">Overview</a></p>`;
  }
  const kept = system.history.get(id) || { t: [], lag: [], rate: [] };
  const path = criticalPath(id, state).map((at) => state.nodes.get(at));
  const readable = node.usage || node.kind === "view";
  const details = node.details || {};
  const s = node.statistics;
  return html`
    <div class="title"><h1>${fullName(node)}</h1><span class="muted">${node.kind}${node.subtype && node.subtype !== node.kind ? ` · ${node.subtype}` : ""} · ${id}</span>
      ${readable && html`<span class="buttons"><a class="button" href=${queryAt(node)}>Query</a>
        <a class="button" href=${`#/query?watch=1&sql=${encodeURIComponent(`SELECT * FROM ${name(node)}`)}`}>Watch</a></span>`}</div>
    <p class="figures"><${Status} node=${node} />
      ${node.lag !== null && html`<span><b>${duration(node.lag)}</b> behind the clock</span>`}
      ${node.upstreamLag !== null && html`<span><b>${duration(node.upstreamLag)}</b> behind the upstream</span>`}
      ${s?.offset_known != null && s?.offset_committed != null && html`<span><b>${count(Math.max(0, s.offset_known - s.offset_committed))}</b> positions behind</span>`}
      ${node.rate !== null && html`<span><b>${rate(node.rate)}</b> rows</span>`}
      ${node.usage && html`<span><b>${bytes(node.usage.bytes)}</b> stored</span>`}
      ${node.since && html`<span>readable since <b>${time(node.since)}</b></span>`}</p>
    ${node.error && html`<${Trouble} error=${{ message: node.error, detail: details.detail,
      hint: node.shares ? "ALTER SUBSCRIPTION ... RESET begins anew, with the contents of now." : details.hint }} />`}
    ${!node.error && details.waits && html`<p class="muted">Waits: ${details.waits}</p>`}
    <${Snapshot} node=${node} />
    <div class="charts">
      <${Chart} label="Behind the clock" t=${kept.t} series=${[{ label: "behind", values: kept.lag }]} format=${duration} />
      <${Chart} label="Rows a second" t=${kept.t} series=${[{ label: "rows", values: kept.rate }]} format=${rate} />
    </div>
    ${path.length > 1 && html`<section><h2>Why it is late</h2><ol class="path">
      ${path.map((n) => html`<li><a href=${`#/object/${n.id}`}>${fullName(n)}</a> <span class="muted">${n.kind}${n.lag === null ? "" : `, ${duration(n.lag)} behind`}</span></li>`)}</ol></section>`}
    ${node.shares && html`<${Shares} shares=${node.shares} />`}
    ${node.kind === "source" && html`<${Source} node=${node} />`}
    ${node.output && html`<section><h2>Written</h2><p>${count(node.output.updates_sent)} updates in ${count(node.output.messages_sent)} messages, ${bytes(node.output.bytes_sent)}; ${bytes(node.output.bytes_in_flight)} in flight.</p></section>`}
    <section><h2>Definition</h2><pre class="wrap" tabindex="0">${definition}</pre></section>`;
}
