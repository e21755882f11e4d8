const { make, draw, data } = qsft;
const V = data.tokens.length;
const WIDTH = 2 + 3 * V; // loss, γ, Q, gradient, p*

// The value of a slider as text.
function valueText(value) {
  if (value === null) return "off";
  if (typeof value === "number") return String(Number(value.toPrecision(3)));
  return value;
}

function digits(x) {
  const size = Math.abs(x);
  if (size < 5e-7) return "0";
  if (size < 1e-3) return x.toExponential(1);
  return x.toFixed(size < 10 ? 3 : 1);
}

for (const target of data.targets) {
  const bytes = Uint8Array.from(atob(target.points), (c) => c.charCodeAt(0));
  target.values = new Float32Array(bytes.buffer);
}

// Where the sliders are: the situation is shared by both targets, hyper-parameters belong to one.
const situation = {};
const panels = ["first", "second"].map((id) => ({ id, element: document.getElementById(id), target: null, at: {} }));
for (const target of data.targets) for (const axis of target.situation) situation[axis.name] ??= axis.start;

function index(axes, at) {
  return axes.reduce((total, axis) => total * axis.values.length + at[axis.name], 0);
}

// The numbers of a target where its sliders are, or with p at another place.
function look(panel, p = situation.p) {
  const { target, at } = panel;
  const cell = index(target.hyper_parameters, at);
  const points = target.situation.reduce((n, axis) => n * axis.values.length, 1);
  const start = (cell * points + index(target.situation, { ...situation, p })) * WIDTH;
  const point = target.values.subarray(start, start + WIDTH);
  const part = (i) => Array.from(point.subarray(2 + i * V, 2 + (i + 1) * V));
  return { loss: point[0], gamma: point[1], q: part(0), gradient: part(1), end: part(2), cell };
}

function slider(axis, at, change) {
  if (axis.values.length === 1) return "";
  const id = `${axis.name}-${Math.random().toString(36).slice(2)}`;
  if (axis.values.some((value) => typeof value === "string")) {
    const options = axis.values.map((value, i) => make("option", { value: i }, value));
    const select = make("select", { id, "data-axis": axis.name }, ...options);
    select.value = at[axis.name];
    select.onchange = () => { at[axis.name] = Number(select.value); change(); };
    return make("div", { class: "slider choice" }, make("label", { for: id }, axis.label), select);
  }
  const output = make("output", { for: id });
  const input = make("input", { id, type: "range", min: 0, max: axis.values.length - 1, step: 1, "data-axis": axis.name });
  const showValue = () => {
    output.textContent = valueText(axis.values[input.value]);
    input.setAttribute("aria-valuetext", output.textContent);
  };
  input.value = at[axis.name];
  input.oninput = () => { at[axis.name] = Number(input.value); showValue(); change(); };
  showValue();
  return make("div", { class: "slider" }, make("label", { for: id }, make("span", {}, axis.label), output), input);
}

function situationSliders() {
  const axes = new Map();
  for (const { target } of panels) for (const axis of target?.situation ?? []) axes.set(axis.name, axis);
  document.getElementById("situation").replaceChildren(...[...axes.values()].map((axis) => slider(axis, situation, update)));
}

function choose(panel, number) {
  panel.target = data.targets[number] ?? null;
  panel.at = Object.fromEntries((panel.target?.hyper_parameters ?? []).map((axis) => [axis.name, axis.start]));
  const options = data.targets.map((target, i) => make("option", { value: i }, target.name));
  if (panel.id === "second") options.unshift(make("option", { value: -1 }, "no second target"));
  const label = panel.id === "first" ? "Target" : "Second target";
  const select = make("select", { "aria-label": label, id: panel.id + "-target" }, ...options);
  select.value = number;
  select.onchange = () => {
    choose(panel, Number(select.value));
    situationSliders();
    update();
    if (!select.isConnected) panel.element.querySelector("select").focus(); // it was replaced by a new one
  };
  panel.element.replaceChildren(make("div", { class: "head" }, make("span", { class: "swatch", "aria-hidden": "true" }), select));
  if (panel.target) panel.element.append(...details(panel));
}

