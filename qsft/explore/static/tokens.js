const { make, data } = qsft;
const [TEXT, BETWEEN, LABEL, P, T, GAMMA, Q, GRADIENT, KIND, ALTERNATIVES] = [...Array(10).keys()];
const COLOURS = { gamma: ["γ", GAMMA], p: ["p_θ", P], t: ["p_T", T], q: ["Q_y", Q], gradient: ["gradient", GRADIENT] };
const KINDS = { rescue: "rescue", filter: "filter", agree: "agree", student_only: "student only" };
const MEANING = {
  rescue: "rescue: the teacher finds the label likely, the student does not", filter: "filter: neither finds the label likely",
  agree: "agree: both find the label likely", student_only: "student only: the student finds the label likely, the teacher does not",
};
const state = { colour: "gamma", kind: "all", chosen: null };
const number = (x) => (x === null ? "–" : x !== 0 && Math.abs(x) < 5e-4 ? (x > 0 ? "< 0.001" : "> −0.001") : x.toFixed(3).replace("-", "−"));
const percent = (n, of) => (of ? `${Math.round((1000 * n) / of) / 10} %` : "–");
const hasTeacher = data.documents.some((doc) => "t" in doc.means);

// One element per token, in reading order; each knows its row.
const elements = [];

function paint(element) {
  const value = element.row[COLOURS[state.colour][1]] ?? 0;
  element.style.setProperty("--v", Math.min(1, Math.abs(value)));
  element.style.setProperty("--tone", state.colour === "gradient" && value > 0 ? "var(--warm)" : "var(--accent)");
  element.classList.toggle("dim", state.kind !== "all" && element.row[KIND] !== state.kind);
}

function token(row, place) {
  const shown = row[TEXT].replace(/\n/g, "⏎\n");
  const element = make("span", { class: `tok ${row[KIND] ?? ""}`, role: "button", tabindex: elements.length ? -1 : 0 }, shown);
  Object.assign(element, { row, place, number: elements.length });
  elements.push(element);
  return element;
}

function text(doc, place) {
  const parts = doc.tokens.flatMap((row) => {
    const element = token(row, place);
    return row[BETWEEN] ? [make("span", { class: "between" }, row[BETWEEN]), element] : [element];
  });
  if (doc.left_out) parts.push(make("span", { class: "between" }, ` … ${doc.left_out} more label tokens are not shown`));
  return make("p", { class: "text" }, ...parts);
}

function facts(doc) {
  const means = Object.entries(COLOURS).filter(([key]) => key in doc.means).map(([key, [name]]) => `mean ${name} ${number(doc.means[key])}`);
  const kinds = hasTeacher ? Object.keys(KINDS).map((kind) => `${KINDS[kind]} ${percent(doc.quadrants[kind], doc.tokens.length)}`) : [];
  return [`${doc.tokens.length} label tokens`, ...means, ...kinds].join(" · ");
}

function asTable(doc) {
  const columns = ["token", ...Object.values(COLOURS).map(([name]) => name), "kind"];
  const body = make("tbody");
  const details = make("details", {}, make("summary", {}, "As a table"), make("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "tokens" },
    make("table", {}, make("thead", {}, make("tr", {}, ...columns.map((name) => make("th", { scope: "col" }, name)))), body)));
  details.addEventListener("toggle", () => {
    if (!details.open || body.childElementCount) return;
    body.append(...doc.tokens.map((row) => make("tr", {}, make("th", { scope: "row", class: "mono" }, data.vocabulary[row[LABEL]]),
      ...Object.values(COLOURS).map(([, column]) => make("td", { class: "number" }, number(row[column]))), make("td", {}, KINDS[row[KIND]] ?? "–"))));
  });
  return details;
}

const articles = data.documents.map((doc, place) => make("article", { class: "doc card", "aria-label": `Document ${place + 1}` },
  make("h2", {}, `Document ${place + 1}`), make("p", { class: "facts" }, facts(doc)),
  ...(doc.prompt ? [make("p", { class: "prompt", tabindex: 0, role: "group", "aria-label": "Prompt" }, doc.prompt)] : []), text(doc, place), asTable(doc)));
document.getElementById("documents").append(...articles);

