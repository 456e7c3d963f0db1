// Translates in the browser itself, by Bergamot in WebAssembly. `models` lists the models, which are in folders beside
// the page; `install` is the command that fetches Bergamot.
const SIMD = [0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11];
let translator, fail;
const failure = new Promise((_, reject) => { fail = (error) => reject(new Error(`Bergamot failed: ${error.message}`)); });
failure.catch(() => {});  // shown when a translation waits for it

async function load(name) {
  try {
    const answer = await fetch(name), parts = [];
    if (!answer.ok) throw new Error(answer.status);
    const total = answer.headers.has("Content-Encoding") ? 0 : +answer.headers.get("Content-Length");
    let loaded = 0;
    for (const reader = answer.body.getReader(); ;) {
      showStatus(`Loading ${name}${total ? `: ${Math.round(100 * loaded / total)} %` : ""}`);
      const {done, value} = await reader.read();
      if (done) return new Blob(parts).arrayBuffer();
      parts.push(value);
      loaded += value.length;
    }
  } catch (error) {
    throw new Error(`${name} cannot be loaded (${error.message})`);
  }
}

async function read(file) {
  try {
    return new TextDecoder("utf-8", {fatal: true}).decode(await file.arrayBuffer());
  } catch {
    throw new Error(`${file.name} is not a text in UTF-8: save it as plain text or HTML`);
  }
}

const backend = {
  async start() {
    if (location.protocol === "file:")
      throw new Error("Browsers load models only from a web server: run `python -m http.server` in this folder, and open http://localhost:8000");
    if (!window.WebAssembly || !WebAssembly.validate(new Uint8Array(SIMD)))
      throw new Error("This browser has no WebAssembly with SIMD: use a current Firefox, Chrome, Edge or Safari");
    const bergamot = await import("./package/translator.js").catch(() => {
      throw new Error(`package/translator.js cannot be loaded: run \`${install}\` in this folder`);
    });
    class Local extends bergamot.TranslatorBacking {
      async loadModelRegistery() { return models; }
      async loadTranslationModel({from, to}) {
        const [model, vocabulary] = [await load(`${from}-${to}/model.bin`), await load(`${from}-${to}/vocabulary.spm`)];
        const config = {"gemm-precision": models.find((x) => x.from === from && x.to === to).precision};
        return {model, shortlist: new ArrayBuffer(0), vocabs: [vocabulary], qualityModel: null, config};
      }
    }
    const backing = new Local({pivotLanguage: null});
    backing.onerror = fail;  // as an option, it would be sent to the worker
    translator = new bergamot.BatchTranslator({workers: 1, pivotLanguage: null, onerror: fail}, backing);
    const names = new Map(models.flatMap((x) => [[x.from, x.fromName], [x.to, x.toName]]));
    const languages = [...names].map(([code, name]) =>
      ({code, name, targets: models.filter((x) => x.from === code).map((x) => x.to)}));
    const {from: source, to: target} = models[0];
    this.translate("", source, target).catch((error) => showError(error.message));  // loads the model
    return {languages, source, target};
  },

  async translate(text, from, to, signal, html = false) {
    signal?.addEventListener("abort", () => translator.remove((request) => request.signal === signal));
    try {
      const answer = await Promise.race([failure, translator.translate({from, to, text, html, signal})]);
      return answer.target.text;
    } finally {
      showStatus("");
    }
  },

  async translateFile(file, source, target) {
    const html = /\.x?html?$/i.test(file.name), text = await read(file);
    const translated = await this.translate(text, source, target, null, html);
    const type = html ? "text/html" : "text/plain";
    const name = file.name.replace(/(\.\w+)?$/, `.${target}$1`);
    return {href: URL.createObjectURL(new Blob([translated], {type})), name};
  },
};
