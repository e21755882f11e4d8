// The responses of an evaluation: choose a task and a filter, search, read ten problems at a time.
// A problem is { id, task, number, at, question, gold, options, runs }; runs has for each method the facts of its
// responses: { tokens, cut_off, correct, lenient, answer, note }.
const { make, data } = qsft;
const PROBLEMS_PER_PAGE = 10;
const element = (id) => document.getElementById(id);
const isComparison = data.methods.length > 1;

function shareCorrect(run) {
  return run.filter((one) => one.correct).length / run.length;
}

// For each method but the first, how much larger its share of correct responses is.
function differences(problem) {
  const [first, ...others] = problem.runs.map(shareCorrect);
  return others.map((share) => share - first);
}

// What a filter keeps: a test of one response, or of a problem over all methods.
const RESPONSE_FILTERS = {
  all: () => true,
  wrong: (one) => !one.correct,
  right: (one) => one.correct,
  none: (one) => one.answer === null,
  cut: (one) => one.cut_off,
  differ: (one) => one.correct !== one.lenient,
};
const PROBLEM_FILTERS = {
  changed: (problem) => differences(problem).some((difference) => difference !== 0),
  better: (problem) => differences(problem).some((difference) => difference > 0),
  worse: (problem) => differences(problem).some((difference) => difference < 0),
};
const state = { page: 0, matches: [] };

// Texts are packed in chunks of problems and unpacked when they are read or searched.
const unpacked = [];
function textsOfChunk(chunk) {
  unpacked[chunk] ??= (async () => {
    const bytes = Uint8Array.from(atob(element(`texts-${chunk}`).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  })();
  return unpacked[chunk];
}

async function textsOf(problem) {
  const texts = await textsOfChunk(Math.floor(problem.at / data.chunk));
  return texts[problem.at % data.chunk];
}

// For each method the numbers of the responses that the filter keeps; null if it keeps none.
function selectSamples(problem) {
  const filter = element("reader-filter").value;
  if (filter in PROBLEM_FILTERS) {
    if (!PROBLEM_FILTERS[filter](problem)) return null;
    return problem.runs.map((run) => [...run.keys()]);
  }
  const isKept = RESPONSE_FILTERS[filter];
  const found = problem.runs.map((run) => [...run.keys()].filter((number) => isKept(run[number])));
  return found.some((numbers) => numbers.length > 0) ? found : null;
}

async function contains(problem, term) {
  const answers = problem.runs.flat().map((one) => one.answer ?? "");
  const facts = [problem.id, problem.question, problem.gold, ...answers];
  if (facts.some((fact) => String(fact).toLowerCase().includes(term))) return true;
  const texts = await textsOf(problem);
  return texts.flat().some((text) => text.toLowerCase().includes(term));
}

let searches = 0;
async function search() {
  const number = ++searches;
  const task = element("reader-task").value;
  const term = element("reader-search").value.trim().toLowerCase();
  const matches = [];
  for (const problem of data.problems) {
    if (task !== "" && problem.task !== task) continue;
    const samples = selectSamples(problem);
    if (samples === null) continue;
    if (term !== "" && !(await contains(problem, term))) continue;
    if (number !== searches) return; // a newer search has started
    matches.push([problem, samples]);
  }
  Object.assign(state, { page: 0, matches });
  await show();
}

function summaryOf(one) {
  const parts = [one.correct ? "right" : "wrong"];
  if (one.lenient !== one.correct) parts.push(`${one.lenient ? "right" : "wrong"} by the lenient score`);
  parts.push(one.answer === null ? "no answer" : make("b", {}, one.answer), `${one.tokens.toLocaleString("en")} tokens`);
  if (one.cut_off) parts.push("cut off");
  if (one.note) parts.push(one.note);
  return make("summary", {}, ...parts.flatMap((part, index) => (index > 0 ? [" · ", part] : [part])));
}

function responseDetails(one, text, isOpen) {
  const name = one.correct ? "response right" : "response";
  const details = make("details", { class: name }, summaryOf(one), make("pre", { tabindex: 0 }, text));
  details.open = isOpen;
  return details;
}

async function problemCard([problem, samples]) {
  const texts = await textsOf(problem);
  const sides = problem.runs.map((run, method) => {
    const name = isComparison ? `${data.methods[method]}: ` : "";
    const percent = Math.round(1000 * shareCorrect(run)) / 10;
    const responses = samples[method].map((i) => responseDetails(run[i], texts[method][i], run.length === 1));
    return make("div", { class: "side" }, make("p", { class: "note" }, `${name}${percent} % of ${run.length} right`), ...responses);
  });
  const card = make("article", { class: "problem card" }, make("h3", {}, `${problem.task} · problem ${problem.number}`));
  card.append(make("p", { class: "question" }, problem.question ?? problem.id));
  const options = Object.entries(problem.options ?? {}).map(([letter, text]) => make("li", {}, `${letter}. ${text}`));
  if (options.length > 0) card.append(make("ul", {}, ...options));
  if (problem.gold !== null) card.append(make("p", {}, "Gold answer: ", make("b", {}, String(problem.gold))));
  card.append(make("div", { class: "sides" }, ...sides));
  return card;
}

async function show() {
  const pages = Math.max(1, Math.ceil(state.matches.length / PROBLEMS_PER_PAGE));
  const start = state.page * PROBLEMS_PER_PAGE;
  const cards = await Promise.all(state.matches.slice(start, start + PROBLEMS_PER_PAGE).map(problemCard));
  element("reader-list").replaceChildren(...cards);
  const problems = state.matches.length.toLocaleString("en");
  const responses = state.matches.reduce((sum, [, samples]) => sum + samples.flat().length, 0).toLocaleString("en");
  element("reader-count").textContent = `${problems} problems, ${responses} responses · page ${state.page + 1} of ${pages}`;
  element("reader-back").disabled = state.page === 0;
  element("reader-next").disabled = state.page + 1 >= pages;
}

function turnPage(step) {
  state.page += step;
  element("reader-bar").scrollIntoView();
  return show();
}

function addChoices(id, pairs) {
  element(id).append(...pairs.map(([value, text]) => make("option", { value }, text)));
}

const tasks = [...new Set(data.problems.map((problem) => problem.task))];
addChoices("reader-task", [["", "all tasks"], ...tasks.map((name) => [name, name])]);
if (isComparison)
  addChoices("reader-filter", [["changed", "changed"], ["better", "better than the first"], ["worse", "worse than the first"]]);
addChoices("reader-filter", [
  ["all", "all responses"], ["wrong", "wrong"], ["right", "right"], ["none", "no answer"], ["cut", "cut off"],
  ["differ", "strict ≠ lenient"],
]);
for (const id of ["reader-task", "reader-filter"]) element(id).addEventListener("change", search);
element("reader-search").addEventListener("input", search);
element("reader-back").addEventListener("click", () => turnPage(-1));
element("reader-next").addEventListener("click", () => turnPage(1));
await search();
