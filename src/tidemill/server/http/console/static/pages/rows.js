// The rows of an answer, a page at a time.

import { html, useState } from "/console/vendor/preact.js";
import { count, duration, time, value } from "/console/format.js";
import { Grid } from "/console/parts.js";

const PAGE = 200;
const NUMBERS = /^(smallint|integer|bigint|real|double|numeric|uint|oid|mz_timestamp)/;
export const isNumber = (column) => NUMBERS.test(column.type);

export const cells = (columns) => columns.map((c, i) => ({
  name: c.name,
  end: isNumber(c),
  cell: (row) => (row[i] === null ? html`<span class="null">NULL</span>` : value(row[i])),
}));

export function Rows({ answer, took, at }) {
  const [page, turn] = useState(0);
  const { columns, rows, tag, notices } = answer;
  const from = Math.min(page * PAGE, Math.max(0, rows.length - 1));
  const pages = Math.ceil(rows.length / PAGE);
  return html`
    <p role="status" class="muted">${columns.length ? `${count(rows.length)} ${rows.length === 1 ? "row" : "rows"}` : tag} in ${duration(took)}${at ? `, as of ${time(at)}` : ""}
      ${notices.map((n) => html`<br />${n.severity}: ${n.message}`)}</p>
    ${columns.length > 0 && html`<${Grid} label="Result" columns=${cells(columns)} rows=${rows.slice(from, from + PAGE)} empty="no rows" />`}
    ${pages > 1 && html`<p class="buttons"><button class="quiet" disabled=${page === 0} onClick=${() => turn(page - 1)}>Before</button>
      <span>${count(from + 1)} to ${count(Math.min(from + PAGE, rows.length))}</span>
      <button class="quiet" disabled=${page >= pages - 1} onClick=${() => turn(page + 1)}>Next</button></p>`}`;
}
