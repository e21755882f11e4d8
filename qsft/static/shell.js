"use strict";
// What every page shares: unpack what the page carries, follow the theme, draw the figures. `qsft` is all it defines.
const qsft = (() => {
  const root = document.documentElement;
  const themes = { auto: "◐ Auto", light: "☀ Light", dark: "☾ Dark" };

  async function unpack(name) {
    const blob = document.getElementById("blob-" + name);
    if (!blob) return null;
    const bytes = Uint8Array.from(atob(blob.textContent), (c) => c.charCodeAt(0));
    blob.remove();
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  // A color of the style sheet as the browser resolves it for the present theme.
  function color(name) {
    const probe = document.createElement("i");
    probe.style.color = `var(--${name})`;
    root.append(probe);
    const resolved = getComputedStyle(probe).color;
    probe.remove();
    return resolved;
  }

  // Figures name colors as "var(--accent)", or use one of the palette, which has a role in the style sheet.
  const roles = /* roles */ {};
  function themed(text) {
    const named = /^var\(--([\w-]+)\)$/.exec(text);
    if (named) return color(named[1]);
    const hex = /^#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})$/i.exec(text)?.slice(1).map((part) => parseInt(part, 16));
    const [, r, g, b, alpha] = /^rgba\((\d+), (\d+), (\d+), ([\d.]+)\)$/.exec(text) ?? [];
    const role = roles[(hex ?? [r, g, b]).join(",")];
    if (!role) return text;
    return hex ? color(role) : color(role).replace("rgb(", "rgba(").replace(")", `, ${alpha})`);
  }

  function resolve(value) {
    if (typeof value === "string") return themed(value);
    if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map(resolve);
    if (value && typeof value === "object" && Object.getPrototypeOf(value) === Object.prototype)
      return Object.fromEntries(Object.entries(value).map(([key, x]) => [key, resolve(x)]));
    return value;
  }

  function template() {
    const [ink, muted, grid, line, card] = ["ink", "muted", "grid", "line", "card"].map(color);
    const axis = { gridcolor: grid, linecolor: line, zerolinecolor: line, automargin: true, tickcolor: line,
                   title: { standoff: 8, font: { size: 13, color: muted } }, tickfont: { size: 12 }, fixedrange: true, exponentformat: "e" };
    return { layout: {
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: ink },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", separators: ".,",
      colorway: ["accent", "warm", "good", "pink", "sky", "yellow"].map(color),
      margin: { l: 48, r: 12, t: 28, b: 44 }, xaxis: axis, yaxis: axis,
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { color: muted }, bgcolor: "rgba(0,0,0,0)" },
      hoverlabel: { bgcolor: card, bordercolor: line, font: { color: ink } },
    } };
  }

  // Draw (or redraw) a figure: the spec is kept on the element so that a change of theme can draw it again.
  function draw(element, spec) {
    element.spec = spec;
    const layout = { autosize: true, ...resolve(spec.layout), template: template() };
    const options = { displaylogo: false, displayModeBar: false, responsive: true };
    return Plotly.react(element, resolve(spec.data), layout, options);
  }

  function repaint() {
    document.querySelectorAll(".plot").forEach((element) => element.spec && draw(element, element.spec));
    document.dispatchEvent(new Event("qsft-theme"));
  }

  function setTheme(theme) {
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
    const button = document.getElementById("theme");
    button.textContent = themes[theme];
    button.setAttribute("aria-label", "Color theme: " + (theme === "auto" ? "automatic" : theme));
    button.onclick = () => {
      const names = Object.keys(themes);
      setTheme(names[(names.indexOf(theme) + 1) % names.length]);
    };
    if (window.Plotly) repaint();
  }

  // An element with attributes (or properties, for functions) and children; strings become text, never HTML.
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes))
      if (typeof value === "function") element[name] = value;
      else if (value !== null && value !== undefined) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  async function start(main) {
    setTheme("auto");
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => window.Plotly && repaint());
    const [plotly, data] = await Promise.all([unpack("plotly"), unpack("data")]);
    if (plotly) document.head.append(make("script", {}, plotly));
    api.data = data && JSON.parse(data);
    for (const element of document.querySelectorAll(".plot")) {
      const source = element.querySelector('script[type="application/json"]');
      if (!source) continue;
      const spec = JSON.parse(source.textContent);
      source.remove();
      await draw(element, spec);
    }
    await main();
    root.dataset.ready = "true";
  }

  const api = { data: null, make, draw, color, start };
  return api;
})();
qsft.start(async () => {
/* the page's own script */
}).catch((error) => {
  const text = typeof DecompressionStream === "undefined"
    ? "This browser is too old for the page: it needs one from 2023 or later."
    : "This page could not be drawn: " + error.message;
  document.getElementById("main").prepend(qsft.make("p", { class: "notice", role: "alert" }, text));
  throw error;
});
