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
