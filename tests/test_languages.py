"""Models of several languages: their data, directions, scores, server and exports."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from commands import seq2seq
from conftest import WORDS, run_recipe, write_corpus
from sentencepiece import SentencePieceProcessor
from starlette.testclient import TestClient

from seq2seq.config import CorpusConfig, Direction, PairsConfig
from seq2seq.data.augmentation import Augmentation
from seq2seq.data.batching import sentence_order
from seq2seq.decoding.translation import Request
from seq2seq.decoding.translator import Translator
from seq2seq.errors import UserError
from seq2seq.evaluation.evaluate import evaluate_run, metrics_text
from seq2seq.evaluation.metrics import tokenizer_of
from seq2seq.export import export
from seq2seq.formats.model_directory import load_config
from seq2seq.planning.new import new_recipe
from seq2seq.preparation.corpora import open_corpora
from seq2seq.preparation.prepare import prepare
from seq2seq.processes import Processes
from seq2seq.serve.app import Server
from seq2seq.serve.limits import Keys
from seq2seq.serve.models import Models
from seq2seq.text.language import base_code, identify, is_foreign, language_name, sentences
from seq2seq.training.log import summary
from seq2seq.training.records import read_metrics
from seq2seq.training.run_directory import RunState

FRENCH = {word: word[::-1] + "q" for word in WORDS}
RECIPE = """
data:
  train:
    - {path: @/train, languages: [en, de], reverse: true}
    - {path: @/train, languages: [en, fr]}
    - {path: @/small, languages: [en, fr]}
  temperature: 2
  dev: [{path: @/dev, languages: [en, de], reverse: true}, {path: @/dev, languages: [en, fr]}]
  test: [{path: @/test, languages: [en, de]}, {path: @/test, languages: [fr, de]}]
  protect: [url]
  store: @/store
tokenizer: {vocab_size: 420}
model: {dim: 32, ffn_dim: 64, num_heads: 2, encoder_layers: 1, decoder_layers: 1, dropout: 0}
training: {max_steps: 250, batch_tokens: 600, micro_batch_tokens: 600, optimizer: muon, lr: 0.01,
           schedule: inverse_sqrt, warmup_steps: 20, precision: fp32, label_smoothing: 0,
           validate_every_epochs: null}
