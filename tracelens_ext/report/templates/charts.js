"use strict";
// Charts: plotly.js is unpacked and run when the page is on the screen; it draws what it is handed.
// Texts come escaped; nothing here may put one together with markup.

const NARROW = 640; // pixels; below it the names of bars stand above them
const WIDE = 980; // pixels; from here on there is room for longer names
const ROOM_INSIDE = 44; // pixels that a number in a piece takes
const PRINT_WIDTH = 1000; // pixels; the page is A4, landscape
const LOOK = {
  barmode: "stack",
  showlegend: false, // it stands above the chart, in HTML
  paper_bgcolor: "rgba(0,0,0,0)",
  plot_bgcolor: "rgba(0,0,0,0)",
  font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", size: 12 },
  dragmode: false,
  hovermode: "closest",
  hoverlabel: { align: "left", bgcolor: "#22262e", bordercolor: "#22262e", font: { color: "#ffffff", size: 12 }, namelength: -1 },
};
const FIXED_AXIS = { fixedrange: true, zeroline: false, automargin: false };
const CONFIG = { displayModeBar: false, responsive: false, typesetMath: false };

async function unpackedPlotly() {
  const packed = atob(document.getElementById("packed-plotly").textContent);
  const bytes = new Uint8Array(packed.length);
  for (let place = 0; place < packed.length; place += 1) bytes[place] = packed.charCodeAt(place);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).text();
}

async function loadPlotly() {
  const script = document.createElement("script");
  script.textContent = await unpackedPlotly();
  document.head.append(script);
}

/** The pixels that the widest of some texts takes. */
function widest(texts) {
  const context = document.createElement("canvas").getContext("2d");
  context.font = `${LOOK.font.size}px ${LOOK.font.family}`;
  return Math.max(...texts.map((text) => context.measureText(text.replace(/&(lt|gt|amp);/g, "<")).width));
}

class Chart {
  constructor(figure) {
    this.figure = figure;
    this.place = document.getElementById(figure.key);
    this.place.replaceChildren();
    this.hidden = new Set(); // places of pieces
    const legend = this.place.parentElement.querySelectorAll(".legend button");
    legend.forEach((button, piece) => {
      button.disabled = false;
      button.addEventListener("click", () => {
        if (!this.hidden.delete(piece)) this.hidden.add(piece);
        button.setAttribute("aria-pressed", !this.hidden.has(piece));
        this.draw();
      });
    });
  }

  draw(printed = false) {
    const width = printed ? PRINT_WIDTH : this.place.clientWidth;
    const narrow = width < NARROW;
    const { bars, ends } = this.figure;
    const pieces = this.figure.pieces.filter((_, piece) => !this.hidden.has(piece));
    const sums = bars.map((_, bar) => pieces.reduce((sum, piece) => sum + piece.values[bar], 0));
    const shortest = Math.min(...sums, 0); // below zero where differences are shown
    const longest = Math.max(...sums, 0) || (shortest ? 0 : 1);
    const names = bars.map((bar) => (width < WIDE ? bar.narrow : bar.wide));
    const left = narrow ? 16 : Math.min(widest(names) + 8, width * 0.48);
    const right = widest(ends) + 18;
    const perUnit = (width - left - right) / (longest - shortest); // pixels
    const traces = pieces.map((piece) => pieceTrace(piece, narrow, perUnit));
    // What stands at the ends is true of whole bars only.
    if (!this.hidden.size) traces.push(endsTrace(sums, ends));
    const layout = {
      width,
      height: bars.length * (narrow ? 44 : printed ? 19 : 27) + 34,
      margin: { l: left, r: right, t: 4, b: 26 },
      xaxis: { ...FIXED_AXIS, range: [shortest, longest], ticksuffix: ` ${this.figure.axis}`, nticks: narrow ? 4 : 9 },
      yaxis: {
        ...FIXED_AXIS,
        range: [bars.length - 0.5, narrow ? -0.75 : -0.5],
        showgrid: false,
        showticklabels: !narrow,
        tickmode: "array",
        tickvals: names.map((_, bar) => bar),
        ticktext: names,
      },
      annotations: narrow ? names.map(nameAbove) : [],
      ...LOOK,
    };
    return Plotly.react(this.place, traces, layout, CONFIG);
  }
}

