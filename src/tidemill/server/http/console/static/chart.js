// A chart over time, drawn by uPlot. It takes its colours from the page's theme.

import { html, useEffect, useRef } from "/console/vendor/preact.js";

const PALETTE = ["--series-1", "--series-2", "--series-3", "--series-4", "--series-5", "--series-6"];

const clock = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);

/** `series`: {label, values}; `t`: seconds. `format` writes a value. The `label` is what a screen reader says. */
export function Chart({ label, t, series, format = String, height = 160, marks = [], onPick }) {
  const box = useRef();
  const plot = useRef();
  const key = series.map((s) => s.label).join("\n") + document.documentElement.dataset.theme;
  const pick = useRef(onPick);
  pick.current = onPick;

  useEffect(() => {
    const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const options = {
      width: box.current.clientWidth || 300,
      height,
      pxAlign: false,
      legend: { show: series.length > 1, live: true },
      cursor: { drag: { setScale: false, x: false, y: false } },
      scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), Math.max(high ?? 1, 1) * 1.05] } },
      axes: [{ ...axis, space: 70, values: (_, ticks) => ticks.map(clock) }, { ...axis, size: 62, values: (_, ticks) => ticks.map((v) => (v === null ? "" : format(v))) }],
      series: [
        { value: (_, v) => (v === null ? "" : clock(v)) },
        ...series.map((s, i) => ({
          label: s.label, stroke: colour(PALETTE[i % PALETTE.length]), width: 1.5, spanGaps: true,
          points: { show: false }, value: (_, v) => (v === null ? "" : format(v)),
        })),
      ],
    };
    const made = new uPlot(options, [t, ...series.map((s) => s.values)], box.current);
    made.over.addEventListener("click", () => {
      const at = made.cursor.idx;
      if (pick.current && at !== null && at !== undefined) pick.current(made.data[0][at]);
    });
    plot.current = made;
    const resized = new ResizeObserver(() => {
      if (box.current && box.current.clientWidth) made.setSize({ width: box.current.clientWidth, height });
    });
    resized.observe(box.current);
    return () => {
      resized.disconnect();
      made.destroy();
    };
  }, [key, height]);

  useEffect(() => {
    plot.current?.setData([t, ...series.map((s) => s.values)]);
  });

  const latest = series.map((s) => {
    const v = s.values.length ? s.values[s.values.length - 1] : null;
    return `${s.label} ${v === null || v === undefined ? "unknown" : format(v)}`;
  });
  return html`<figure class="chart">
    <figcaption>${label}</figcaption>
    <div ref=${box} role="img" aria-label=${`${label}: now ${latest.join(", ")}`}></div>
  </figure>`;
}