"""
DIRECTIONS = ["en-de", "de-en", "en-fr"]


def write_languages(folder: Path) -> Path:
    """Write a corpus of three languages and a recipe of three directions."""
    write_corpus(folder)
    for split in ("train", "dev", "test"):
        lines = (folder / f"{split}.en").read_text().splitlines()
        words = [" ".join(FRENCH[word] for word in line.split()) + "\n" for line in lines]
        (folder / f"{split}.fr").write_text("".join(words))
    for language in ("en", "fr"):
        lines = (folder / f"train.{language}").read_text().splitlines(keepends=True)
        (folder / f"small.{language}").write_text("".join(f"z {line}" for line in lines[:12]))
    path = folder / "many.yaml"
    path.write_text(RECIPE.replace("@", str(folder)))
    return path


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_languages(tmp_path_factory.mktemp("languages"))


@pytest.fixture(scope="module")
def run(recipe: Path) -> Path:
    return run_recipe(recipe, recipe.parent / "run")


@pytest.fixture(scope="module")
def translator(run: Path) -> Translator:
    return Translator.load(run)


def run_command(*arguments: object) -> str:
    done = seq2seq(*arguments)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def require_same(found: list[str], right: list[str]) -> None:
    """Compare translations; other programs end those that do not end at another length."""
    for pair in zip(found, right, strict=True):
        shorter, longer = sorted(pair, key=len)
        assert longer.startswith(shorter)
    assert sum(a == b for a, b in zip(found, right, strict=True)) > 12


def lines_of(recipe: Path, name: str) -> list[str]:
    return (recipe.parent / name).read_text().splitlines()


def test_the_weights_are_those_of_the_temperature() -> None:
    """Shares p_c of an epoch are in the proportion weight * n_c^(1/T); the largest is not repeated.

    A reversed corpus has the weight of its corpus.
    """
    sizes, temperature = [900, 900, 100, 25], 2.0
    corpora = CorpusConfig(path="a", reverse=True), CorpusConfig(path="b"), CorpusConfig(weight=3.0)
    weights = PairsConfig(train=corpora, temperature=temperature).weights(sizes)
    shares = np.multiply(weights, sizes)
    expected = np.array([1.0, 1.0, 1.0, 3.0]) * np.sqrt(sizes)
    assert shares / shares.sum() == pytest.approx(expected / expected.sum())
    assert weights[:2] == [1.0, 1.0]
    counts = np.bincount(sentence_order(sizes, weights, seed=1, epoch=0), minlength=sum(sizes))
    parts = [part.sum() for part in np.split(counts, np.cumsum(sizes)[:-1])]
    assert parts == pytest.approx(shares, abs=0.51)
    assert PairsConfig(train=corpora).weights(sizes) == [1.0, 1.0, 1.0, 3.0]


def test_each_source_begins_with_the_symbol_of_its_target_language(recipe: Path) -> None:
    config = load_config(recipe)
    data = prepare(config)
    store, source = data.store("train"), data.tokenizer.source
    sizes = data.facts("train")["pairs_per_corpus"]
    bounds = np.cumsum([0, *sizes])
    symbols = ["<2de>", "<2en>", "<2fr>", "<2fr>"]
    for symbol, start, end in zip(symbols, bounds, bounds[1:], strict=False):
        rows, _ = store.pairs(np.arange(start, end))
        [first] = {int(row[0]) for row in rows}
        assert source.pieces([first]) == [f"\u2581{symbol}"]
    sources, targets = store.pairs(np.array([0, sizes[0]]))
    assert source.decode([sources[1][1:].tolist()]) == source.decode([targets[0].tolist()])
    assert [str(x) for x in data.sets("dev")] == DIRECTIONS
    assert data.sets("test")[Direction("fr", "de")].texts() == (
        lines_of(recipe, "test.fr"),
        lines_of(recipe, "test.de"),
    )


def test_no_side_of_a_held_out_pair_is_a_source_in_training(recipe: Path) -> None:
    """Also not in the reverse direction, nor in another language's corpus."""
    held_out = ["data.dev=null", "data.dev_size=15", "data.test=null", "data.test_size=5"]
    data = prepare(load_config(recipe, held_out))
    known: set[str] = set()
    for split, size in (("dev", 15), ("test", 5)):
        sets = data.sets(split)
        assert [str(x) for x in sets] == DIRECTIONS
        for store in sets.values():
            sources, targets = store.texts()
            assert len(sources) == size
            known |= {*sources, *targets}
    rows, _ = data.store("train").pairs(np.arange(len(data.store("train"))))
    texts = data.tokenizer.source.decode([row[1:].tolist() for row in rows])
    assert texts and not known & {*texts}


def test_a_pair_that_is_equal_in_two_languages_is_kept_in_both(tmp_path: Path) -> None:
    recipe = write_languages(tmp_path)
    for language in ("en", "de", "fr"):
        with (tmp_path / f"train.{language}").open("a") as stream:
            stream.write("Calc\nCalc\n")
    facts = prepare(load_config(recipe)).facts("train")
    # The reversed pair (Calc, Calc) is of another direction, too.
    assert facts["dropped"]["duplicates"] == 3 + 0


def test_the_columns_of_a_tsv_and_of_a_dataset_are_reversed(tmp_path: Path) -> None:
    rows = [{"en": f"the dog {i}", "de": f"der Hund {i}"} for i in range(9)]
    (tmp_path / "a.tsv").write_text("".join(f"{row['en']}\t{row['de']}\n" for row in rows))
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for corpus in (
        CorpusConfig(path=str(tmp_path / "a.tsv"), languages=("en", "de"), reverse=True),
        CorpusConfig(dataset=str(tmp_path), languages=("en", "de"), reverse=True),
    ):
        forth, back = open_corpora(PairsConfig(train=(corpus,)))
        pairs = [(row["en"], row["de"]) for row in rows]
        assert (str(forth.direction), str(back.direction)) == ("en-de", "de-en")
        assert list(forth.read()) == pairs and list(back.read()) == [(b, a) for a, b in pairs]


