const { make, data } = qsft;
// A token is { text, text_before, label, p, t, gamma, q, gradient, quadrant, alternatives: [{ token, p, t, q }] }.
const VALUES = { gamma: "γ", p: "p_θ", t: "p_T", q: "Q_y", gradient: "gradient" };
const QUADRANTS = { rescue: "rescue", filter: "filter", agree: "agree", student_only: "student only" };
const MEANING = {
  rescue: "rescue: the teacher finds the label likely, the student does not", filter: "filter: neither finds the label likely",
  agree: "agree: both find the label likely", student_only: "student only: the student finds the label likely, the teacher does not",
};
const state = { color: "gamma", quadrant: "all", chosen: null };
const hasTeacher = data.documents.some((doc) => "t" in doc.means);

function number(x) {
  if (x === null) return "–";
  const isTiny = x !== 0 && Math.abs(x) < 5e-4;
  if (isTiny) return x > 0 ? "< 0.001" : "> −0.001";
  return x.toFixed(3).replace("-", "−");
}

const percent = (n, of) => (of ? `${Math.round((1000 * n) / of) / 10} %` : "–");

// One element per token, in reading order.
const elements = [];

function paint(element) {
  const value = element.token[state.color] ?? 0;
  element.style.setProperty("--v", Math.min(1, Math.abs(value)));
  element.style.setProperty("--tone", state.color === "gradient" && value > 0 ? "var(--warm)" : "var(--accent)");
  element.classList.toggle("dim", state.quadrant !== "all" && element.token.quadrant !== state.quadrant);
}

function tokenElement(token, place) {
  const shown = token.text.replace(/\n/g, "⏎\n");
  const element = make("span", { class: `tok ${token.quadrant ?? ""}`, role: "button", tabindex: elements.length ? -1 : 0 }, shown);
  Object.assign(element, { token, place, number: elements.length });
  elements.push(element);
  return element;
}

function documentText(doc, place) {
  const parts = doc.tokens.flatMap((token) => {
    const element = tokenElement(token, place);
    return token.text_before ? [make("span", { class: "between" }, token.text_before), element] : [element];
  });
  if (doc.left_out) parts.push(make("span", { class: "between" }, ` … ${doc.left_out} more label tokens are not shown`));
  return make("p", { class: "text" }, ...parts);
}

function documentFacts(doc) {
  const means = Object.entries(VALUES).filter(([key]) => key in doc.means).map(([key, name]) => `mean ${name} ${number(doc.means[key])}`);
  const shares = hasTeacher ? Object.entries(QUADRANTS).map(([key, name]) => `${name} ${percent(doc.quadrants[key], doc.tokens.length)}`) : [];
  return [`${doc.tokens.length} label tokens`, ...means, ...shares].join(" · ");
}

function asTable(doc) {
  const heading = (name, style) => make("th", { scope: "col", class: style }, name);
  const numbers = Object.values(VALUES).map((name) => heading(name, "number"));
  const headings = [heading("token", ""), ...numbers, heading("kind", "")];
  const body = make("tbody");
  const details = make("details", {}, make("summary", {}, "As a table"), make("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "tokens" },
    make("table", {}, make("thead", {}, make("tr", {}, ...headings)), body)));
  details.addEventListener("toggle", () => {
    if (!details.open || body.childElementCount) return;
    body.append(...doc.tokens.map((token) => make("tr", {}, make("th", { scope: "row", class: "mono" }, data.vocabulary[token.label]),
      ...Object.keys(VALUES).map((key) => make("td", { class: "number" }, number(token[key]))), make("td", {}, QUADRANTS[token.quadrant] ?? "–"))));
  });
  return details;
}

const articles = data.documents.map((doc, place) => make("article", { class: "doc card", "aria-label": `Document ${place + 1}` },
  make("h2", {}, `Document ${place + 1}`), make("p", { class: "facts" }, documentFacts(doc)),
  ...(doc.prompt ? [make("p", { class: "prompt", tabindex: 0, role: "group", "aria-label": "Prompt" }, doc.prompt)] : []), documentText(doc, place), asTable(doc)));
