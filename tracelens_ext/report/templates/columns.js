"use strict";
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