def test_only_pairs_of_a_direction_are_joined(recipe: Path) -> None:
    config = load_config(recipe, ["data.augment={join: 0.99}"])
    data = prepare(config)
    store = data.store("train")
    sizes = data.facts("train")["pairs_per_corpus"]
    augment = Augmentation(config.pairs, store, data.tokenizer, sizes, 200)
    indices = np.arange(len(store))
    sources, targets = store.pairs(indices)
    joined, translations = augment(sources, targets, indices, indices, seed=1, epoch=0)
    assert sum(len(a) > len(b) for a, b in zip(joined, sources, strict=True)) > len(store) / 2
    bounds = np.cumsum([0, *sizes])
    words = {"<2de>": {*WORDS.values()}, "<2en>": {*WORDS}, "<2fr>": {*FRENCH.values(), "z"}}
    pairs = list(zip(joined, translations, strict=True))
    for symbol, start, end in zip(
        ("<2de>", "<2en>", "<2fr>", "<2fr>"), bounds, bounds[1:], strict=False
    ):
        for source, target in pairs[start:end]:
            [text] = data.tokenizer.source.decode([source.tolist()])
            [written] = data.tokenizer.target.decode([target.tolist()])
            assert text.startswith(f"{symbol} ") and "<2" not in text[1:]
            assert {*written.split()} <= words[symbol]


def test_a_model_translates_to_the_language_that_is_asked_for(
    translator: Translator, recipe: Path
) -> None:
    english = lines_of(recipe, "test.en")
    for language, expected in (("de", "test.de"), ("fr", "test.fr")):
        found = [x.split() for x in translator.translate(english, to=language)]
        right = [x.split() for x in lines_of(recipe, expected)]
        known = {word for line in right for word in line}
        words = [word for line in found for word in line]
        assert sum(word in known for word in words) > 0.9 * len(words)
    # In one batch as alone, also in the order of the lines.
    requests = [
        Request(text, number, to=language)
        for number, (text, language) in enumerate(zip(english, ["de", "fr"] * 10, strict=True))
    ]
    alone = {x: translator.translate(english, to=x) for x in ("de", "fr")}
    mixed = [x.text for x in translator.process(requests)]
    assert mixed == [alone[x.to][i] for i, x in enumerate(requests)]


def test_a_symbol_is_no_word_of_an_alignment(translator: Translator) -> None:
    [found] = translator.translations(["the red dog"], to="de", alignment=True)
    assert {i for i, _ in found.alignment} <= {0, 1, 2} and found.alignment


def test_unknown_and_missing_languages_are_named(translator: Translator) -> None:
    with pytest.raises(UserError, match="translates to de, en, fr: name one with --to"):
        translator.translate(["a"])
    with pytest.raises(UserError, match="translates to de, en, fr, not 'xx'"):
        translator.translate(["a"], to="xx")
    with pytest.raises(UserError, match="has the languages en, de, fr, not 'xx'"):
        translator.translate(["a"], to="de", source="xx")
    found = translator.process([Request("a", 0, to="xx"), Request("the dog", 1, to="de")])
    assert found[0].error and "not 'xx'" in found[0].error
    assert found[1].text == translator.translate(["the dog"], to="de")[0]


def test_json_lines_name_their_languages(run: Path, translator: Translator, tmp_path: Path) -> None:
    lines = [{"text": "the red dog", "to": "fr"}, {"text": "the red dog"}]
    (tmp_path / "in").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    output = run_command("translate", run, tmp_path / "in", "--json-input", "--to", "de")
    right = [translator.translate(["the red dog"], to=x)[0] for x in ("fr", "de")]
    assert output.splitlines() == right


