"""Texts: splits, tokenizers, windows and the mistakes people make."""

from itertools import combinations, product

import pytest
import torch
from make_data import everything, make, ready
from refusals import refused

from ablate.data import Request
from ablate.data.chapters import CHAPTERS, paragraphs
from ablate.data.loader import Stream
from ablate.data.pydoc import topics
from ablate.data.tokenizer import Char
from ablate.errors import UserError

POEM = "The quick brown fox — déjà vu — jumps over the lazy dog.\nŻółć, größe, 世界!\n" * 40
TOKENIZERS = ["char", "byte", "bpe"]


@pytest.fixture
def text(tmp_path):
    def made(content=POEM, **changes):
        (tmp_path / "text.txt").write_bytes(content.encode())
        size = {"vocab_size": 280} if changes.get("tokenizer") == "bpe" else {}
        options = {"seq_len": 16, "batch_size": 4, **size, **changes}
        return ready("text", path=str(tmp_path / "text.txt"), **options)

    return made


def text_of(data, split):
    """The text of a split, by its tokens."""
    return data.tokenizer.decode(data.tokens[split].tolist())


@pytest.mark.parametrize(
    "changes",
    [{"tokenizer": name} for name in TOKENIZERS] + [{"seq_len": n} for n in (1, 7, 287)],
    ids=str,
)
def test_a_full_pass_predicts_every_token_but_the_first_once(text, changes):
    data = text(**changes)
    inputs, targets = [], []
    for batch in data.val_dataloader():
        counted = batch["targets"] != -100
        inputs += batch["tokens"][counted].tolist()
        targets += batch["targets"][counted].tolist()
    expected = data.tokenizer.encode(text_of(data, "val"))
    assert targets == expected[1:]
    assert inputs == expected[:-1]


def test_training_windows_are_pieces_of_the_training_split(text):
    data = text()
    for batch in data.train_dataloader():
        assert torch.equal(batch["tokens"][:, 1:], batch["targets"][:, :-1])
        for row in torch.cat([batch["tokens"], batch["targets"][:, -1:]], dim=1).tolist():
            assert data.tokenizer.decode(row) in text_of(data, "train")


def test_every_window_of_the_training_split_is_drawn(text):
    data = text("abcdefgh", seq_len=2, val_fraction=0.4, batch_size=2)
    order = data.train_order()
    requests = Stream(order, 20 * len(order))
    drawn = {start for request in requests for start in request.indices.tolist()}
    assert drawn == {0, 1}  # abc and bcd


def test_the_split_is_nanogpts(shared_data):
    data = ready("shakespeare", path=str(shared_data / "tinyshakespeare" / "input.txt"))
    assert [data.counts[s]["characters"] for s in ("train", "val")] == [1_003_854, 111_540]
    assert data.sizes.arguments() == {"vocab_size": 65, "length": 64}
    assert data.length("train") == 1_003_854 - 64
    assert data.per_token("val")["char"] == 1


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_text_survives_the_tokenizer(text, tokenizer):
    data = text(tokenizer=tokenizer)
    tokens = data.tokenizer.encode(POEM)
    assert data.tokenizer.decode(tokens) == POEM
    assert max(tokens) < data.sizes.vocab_size == data.tokenizer.vocab_size
    low, high = {"char": (1, 1), "byte": (0.7, 0.9), "bpe": (1.05, 9)}[tokenizer]
    for split in data.tokens:
        part = text_of(data, split)
        tokens = data.tokenizer.encode(part)
        predicted = len(part) - len(data.tokenizer.decode(tokens[:1]))
        assert low <= data.per_token(split)["char"] == predicted / (len(tokens) - 1) <= high


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_the_tokenizer_sees_the_training_split_alone(text, tokenizer):
    vocabularies = []
    for ending in ("the quick brown fox " * 20, "zzzz wwww zzzz wwww " * 20):
        content = "The lazy dog jumps over it, qu, brown fox.\n" * 84 + ending
        data = text(content, tokenizer=tokenizer)
        assert "zzzz" not in text_of(data, "train")
        known = data.tokenizer.vocab_size - bool(getattr(data.tokenizer, "unknown", False))
        vocabularies.append([data.tokenizer.decode([token]) for token in range(known)])
    assert vocabularies[0] == vocabularies[1]


def test_a_character_tokenizer_of_nothing_is_refused():
    with refused("data.tokenizer=char: the training text is empty"):
        Char.of([], ["a"])


