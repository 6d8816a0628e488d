"use strict";

// Renders openapi.json. Everything is put in as text, never as markup.

const METHODS = ["post", "get", "put", "patch", "delete"];
let description;

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== undefined && value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== "") made.append(child);
  }
  return made;
}

// `code`, **bold** and *italic* of one line of text.
function inline(text) {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*|\*[^*]+\*)/).map((part) => {
    if (part.startsWith("`") && part.length > 2) return element("code", {}, part.slice(1, -1));
    if (part.startsWith("**") && part.length > 4) return element("strong", {}, part.slice(2, -2));
    if (part.startsWith("*") && part.length > 2 && part.endsWith("*")) return element("em", {}, part.slice(1, -1));
    return part;
  });
}

function paragraphs(text) {
  return (text || "").split(/\n\s*\n/).filter(Boolean).map((one) => element("p", {}, inline(one.trim())));
}

function resolved(node) {
  let found = node;
  while (found && found.$ref) {
    found = found.$ref.replace("#/", "").split("/").reduce((place, name) => place[name], description);
  }
  return found || {};
}

function nameOf(node) {
  return node && node.$ref ? node.$ref.split("/").pop() : null;
}

function typeText(schema) {
  const name = nameOf(schema);
  if (name) return element("a", { href: "#schema-" + name }, name);
  const choices = schema.oneOf || schema.anyOf || schema.allOf;
  if (choices) {
    const parts = [];
    choices.forEach((choice, index) => parts.push(index ? " or " : "", typeText(choice)));
    return element("span", {}, parts);
  }
  if (schema.const !== undefined) return element("code", {}, JSON.stringify(schema.const));
  const type = Array.isArray(schema.type) ? schema.type.join(" or ") : schema.type || "any";
  if (schema.type === "array" && schema.items) return element("span", {}, "list of ", typeText(schema.items));
  return element("span", {}, type);
}

function limits(schema) {
  const words = [];
  if (schema.enum) words.push(schema.enum.map((value) => (value === null ? "null" : String(value))).join(", "));
  if (schema.minimum !== undefined) words.push("from " + schema.minimum);
  if (schema.exclusiveMinimum !== undefined) words.push("above " + schema.exclusiveMinimum);
  if (schema.maximum !== undefined) words.push("to " + schema.maximum);
  if (schema.minLength !== undefined) words.push("at least " + schema.minLength + " characters");
  if (schema.maxLength !== undefined) words.push("at most " + schema.maxLength + " characters");
  if (schema.maxItems !== undefined) words.push("at most " + schema.maxItems);
  if (schema.pattern) words.push(schema.pattern);
  if (schema.default !== undefined && schema.default !== null) words.push("default " + JSON.stringify(schema.default));
  return words.join("; ");
}

function fieldTable(schema) {
  const required = new Set(schema.required || []);
  const rows = Object.entries(schema.properties || {}).map(([name, field]) => row(name, field, required.has(name)));
  return rows.length ? table(rows) : element("p", { class: "soft" }, "No fields.");
}

function row(name, schema, required, text) {
  const bounds = limits(resolved(schema));
  return element("tr", {},
    element("td", {}, element("code", {}, name), required ? element("div", { class: "need" }, "required") : ""),
    element("td", {}, typeText(schema)),
    element("td", {}, inline(text || schema.description || ""), bounds ? element("div", { class: "soft" }, bounds) : ""));
}

function table(rows) {
  return element("table", {},
    element("thead", {}, element("tr", {}, element("th", {}, "Name"), element("th", {}, "Type"), element("th", {}, ""))),
    element("tbody", {}, rows));
}

function schemaView(schema) {
  const whole = resolved(schema);
  if (whole.properties) return element("div", {}, fieldTable(whole));
  const choices = whole.anyOf || whole.oneOf;
  if (choices && choices.some((choice) => resolved(choice).properties)) {
    return element("div", {}, choices.filter((choice) => choice.type !== "null").map((choice) => {
      const one = resolved(choice);
      return element("details", { class: "small" },
        element("summary", {}, one.title || nameOf(choice) || "other"),
        element("div", { class: "inside" }, paragraphs(one.description), one.properties ? fieldTable(one) : ""));
    }));
  }
  return element("p", {}, typeText(schema), " ", element("span", { class: "soft" }, limits(whole)));
}

function example(schema, depth) {
  const one = resolved(schema);
  if (one.example !== undefined) return one.example;
  if (one.default !== undefined && one.default !== null) return one.default;
  if (one.const !== undefined) return one.const;
  if (one.enum) return one.enum[0];
  if (depth > 6) return null;
  const choices = one.oneOf || one.anyOf || one.allOf;
  if (choices) return example(choices[0], depth + 1);
  const type = Array.isArray(one.type) ? one.type[0] : one.type;
  if (type === "object" || one.properties) {
    const made = {};
    for (const [name, field] of Object.entries(one.properties || {})) made[name] = example(field, depth + 1);
    return made;
  }
  if (type === "array") return one.items ? [example(one.items, depth + 1)] : [];
  if (type === "integer" || type === "number") return one.minimum || 1;
  if (type === "boolean") return false;
  return type === "string" ? (one.format === "date-time" ? "2026-01-31T12:00:00.000Z" : "…") : null;
}

function pretty(value) {
  return element("pre", {}, JSON.stringify(value, null, 2));
}

function bodyView(operation) {
  if (!operation.requestBody) return [];
  const content = operation.requestBody.content["application/json"];
  const name = nameOf(content.schema);
  return [
    element("h4", {}, "Body ", name ? element("a", { href: "#schema-" + name }, name) : "",
      operation.requestBody.required ? "" : " (may be left out)"),
    schemaView(content.schema),
  ];
}

