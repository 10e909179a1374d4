"use strict";
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
