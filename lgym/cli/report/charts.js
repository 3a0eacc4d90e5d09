// A line chart in SVG: drag to zoom, double-click for the whole, hover for values. Texts are set as text only.
const SVG = "http://www.w3.org/2000/svg";
const COLORS = ["#2f7ed8", "#e07b39", "#3c9d5b", "#b04fb8", "#c44e52", "#8a7a2f", "#17a2a2", "#7a6fd0"];

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "style" || key === "class" || key.startsWith("aria-")) made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

function drawn(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function short(value) {
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size >= 1e6) return `${+(value / 1e6).toFixed(2)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toFixed(1)}k`;
  if (size < 1e-3) return value.toExponential(1);
  return `${+value.toPrecision(4)}`;
}

function ticks(low, high, count) {
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(+at.toPrecision(12));
  return found;
}

// series: [{label, color, dashed, thin, points: [[x, y], ...]}]; levels: [{label, value}], drawn across
function chart(title, series, levels = [], axis = "turns") {
  const width = 480, height = 220, left = 46, right = 8, top = 8, bottom = 22;
  const lines = series.filter((one) => one.points.length);
  const box = element("div", { class: "chart" }, element("h3", {}, title));
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  const readout = element("div", { class: "readout faint" });
  box.append(svg, readout);
  const all = lines.flatMap((one) => one.points);
  const whole = [Math.min(...all.map((p) => p[0])), Math.max(...all.map((p) => p[0]))];
  if (whole[0] === whole[1]) { whole[0] -= 1; whole[1] += 1; }
  let view = [...whole];
  const clip = `clip${chart.count = (chart.count || 0) + 1}`;

  function place() {
    const seen = all.filter((p) => p[0] >= view[0] && p[0] <= view[1]).map((p) => p[1]);
    let [low, high] = seen.length ? [Math.min(...seen), Math.max(...seen)] : [0, 1];
    if (view[0] === whole[0] && view[1] === whole[1]) {
      const span = high - low || Math.abs(high) || 1;  // levels far away would flatten the curve
      for (const { value } of levels) {
        if (value >= low - span && value <= high + span) { low = Math.min(low, value); high = Math.max(high, value); }
      }
    }
    const margin = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
    low -= margin; high += margin;
    const x = (value) => left + (width - left - right) * (value - view[0]) / (view[1] - view[0]);
    const y = (value) => top + (height - top - bottom) * (high - value) / (high - low);
    return { x, y, low, high };
  }

  function draw() {
    const { x, y, low, high } = place();
    svg.replaceChildren();
    const cut = drawn("clipPath", { id: clip });
    cut.append(drawn("rect", { x: left, y: top, width: width - left - right, height: height - top - bottom }));
    svg.append(cut);
    for (const at of ticks(low, high, 4)) {
      svg.append(drawn("line", { x1: left, x2: width - right, y1: y(at), y2: y(at), stroke: "var(--line)" }));
      svg.append(drawn("text", { x: left - 5, y: y(at) + 4, "text-anchor": "end" }, short(at)));
    }
    for (const at of ticks(view[0], view[1], 4)) {
      svg.append(drawn("text", { x: x(at), y: height - 6, "text-anchor": "middle" }, short(at)));
    }
    const inside = drawn("g", { "clip-path": `url(#${clip})` });
    for (const { label, value } of levels) {
      if (value < low || value > high) continue;
      inside.append(drawn("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), stroke: "var(--faint)", "stroke-dasharray": "2 3" }));
      inside.append(drawn("text", { x: width - right - 2, y: y(value) - 3, "text-anchor": "end" }, `${label} ${short(value)}`));
    }
    for (const one of lines) {
      const path = one.points.map((p, n) => `${n ? "L" : "M"}${x(p[0]).toFixed(1)} ${y(p[1]).toFixed(1)}`).join("");
      const style = { d: path, fill: "none", stroke: one.color, "stroke-width": one.thin ? 1 : 1.8 };
      if (one.dashed) style["stroke-dasharray"] = "5 3";
      if (one.thin) style.opacity = 0.45;
      inside.append(drawn("path", style));
      if (one.points.length === 1) inside.append(drawn("circle", { cx: x(one.points[0][0]), cy: y(one.points[0][1]), r: 3, fill: one.color }));
    }
    svg.append(inside);
  }

  function turnsAt(event) {
    const area = svg.getBoundingClientRect();
    const share = ((event.clientX - area.left) / area.width * width - left) / (width - left - right);
    return view[0] + Math.min(1, Math.max(0, share)) * (view[1] - view[0]);
  }

  let from = null;
  svg.addEventListener("pointerdown", (event) => { from = turnsAt(event); svg.setPointerCapture(event.pointerId); });
  svg.addEventListener("pointermove", (event) => {
    const at = turnsAt(event);
    const near = lines.map((one) => ({ one, p: one.points.reduce((a, b) => (Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a)) }));
    const turns = near.reduce((a, b) => (Math.abs(b.p[0] - at) < Math.abs(a.p[0] - at) ? b : a)).p[0];
    readout.replaceChildren(`${axis} ${short(turns)} `);
    for (const { one, p } of near) {
      readout.append(element("span", { class: "key", style: `background:${one.color}` }), `${one.label} ${short(p[1])}  `);
    }
    svg.querySelector(".band")?.remove();
    if (from !== null) {
      const { x } = place();
      svg.append(drawn("rect", { class: "band", x: Math.min(x(from), x(at)), width: Math.abs(x(at) - x(from)), y: top, height: height - top - bottom, fill: "var(--accent)", opacity: 0.2 }));
    }
  });
  svg.addEventListener("pointerup", (event) => {
    const to = turnsAt(event);
    if (from !== null && Math.abs(to - from) > (view[1] - view[0]) * 0.02) view = [Math.min(from, to), Math.max(from, to)];
    from = null;
    draw();
  });
  svg.addEventListener("dblclick", () => { view = [...whole]; draw(); });
  draw();
  return box;
}