/** Traces and axes as they come: heat maps, points; no piece hides what is below them. */
class Plain extends Chart {
  draw(printed = false) {
    const width = printed ? PRINT_WIDTH : this.place.clientWidth;
    const { plain, below = [], height, x, y, shapes } = this.figure;
    const shown = plain.filter((_, piece) => !this.hidden.has(piece));
    const axis = (own, ticks) => ({ ...FIXED_AXIS, nticks: ticks, ...own, title: { text: own.title, standoff: 6, font: { size: 11 } } });
    const margin = { l: 56, r: 12, t: 12, b: 44 };
    const layout = { ...LOOK, width, height, margin, shapes, xaxis: axis(x, width < NARROW ? 5 : 12), yaxis: axis(y, 12) };
    return Plotly.react(this.place, [...below, ...shown], layout, CONFIG);
  }
}

function pieceTrace(piece, narrow, perUnit) {
  return {
    type: "bar",
    orientation: "h",
    x: piece.values.map((value) => value || null), // a bar of no length would have an outline
    y: piece.values.map((_, bar) => bar),
    width: narrow ? 0.48 : 0.74,
    marker: { color: piece.colour, line: { width: 0.5, color: "rgba(255,255,255,0.45)" } },
    customdata: piece.hover,
    hovertemplate: "%{customdata}<extra></extra>",
    text: piece.inside?.map((text, bar) => (piece.values[bar] * perUnit > ROOM_INSIDE ? text : "")),
    textposition: piece.inside ? "inside" : "none",
    insidetextanchor: "middle",
    textangle: 0,
  };
}

function endsTrace(sums, ends) {
  return {
    type: "scatter",
    mode: "text",
    x: sums.map((sum) => Math.max(sum, 0)),
    y: sums.map((_, bar) => bar),
    text: ends.map((end) => `  ${end}`),
    textposition: "middle right",
    cliponaxis: false,
    hoverinfo: "skip",
  };
}

function nameAbove(name, bar) {
  return { text: name, x: 0, y: bar - 0.25, xanchor: "left", yanchor: "bottom", showarrow: false, align: "left", xshift: -3, font: { size: 11 } };
}

function kindOf(figure) {
  if (figure.view) return figure.view === "time_axis" ? TimeAxis : CallTree;
  if (figure.upright) return Columns;
  if (figure.plain) return Plain;
  return figure.levels ? MemoryLevels : Chart;
}

async function drawCharts(figures) {
  if (!figures.length) return;
  await loadPlotly();
  const charts = figures.map((figure) => new (kindOf(figure))(figure));
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
  addEventListener("beforeprint", () => {
    printing = true;
    drawAll(true);
  });
  addEventListener("afterprint", () => {
    printing = false;
    drawAll();
  });
}

// Upright bars in order of time, for what comes by the hundred: iterations. The odd ones are marked.

const COLUMNS_HEIGHT = { wide: 260, narrow: 210, printed: 190 }; // pixels
const ABOVE = 1.08; // of the highest bar: room for what stands on it
const MARK = "#d1495b";
const LINES = [5, 2]; // pixels: the one behind is of the page's colour, so that the other is seen on any

