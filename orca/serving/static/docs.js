// The documentation page: shows /openapi.json, grouped by protocol, without any file from elsewhere.
"use strict";

const $ = (id) => document.getElementById(id);

function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

function resolve(spec, schema) {
  return schema && schema.$ref ? spec.components.schemas[schema.$ref.split("/").pop()] : schema;
}

function example(spec, schema) {
  schema = resolve(spec, schema) || {};
  if (schema.examples) return schema.examples[0];
  if (schema.enum) return schema.enum[0];
  if (schema.properties) {
    const names = schema.required || (schema.oneOf ? schema.oneOf[0].required : Object.keys(schema.properties));
    return Object.fromEntries(names.map((name) => [name, example(spec, schema.properties[name])]));
  }
  if (schema.type === "array") return schema.items ? [example(spec, schema.items)] : [];
  return { string: "…", integer: 1, number: 0.5, boolean: true, object: {} }[schema.type] ?? null;
}

function parameters(entries) {
  const rows = entries.map((entry) => element(
    "tr", {},
    element("td", {}, element("code", {}, entry.name)),
    element("td", {}, entry.in),
    element("td", {}, (entry.schema.enum || [entry.schema.type]).join(", ")),
  ));
  return [element("h3", {}, "Parameters"), element("table", {}, element("tbody", {}, ...rows))];
}

function command(verb, path, text) {
  const parts = [`curl -X ${verb.toUpperCase()} '${location.origin}${path}'`];
  if (text !== undefined) parts.push("-H 'Content-Type: application/json'", `-d '${JSON.stringify(text)}'`);
  return parts.join(" \\\n  ");
}

function operation(spec, path, verb, text, shared) {
  const content = [];
  if (text.description) content.push(element("p", {}, text.description));
  const all = [...shared, ...(text.parameters || [])];
  if (all.length) content.push(...parameters(all));
  const body = text.requestBody ? example(spec, text.requestBody.content["application/json"].schema) : undefined;
  const model = shared.find((entry) => entry.name === "model");
  const filled = path.replace("{model}", model && model.schema.enum ? model.schema.enum[0] : "NAME").replace("{version}", "1");
  content.push(element("h3", {}, "Example"), element("pre", {}, command(verb, filled, body)));
  const replies = Object.entries(text.responses).map(([status, reply]) =>
    element("tr", {}, element("td", {}, element("code", {}, status)), element("td", {}, reply.description)));
  content.push(element("h3", {}, "Replies"), element("table", {}, element("tbody", {}, ...replies)));
  return element(
    "details", { className: "card operation" },
    element(
      "summary", {},
      element("span", { className: `verb ${verb}` }, verb.toUpperCase()),
      element("code", {}, path),
      element("span", { className: "quiet" }, text.summary),
    ),
    element("div", {}, ...content),
  );
}

async function load() {
  const headers = $("token").value ? { Authorization: `Bearer ${$("token").value}` } : {};
  const reply = await fetch("/openapi.json", { headers });
  if (reply.status === 401) {
    $("token-row").hidden = false;
    throw new Error("The server needs a token.");
  }
  if (!reply.ok) throw new Error(`The server answered with status ${reply.status}.`);
  const spec = await reply.json();
  $("error").hidden = true;
  $("about").textContent = `${spec.info.description} Version ${spec.info.version}.`;
  const groups = new Map();
  for (const [path, entry] of Object.entries(spec.paths)) {
    for (const [verb, text] of Object.entries(entry)) {
      if (verb === "parameters") continue;
      const tag = text.tags[0];
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(operation(spec, path, verb, text, entry.parameters || []));
    }
  }
  $("operations").replaceChildren(...[...groups].flatMap(([tag, nodes]) => [element("h2", {}, tag), ...nodes]));
}

const show = (error) => { $("error").hidden = false; $("error").textContent = error.message; };
$("token").addEventListener("change", () => load().catch(show));
load().catch(show);
