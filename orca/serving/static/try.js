// The page to try a model: lists the models, builds a form from the signature, and shows the outputs.
"use strict";

const $ = (id) => document.getElementById(id);
const MOST_BARS = 10;
const MOST_ROWS = 5;
let models = [];
let signature = null;
const images = new Map();

function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

function headers(kind) {
  const result = kind ? { "Content-Type": kind } : {};
  if ($("token").value) result.Authorization = `Bearer ${$("token").value}`;
  return result;
}

async function ask(path, options = {}) {
  let reply;
  try {
    reply = await fetch(path, options);
  } catch {
    throw new Error("The server does not answer.");
  }
  const data = await reply.json().catch(() => ({}));
  if (reply.status === 401 && $("token-row").hidden) {
    $("token-row").hidden = false;
    $("token").focus();
  }
  if (!reply.ok) throw new Error(data.error || data.message || `The server answered with status ${reply.status}.`);
  return data;
}

function show(error) {
  $("empty").hidden = true;
  $("result").hidden = true;
  $("error").hidden = false;
  $("error").textContent = error.message;
}

function path() {
  const version = $("version").value;
  return `/v2/models/${encodeURI($("model").value)}${version ? `/versions/${version}` : ""}`;
}

async function listModels() {
  const chosen = $("model").value;
  models = (await ask("/v2/models", { headers: headers() })).models;
  $("model").replaceChildren(...models.map((model) => element("option", { value: model.name }, model.name)));
  if (models.some((model) => model.name === chosen)) $("model").value = chosen;
  if (!models.length) throw new Error("The server has no model that you may use.");
  await chooseModel();
}

async function chooseModel() {
  const model = models.find((entry) => entry.name === $("model").value);
  const names = (number) => Object.keys(model.aliases).filter((alias) => model.aliases[alias] === number);
  $("version").replaceChildren(
    element("option", { value: "" }, `current (${model.version})`),
    ...[...model.versions].reverse().map((number) =>
      element("option", { value: number }, [number, ...names(number)].join(" · "))),
  );
  await describe();
}

async function describe() {
  const asked = path();
  $("inputs").replaceChildren();
  const answer = await ask(asked, { headers: headers() });
  if (asked !== path()) return; // another model was chosen meanwhile
  signature = answer;
  images.clear();
  $("inputs").replaceChildren(...signature.inputs.map(field));
}

function isImage(port) {
  const model = models.find((entry) => entry.name === $("model").value);
  return model.images.includes(port.name);
}

function kindOf(port) {
  return `${port.datatype} [${port.shape.map((side) => (side === -1 ? "?" : side)).join(", ")}]`;
}

function field(port, index) {
  const id = `input-${index}`;
  const kind = element("code", {}, kindOf(port));
  if (isImage(port)) return imageField(port, id, kind);
  return element(
    "div", {},
    element("label", { htmlFor: id }, port.name, kind),
    element("textarea", { id, name: port.name, spellcheck: false, value: example(port) }),
  );
}

function example(port) {
  const zero = port.datatype === "BOOL" ? "false" : "0";
  const build = (shape) => (shape.length ? `[${Array(Math.min(shape[0], 4096)).fill(build(shape.slice(1))).join(", ")}]` : zero);
  return build(port.shape.map((side) => (side === -1 ? 1 : side)));
}

function imageField(port, id, kind) {
  const input = element("input", { type: "file", id, accept: "image/jpeg,image/png" });
  input.setAttribute("aria-label", `${port.name}: choose a JPEG or PNG image`);
  const text = element("span", {}, element("b", {}, "Choose an image"), " or drop it here");
  const hint = element("span", { className: "quiet" }, "JPEG or PNG, resized to the model's input");
  const zone = element("label", { className: "drop", htmlFor: id }, input, text, hint);
  const take = (file) => {
    if (!file) return;
    images.set(port.name, file);
    const picture = element("img", { src: URL.createObjectURL(file), alt: "The chosen image" });
    picture.onload = () => URL.revokeObjectURL(picture.src);
    zone.replaceChildren(input, picture, element("span", { className: "quiet" }, file.name));
  };
  input.addEventListener("change", () => take(input.files[0]));
  zone.addEventListener("dragover", (event) => { event.preventDefault(); zone.classList.add("over"); });
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    take(event.dataTransfer.files[0]);
  });
  return element("div", {}, element("div", { className: "label" }, port.name, kind), zone);
}

