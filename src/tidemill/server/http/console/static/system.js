// The state of the server, asked for every two seconds while a page that shows it is visible.

import { records, sql } from "/console/sql.js";
import { intervalMs } from "/console/format.js";
import { useEffect, useState } from "/console/vendor/preact.js";

const EVERY_MS = 2000;
// The points of a chart: ten minutes.
const KEPT = 300;
// Definitions change rarely: they are asked for with every fifth round, and when an unknown object appears.
const DEFINITIONS_EVERY = 5;

const KINDS = new Set(["source", "table", "view", "materialized-view", "sink", "subscription"]);

const DEFINITIONS = [
  `SELECT o.id, o.name, o.type, s.name AS schema, d.name AS database FROM mz_objects o
     JOIN mz_schemas s ON s.id = o.schema_id LEFT JOIN mz_databases d ON d.id = s.database_id
     WHERE o.id LIKE 'u%'`,
  `SELECT object_id, referenced_object_id FROM mz_internal.mz_object_dependencies WHERE object_id LIKE 'u%'`,
];
const LIVE = [
  "SELECT mz_now() AS now",
  "SELECT id, type, last_status_change_at, status, error, details FROM mz_internal.mz_source_statuses",
  `SELECT id, 'materialized-view' AS type, last_status_change_at, status, error, details
     FROM mz_internal.mz_materialized_view_statuses`,
  "SELECT id, type, last_status_change_at, status, error, details FROM mz_internal.mz_sink_statuses",
  "SELECT * FROM mz_internal.mz_source_statistics",
  "SELECT * FROM mz_internal.mz_sink_statistics",
  "SELECT * FROM mz_internal.mz_frontiers",
  "SELECT * FROM mz_internal.mz_storage_usage",
  "SELECT * FROM mz_internal.mz_subscriptions",
  "SELECT object_id, hydrated FROM mz_internal.mz_hydration_statuses",
  "SELECT * FROM mz_catalog.mz_subscriptions ORDER BY id, share",
];

class System {
  constructor() {
    this.listeners = new Set();
    this.state = { ready: false, error: null, nodes: new Map(), edges: [], subscriptions: [], now: Date.now() };
    this.history = new Map(); // id -> {t: [], lag: [], rate: []}, in seconds, ms, rows a second
    this.definitions = null;
    this.round = 0;
    this.before = null; // the totals of the round before: id -> [rows, ms]
    this.timer = null;
    this.busy = false;
    document.addEventListener("visibilitychange", () => this.visible() && this.poll());
  }

  visible() {
    return this.listeners.size > 0 && !document.hidden;
  }

  listen(listener) {
    this.listeners.add(listener);
    if (this.listeners.size === 1) this.poll();
    return () => this.listeners.delete(listener);
  }

  async poll() {
    if (this.busy || !this.visible()) return;
    this.busy = true;
    clearTimeout(this.timer);
    try {
      await this.ask();
      this.state = { ...this.state, ready: true, error: null };
    } catch (e) {
      this.state = { ...this.state, error: e };
    }
    this.busy = false;
    for (const listener of this.listeners) listener(this.state);
    this.timer = setTimeout(() => this.poll(), EVERY_MS);
  }