def test_metrics_are_given_for_each_direction_and_their_mean(run: Path, recipe: Path) -> None:
    [validation] = [x for x in read_metrics(run) if x["kind"] == "validation"]
    for key in ("nll", "bleu", "chrf"):
        values = [validation[f"{key}/{name}"] for name in DIRECTIONS]
        assert validation[key] == pytest.approx(np.mean(values)) and len({*values}) == 3
    metrics = evaluate_run(run, None, "test", Processes())
    assert metrics["bleu"] == pytest.approx((metrics["bleu/en-de"] + metrics["bleu/fr-de"]) / 2)
    sizes = [facts["sentences"] for facts in metrics["directions"].values()]
    assert metrics["sentences"] == sum(sizes)
    text = metrics_text(metrics)
    assert text.startswith("mean of 2 directions:")
    assert all(text.count(f"{name} signature") == 1 for name in ("BLEU", "chrF2", "TER"))
    alone = evaluate_run(run, None, "test", Processes(), to="de", source="en")
    assert alone["bleu"] == metrics["bleu/en-de"] and alone["nll"] == metrics["nll/en-de"]
    files = evaluate_run(
        run, None, "", Processes(), data=str(recipe.parent / "test"), to="de", source="en"
    )
    assert files["bleu"] == alone["bleu"]


def test_the_next_step_of_a_training_names_a_language(run: Path) -> None:
    text = summary(load_config(run / "recipe.yaml"), run, RunState())
    assert f"seq2seq translate {run} --to de < FILE" in text


def test_scores_are_given_for_each_direction_and_their_mean(run: Path) -> None:
    metrics = evaluate_run(run, None, "test", Processes())
    tree = json.loads(run_command("score", run, "--against", run, "--json"))
    scores = [tree["directions"][name]["bleu"] for name in ("en-de", "fr-de")]
    assert scores == pytest.approx([metrics["bleu/en-de"], metrics["bleu/fr-de"]], abs=1e-3)
    [mean] = tree["mean"].values()  # the same run twice
    assert mean["bleu"] == pytest.approx(np.mean(scores), abs=1e-3)
    lines = run_command("score", run).splitlines()
    assert [x for x in lines if x in ("en-de", "fr-de")] == ["en-de", "fr-de"]
    assert lines[-2].startswith("mean") and f"{np.mean(scores):.2f}" in lines[-1]


def test_every_direction_is_exported_to_ctranslate2(
    run: Path, translator: Translator, tmp_path: Path, recipe: Path
) -> None:
    export(run, tmp_path / "exported", to="ctranslate2")
    exported, english = Translator.load(tmp_path / "exported"), lines_of(recipe, "test.en")
    for language in ("de", "fr"):
        right = translator.translate(english, to=language)
        assert exported.translate(english, to=language) == right
    card = (tmp_path / "exported" / "README.md").read_text()
    assert "`<2de>` or `<2en>` or `<2fr>`" in card
    assert "pieces = ['\u2581<2de>'] + source.encode(" in card


def test_every_direction_is_exported_to_huggingface(
    run: Path, translator: Translator, tmp_path: Path, recipe: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    export(run, tmp_path / "exported", to="huggingface")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "exported").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    english, source = lines_of(recipe, "test.en"), translator.tokenizer.source
    read = Translator.load(tmp_path / "exported")
    assert read.data.directions == translator.data.directions
    for language in ("de", "fr"):
        ids = tokenizer([f"<2{language}> {line}" for line in english]).input_ids
        rows = source.encode([f"<2{language}> {line}" for line in english])
        assert ids == [[*row, source.eos_id] for row in rows]
        inputs = tokenizer(
            [f"<2{language}> {x}" for x in english], return_tensors="pt", padding=True
        )
        outputs = model.generate(**inputs, num_beams=1, max_length=60)
        texts = tokenizer.batch_decode(outputs, skip_special_tokens=True)
        right = translator.translate(english, to=language, beam=1)
        assert read.translate(english, to=language, beam=1) == right
        require_same(texts, right)


