// Who is connected, what is followed, and how to end it.

import { html, useEffect, useState } from "/console/vendor/preact.js";
import { records, sql } from "/console/sql.js";
import { useSystem } from "/console/system.js";
import { bytes, count, duration } from "/console/format.js";
import { Grid, Trouble } from "/console/parts.js";

export function Sessions() {
  const { subscriptions, now } = useSystem();
  const [sessions, setSessions] = useState([]);
  const [error, setError] = useState(null);
  const [said, say] = useState("");

  useEffect(() => {
    let over = false;
    sql(["SELECT * FROM mz_internal.mz_sessions ORDER BY connected_at"])
      .then(([found]) => !over && setSessions(records(found)), (e) => !over && setError(e));
    return () => (over = true);
  }, [now]);

  async function end(what, id) {
    setError(null);
    try {
      const [answer] = await sql([{ query: `SELECT ${what}($1::int)`, params: [String(id)] }]);
      say(answer.rows[0][0] ? `Session ${id}: done.` : `Session ${id} is not there any more.`);
    } catch (e) {
      setError(e);
    }
  }

  return html`
    <h1>Sessions</h1>
    <${Trouble} error=${error} />
    <p role="status" class="muted">${said}</p>
    <${Grid} label="Sessions" rows=${sessions} keyOf=${(s) => s.process_id} columns=${[
      { name: "session", cell: (s) => s.process_id },
      { name: "role", cell: (s) => s.role },
      { name: "database", cell: (s) => s.database },
      { name: "application", cell: (s) => s.application_name },
      { name: "address", cell: (s) => s.client_address },
      { name: "state", cell: (s) => s.state },
      { name: "connected", cell: (s) => String(s.connected_at).slice(0, 19) },
      { name: "end it", cell: (s) => html`<button class="quiet" onClick=${() => end("pg_cancel_backend", s.process_id)}
          aria-label=${`Cancel the statement of session ${s.process_id}`}>Cancel</button>
        <button class="quiet" onClick=${() => end("pg_terminate_backend", s.process_id)}
          aria-label=${`End session ${s.process_id}`}>End</button>` },
    ]} />
    <h2>Followers</h2>
    <p class="muted">Running SUBSCRIBE statements. Durable subscriptions have pages of their own, from the overview.</p>
    <${Grid} label="Followers" rows=${subscriptions} keyOf=${(s) => s.id} empty="Nobody follows anything." columns=${[
      { name: "relation or query", cell: (s) => s.relation },
      { name: "session", cell: (s) => s.session },
      { name: "output", cell: (s) => s.output },
      { name: "behind", end: true, cell: (s) => duration(s.lag) },
      { name: "rows", end: true, cell: (s) => count(s.rows) },
      { name: "size", end: true, cell: (s) => bytes(s.bytes) },
    ]} />`;
}