function details(panel) {
  panel.formula = make("p", { class: "formula" });
  panel.error = make("p", { class: "notice", hidden: "" });
  const names = { loss: "loss", gamma: "γ", q: "Q_y", gradient: "∂L/∂z_y", other: "Q_a", otherGradient: "∂L/∂z_a" };
  panel.numbers = Object.fromEntries(Object.keys(names).map((key) => [key, make("dd", { "data-value": key })]));
  const list = Object.entries(names).map(([key, name]) => make("div", {}, make("dt", {}, name), panel.numbers[key]));
  panel.plots = Object.fromEntries(["bars", "gradient", "end"].map((key) =>
    [key, make("div", { class: "plot", role: "img", style: `height:${key === "bars" ? 230 : 170}px` })]));
  panel.endNote = make("p", { class: "note" });
  return [
    make("p", { class: "words" }, panel.target.description), panel.formula,
    make("div", { class: "sliders" }, ...panel.target.hyper_parameters.map((axis) => slider(axis, panel.at, update))),
    panel.error, make("dl", { class: "numbers" }, ...list),
    make("h3", {}, "Student, teacher, target"), panel.plots.bars,
    make("h3", {}, "Gradient, scale·(p − Q): below zero is pushed up"), panel.plots.gradient,
    make("h3", {}, "Where training ends"), panel.plots.end, panel.endNote,
  ];
}

const bar = (name, y, color, pattern) => ({
  type: "bar", name, x: data.tokens, y, marker: { color, pattern: { shape: pattern ?? "", fillmode: "overlay", fgcolor: "var(--card)", fgopacity: 0.8, size: 6, solidity: 0.25 } },
  hovertemplate: `%{x}: %{y:.4f}<extra>${name}</extra>`,
});
const layout = (more = {}) => ({ barmode: "group", bargap: 0.25, margin: { l: 44, r: 6, t: 26, b: 24 }, ...more });
const probability = { range: [0, 1.02], tickformat: ".1f", dtick: 0.5 };
const listed = (values) => data.tokens.map((token, i) => `${token} ${digits(values[i])}`).join(", ");

function writeNumbers(panel) {
  const { target } = panel;
  const now = look(panel);
  panel.formula.textContent = target.formulas[now.cell] || "–";
  panel.error.hidden = !target.errors[now.cell];
  panel.error.textContent = target.errors[now.cell];
  const values = { loss: now.loss, gamma: now.gamma, q: now.q[0], gradient: now.gradient[0], other: now.q[1], otherGradient: now.gradient[1] };
  for (const [key, element] of Object.entries(panel.numbers)) element.textContent = isNaN(values[key]) ? "–" : digits(values[key]);
}

function drawPanel(panel) {
  const { target, plots } = panel;
  const now = look(panel);
  const p = data.student[situation.p];
  const t = target.situation.some((axis) => axis.name === "teacher") ? data.teacher[situation.teacher] : null;
  const bars = [bar("student p", p, "var(--muted)")];
  if (t) bars.push(bar("teacher t", t, "var(--good)", "/"));
  const signed = Math.min(...now.q) < -1e-6;
  draw(plots.bars, { data: [...bars, bar("target Q", now.q, "var(--accent)")],
    layout: layout({ yaxis: signed ? { tickformat: ".1f" } : probability }) });
  plots.bars.setAttribute("aria-label", `Target Q: ${listed(now.q)}`);
  const colors = now.gradient.map((g) => (g < 0 ? "var(--accent)" : "var(--warm)"));
  const reach = Math.max(1.02, ...now.gradient.map(Math.abs));
  draw(plots.gradient, { data: [{ ...bar("gradient", now.gradient, colors), showlegend: false }],
    layout: layout({ margin: { l: 44, r: 6, t: 8, b: 24 }, yaxis: { range: [-reach, reach], zeroline: true } }) });
  plots.gradient.setAttribute("aria-label", `Gradient: ${listed(now.gradient)}`);
  draw(plots.end, { data: [bar("data d", data.data, "var(--muted)"), bar("student p*", now.end, "var(--pink)", "x")],
    layout: layout({ yaxis: probability }) });
  plots.end.setAttribute("aria-label", `Where training ends: ${listed(now.end)}`);
  panel.endNote.textContent = "If the data continue this context with y in 70 % of the documents (gray), training on all of "
    + `them rests at p* (${target.closed_form[now.cell] ? "closed form" : "found by descent from the student above"}).`;
}

