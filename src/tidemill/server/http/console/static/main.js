// The frame of the console: the pages by the address behind #, and what stands around them.

import { html, render, useEffect, useState } from "/console/vendor/preact.js";
import { useSystem } from "/console/system.js";
import { Overview } from "/console/pages/overview.js";
import { ObjectPage } from "/console/pages/object.js";
import { LiveQuery } from "/console/pages/query.js";
import { Storage } from "/console/pages/storage.js";
import { Sessions } from "/console/pages/sessions.js";

const PAGES = [
  ["overview", "Overview", Overview],
  ["query", "Live query", LiveQuery],
  ["storage", "Storage", Storage],
  ["sessions", "Sessions", Sessions],
];

function address() {
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, id] = path.split("/");
  return { page: page || "overview", id: id && decodeURIComponent(id), search: new URLSearchParams(search) };
}

function Theme() {
  const [theme, set] = useState(document.documentElement.dataset.theme);
  const other = theme === "dark" ? "light" : "dark";
  const change = () => {
    document.documentElement.dataset.theme = other;
    localStorage.setItem("tidemill.theme", other);
    set(other);
    dispatchEvent(new Event("tidemill:theme"));
  };
  return html`<button class="quiet" onClick=${change}>${other === "dark" ? "Dark" : "Light"}</button>`;
}

function Connection() {
  const { error, ready } = useSystem();
  if (error) {
    return html`<div class="banner" role="status">
      No live figures: ${error.message}. ${error.hint || ""} Tried again every two seconds.</div>`;
  }
  return ready ? null : html`<div class="banner calm" role="status">Connecting ...</div>`;
}

function App() {
  const [at, set] = useState(address());
  const [, repaint] = useState(0);
  useEffect(() => {
    const moved = () => {
      set(address());
      scrollTo(0, 0);
    };
    const painted = () => repaint((n) => n + 1);
    addEventListener("hashchange", moved);
    addEventListener("tidemill:theme", painted);
    return () => {
      removeEventListener("hashchange", moved);
      removeEventListener("tidemill:theme", painted);
    };
  }, []);
  const found = PAGES.find(([name]) => name === at.page);
  const Page = at.page === "object" ? ObjectPage : found ? found[2] : Overview;
  useEffect(() => {
    document.title = `${found ? found[1] : at.page === "object" ? "Object" : "Overview"} - Tidemill`;
  }, [at.page]);
  return html`
    <a class="skip" href="#main" onClick=${(e) => { e.preventDefault(); document.getElementById("main").focus(); }}>To the content</a>
    <header>
      <a class="brand" href="#/overview"><img src="/console/icon.svg" alt="" width="24" height="24" />Tidemill</a>
      <nav aria-label="Pages">
        ${PAGES.map(([name, title]) => html`<a href=${`#/${name}`}
          aria-current=${name === at.page || (name === "overview" && at.page === "object") ? "page" : undefined}>${title}</a>`)}
      </nav>
      <${Theme} />
    </header>
    <${Connection} />
    <main id="main" tabindex="-1"><${Page} key=${at.page + (at.id || "")} id=${at.id} search=${at.search} /></main>
    <footer class="muted">SQL: <code>${document.querySelector("meta[name=connect]").content}</code> · <a href="/metrics">metrics</a></footer>`;
}

render(html`<${App} />`, document.getElementById("app"));