document.getElementById("documents").append(...articles);

function show(element) {
  if (!element || element === state.chosen) return;
  state.chosen?.classList.remove("on");
  state.chosen = element;
  element.classList.add("on");
  const { token } = element;
  const cell = (value) => make("td", { class: "number", style: `--v:${Math.max(0, Math.min(1, value ?? 0))}` }, number(value));
  const line = (one) => make("tr", one.token === token.label ? { class: "label" } : {},
    make("th", { scope: "row" }, data.vocabulary[one.token]), cell(one.p), ...(hasTeacher ? [cell(one.t)] : []), cell(one.q));
  const label = { token: token.label, p: token.p, t: token.t, q: token.q };
  const lines = [label, ...token.alternatives].sort((a, b) => (b.q ?? 0) - (a.q ?? 0));
  const heads = ["token", "student", ...(hasTeacher ? ["teacher"] : []), "target Q"];
  const close = make("button", { type: "button", class: "quiet close", "aria-label": "Close", onclick: hide }, "✕");
  document.getElementById("detail").replaceChildren(
    close, make("h2", {}, data.vocabulary[token.label]),
    make("p", { class: "note" }, make("span", { class: `mark ${token.quadrant ?? ""}` }, MEANING[token.quadrant] ?? "no teacher log-probs here")),
    make("p", { class: "note" }, `γ ${number(token.gamma)} · gradient on the label ${number(token.gradient)}`),
    make("table", {}, make("thead", {}, make("tr", {}, ...heads.map((name, i) => make("th", { scope: "col", class: i ? "number" : "" }, name)))),
      make("tbody", {}, ...lines.map(line))));
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

function writeStatus() {
  const name = VALUES[state.color];
  const visible = articles.filter((article) => !article.hidden).length;
  const hits = document.querySelectorAll(".tok.hit").length;
  const counted = state.quadrant === "all" ? data.label_tokens : data.quadrants[state.quadrant];
  const signed = state.color === "gradient";
  document.getElementById("found").replaceChildren(
    `${visible} of ${articles.length} documents · ${counted.toLocaleString("en")} tokens` + (hits ? ` · ${hits} match` : "") + ` · ${name}`,
    make("span", { class: "scale" + (signed ? " signed" : ""), "aria-hidden": "true" }),
    signed ? "−1 (pushed up) … +1 (pushed down)" : "0 … 1",
    ...(hasTeacher ? [" · ", make("span", { class: "mark rescue" }, "rescue"), " ", make("span", { class: "mark filter" }, "filter")] : []));
}

function repaint() { elements.forEach(paint); writeStatus(); }

function search(query) {
  const lowered = query.toLowerCase();
  for (const element of document.querySelectorAll(".tok.hit")) element.classList.remove("hit");
  data.documents.forEach((doc, place) => {
    const text = [doc.prompt, ...doc.tokens.flatMap((token) => [token.text_before, token.text])].join("").toLowerCase();
    articles[place].hidden = Boolean(lowered) && !text.includes(lowered);
  });
  const bare = lowered.trim();
  if (bare) for (const element of elements) element.classList.toggle("hit", element.token.text.toLowerCase().includes(bare));
  writeStatus();
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
const colors = Object.entries(VALUES).filter(([key]) => key !== "t" || hasTeacher);
buttons("color", Object.fromEntries(colors), "color", repaint);
if (hasTeacher) {
  const quadrants = Object.entries(QUADRANTS).map(([key, name]) => [key, `${name} ${data.quadrants[key].toLocaleString("en")}`]);
  buttons("filter", { all: `all ${data.label_tokens.toLocaleString("en")}`, ...Object.fromEntries(quadrants) }, "quadrant", repaint);
} else document.getElementById("filter").remove();
repaint();
// A link to one token: page.html#token-12.
const linked = /^#token-(\d+)$/.exec(location.hash);
if (linked) show(elements[Number(linked[1])]);
