// Translates by requests to the server.
let key = "";

async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is it running?");
  }
  const body = await answer.json().catch(() => ({error: `The server failed (${answer.status})`}));
  if (!answer.ok) throw new Error(body.error || `The server failed (${answer.status})`);
  return body;
}

const post = (fields, signal) => ask("translate", {method: "POST", signal,
  headers: {"Content-Type": "application/json"}, body: JSON.stringify({api_key: key, ...fields})});

const backend = {
  async start() {
    const languages = await ask("languages");
    const settings = await ask("frontend/settings");
    if (settings.keyRequired) key = prompt("API key") || "";
    const {source, target} = settings.language;
    return {languages, source: source.code, target: target.code};
  },

  async translate(q, source, target, signal) {
    return (await post({q, source, target}, signal)).translatedText;
  },

  async explain(q, source, target) {
    const options = {nbest: 5, alignment: true, paragraphs: true};
    return (await post({q: [q], source, target, options})).details[0];
  },

  async translateFile(file, source, target) {
    const form = new FormData();
    for (const [name, value] of Object.entries({file, source, target, api_key: key})) form.append(name, value);
    const url = (await ask("translate_file", {method: "POST", body: form})).translatedFileUrl;
    return {href: new URL(new URL(url).pathname, location.href)};
  },
};
