"use strict";
// Memory: lines over time with the iterations marked, and beside them what was alive at the peak.

const MEMORY_HEIGHT = 380; // pixels; the bars stand below the lines where there is no room beside
const BYTE_UNITS = [["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]];
const ROOM_FOR_ITERATION = 95; // pixels of its name

class MemoryLevels extends Chart {
  draw(printed = false) {
    const width = printed ? PRINT_WIDTH : this.place.clientWidth;
    const narrow = width < NARROW;
    const { levels, ms, peak, iterations } = this.figure;
    const lines = levels.filter((_, piece) => !this.hidden.has(piece));
    const bars = this.figure.bars.filter((bar) => !this.hidden.has(bar.piece));
    const highest = Math.max(1, ...lines.flatMap((line) => line.values));
    const [unit, factor] = BYTE_UNITS.find(([, bytes]) => highest >= bytes);
    const longest = Math.max(1, ...bars.map((bar) => bar.value));
    const left = narrow ? 50 : 64;
    const share = narrow ? 1 : 0.64; // of the width, of the lines
    const first = Math.min(ms[0], ...iterations.map((each) => each.ms));
    const last = Math.max(ms[ms.length - 1], first + 1e-3);
    const nearEnd = last - ((last - first) * ROOM_FOR_ITERATION) / ((width - left) * share);
    const every = Math.ceil(iterations.length / Math.max(1, Math.floor((width * share) / ROOM_FOR_ITERATION)));
    const traces = [...lines.map((line) => levelTrace(line, ms, factor)), barsTrace(bars)];
    if (!this.hidden.has(0)) traces.push(peakTrace(peak, factor));
    const layout = {
      ...LOOK,
      width,
      height: narrow ? MEMORY_HEIGHT + 40 + bars.length * 32 : MEMORY_HEIGHT,
      margin: { l: left, r: 12, t: 24, b: 42 },
      xaxis: { ...FIXED_AXIS, domain: [0, share], anchor: "y", range: [first, last], title: { text: "ms since the first event", standoff: 6, font: { size: 11 } }, nticks: narrow ? 4 : 9 },
      yaxis: { ...FIXED_AXIS, domain: [narrow ? 0.54 : 0, 1], anchor: "x", range: [0, (highest / factor) * 1.05], ticksuffix: ` ${unit}`, nticks: 6 },
      xaxis2: { ...FIXED_AXIS, domain: narrow ? [0, 1] : [share + 0.04, 1], anchor: "y2", range: [0, longest], visible: false },
      yaxis2: { ...FIXED_AXIS, domain: [0, narrow ? 0.43 : 1], anchor: "x2", range: [bars.length - 0.4, -0.9], visible: false },
      shapes: iterations.map(({ ms: x }) => ({ type: "line", xref: "x", yref: "y domain", x0: x, x1: x, y0: 0, y1: 1, line: { width: 1, dash: "dot", color: "#8b93a1" } })),
      annotations: [...iterations.filter((each, at) => at % every === 0 && each.ms <= nearEnd).map(iterationName), ...bars.map(barName)],
    };
    return Plotly.react(this.place, traces, layout, CONFIG);
  }
}

function levelTrace(line, ms, factor) {
  return {
    type: "scatter",
    mode: "lines",
    x: ms,
    y: line.values.map((value) => value / factor),
    line: { width: 1.5, shape: "hv", color: line.colour },
    customdata: line.hover,
    hovertemplate: "%{customdata}<extra></extra>",
  };
}

function peakTrace(peak, factor) {
  return {
    type: "scatter",
    mode: "markers",
    x: [peak.ms],
    y: [peak.value / factor],
    marker: { symbol: "diamond", size: 9, color: MARK, line: { width: 1, color: "#ffffff" } },
    hovertemplate: "<b>Peak</b><extra></extra>",
    cliponaxis: false,
  };
}

function barsTrace(bars) {
  return {
    type: "bar",
    orientation: "h",
    xaxis: "x2",
    yaxis: "y2",
    x: bars.map((bar) => bar.value || null),
    y: bars.map((_, at) => at),
    width: 0.36,
    marker: { color: bars.map((bar) => bar.colour), line: { width: 0 } },
    customdata: bars.map((bar) => bar.hover),
    hovertemplate: "%{customdata}<extra></extra>",
  };
}

function iterationName({ name, ms }) {
  return { text: name, x: ms, xref: "x", y: 1, yref: "y domain", xanchor: "left", yanchor: "bottom", showarrow: false, font: { size: 11 } };
}

function barName(bar, at) {
  return { text: `${bar.name}: ${bar.end}`, x: 0, xref: "x2", y: at - 0.2, yref: "y2", xanchor: "left", yanchor: "bottom", xshift: -3, showarrow: false, align: "left", font: { size: 11 } };
}

// The time axis (areas by category, a row a device) and the call tree (an icicle that can be searched).

const ROW_HEIGHT = 130; // pixels a device
const FINDING_HEIGHT = 32; // its title, and a bar below
const MARKED = "rgba(139, 147, 161, 0.25)";
const PALE = 0.25; // of what a search does not find

class TimeAxis extends Chart {
  draw(printed = false) {
    const width = printed ? PRINT_WIDTH : this.place.clientWidth;
    const { start_ms: first, end_ms: last, bins, rows, iterations, holes, findings, colours } = this.figure;
    const step = (last - first) / bins;
    const x = Array.from({ length: bins + 1 }, (_, bin) => first + bin * step);
    const categories = Object.keys(colours);
    const below = findings.length * FINDING_HEIGHT;
    const plotted = rows.length * ROW_HEIGHT + below;
    const traces = rows.flatMap(({ ns }, row) => categories.flatMap((name, piece) => {
      if (!(name in ns) || this.hidden.has(piece)) return [];
      const busy = ns[name].map((value) => value / 1e6 / step);
      return [{ type: "scatter", mode: "lines", stackgroup: `row${row}`, x, y: [...busy, busy[bins - 1]], xaxis: "x", yaxis: row ? `y${row + 1}` : "y", line: { shape: "hv", width: 0 }, fillcolor: colours[name], name, hovertemplate: `<b>${name}</b><br>%{y:.0%} at %{x:,.3f} ms<extra></extra>` }];
    }));
    const under = rows.length + 1;
    findings.forEach(({ id, title, intervals }, row) => {
      traces.push({ type: "bar", orientation: "h", xaxis: "x", yaxis: `y${under}`, base: intervals.map((each) => each.start_ms), x: intervals.map((each) => Math.max(each.end_ms - each.start_ms, step / 4)), y: intervals.map(() => row + 0.2), marker: { color: MARK, line: { width: 0 } }, customdata: intervals.map(() => id), name: title, hovertemplate: `${title}<extra></extra>`, width: 0.35 });
    });
    const top = (row) => 1 - (row * ROW_HEIGHT) / plotted;
    const layout = {
      ...LOOK,
      barmode: "overlay",
      width,
      height: plotted + 70,
      margin: { l: width < NARROW ? 50 : 70, r: 12, t: 20, b: 42 },
      xaxis: { ...FIXED_AXIS, range: [first, last], anchor: "free", position: 0, title: { text: "ms since the first event", standoff: 6, font: { size: 11 } }, nticks: width < NARROW ? 4 : 9 },
      shapes: [
        ...iterations.map((each) => ({ type: "line", xref: "x", yref: "paper", x0: each.start_ms, x1: each.start_ms, y0: 0, y1: 1, line: { width: 1, dash: "dot", color: "#8b93a1" } })),
        ...holes.map((each) => ({ type: "rect", xref: "x", yref: "paper", x0: each.start_ms, x1: each.end_ms, y0: 0, y1: 1, fillcolor: MARKED, line: { width: 0 }, layer: "below" })),
      ],
      annotations: findings.map(({ id, title }, row) => ({ name: id, text: title, captureevents: true, x: 0, xref: "paper", y: row - 0.2, yref: `y${under}`, xanchor: "left", align: "left", width: width - (width < NARROW ? 62 : 82), borderpad: 0, showarrow: false, font: { size: 11 } })).concat(rows.map(({ rank, device }, row) => ({ text: `${rank === null ? "" : `rank ${rank} `}GPU ${device}`, x: 0, xref: "paper", y: top(row), yref: "paper", xanchor: "left", yanchor: "bottom", showarrow: false, font: { size: 11 } }))),
    };
    rows.forEach((_, row) => {
      layout[row ? `yaxis${row + 1}` : "yaxis"] = { ...FIXED_AXIS, domain: [top(row + 1) + 0.02, top(row) - 0.03], rangemode: "tozero", tickformat: ".0%", nticks: 3 };
    });
    if (findings.length) layout[`yaxis${under}`] = { ...FIXED_AXIS, domain: [0, below / plotted], range: [findings.length - 0.5, -0.5], visible: false };
    const drawn = Plotly.react(this.place, traces, layout, CONFIG);
    for (const event of ["plotly_click", "plotly_clickannotation"]) this.place.removeAllListeners?.(event);
    this.place.on("plotly_click", ({ points }) => TimeAxis.show(points[0].customdata));
    this.place.on("plotly_clickannotation", ({ annotation }) => TimeAxis.show(annotation.name));
    return drawn;
  }

  static show(id) {
    if (id === undefined) return;
    const card = document.getElementById(`finding-${id}`);
    if (card?.querySelector("details")) card.querySelector("details").open = true;
    (card ?? document.querySelector(".findings"))?.scrollIntoView({ block: "center" });
  }
}

class CallTree extends Chart {
  constructor(figure) {
    super(figure);
    this.found = null; // whether each node is, while something is searched for
    const search = document.createElement("input");
    Object.assign(search, { id: "call-tree-search", type: "search", placeholder: "Search modules, operations, kernels", autocomplete: "off" });
    search.setAttribute("aria-label", "Search in the call tree");
    this.place.before(search);
    search.addEventListener("input", () => this.search(search.value.trim().toLowerCase()));
    new IntersectionObserver((entries, observer) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      this.visible = true;
      this.draw();
    }).observe(this.place);
  }

  search(text) {
    const { labels, parents } = this.figure;
    this.found = text ? labels.map((label) => label.toLowerCase().includes(text)) : null;
    // What encloses a find stays in full colour, so that it can be followed.
    if (this.found) for (let node = labels.length - 1; node >= 0; node -= 1) if (this.found[node] && parents[node] >= 0) this.found[parents[node]] = true;
    this.draw();
  }

  draw(printed = false) {
    if (!this.visible && !printed) return Promise.resolve();
    const width = printed ? PRINT_WIDTH : this.place.clientWidth;
    const { labels, parents, ns, categories, colours, hover } = this.figure;
    const faded = (node) => (this.found && !this.found[node] ? Math.round(255 * PALE).toString(16) : "");
    const whole = parents.reduce((sum, parent, node) => (parent < 0 ? sum + ns[node] : sum), 0);
    const trace = {
      type: "icicle",
      ids: ["all", ...labels.map((_, node) => `${node}`)], // one top: several would stand below a blank
      labels: ["GPU work", ...labels],
      parents: ["", ...parents.map((parent) => (parent < 0 ? "all" : `${parent}`))],
      values: [whole, ...ns],
      branchvalues: "total",
      sort: true,
      tiling: { orientation: "v" },
      pathbar: { visible: true },
      marker: { colors: ["#dfe3ea", ...colours.map((colour, node) => `${colour}${faded(node)}`)], line: { width: 0.5, color: "#ffffff" } },
      customdata: ["", ...hover.map((text, node) => `${text}<br>${categories[node]}`)],
      hovertemplate: "<b>%{label}</b><br>%{customdata}<extra></extra>",
      textfont: { color: "#22262e" },
    };
    return Plotly.react(this.place, [trace], { ...LOOK, width, height: width < NARROW ? 420 : 520, margin: { l: 0, r: 0, t: 24, b: 0 } }, CONFIG);
  }
}

// Puts the page together.

{
  const data = JSON.parse(document.getElementById("report-data").textContent);
  for (const table of data.tables) {
    const section = document.getElementById(table.key);
    new ReportTable(section, table, data.texts, data.first_rows);
  }
  for (const control of document.querySelectorAll("label.scripted")) control.hidden = false;
  // After the first paint: the headline and the tables do not wait for plotly.
  requestAnimationFrame(() => setTimeout(() => {
    drawCharts(data.figures.map((figure) => (figure.view ? { ...figure, ...data[figure.view] } : figure))).then(
      () => { document.documentElement.dataset.charts = "drawn"; },
      (error) => {
        document.documentElement.dataset.charts = "failed";
        for (const note of document.querySelectorAll(".no-chart")) {
          note.textContent = `The charts cannot be drawn here (${error.message}); they need a browser of 2023 or later. The tables below hold the numbers.`;
        }
      },
    );
  }));
}