function shapeOf(value) {
  return Array.isArray(value) ? [value.length, ...shapeOf(value[0])] : [];
}

async function body() {
  const inputs = [];
  const parts = [];
  for (const [index, port] of signature.inputs.entries()) {
    if (isImage(port)) {
      const file = images.get(port.name);
      if (!file) throw new Error(`Choose an image for the input '${port.name}'.`);
      const bytes = await file.arrayBuffer();
      const length = new DataView(new ArrayBuffer(4));
      length.setUint32(0, bytes.byteLength, true);
      parts.push(length.buffer, bytes);
      inputs.push({ name: port.name, shape: [1], datatype: "BYTES", parameters: { binary_data_size: bytes.byteLength + 4 } });
    } else {
      let data;
      try {
        data = JSON.parse($(`input-${index}`).value);
      } catch {
        throw new Error(`The values of '${port.name}' are not JSON: write lists of numbers, such as [[1, 2.5]].`);
      }
      inputs.push({ name: port.name, shape: shapeOf(data), datatype: port.datatype, data });
    }
  }
  const head = new TextEncoder().encode(JSON.stringify({ inputs }));
  if (!parts.length) return [head, headers("application/json")];
  return [
    new Blob([head, ...parts]),
    { ...headers("application/octet-stream"), "Inference-Header-Content-Length": String(head.length) },
  ];
}

async function predict() {
  $("predict").disabled = true;
  try {
    const [content, head] = await body();
    const started = performance.now();
    const reply = await ask(`${path()}/infer`, { method: "POST", body: content, headers: head });
    present(reply, performance.now() - started);
  } catch (error) {
    show(error);
  } finally {
    $("predict").disabled = false;
  }
}

function present(reply, milliseconds) {
  const facts = element(
    "ul", { className: "facts" },
    element("li", {}, reply.model_name),
    element("li", {}, `version ${reply.model_version}`),
    element("li", {}, `${milliseconds.toFixed(1)} ms`),
  );
  const raw = element("details", {}, element("summary", {}, "The reply"), element("pre", {}, JSON.stringify(reply, null, 1)));
  $("result").replaceChildren(facts, ...reply.outputs.flatMap(output), raw);
  $("empty").hidden = true;
  $("error").hidden = true;
  $("result").hidden = false;
}

function output(port) {
  const width = port.shape.length > 1 ? port.data.length / port.shape[0] : port.data.length;
  const rows = width ? Math.min(port.data.length / width, MOST_ROWS) : 0;
  const title = element("h3", {}, port.name, " ", element("code", { className: "quiet" }, kindOf(port)));
  const nodes = [title];
  for (let row = 0; row < rows; row += 1) {
    if (rows > 1) nodes.push(element("p", { className: "quiet" }, `Row ${row + 1}`));
    nodes.push(bars(port.data.slice(row * width, (row + 1) * width)));
  }
  return nodes;
}

function bars(values) {
  const rank = (value) => (value === null ? -Infinity : Number(value));
  const top = values.map((value, index) => [value, index]).sort((a, b) => rank(b[0]) - rank(a[0])).slice(0, MOST_BARS);
  const finite = top.map(([value]) => rank(value)).filter(Number.isFinite);
  const low = Math.min(0, ...finite);
  const high = Math.max(...finite, low + 1e-30);
  return element("ol", { className: "bars" }, ...top.map(([value, index]) => {
    const text = value === null ? "NaN or ∞" : Number(value).toPrecision(6);
    const meter = element("meter", { min: 0, max: 1, value: value === null ? 0 : (rank(value) - low) / (high - low) });
    meter.setAttribute("aria-label", `Output ${index}`);
    return element("li", {}, element("span", { className: "index" }, String(index)), meter, element("span", { className: "value" }, text));
  }));
}

$("form").addEventListener("submit", (event) => { event.preventDefault(); predict(); });
$("form").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); predict(); }
});
$("model").addEventListener("change", () => chooseModel().catch(show));
$("version").addEventListener("change", () => describe().catch(show));
$("token").addEventListener("change", () => listModels().then(() => { $("error").hidden = true; $("empty").hidden = false; }).catch(show));
listModels().catch(show);
