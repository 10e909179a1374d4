"use strict";
// The roofline chart: points below roofs, both axes logarithmic.

const ROOFLINE_HEIGHT = 420; // pixels

class Roofline extends Chart {
  draw(printed = false) {
    const width = printed ? PRINT_WIDTH : this.place.clientWidth;
    const { roofs, points, across, up } = this.figure;
    const shown = points.filter((_, piece) => !this.hidden.has(piece));
    const axis = { ...FIXED_AXIS, type: "log", dtick: 1, exponentformat: "none" };
    const layout = {
      ...LOOK,
      width,
      height: ROOFLINE_HEIGHT,
      margin: { l: 62, r: 12, t: 8, b: 42 },
      xaxis: { ...axis, range: across.map(Math.log10), title: { text: "FLOPs per byte", standoff: 6, font: { size: 11 } } },
      yaxis: { ...axis, range: up.map(Math.log10), title: { text: "TFLOP/s", standoff: 4, font: { size: 11 } } },
    };
    return Plotly.react(this.place, [...roofs.map(roofTrace), ...shown.map(pointsTrace)], layout, CONFIG);
  }
}

function roofTrace(roof) {
  return {
    type: "scatter",
    mode: "lines+text",
    x: roof.x,
    y: roof.y,
    line: { width: 1.5, color: "#8b93a1" },
    text: ["", "", roof.name],
    textposition: "top left",
    textfont: { size: 11 },
    hoverinfo: "skip",
    cliponaxis: false,
  };
}

function pointsTrace(piece) {
  return {
    type: "scatter",
    mode: "markers",
    x: piece.x,
    y: piece.y,
    marker: { size: piece.sizes, color: piece.colour, opacity: 0.75, line: { width: 0.5, color: "#ffffff" } },
    customdata: piece.hover,
    hovertemplate: "%{customdata}<extra></extra>",
  };
}
