// What EXPLAIN says, with its plan drawn as a tree.

import { html } from "/console/vendor/preact.js";

const WHOLE = /whole|all rows/i;
const KEYS = /rows of equal|equal rows|touched keys/i;

/** The lines of the section `Plan:`, nested by their indentation. */
export function tree(lines) {
  const start = lines.findIndex((line) => line.trim() === "Plan:");
  const roots = [];
  if (start < 0) return roots;
  const depth = (line) => line.length - line.trimStart().length;
  const stack = [{ depth: depth(lines[start]), children: roots }];
  for (const line of lines.slice(start + 1)) {
    if (depth(line) <= stack[0].depth) break;
    while (stack[stack.length - 1].depth >= depth(line)) stack.pop();
    const node = { depth: depth(line), text: line.trim(), children: [] };
    stack[stack.length - 1].children.push(node);
    stack.push(node);
  }
  return roots;
}

function Node({ node }) {
  const [, word, rest] = /^(\S+)\s*(.*)$/.exec(node.text) || [null, node.text, ""];
  return html`<li><div class="operator"><b>${word}</b> ${rest}</div>
    ${node.children.length > 0 && html`<ul>${node.children.map((n) => html`<${Node} node=${n} />`)}</ul>`}</li>`;
}

export function Plan({ lines }) {
  const roots = tree(lines);
  const costs = lines.map((l) => l.trim()).filter((l) => /^[^:]+: /.test(l) && (WHOLE.test(l) || KEYS.test(l)));
  return html`
    ${costs.length > 0 && html`<ul class="costs">${costs.map((c) => html`<li class=${WHOLE.test(c) ? "bad" : "wait"}>${c}</li>`)}</ul>`}
    ${roots.length > 0 && html`<ul class="tree" aria-label="Plan">${roots.map((n) => html`<${Node} node=${n} />`)}</ul>`}
    <details open=${!roots.length}><summary>Text</summary><pre tabindex="0">${lines.join("\n")}</pre></details>`;
}