def test_unknown_characters_of_the_validation_split_share_one_token(text):
    data = text("abcd " * 90 + "a? ! " * 10)
    assert data.sizes.vocab_size == 6
    assert data.tokenizer.encode("a?!") == [1, 5, 5]
    assert data.tokenizer.decode([1, 5]) == "a\N{REPLACEMENT CHARACTER}"
    assert [data.tokenizer.knows(word) for word in ("a", "The ")] == [True, False]
    data = text()  # without need there is none
    assert data.sizes.vocab_size == len(set(POEM))
    with pytest.raises(UserError, match=r"'星' does not occur in the training text"):
        data.tokenizer.encode("界世界星")


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_text("to be or not to be " * 20, encoding="utf-8-sig")
    data = ready("text", path=str(tmp_path / "a.txt"), tokenizer="char", seq_len=4)
    assert text_of(data, "train").startswith("to be")
    before = data.fingerprint()
    (tmp_path / "a.txt").write_text("to be or not to be " * 20)
    assert data.fingerprint() != before  # under which earlier versions read it as a letter
    assert data.sizes.vocab_size == len(set("to be or not to be "))


def test_pydoc_is_long_english_from_this_python():
    data = ready("pydoc")
    assert sum(of["characters"] for of in data.counts.values()) > 400_000
    assert text_of(data, "train").startswith('assert\n\nThe "assert" statement')
    assert data.fingerprint() == make("pydoc", seed=5).fingerprint()


# Texts with classes


def texts(root=None, **changes):
    return ready("text_files", root=root and str(root), tokenizer="char", **changes)


def read(data, split):
    """Every text of a split, decoded, and the name of its class."""
    return [
        (data.tokenizer.decode(tokens[keep].tolist()), data.class_names[target])
        for tokens, keep, target in zip(*everything(data, split).values(), strict=True)
    ]


@pytest.fixture
def folder(tmp_path):
    for name, words in {"cats": "the cat sat", "dogs": "a dog ran"}.items():
        (tmp_path / name).mkdir()
        for n in range(30):
            (tmp_path / name / f"{n}.txt").write_text(f"{words} {n} times" * (1 + n % 3))
    return tmp_path


def test_a_text_that_is_not_utf_8_is_refused_with_its_file(folder):
    (folder / "cats" / "7.txt").write_bytes("Kätzchen".encode("latin-1"))
    with refused(f"data.root={folder}/cats/7.txt: not UTF-8 at byte offset 1"):
        texts(folder)


def test_a_chapter_has_the_paragraphs_of_its_topics_and_no_paragraph_has_two():
    found, chapters = paragraphs()
    assert len(set(found)) == len(found) > 1000
    assert set(chapters) == set(CHAPTERS)
    chapter = dict(zip(found, chapters, strict=True))
    (rule,) = [text for text in found if text.startswith('The "pass" statement is a null')] or [""]
    assert chapter.get(rule, "simple_statements") == "simple_statements"
    whole = {name: " ".join(text.split()) for name, text in topics().items()}
    for text, its in chapter.items():
        words = " ".join(text.split())
        assert any(words in whole[name] for name in CHAPTERS[its].split() if name in whole)


def test_fewer_labeled_texts_are_among_more_and_the_tokenizer_reads_all():
    few, more, whole = (texts(train_examples=count) for count in (20, 60, None))
    of_few, of_more, of_whole = (read(data, "train") for data in (few, more, whole))
    assert of_few == of_more[:20]
    assert len(set(of_more)) == 60
    assert set(of_more) < set(of_whole)
    assert few.tokenizer.vocab_size == whole.tokenizer.vocab_size
    assert read(few, "val") == read(whole, "val")
    with pytest.raises(UserError, match=r"train_examples=9999: the training split has .* texts"):
        texts(train_examples=9999)


def test_no_text_stands_in_two_splits_and_every_class_in_all():
    data = texts(seq_len=5000)
    found = {split: read(data, split) for split in data.splits}
    for one, other in combinations(found, 2):
        assert {text for text, _ in found[one]}.isdisjoint(text for text, _ in found[other])
    for of_split in found.values():
        assert {name for _, name in of_split} == set(CHAPTERS)
    assert sum(map(len, found.values())) == len(paragraphs()[0])


def table(folder, rows, name="t.csv", header="id,label,text"):
    path = folder / name
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8-sig")
    return path


def test_a_table_of_texts_and_labels(tmp_path):
    """Quoted cells hold commas, quotes and line breaks; a byte order mark is no name."""
    rows = [f'{n},{"cats" if n % 2 else "dogs"},"{n}, he said ""no""\nand left"' for n in range(60)]
    data = texts(table(tmp_path, [*rows, ",,"]))
    assert data.class_names == ["cats", "dogs"]
    found = sorted(pair for split in data.splits for pair in read(data, split))
    assert found == sorted(
        (f'{n}, he said "no"\nand left', "cats" if n % 2 else "dogs") for n in range(60)
    )
    tabs = [row.replace(",", "\t", 2) for row in rows]
    same = texts(table(tmp_path, tabs, "t.tsv", "id\tlabel\ttext"))
    assert {split: read(same, split) for split in same.splits} == {
        split: read(data, split) for split in data.splits
    }
    long = f"60,cats,{'long ' * 30_000}"
    assert texts(table(tmp_path, [*rows, long])).class_names == data.class_names
    renamed = table(tmp_path, [row.replace("cats", "hats") for row in rows], "HATS.CSV")
    assert texts(renamed).class_names == ["dogs", "hats"]
    before = data.fingerprint()
    table(tmp_path, rows[1:])
    assert data.fingerprint() != before
    rare = texts(table(tmp_path, [*rows, "60,birds,tweet", "61,birds,sing", "62,birds,sing"]))
    assert {
        split: sum(name == "birds" for _, name in read(rare, split)) for split in rare.splits
    } in (
        {"train": 1, "val": 2, "test": 0},
        {"train": 2, "val": 1, "test": 0},
    )  # equal texts are in one split


