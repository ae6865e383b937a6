// SQL over the HTTP API of the server that sent this page.

export class SqlError extends Error {
  constructor(error) {
    super(error.message);
    Object.assign(this, { code: error.code, detail: error.detail, hint: error.hint, position: error.position });
  }
}

/** Runs statements as one transaction; resolves to one {columns, rows, tag, notices} per statement.
 * `queries` are texts, or objects with `query` and `params`. Rejects with SqlError. */
export async function sql(queries, { signal } = {}) {
  const body = { queries: queries.map((q) => (typeof q === "string" ? { query: q } : q)) };
  let answer;
  try {
    answer = await fetch("/api/sql", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal,
    });
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw new SqlError({ message: "the server does not answer", hint: "Is it running? The page tries again." });
  }
  let found;
  try {
    found = await answer.json();
  } catch {
    throw new SqlError({ message: `the server answers with status ${answer.status}` });
  }
  if (found.error) throw new SqlError(found.error);
  return found.results.map((result) => {
    if (result.error) throw new SqlError(result.error);
    const columns = result.desc ? result.desc.columns : [];
    return { columns, rows: result.rows || [], tag: result.tag, notices: result.notices || [] };
  });
}

/** The rows as objects by column name. */
export function records(result) {
  const names = result.columns.map((c) => c.name);
  return result.rows.map((row) => Object.fromEntries(names.map((name, i) => [name, row[i]])));
}

export const quoted = (name) => (/^[a-z_][a-z0-9_]*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`);

/** The rows as CSV, as COPY writes it: NULL is nothing, "" is an empty text. */
export function csv(columns, rows) {
  const cell = (value) => {
    if (value === null) return "";
    const text = typeof value === "object" ? JSON.stringify(value) : String(value);
    return text === "" || /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [columns, ...rows].map((row) => row.map(cell).join(",") + "\n").join("");
}