const CURVES = [
  ["Loss", (point) => point.loss], ["Target on the label, Q_y", (point) => point.q[0]],
  ["Target on a token that is not the label, Q_a", (point) => point.q[1]],
  ["Gradient on the label y", (point) => point.gradient[0]], ["Gradient on the other token a", (point) => point.gradient[1]],
];
const curvePlots = CURVES.map(([title]) => {
  const plot = make("div", { class: "plot", role: "img", "aria-label": `${title} over the student's probability of y`, style: "height:230px" });
  document.getElementById("curves").append(make("figure", {}, make("h3", {}, title), plot));
  return plot;
});

function drawCurves() {
  const stops = data.targets[0].situation[0].values;
  CURVES.forEach(([, value], i) => {
    const traces = panels.filter((panel) => panel.target).flatMap((panel) => {
      const color = panel.id === "first" ? "var(--accent)" : "var(--warm)";
      const y = stops.map((_, p) => value(look(panel, p)));
      const line = { x: stops, y, mode: "lines", name: panel.target.name, line: { color, width: 2.5, dash: panel.id === "first" ? "solid" : "dash" },
                     hovertemplate: "p_y %{x}: %{y:.4f}<extra></extra>" };
      const dot = { x: [stops[situation.p]], y: [y[situation.p]], mode: "markers", hoverinfo: "skip",
                    marker: { color, size: 10, symbol: panel.id === "first" ? "circle" : "diamond", line: { color: "var(--card)", width: 1.5 } } };
      return [line, dot];
    });
    draw(curvePlots[i], { data: traces, layout: { margin: { l: 44, r: 8, t: 10, b: 36 }, showlegend: false,
      xaxis: { range: [0, 1], title: { text: "p_θ(y)" } } } });
  });
}

let drawing = null;
// Numbers follow a slider at once; pictures follow once per frame, however fast it moves.
function update() {
  for (const panel of panels) if (panel.target) writeNumbers(panel);
  drawing ??= requestAnimationFrame(drawAll);
  const sentences = panels.filter((panel) => panel.target).map((panel) => {
    const now = look(panel);
    return `${panel.target.name}: loss ${digits(now.loss)}, Q of y ${digits(now.q[0])}, gradient on y ${digits(now.gradient[0])}`;
  });
  document.getElementById("status").textContent = sentences.join("; ");
  const legend = panels.filter((panel) => panel.target).map((panel) =>
    make("span", { class: "key " + panel.id }, make("i", { "aria-hidden": "true" }), panel.target.name));
  document.getElementById("legend").replaceChildren(...legend);
}

function drawAll() {
  drawing = null;
  for (const panel of panels) if (panel.target) drawPanel(panel);
  drawCurves();
}

function findTarget(name, otherwise) {
  const found = data.targets.findIndex((target) => target.name === name);
  return found < 0 ? otherwise : found;
}

const userTargetIsFirst = data.targets[0].name !== "sft";
choose(panels[0], userTargetIsFirst ? 0 : findTarget("target_sft", 0));
choose(panels[1], data.targets.length > 1 ? findTarget("sft", 1) : -1);
situationSliders();
update();
drawAll();