  async ask() {
    const defined = this.definitions !== null && this.round++ % DEFINITIONS_EVERY !== 0;
    const answers = (await sql(defined ? LIVE : [...LIVE, ...DEFINITIONS])).map(records);
    if (!defined) this.definitions = answers.slice(LIVE.length);
    const [[{ now }], sources, views, sinks, read, written, frontiers, usage, subscriptions, hydrated, shares] = answers;
    const by = (rows, key = "id") => new Map(rows.map((row) => [row[key], row]));
    const statuses = by([...sources, ...views, ...sinks]);
    const statistics = by(read);
    const outputs = by(written);
    const complete = by(frontiers, "object_id");
    const stored = by(usage, "object_id");
    const hydration = new Map(hydrated.map((row) => [row.object_id, row.hydrated]));
    const durable = new Map();
    for (const share of shares) durable.set(share.id, [...(durable.get(share.id) ?? []), share]);
    if (defined && [...statuses.keys(), ...durable.keys()].some((id) => !this.state.nodes.has(id))) this.round = 0;

    const nodes = new Map();
    const totals = new Map();
    for (const object of this.definitions[0]) {
      if (!KINDS.has(object.type)) continue;
      const { id } = object;
      const status = statuses.get(id);
      const frontier = complete.get(id);
      const sink = outputs.get(id);
      const reading = object.type === "subscription" ? readers(durable.get(id) ?? []) : null;
      const upper = reading ? reading.position : sink ? sink.frontier : frontier ? frontier.write_frontier : null;
      const behind = upper ? Math.max(0, now - upper) : null;
      const rows = sink ? sink.updates_sent : stored.get(id)?.updates_written ?? statistics.get(id)?.updates_committed ?? null;
      totals.set(id, [rows, now]);
      const last = this.before?.get(id);
      const rate = last && rows !== null && last[0] !== null && now > last[1]
        ? Math.max(0, rows - last[0]) / ((now - last[1]) / 1000) : null;
      nodes.set(id, {
        ...object,
        kind: object.type,
        subtype: status?.type,
        status: reading ? reading.status : status ? status.status : "running",
        error: reading ? reading.lost : status?.error ?? null,
        shares: reading ? reading.shares : null,
        details: status?.details ?? null,
        changed: status?.last_status_change_at ?? null,
        statistics: statistics.get(id) ?? null,
        output: sink ?? null,
        usage: stored.get(id) ?? null,
        since: frontier?.read_frontier ?? null,
        upper,
        lag: reading ? reading.lag : object.type === "table" || behind === null ? (upper ? 0 : null) : behind,
        upstreamLag: intervalMs(statistics.get(id)?.lag),
        hydrated: hydration.get(id) ?? true,
        rate,
      });
    }
    this.before = totals;
    const edges = this.definitions[1]
      .filter((e) => nodes.has(e.object_id) && nodes.has(e.referenced_object_id))
      .map((e) => ({ from: e.referenced_object_id, to: e.object_id }));
    // A view has no collection of its own: it is as complete as what it reads. A source whose rows are in its
    // tables is as complete as these.
    for (const node of nodes.values()) {
      if (node.kind === "view") node.lag = behindOf(node.id, nodes, edges);
      if (node.kind === "source" && node.upper === null) {
        const tables = edges.filter((e) => e.from === node.id).map((e) => nodes.get(e.to).lag).filter((l) => l !== null);
        if (tables.length) node.lag = Math.max(...tables);
      }
    }
    this.remember(nodes, now);
    this.state = { ...this.state, now, nodes, edges, subscriptions };
  }

  remember(nodes, now) {
    for (const id of this.history.keys()) if (!nodes.has(id)) this.history.delete(id);
    for (const node of nodes.values()) {
      let kept = this.history.get(node.id);
      if (!kept) this.history.set(node.id, (kept = { t: [], lag: [], rate: [] }));
      kept.t.push(now / 1000);
      kept.lag.push(node.lag);
      kept.rate.push(node.rate);
      if (kept.t.length > KEPT) for (const column of Object.values(kept)) column.shift();
    }
  }
}

/** A durable subscription as one: it is as far as the share that is furthest behind. */
function readers(shares) {
  const least = (values) => (values.length ? Math.min(...values) : null);
  const lost = shares.map((s) => s.lost).filter(Boolean);
  return {
    shares,
    position: least(shares.map((s) => Number(s.position))),
    lag: shares.length ? Math.max(...shares.map((s) => Number(s.lag))) : null,
    lost: lost[0] ?? null,
    status: lost.length ? "lost" : shares.some((s) => s.reading) ? "read" : "waiting for a reader",
  };
}

function behindOf(id, nodes, edges, seen = new Set()) {
  if (seen.has(id)) return null;
  seen.add(id);
  let most = null;
  for (const { from, to } of edges) {
    if (to !== id) continue;
    const node = nodes.get(from);
    const lag = node.kind === "view" ? behindOf(from, nodes, edges, seen) : node.lag;
    if (lag !== null && (most === null || lag > most)) most = lag;
  }
  return most;
}

/** The objects from a source to this one along which it is late: each is the furthest behind of what the next
 * one reads. */
export function criticalPath(id, { nodes, edges }) {
  const path = [id];
  for (;;) {
    const inputs = edges.filter((e) => e.to === path[0] && !path.includes(e.from)).map((e) => nodes.get(e.from));
    if (!inputs.length) return path;
    path.unshift(inputs.reduce((a, b) => ((b.lag ?? 0) > (a.lag ?? 0) ? b : a)).id);
  }
}

export const system = new System();

export function useSystem() {
  const [state, set] = useState(system.state);
  useEffect(() => system.listen(set), []);
  return state;
}

export const fullName = (node) =>
  [node.database === "materialize" ? null : node.database, node.schema === "public" ? null : node.schema, node.name]
    .filter(Boolean).join(".");