class Columns extends Chart {
  draw(printed = false) {
    const width = printed ? PRINT_WIDTH : this.place.clientWidth;
    const narrow = width < NARROW;
    const { names, ends, hover, marks, ceiling, axis, across } = this.figure;
    const walls = this.hidden.has(this.figure.pieces.length) ? [] : this.figure.walls;
    const pieces = this.figure.pieces.filter((_, piece) => !this.hidden.has(piece));
    const whole = pieces.length === this.figure.pieces.length; // marks and heights are of whole bars
    const sums = names.map((_, bar) => pieces.reduce((sum, piece) => sum + piece.values[bar], 0));
    const top = (whole ? ceiling : Math.min(ceiling, Math.max(...sums, ...walls))) || 1;
    const left = narrow ? 46 : 64;
    const edge = Math.max(0.2, names.length * 0.015); // bars
    const barWidth = names.length < 12 ? 0.6 : 0.86;
    const traces = pieces.map((piece) => ({
      type: "bar",
      x: names.map((_, bar) => bar),
      y: piece.values.map((value) => value || null),
      width: barWidth,
      marker: { color: piece.colour, line: { width: 0 } },
      customdata: hover,
      hovertemplate: "%{customdata}<extra></extra>",
    }));
    if (walls.length) traces.push(...LINES.map((pixels) => wallsTrace(walls, barWidth, pixels)));
    if (whole && marks.length) traces.push(marksTrace(marks, top));
    const layout = {
      ...LOOK,
      width,
      height: printed ? COLUMNS_HEIGHT.printed : narrow ? COLUMNS_HEIGHT.narrow : COLUMNS_HEIGHT.wide,
      margin: { l: left, r: 12, t: ends.some(Boolean) ? 22 : 12, b: 42 },
      xaxis: {
        ...FIXED_AXIS,
        range: [-0.5 - edge, names.length - 0.5 + edge],
        showgrid: false,
        tickmode: "array",
        ...ticksThatFit(names, width - left - 12),
        tickangle: 0,
        title: { text: across, standoff: 6, font: { size: 11 } },
      },
      yaxis: { ...FIXED_AXIS, range: [0, top * ABOVE], ticksuffix: ` ${axis}`, nticks: 6 },
      annotations: whole ? heightsThatFit(ends, width - left - 12) : [],
    };
    return Plotly.react(this.place, traces, layout, CONFIG);
  }
}

/** A line across each bar, a little wider; the style sheet gives it its colour. */
function wallsTrace(walls, barWidth, pixels) {
  const reach = Math.min(0.5, barWidth / 2 + 0.07);
  return {
    type: "scatter",
    mode: "lines",
    x: walls.flatMap((_, bar) => [bar - reach, bar + reach, null]),
    y: walls.flatMap((height) => [height, height, null]),
    line: { width: pixels, simplify: false },
    hoverinfo: "skip",
  };
}

function marksTrace(marks, top) {
  return {
    type: "scatter",
    mode: "markers",
    x: marks.map((mark) => mark.bar),
    y: marks.map((mark) => mark.height + top * 0.025),
    marker: { symbol: "diamond", size: 8, color: MARK, line: { width: 1, color: "#ffffff" } },
    customdata: marks.map((mark) => mark.hover),
    hovertemplate: "%{customdata}<extra></extra>",
    cliponaxis: false,
  };
}

/** As many names as have room, evenly spaced from the first on. */
function ticksThatFit(names, room) {
  const every = Math.max(1, Math.ceil((names.length * (widest(names) + 14)) / room));
  const tickvals = names.map((_, bar) => bar).filter((bar) => bar % every === 0);
  return { tickvals, ticktext: tickvals.map((bar) => names[bar]) };
}

/** How high the bars are that the axis cuts; of neighbours without room for both, the first. */
function heightsThatFit(ends, room) {
  const apart = ((widest(["1,234.56 ms", ...ends]) + 10) * ends.length) / room; // bars
  let last = -Infinity;
  return ends.flatMap((end, bar) => {
    if (!end || bar - last < apart) return [];
    last = bar;
    const nearEdge = bar < apart / 2 ? "left" : bar > ends.length - apart / 2 ? "right" : "center";
    return [{ text: `↑ ${end}`, x: bar, yref: "paper", y: 1, xanchor: nearEdge, yanchor: "bottom", showarrow: false, font: { size: 11 } }];
  });
}
