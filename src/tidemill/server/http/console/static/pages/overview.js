// All objects as a graph, in the order in which data flows.

import { html, useMemo, useState } from "/console/vendor/preact.js";
import dagre from "/console/vendor/dagre.js";
import { criticalPath, fullName, useSystem } from "/console/system.js";
import { duration, rate } from "/console/format.js";
import { Grid, Status, tone } from "/console/parts.js";

const WIDTH = 178;
const HEIGHT = 58;

function layout(nodes, edges) {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "LR", nodesep: 14, ranksep: 64, marginx: 8, marginy: 8 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const id of nodes) graph.setNode(id, { width: WIDTH, height: HEIGHT });
  for (const { from, to } of edges) graph.setEdge(from, to);
  dagre.layout(graph);
  return graph;
}

/** An edge leaves in the middle of the right side and arrives in the middle of the left one. */
const course = (from, points, to) =>
  [{ x: from.x + WIDTH / 2, y: from.y }, ...points.slice(1, -1), { x: to.x - WIDTH / 2, y: to.y }];

const curve = (points) => points.map((p, i) => {
  if (!i) return `M${p.x} ${p.y}`;
  const middle = (points[i - 1].x + p.x) / 2;
  return `C${middle} ${points[i - 1].y} ${middle} ${p.y} ${p.x} ${p.y}`;
}).join("");

const short = (text, most = 22) => (text.length > most ? text.slice(0, most - 1) + "…" : text);

function Graph({ all, edges, path, onHover }) {
  const ids = all.map((n) => n.id);
  const key = ids.join() + "|" + edges.map((e) => `${e.from}>${e.to}`).join();
  const graph = useMemo(() => layout(ids, edges), [key]);
  const box = graph.graph();
  const by = new Map(all.map((n) => [n.id, n]));
  const onPath = (from, to) => path.indexOf(from) >= 0 && path.indexOf(to) === path.indexOf(from) + 1;
  return html`<div class="scroll graph" tabindex="0" role="region" aria-label="Graph of objects">
    <svg width=${box.width || 0} height=${box.height || 0} viewBox=${`0 0 ${box.width || 1} ${box.height || 1}`}>
      <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerUnits="userSpaceOnUse" markerWidth="8" markerHeight="8" orient="auto">
        <path d="M0 0 8 4 0 8z" class="tip" /></marker></defs>
      ${edges.map(({ from, to }) => {
        const edge = graph.edge(from, to);
        if (!edge) return null;
        const points = course(graph.node(from), edge.points, graph.node(to));
        const middle = points[Math.floor(points.length / 2)];
        // A source whose rows are in its tables has the sum of their rates.
        const flow = by.get(from).usage ? by.get(from).rate : by.get(to).rate;
        return html`<g key=${from + to}>
          <path d=${curve(points)} class=${`edge ${onPath(from, to) ? "critical" : ""}`} marker-end="url(#tip)" />
          ${flow > 0 && html`<text x=${middle.x} y=${middle.y - 4} class="flow">${rate(flow)}</text>`}
        </g>`;
      })}
      ${all.map((node) => {
        const at = graph.node(node.id);
        const open = () => (location.hash = node.subscription ? "#/sessions" : `#/object/${node.id}`);
        const lag = node.lag === null ? "" : `${duration(node.lag)} behind`;
        return html`<a key=${node.id} href=${node.subscription ? "#/sessions" : `#/object/${node.id}`} onClick=${(e) => { e.preventDefault(); open(); }}
            class=${`node ${tone(node)} ${path.includes(node.id) ? "critical" : ""}`}
            aria-label=${`${node.kind} ${node.name}, ${node.status}${lag && ", " + lag}`}
            onMouseEnter=${() => onHover(node.id)} onMouseLeave=${() => onHover(null)}
            onFocus=${() => onHover(node.id)} onBlur=${() => onHover(null)}>
          <g transform=${`translate(${at.x - WIDTH / 2} ${at.y - HEIGHT / 2})`}>
            <rect width=${WIDTH} height=${HEIGHT} rx="6" /><rect class="bar" width="5" height=${HEIGHT} rx="2" />
            <text x="14" y="18" class="kind">${node.kind}${node.status === "running" ? "" : " · " + node.status}</text>
            <text x="14" y="35" class="name">${short(node.name)}<title>${fullName(node)}</title></text>
            <text x="14" y="51" class="lag">${lag}</text>
          </g>
        </a>`;
      })}
    </svg>
  </div>`;
}

export function Overview() {
  const state = useSystem();
  const [hovered, hover] = useState(null);
  const [find, setFind] = useState("");
  const objects = [...state.nodes.values()].sort((a, b) => fullName(a).localeCompare(fullName(b)));
  const byName = new Map(objects.map((n) => [n.name, n.id]));
  const watching = state.subscriptions.map((s) => ({
    id: `subscription-${s.id}`, kind: "follower", name: s.relation, status: "running", subscription: true,
    lag: s.lag, hydrated: true, error: null, rate: null, from: byName.get(s.relation),
  }));
  const wanted = (n) => !find || fullName(n).toLowerCase().includes(find.toLowerCase());
  const shown = [...objects, ...watching].filter(wanted);
  const ids = new Set(shown.map((n) => n.id));
  const edges = [...state.edges, ...watching.filter((w) => w.from).map((w) => ({ from: w.from, to: w.id }))]
    .filter((e) => ids.has(e.from) && ids.has(e.to));
  const path = hovered && state.nodes.has(hovered) ? criticalPath(hovered, state) : [];
  const bad = objects.filter((n) => tone(n) === "bad");
  const late = objects.reduce((most, n) => Math.max(most, n.lag ?? 0), 0);
  return html`
    <div class="title"><h1>Overview</h1>
      <label class="find">Find <input type="search" value=${find} onInput=${(e) => setFind(e.target.value)} /></label></div>
    <p class="figures">
      <span><b>${objects.length}</b> objects</span>
      <span class=${bad.length ? "bad" : ""}><b>${bad.length}</b> in trouble</span>
      <span><b>${duration(late)}</b> behind at most</span>
      <span><b>${state.subscriptions.length}</b> followers</span></p>
    ${!objects.length && state.ready && html`<p class="muted">Nothing is here yet. <a href="#/query">Create a source</a>.</p>`}
    ${shown.length > 0 && html`<${Graph} all=${shown} edges=${edges} path=${path} onHover=${hover} />`}
    <p class="muted hintline">Point to an object: the path along which it is late is drawn thick.</p>
    <h2>Objects</h2>
    <${Grid} label="Objects" rows=${objects.filter(wanted)} keyOf=${(n) => n.id} columns=${[
      { name: "name", cell: (n) => html`<a href=${`#/object/${n.id}`}>${fullName(n)}</a>` },
      { name: "kind", cell: (n) => n.kind },
      { name: "status", cell: (n) => html`<${Status} node=${n} />` },
      { name: "behind", end: true, cell: (n) => duration(n.lag) },
      { name: "rows", end: true, cell: (n) => rate(n.rate) },
      { name: "error", cell: (n) => n.error || "" },
    ]} />`;
}
