// SQL: an answer, a time of the past, a plan, or an answer that changes while one looks. Panes stand side by side.

import { html, useState } from "/console/vendor/preact.js";
import { Pane } from "/console/pages/pane.js";

// Watched results hold rows in memory.
const MOST_PANES = 4;

export function LiveQuery({ search }) {
  const [panes, set] = useState(() => [{ id: 0, text: search.get("sql"), at: search.get("at"), watch: search.get("watch") }]);
  const add = () => set([...panes, { id: panes[panes.length - 1].id + 1 }]);
  const close = (id) => set(panes.filter((p) => p.id !== id));
  return html`
    <div class="title"><h1>Live query</h1>
      <button class="quiet" onClick=${add} disabled=${panes.length >= MOST_PANES}>Add a pane</button></div>
    <div class=${`panes of-${panes.length}`}>
      ${panes.map((p) => html`<${Pane} key=${p.id} number=${p.id} first=${p} onClose=${panes.length > 1 ? () => close(p.id) : null} />`)}
    </div>`;
}