function curl(method, path, operation) {
  const parts = ["curl " + (method === "get" ? "" : "-X " + method.toUpperCase() + " ") + location.origin + path];
  if ((operation.security || []).some((one) => one.key)) parts.push('-H "Authorization: Bearer $ACKPOST_API_KEY"');
  const body = operation.requestBody && operation.requestBody.content["application/json"];
  if (body && body.example) parts.push("-d '" + JSON.stringify(body.example) + "'");
  return element("pre", {}, parts.join(" \\\n  "));
}

function responseView(status, given) {
  const answer = resolved(given);
  const content = answer.content || {};
  const schema = Object.values(content)[0] && Object.values(content)[0].schema;
  const inside = element("div", { class: "inside" }, paragraphs(answer.description));
  if (schema && status < 300) {
    inside.append(schemaView(schema), element("h4", {}, "Example"), pretty(example(schema, 0)));
  }
  return element("details", { class: "small" },
    element("summary", {}, element("code", {}, status), element("span", { class: "soft" }, inline(answer.description || ""))),
    inside);
}

function operationView(method, path, operation, id, kind) {
  const parameters = (operation.parameters || []).map(resolved);
  const inside = element("div", { class: "inside" }, paragraphs(operation.description));
  if (parameters.length) {
    inside.append(element("h4", {}, "Parameters"), table(parameters.map((one) =>
      row(one.name, one.schema, one.required, (one.in === "header" ? "Header. " : "") + (one.description || "")))));
  }
  inside.append(...bodyView(operation));
  if (kind !== "hook") inside.append(element("h4", {}, "Example"), curl(method, path, operation));
  inside.append(element("h4", {}, "Answers"));
  for (const [status, answer] of Object.entries(operation.responses || {})) inside.append(responseView(status, answer));
  return element("details", { id: id, "data-text": (method + " " + path + " " + (operation.summary || "")).toLowerCase() },
    element("summary", {},
      element("span", { class: "method " + (kind || method) }, kind === "hook" ? "sends" : method),
      element("span", { class: "path" }, path),
      element("span", { class: "summary" }, operation.summary || "")),
    inside);
}

function link(id, text) {
  return element("a", { href: "#" + id, title: text }, text);
}

function operations() {
  const found = [];
  for (const [path, item] of Object.entries(description.paths)) {
    for (const method of METHODS) {
      if (item[method]) found.push({ path, method, operation: item[method], id: "call-" + item[method].operationId });
    }
  }
  return found;
}

function tagSections(links, main) {
  const all = operations();
  for (const tag of description.tags) {
    const calls = all.filter((one) => (one.operation.tags || []).includes(tag.name));
    if (!calls.length) continue;
    links.append(element("h2", {}, tag.name));
    const section = element("section", {}, element("h2", {}, tag.name), paragraphs(tag.description));
    for (const one of calls) {
      links.append(link(one.id, one.operation.summary || one.path));
      section.append(operationView(one.method, one.path, one.operation, one.id));
    }
    main.append(section);
  }
}

function webhookSection(links, main) {
  links.append(element("h2", {}, "Webhooks"));
  const section = element("section", { id: "webhooks" }, element("h2", {}, "Webhooks: what consumers receive"));
  for (const [name, item] of Object.entries(description.webhooks || {})) {
    const id = "hook-" + name;
    links.append(link(id, name));
    section.append(operationView("post", name, item.post, id, "hook"));
  }
  main.append(section);
}

function schemaSection(links, main) {
  links.append(element("h2", {}, "Schemas"), link("schemas", "All schemas"));
  const section = element("section", { id: "schemas" }, element("h2", {}, "Schemas"));
  for (const [name, schema] of Object.entries(description.components.schemas)) {
    section.append(element("details", { id: "schema-" + name, class: "small" },
      element("summary", {}, element("code", {}, name)),
      element("div", { class: "inside" }, paragraphs(schema.description), schemaView(schema),
        element("h4", {}, "Example"), pretty(example(schema, 0)))));
  }
  main.append(section);
}

function openTarget() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target) {
    if (target.tagName === "DETAILS") target.open = true;
    target.scrollIntoView();
  }
}

function filterCalls(event) {
  const wanted = event.target.value.toLowerCase();
  for (const one of document.querySelectorAll("details[data-text]")) {
    one.hidden = !one.dataset.text.includes(wanted);
    const entry = document.querySelector('#links a[href="#' + CSS.escape(one.id) + '"]');
    if (entry) entry.hidden = one.hidden;
  }
}

function render() {
  const links = document.getElementById("links");
  const main = document.getElementById("content");
  document.getElementById("version").textContent = description.info.version;
  main.replaceChildren(element("h1", {}, description.info.title + " API"), ...paragraphs(description.info.description),
    element("p", {}, "The description for programs: ", element("a", { href: "/openapi.json" }, "openapi.json")));
  tagSections(links, main);
  webhookSection(links, main);
  schemaSection(links, main);
  document.getElementById("filter").addEventListener("input", filterCalls);
  window.addEventListener("hashchange", openTarget);
  openTarget();
}

fetch("/openapi.json")
  .then((answer) => {
    if (!answer.ok) throw new Error("status " + answer.status);
    return answer.json();
  })
  .then((found) => {
    description = found;
    render();
  })
  .catch((error) => {
    document.getElementById("state").textContent = "The description could not be loaded: " + error.message;
  });