function show(element) {
  if (!element || element === state.chosen) return;
  state.chosen?.classList.remove("on");
  state.chosen = element;
  element.classList.add("on");
  const row = element.row;
  const cell = (value) => make("td", { class: "number", style: `--v:${Math.max(0, Math.min(1, value ?? 0))}` }, number(value));
  const line = ([id, p, t, q], label) => make("tr", label ? { class: "label" } : {}, make("th", { scope: "row" }, data.vocabulary[id]),
    cell(p), ...(hasTeacher ? [cell(t)] : []), cell(q));
  const lines = [[row[LABEL], row[P], row[T], row[Q]], ...row[ALTERNATIVES]].sort((a, b) => (b[3] ?? 0) - (a[3] ?? 0));
  const heads = ["token", "student", ...(hasTeacher ? ["teacher"] : []), "target Q"];
  const close = make("button", { type: "button", class: "quiet close", "aria-label": "Close", onclick: hide }, "✕");
  document.getElementById("detail").replaceChildren(
    close, make("h2", {}, data.vocabulary[row[LABEL]]),
    make("p", { class: "note" }, make("span", { class: `mark ${row[KIND] ?? ""}` }, MEANING[row[KIND]] ?? "the teacher says nothing here")),
    make("p", { class: "note" }, `γ ${number(row[GAMMA])} · gradient on the label ${number(row[GRADIENT])}`),
    make("table", {}, make("thead", {}, make("tr", {}, ...heads.map((name, i) => make("th", { scope: "col", class: i ? "number" : "" }, name)))),
      make("tbody", {}, ...lines.map((values) => line(values, values[0] === row[LABEL])))));
}

function hide() {
  state.chosen?.classList.remove("on");
  state.chosen = null;
  document.getElementById("detail").replaceChildren();
}

function buttons(id, choices, key, change) {
  const group = document.getElementById(id);
  for (const [value, name] of Object.entries(choices)) {
    const button = make("button", { type: "button", "data-value": value, "aria-pressed": String(state[key] === value) }, name);
    button.onclick = () => {
      state[key] = value;
      for (const other of group.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
      change();
    };
    group.append(button);
  }
}

function say() {
  const [name] = COLOURS[state.colour];
  const visible = articles.filter((article) => !article.hidden).length;
  const hits = document.querySelectorAll(".tok.hit").length;
  const counted = state.kind === "all" ? data.label_tokens : data.quadrants[state.kind];
  const signed = state.colour === "gradient";
  document.getElementById("found").replaceChildren(
    `${visible} of ${articles.length} documents · ${counted.toLocaleString("en")} tokens` + (hits ? ` · ${hits} match` : "") + ` · ${name}`,
    make("span", { class: "scale" + (signed ? " signed" : ""), "aria-hidden": "true" }),
    signed ? "−1 (pushed up) … +1 (pushed down)" : "0 … 1",
    ...(hasTeacher ? [" · ", make("span", { class: "mark rescue" }, "rescue"), " ", make("span", { class: "mark filter" }, "filter")] : []));
}

function repaint() { elements.forEach(paint); say(); }

function search(query) {
  const wanted = query.toLowerCase();
  for (const element of document.querySelectorAll(".tok.hit")) element.classList.remove("hit");
  data.documents.forEach((doc, place) => {
    const whole = [doc.prompt, ...doc.tokens.flatMap((row) => [row[BETWEEN], row[TEXT]])].join("").toLowerCase();
    articles[place].hidden = Boolean(wanted) && !whole.includes(wanted);
  });
  const bare = wanted.trim();
  if (bare) for (const element of elements) element.classList.toggle("hit", element.row[TEXT].toLowerCase().includes(bare));
  say();
}

function move(from, step) {
  let next = from.number + step;
  while (elements[next] && (elements[next].classList.contains("dim") || articles[elements[next].place].hidden)) next += Math.sign(step);
  if (!elements[next]) return;
  from.tabIndex = -1;
  elements[next].tabIndex = 0;
  elements[next].focus();
}

const area = document.getElementById("documents");
for (const kind of ["mouseover", "focusin", "click"])
  area.addEventListener(kind, (event) => event.target.classList.contains("tok") && show(event.target));
area.addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 }[event.key];
  if (!step || !event.target.classList.contains("tok")) return;
  event.preventDefault();
  move(event.target, step);
});
document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
document.getElementById("search").oninput = (event) => search(event.target.value);
const colours = Object.entries(COLOURS).filter(([key]) => key !== "t" || hasTeacher).map(([key, [name]]) => [key, name]);
buttons("colour", Object.fromEntries(colours), "colour", repaint);
if (hasTeacher) {
  const kinds = Object.entries(KINDS).map(([kind, name]) => [kind, `${name} ${data.quadrants[kind].toLocaleString("en")}`]);
  buttons("filter", { all: `all ${data.label_tokens.toLocaleString("en")}`, ...Object.fromEntries(kinds) }, "kind", repaint);
} else document.getElementById("filter").remove();
repaint();
// A link to one token: page.html#token-12.
const linked = /^#token-(\d+)$/.exec(location.hash);
if (linked) show(elements[Number(linked[1])]);
