// Translates lines with Bergamot in Node: node bergamot.mjs PACKAGE FOLDER PRECISION
// Reads and prints a JSON list. PACKAGE: the folder of translator.js; FOLDER: an exported model.
import {readFile} from "node:fs/promises";
import {pathToFileURL} from "node:url";

const [home, folder, precision] = process.argv.slice(2);
const {BatchTranslator, TranslatorBacking} = await import(pathToFileURL(`${home}/translator.js`));
const pair = {from: "en", to: "de"};
const read = async (name) => new Uint8Array(await readFile(`${folder}/${name}`)).buffer;

class Local extends TranslatorBacking {
  async loadModelRegistery() { return [{...pair, files: {}}]; }
  async loadTranslationModel() {
    const config = {"gemm-precision": precision};
    return {model: await read("model.bin"), shortlist: new ArrayBuffer(0),
      vocabs: [await read("vocabulary.spm")], qualityModel: null, config};
  }
}

const translator = new BatchTranslator({workers: 1, pivotLanguage: null}, new Local({pivotLanguage: null}));
let input = "";
for await (const chunk of process.stdin) input += chunk;
const answers = JSON.parse(input).map((text) => translator.translate({...pair, text, html: false}));
console.log(JSON.stringify((await Promise.all(answers)).map((x) => x.target.text)));
process.exit(0);
