// What the shards of the relations hold on the disk.

import { html, useState } from "/console/vendor/preact.js";
import { fullName, useSystem } from "/console/system.js";
import { bytes, count, time } from "/console/format.js";
import { Grid } from "/console/parts.js";

export function Storage() {
  const { nodes } = useSystem();
  const [order, setOrder] = useState("bytes");
  const rows = [...nodes.values()].filter((n) => n.usage)
    .sort((a, b) => (order === "name" ? fullName(a).localeCompare(fullName(b)) : b.usage[order] - a.usage[order]));
  const sum = (name) => rows.reduce((all, n) => all + n.usage[name], 0);
  const dead = (u) => (u.updates ? `${Math.round((200 * u.retractions) / u.updates)} %` : "");
  return html`
    <div class="title"><h1>Storage</h1>
      <label>Order by <select value=${order} onChange=${(e) => setOrder(e.target.value)}>
        ${["bytes", "updates", "parts", "log_entries", "name"].map((o) => html`<option value=${o}>${o.replace("_", " ")}</option>`)}
      </select></label></div>
    <p class="figures"><span><b>${bytes(sum("bytes"))}</b> in parts</span><span><b>${count(sum("parts"))}</b> parts</span>
      <span><b>${count(sum("updates"))}</b> updates</span></p>
    <${Grid} label="Shards" rows=${rows} keyOf=${(n) => n.id} columns=${[
      { name: "relation", cell: (n) => html`<a href=${`#/object/${n.id}`}>${fullName(n)}</a>` },
      { name: "shard", cell: (n) => html`<code>${n.usage.shard_id}</code>` },
      { name: "parts", end: true, cell: (n) => count(n.usage.parts) },
      { name: "updates", end: true, cell: (n) => count(n.usage.updates) },
      { name: "cancelling", end: true, cell: (n) => dead(n.usage) },
      { name: "size", end: true, cell: (n) => bytes(n.usage.bytes) },
      { name: "log entries", end: true, cell: (n) => count(n.usage.log_entries) },
      { name: "since", cell: (n) => time(n.usage.read_frontier) },
      { name: "upper", cell: (n) => (n.usage.write_frontier === null ? "closed" : time(n.usage.write_frontier)) },
    ]} empty="No relation is stored yet." />
    <p class="muted">A shard is a Delta table of updates. Compaction merges parts, and removes updates that cancel each other before
      <em>since</em>.</p>`;
}