def test_argos_has_a_package_for_each_direction(
    run: Path, translator: Translator, tmp_path: Path, recipe: Path
) -> None:
    """A package's CTranslate2 model writes the symbol of the language by itself."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    export(run, tmp_path / "exported", to="argos")
    packages = sorted(path.name for path in (tmp_path / "exported").glob("*.argosmodel"))
    assert packages == [
        f"translate-{x.replace('-', '_')}-1_0.argosmodel" for x in sorted(DIRECTIONS)
    ]
    english = lines_of(recipe, "test.en")
    for language in ("de", "fr"):
        name = f"translate-en_{language}-1_0"
        with zipfile.ZipFile(tmp_path / "exported" / f"{name}.argosmodel") as archive:
            archive.extractall(tmp_path)
        pieces = SentencePieceProcessor(model_file=str(tmp_path / name / "sentencepiece.model"))
        results = ctranslate2.Translator(str(tmp_path / name / "model")).translate_batch(
            pieces.encode(english, out_type=str), beam_size=1
        )
        texts = [pieces.decode(result.hypotheses[0]) for result in results]
        require_same(texts, translator.translate(english, to=language, beam=1))


WRONG: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "without languages": (
        lambda data: data["train"][1].pop("languages"),
        r"data.source is empty: .* or give .*/train `languages: \[en, fr\]`",
    ),
    "one language": (
        lambda data: data["train"][1].update(languages=["en"]),
        r"must be source and target, such as \[en, fr\], not \['en'\]",
    ),
    "two development sets": (
        lambda data: data["dev"].append({"path": "other", "languages": ["en", "de"]}),
        "data.dev has several sets for en-de: give one for each direction",
    ),
    "an unknown direction": (
        lambda data: data["test"].append({"path": "other", "languages": ["en", "ja"]}),
        "data.test has the direction en-ja, but the training corpora have no 'ja' there, only de, "
        "en, fr",
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes_in_languages_are_named(mistake: str, recipe: Path, tmp_path: Path) -> None:
    change, message = WRONG[mistake]
    tree = yaml.safe_load(recipe.read_text())
    change(tree["data"])
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(UserError, match=message):
        load_config(tmp_path / "wrong.yaml")


def test_a_server_offers_every_direction(run: Path, translator: Translator) -> None:
    http = TestClient(Server(Models([run]), Keys([], 0), 1000).app())
    languages = {x["code"]: x["targets"] for x in http.get("/languages").json()}
    assert languages == {"en": ["de", "fr"], "de": ["en"], "fr": []}
    for source, target in (("en", "de"), ("en", "fr"), ("de", "en")):
        fields = {"q": "the red dog", "source": source, "target": target}
        answer = http.post("/translate", json=fields).json()
        assert answer["translatedText"] == translator.translate(["the red dog"], to=target)[0]
    for side, codes in (("source", ["EN", "DE"]), ("target", ["DE", "EN", "FR"])):
        known = http.get("/v2/languages", params={"type": side}).json()
        assert [language["language"] for language in known] == codes
    deepl = http.post("/v2/translate", json={"text": ["the dog"], "target_lang": "FR"}).json()
    assert deepl["translations"][0]["text"] == translator.translate(["the dog"], to="fr")[0]


def test_a_new_recipe_of_several_directions(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("seq2seq.planning.plan.SECONDS", 0.3)
    train = str(recipe.parent / "train")
    pairs = [("en", "de", train), ("en", "fr", train)]
    options: dict[str, Any] = {"task": "translation", "source": "", "target": "", "minutes": 1.0}
    path = new_recipe("mine", {"train": [], "dev": [], "test": []}, pairs=pairs, **options)
    config = load_config(path)
    assert [str(x) for x in config.pairs.directions] == ["en-de", "en-fr"]
    assert config.pairs.temperature == 5 and config.pairs.dev_size == 15  # a twentieth of each
    assert "600 pairs" in path.read_text()
    assert f"\n    - {{languages: [en, de], path: {train}}}\n" in path.read_text()
    with pytest.raises(UserError, match="--pairs names languages and corpora"):
        new_recipe("other", {"train": [train], "dev": [], "test": []}, pairs=pairs, **options)


def test_only_the_main_direction_is_held_out_if_it_is_given(recipe: Path) -> None:
    """So that fine-tuning does not validate on its old corpora."""
    held_out = ["data.source=en", "data.target=fr", "data.dev=null", "data.dev_size=5"]
    data = prepare(load_config(recipe, [*held_out, "data.test=null"]))
    assert [str(direction) for direction in data.sets("dev")] == ["en-fr"]


def test_sets_of_untrained_directions_have_files_of_their_own(recipe: Path) -> None:
    folder = recipe.parent
    train = f"data.train={{path: {folder}/train, languages: [en, de]}}"
    given = f"{{path: {folder}/test, languages: [en, de]}}"
    zero_shot = f"{{source: {folder}/test.de, target: {folder}/dev.de, languages: [de, de]}}"
    data = prepare(
        load_config(
            recipe, [train, "data.dev=null", "data.dev_size=5", f"data.test=[{given}, {zero_shot}]"]
        )
    )
    sets = data.sets("test")
    assert sets[Direction("en", "de")].texts()[0] == lines_of(recipe, "test.en")
    assert sets[Direction("de", "de")].texts()[0] == lines_of(recipe, "test.de")


def test_a_model_of_several_languages_is_fine_tuned_in_one(
    run: Path, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old corpora keep their languages, and sources the symbol of the target language."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("seq2seq.planning.plan.SECONDS", 0.3)
    files = {"train": [str(recipe.parent / "train")], "dev": [], "test": []}
    options: dict[str, Any] = {"task": "translation", "minutes": 1.0, "run": run}
    with pytest.raises(UserError, match="choose with --source and --target"):
        new_recipe("mine", files, source="", target="", **options)
    config = load_config(new_recipe("mine", files, source="en", target="fr", **options))
    assert [corpus.languages for corpus in config.pairs.train] == [
        (),
        ("en", "de"),
        ("en", "fr"),
        ("en", "fr"),
    ]
    data = prepare(config)
    [first, *_], _ = data.store("dev").pairs(np.arange(3))
    assert [str(x) for x in data.sets("dev")] == ["en-fr"]
    assert data.tokenizer.source.pieces([int(first[0])]) == ["\u2581<2fr>"]


def test_a_run_gets_a_new_language(
    run: Path, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("seq2seq.planning.plan.SECONDS", 0.3)
    for language, source in (("en", "en"), ("xx", "de")):
        text = (recipe.parent / f"train.{source}").read_text()
        Path(f"new.{language}").write_text(text.replace("e", "\u0436") if source == "de" else text)
    files: dict[str, list[str]] = {"train": [], "dev": [], "test": []}
    options: dict[str, Any] = {"task": "translation", "source": "", "target": "", "minutes": 0.1}
    path = new_recipe("tuned", files, pairs=[("en", "xx", "new")], run=run, **options)
    config = load_config(path, ["training.max_steps=3"])
    assert config.tokenizer.new_pieces and len(config.pairs.train) > 1
    tuned = run_recipe(path, tmp_path / "tuned", "training.max_steps=3")
    before, after = Translator.load(run), Translator.load(tuned)
    assert {*after.data.targets} == {*before.data.targets, "xx"}
    old, new = (x.tokenizer.translation_vocabularies[0] for x in (before, after))
    assert new.pieces(range(old.size)) == old.pieces(range(old.size)) and new.size > old.size
    assert new.encode_pieces(["<2xx> the dog"])[0][0] == "\u2581<2xx>"
    assert all(after.translate(["the dog"], to=language) for language in ("de", "xx"))


def test_codes_with_three_letters_and_a_script_are_known() -> None:
    assert [*map(base_code, ["deu_Latn", "zho_Hans", "pt-BR", "de", "prs_Arab"])] == [
        *("de", "zh", "pt", "de", "fa")
    ]
    assert language_name("zho_Hant") == "Chinese (Traditional)"
    assert tokenizer_of("zho_Hans") == tokenizer_of("zh") != tokenizer_of("deu_Latn") == "13a"
    text = "Er kam am 3. Mai an. Dann ging er."
    assert sentences(text, "deu_Latn") == sentences(text, "de") != sentences(text, "eng_Latn")
    assert identify("Das ist ein kleines Haus.", ["eng_Latn", "deu_Latn"]) == "deu_Latn"
    assert not is_foreign("Das ist ein kleines Haus mit einem Garten.", "deu_Latn")
