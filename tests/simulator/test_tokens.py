import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.simulator.tokens import (
    IMAGE_TOKENS,
    PIECES,
    ByteTokenizer,
    FileTokenizer,
    chat_segments,
    load_tokenizer,
)

TOKENIZER = ByteTokenizer()


def tokens_of(messages, tools=None):
    return TOKENIZER.encode(chat_segments(messages, tools))


@given(st.text(max_size=200))
def test_four_bytes_are_a_token(text):
    data = text.encode("utf-8", "surrogatepass")
    assert len(TOKENIZER.encode([text])) == -(-len(data) // 4)


@given(st.text(alphabet=st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=100))
def test_tokens_are_the_text_again(text):
    assert TOKENIZER.decode(TOKENIZER.encode([text])) == text


@given(st.lists(st.text(max_size=30), max_size=5), st.binary(max_size=9), st.integers(1, 40))
def test_an_answer_sent_back_has_the_tokens_it_was_generated_with(contents, seed, count):
    messages = [{"role": "user", "content": content} for content in contents]
    prompt = tokens_of(messages)
    answer, pieces = TOKENIZER.answer(seed, count)
    again = tokens_of(
        [*messages, {"role": "assistant", "content": "".join(pieces)}, {"role": "user", "content": "x"}]
    )
    whole = prompt + answer
    assert again[: len(whole)] == whole


def test_the_same_seed_says_the_same():
    assert TOKENIZER.answer(b"a", 20) == TOKENIZER.answer(b"a", 20)
    assert TOKENIZER.answer(b"a", 20) != TOKENIZER.answer(b"b", 20)
    assert TOKENIZER.answer(b"a", 20)[0] == TOKENIZER.answer(b"a", 30)[0][:20]


def test_pieces_need_no_escaping_and_are_one_token_each():
    assert len(PIECES) == len(set(PIECES)) == 64
    for piece in PIECES:
        assert json.dumps(piece) == f'"{piece}"'
        assert len(TOKENIZER.encode([piece])) == 1


def test_tools_come_first_whatever_the_order_of_their_keys():
    message = [{"role": "user", "content": "x"}]
    first = chat_segments(message, [{"b": 1, "a": 2}])
    assert first == chat_segments(message, [{"a": 2, "b": 1}])
    assert first[2] == '[{"a":2,"b":1}]'


def test_a_picture_is_so_many_tokens_the_same_for_the_same_picture():
    def prompt(url):
        return tokens_of([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}])

    bare = len(tokens_of([{"role": "user", "content": []}]))
    assert len(prompt("a")) == bare + IMAGE_TOKENS
    assert prompt("a") == prompt("a") != prompt("b")


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory):
    tokenizers = pytest.importorskip("tokenizers")
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    words = [*"abcdefghij ", "hello", "world", "<|bos|>", "<|end|>"]
    model = tokenizers.models.WordLevel(
        {word: i for i, word in enumerate([*words, "[UNK]"])}, unk_token="[UNK]"
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(path))
    return path


def test_a_real_tokenizer_file(tokenizer_file):
    tokenizer = load_tokenizer(tokenizer_file)
    assert isinstance(tokenizer, FileTokenizer)
    assert tokenizer.decode(tokenizer.encode(["hello ", "world"])) == "hello world"
    answer, pieces = tokenizer.answer(b"seed", 12)
    assert len(answer) == len(pieces) == 12
    assert all(tokenizer.encode([piece])[0] == token for piece, token in zip(pieces, answer, strict=True))
