"use strict";
// Charts: plotly.js is unpacked and run when the page is on the screen; it draws figures as they
// come, texts escaped. Here their layout is chosen by the width, and what is hidden or searched.

const PRINT = { width: 1000, lower: 0.75 }; // pixels, of A4 in landscape; heights are a part of those on screens
const CONFIG = { displayModeBar: false, responsive: false, typesetMath: false };
const PALE = "40"; // the opacity of what a search does not find

async function loadPlotly() {
  const packed = Uint8Array.from(atob(document.getElementById("packed-plotly").textContent), (byte) => byte.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}

class Chart {
  constructor(figure, template) {
    Object.assign(this, figure, { template });
    this.place = document.getElementById(figure.key);
    this.place.replaceChildren();
    this.hidden = new Set(); // places in the legend
    this.place.parentElement.querySelectorAll(".legend button").forEach((button, piece) => {
      button.disabled = false;
      button.addEventListener("click", () => {
        if (!this.hidden.delete(piece)) this.hidden.add(piece);
        button.setAttribute("aria-pressed", !this.hidden.has(piece));
        this.draw();
      });
    });
    if (this.data[0]?.type === "icicle") this.waitAndSearch();
  }

  /** What is true of whole bars only goes when a piece of them does. */
  shows(piece) {
    return piece === "whole" ? !this.hidden.size : !this.hidden.has(piece);
  }

  async draw(printed = false) {
    if (this.waiting && !printed) return;
    const width = printed ? PRINT.width : this.place.clientWidth;
    const room = this.rooms.findLast(({ from }) => from <= width);
    const layout = structuredClone({ ...this.layout, ...room, width, template: this.template }); // plotly writes into it
    if (printed) layout.height *= PRINT.lower;
    for (const each of layout.annotations ?? []) each.visible = this.shows(each.name);
    await Plotly.react(this.place, this.data.map((trace) => ({ ...trace, visible: this.shows(trace.meta) })), layout, CONFIG);
    if (this.listens) return;
    this.listens = true;
    this.place.on("plotly_click", ({ points }) => this.showFinding(points[0].customdata));
    this.place.on("plotly_clickannotation", ({ annotation }) => this.showFinding(annotation.name));
  }

  /** A click on a strip shows the card of its finding, and where on the time axis it is. */
  showFinding(id) {
    this.zoomTo(id);
    showCard(id);
  }

  /** Zoom the time axis to a finding; a double click on the chart shows all of it again. */
  zoomTo(id) {
    const strip = this.data.find((trace) => trace.base && trace.customdata?.[0] === id);
    if (!strip) return false;
    const first = Math.min(...strip.base);
    const last = Math.max(...strip.base.map((start, index) => start + strip.x[index]));
    const margin = 0.02 * (last - first) || 0.001;
    Plotly.relayout(this.place, { "xaxis.range": [first - margin, last + margin] });
    return true;
  }

  /** The call tree takes long to draw: not before it is looked at. What is not found is pale. */
  waitAndSearch() {
    const [{ labels, parents, marker }] = this.data;
    this.waiting = true;
    new IntersectionObserver((entries, observer) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      this.waiting = false;
      this.draw();
    }).observe(this.place);
    const search = document.createElement("input");
    Object.assign(search, { id: `${this.key}-search`, type: "search", placeholder: "Search modules, operations, kernels", autocomplete: "off" });
    search.setAttribute("aria-label", "Search in the call tree");
    this.place.before(search);
    search.addEventListener("input", () => {
      const text = search.value.trim().toLowerCase();
      const found = labels.map((label) => label.toLowerCase().includes(text));
      // What encloses a find stays in full color, so that it can be followed.
      for (let node = labels.length - 1; node > 0; node -= 1) if (found[node]) found[parents[node]] = true;
      this.data = [{ ...this.data[0], marker: { ...marker, colors: marker.colors.map((color, node) => (found[node] ? color : color + PALE)) } }];
      this.draw();
    });
  }
}

/** Show the finding that was clicked in a chart: its card, or where the cards are. */
function showCard(id) {
  if (!id?.startsWith?.("finding-")) return;
  const card = document.getElementById(id);
  const details = card?.querySelector("details");
  if (details) details.open = true;
  (card ?? document.querySelector(".findings"))?.scrollIntoView({ block: "center" });
}

async function drawCharts(figures, template) {
  if (!figures.length) return;
  await loadPlotly();
  const charts = figures.map((figure) => new Chart(figure, template));
  for (const heading of document.querySelectorAll(".findings [id^='finding-'] h3")) {
    const { id } = heading.closest("[id^='finding-']");
    heading.addEventListener("click", () => {
      const zoomed = charts.find((chart) => chart.zoomTo(id));
      zoomed?.place.scrollIntoView({ block: "center" });
    });
  }
  const drawAll = (printed) => Promise.all(charts.map((chart) => chart.draw(printed)));
  await drawAll();
  const { place } = charts[0];
  let drawnAt = place.clientWidth;
  let waiting = 0;
  let printing = false;
  new ResizeObserver(() => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      if (printing || place.clientWidth === drawnAt) return;
      drawnAt = place.clientWidth;
      drawAll();
    }, 150);
  }).observe(place);
  for (const event of ["beforeprint", "afterprint"]) {
    addEventListener(event, () => {
      printing = event === "beforeprint";
      drawAll(printing);
    });
  }
}

// Puts the page together.

{
  const data = JSON.parse(document.getElementById("report-data").textContent);
  for (const table of data.tables) new ReportTable(document.getElementById(table.key), table, data.texts, data.first_rows);
  // After the first paint: the headline and the tables do not wait for plotly.
  requestAnimationFrame(() => setTimeout(() => {
    drawCharts(data.figures, data.look).then(
      () => { document.documentElement.dataset.charts = "drawn"; },
      (error) => {
        document.documentElement.dataset.charts = "failed";
        for (const note of document.querySelectorAll(".no-chart")) {
          note.textContent = `The charts cannot be drawn here (${error.message}); they need a browser of 2023 or later. The tables below contain the numbers.`;
        }
      },
    );
  }));
}
