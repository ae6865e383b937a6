// What several pages are made of.

import { html } from "/console/vendor/preact.js";

const TONES = { running: "good", created: "wait", starting: "wait", stalled: "bad", failed: "bad", paused: "wait", dropped: "bad", lost: "bad", "waiting for a reader": "wait" };
export const tone = (node) => (node.error ? "bad" : node.hydrated === false ? "wait" : TONES[node.status] || "good");

export const Status = ({ node }) =>
  html`<span class=${`status ${tone(node)}`}>${node.hydrated === false && node.status === "running" ? "catching up" : node.status}</span>`;

export function Trouble({ error }) {
  if (!error) return null;
  return html`<div class="trouble" role="alert">
    <strong>${error.message}</strong>
    ${error.detail && html`<p>${error.detail}</p>`}
    ${error.hint && html`<p class="hint">${error.hint}</p>`}
    ${error.code && html`<p class="muted">SQLSTATE ${error.code}</p>`}
  </div>`;
}

/** A table of plain cells. `columns`: {name, cell(row), end?}. */
export function Grid({ label, columns, rows, empty = "nothing", keyOf }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}>
    <table>
      <caption class="hidden">${label}</caption>
      <thead><tr>${columns.map((c) => html`<th scope="col" class=${c.end ? "end" : ""}>${c.name}</th>`)}</tr></thead>
      <tbody>
        ${rows.map((row, i) => html`<tr key=${keyOf ? keyOf(row) : i}>
          ${columns.map((c) => html`<td class=${c.end ? "end" : ""}>${c.cell(row)}</td>`)}
        </tr>`)}
        ${!rows.length && html`<tr><td class="muted" colspan=${columns.length}>${empty}</td></tr>`}
      </tbody>
    </table>
  </div>`;
}

export const Progress = ({ label, done, all }) =>
  html`<progress aria-label=${label} max=${Math.max(all, 1)} value=${Math.min(done, all)}></progress>`;