@pytest.mark.parametrize(
    ("rows", "header", "says"),
    [
        (["1,a,x"], "id,lable,text", "needs one column 'label' in its first row, .*'lable'"),
        (["1,a,x"], "text,label,text", "needs one column 'text'"),
        (["1,a,x", "2,b,y,z"], "id,label,text", "line 3 has 4 cells, the header has 3; quote"),
        (["1,a,x", "2,b,"], "id,label,text", "line 3 has no text"),
        (["1,,x"], "id,label,text", "line 2 has no label"),
        (['1,a,"x'], "id,label,text", "line 2 is not valid CSV"),
        (
            ["1,a,x", "2,a,y"],
            "id,label,text",
            "only one class found \\(a\\); classification needs at least two",
        ),
        ([], "id,label,text", "has no rows"),
        (["1,a,x", "2,b,y"], "id,label,text", "split of 2 texts would be empty"),
    ],
)
def test_what_is_wrong_in_a_table_is_named(tmp_path, rows, header, says):
    with pytest.raises(UserError, match=rf"data\.root=\S+t\.csv: .*{says}"):
        texts(table(tmp_path, rows, header=header))


def test_twins_of_a_table_are_in_one_split(tmp_path):
    written = ["Caf\xe9", "cafe\u0301 "]
    rows = [f"{n},{'ab'[n % 2]},{written[n // 120]} {n % 60}" for n in range(240)]
    data = texts(table(tmp_path, rows))
    numbers = [{text.split()[1] for text, _ in read(data, split)} for split in data.splits]
    assert sum(map(len, numbers)) == len(set.union(*numbers)) == 60


def test_spellings_of_one_class_and_texts_of_two_splits_are_counted(tmp_path, caplog):
    names = ("1", "1.0", "pos", "POS ", "very good", "very_good", "2", "-2", "neg", "nan", "none")
    texts(table(tmp_path, [f"{n},{names[n % 11]},{n} times" for n in range(110)]))
    assert caplog.text.count("are different classes") == 1
    assert "written: 1 (10) and 1.0 (10); pos (10) and POS (10); very good (10) and" in caplog.text
    assert "neg" not in caplog.text
    assert " 2 " not in caplog.text
    caplog.clear()
    for split, name in product(("train", "val"), ("cats", "CATS", "dogs")):
        (tmp_path / split / name).mkdir(parents=True)
        for n, text in enumerate(["one", "two", {"train": "THE  same", "val": "the same"}[split]]):
            own = split if n < 2 else ""
            (tmp_path / split / name / f"{n}.txt").write_text(f"{text} {name} {own}")
    texts(tmp_path)
    assert "written: CATS (6) and cats (6)" in caplog.text
    assert "3 of the 9 validation texts are also in the training split" in caplog.text


def test_a_folder_without_splits_is_measured_whole(folder):
    data = make("text_files", root=str(folder), tokenizer="byte")
    data.whole = True
    data.setup()
    assert {split: data.length(split) for split in data.splits} == {"val": 60}


def test_special_tokens_leave_room_for_a_text(folder):
    data = make("text_files", root=str(folder), tokenizer="char", seq_len=2)
    data.specials = True
    with pytest.raises(UserError, match=r"data.seq_len=2: \[CLS\] and \[SEP\] leave no token"):
        data.setup()


def test_a_folder_for_each_class_whose_longer_texts_are_cut(folder, caplog):
    data = texts(folder, seq_len=500)
    assert data.class_names == ["cats", "dogs"]
    found = [pair for split in data.splits for pair in read(data, split)]
    assert len(found) == 60
    for text, name in found:
        assert text.startswith({"cats": "the cat", "dogs": "a dog"}[name])
    batch = data.splits["train"][Request(0, torch.arange(8))]
    lengths = batch["keep"].sum(1)
    assert batch["tokens"].shape == (8, lengths.max())  # as long as the longest text
    assert lengths.unique().numel() > 1
    assert batch["keep"].equal(torch.arange(int(lengths.max())) < lengths[:, None])
    assert batch["tokens"][~batch["keep"]].eq(0).all()
    assert not caplog.text
    cut = texts(folder, seq_len=4)
    assert [t[:4] for t, _ in read(data, "val")] == [t for t, _ in read(cut, "val")]
    count = data.length("train")
    line = f"{count} of the {count} texts of train are longer than the 4 tokens data.seq_len=4"
    assert line in caplog.text
