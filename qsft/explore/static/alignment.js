// The threshold that separates likely from unlikely labels: shares and lines follow it, counted from the heat map's bins.
const { data, draw } = qsft;
const slider = document.getElementById("high");
const plot = document.querySelector(".plot");
const bins = data.histogram.length;
const total = data.histogram.flat().reduce((sum, count) => sum + count, 0);

function shares(high) {
  const counts = { rescue: 0, filter: 0, agree: 0, student_only: 0 };
  const firstLikely = Math.round(high * bins); // the first bin of likely labels
  data.histogram.forEach((row, t) => row.forEach((count, p) => {
    const teacherFindsLikely = t >= firstLikely;
    const studentFindsLikely = p >= firstLikely;
    if (teacherFindsLikely && studentFindsLikely) counts.agree += count;
    else if (teacherFindsLikely) counts.rescue += count;
    else if (studentFindsLikely) counts.student_only += count;
    else counts.filter += count;
  }));
  return counts;
}

function move() {
  const high = Number(slider.value);
  document.getElementById("high-value").textContent = high;
  const counts = shares(high);
  const percent = (kind) => `${((100 * counts[kind]) / total).toFixed(1)} %`;
  for (const tile of document.querySelectorAll("[data-kind]")) tile.textContent = percent(tile.dataset.kind);
  const { spec } = plot;
  const [vertical, horizontal] = spec.layout.shapes;
  vertical.x0 = vertical.x1 = high;
  horizontal.y0 = horizontal.y1 = high;
  Object.keys(data.corners).forEach((kind) => {
    const note = spec.layout.annotations.find((one) => one.text.includes(data.names[kind]));
    note.text = `<b>${data.names[kind]}</b><br>${percent(kind)}`;
  });
  draw(plot, spec);
}
slider.oninput = move;
