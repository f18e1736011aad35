"""PRELUDE's other measures by the packages themselves: NLTK's words, GPT-4's tokens, BERTScore by a real model.

Two of the packages and the data of all three are no dependencies: pip brings them to a directory of the test. The data
come in a wheel of llama-index-core, which carries NLTK's `punkt_tab` and tiktoken's file of cl100k_base.
"""

from __future__ import annotations

import os
import subprocess
import sys
from ast import literal_eval
from pathlib import Path

import pytest
from pretrained_toy import real_model

TEXT = "Don't stop: it's 5 o'clock. Be brief!"
WORDS = ["Do", "n't", "stop", ":", "it", "'s", "5", "o'clock", ".", "Be", "brief", "!"]
PIECES = [b"Don", b"'t", b" stop", b":", b" it", b"'s", b" ", b"5", b" o", b"'clock", b".", b" Be", b" brief", b"!"]
PROGRAM = """
import sys
import tiktoken
from finegrained_lab.protocols.prelude.similarity import BertScore
from finegrained_lab.protocols.prelude.run import cost_tokeniser
text, model = sys.argv[1:]
print(cost_tokeniser("nltk")(text))
encoding = tiktoken.get_encoding("cl100k_base")
print([encoding.decode_single_token_bytes(int(token)) for token in cost_tokeniser("tiktoken")(text)])
similarity = BertScore(model, layer=5, device="cpu")
texts = ("bullet points, short", "short bullet points", "emojis")
print([similarity(texts[0], other) for other in texts])
"""


@pytest.mark.slow
@pytest.mark.pretrained
def test_words_tokens_and_similarity_of_the_real_packages(tmp_path_factory: pytest.TempPathFactory) -> None:
    model, folder = real_model(tmp_path_factory, "minilm"), tmp_path_factory.mktemp("packages")
    names = ["bert-score", "tiktoken", "llama-index-core"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *names]
    if (done := subprocess.run(pip, capture_output=True, text=True, check=False)).returncode:
        pytest.skip(f"pip cannot have {', '.join(names)}: {done.stderr.strip().splitlines()[-1]}")
    data = folder / "llama_index/core/_static"
    found = {"NLTK_DATA": str(data / "nltk_cache"), "TIKTOKEN_CACHE_DIR": str(data / "tiktoken_cache")}
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, **found, "PYTHONPATH": os.pathsep.join((root, str(folder))), "HF_HUB_OFFLINE": "1"}
    call = [sys.executable, "-c", PROGRAM, TEXT, str(model)]
    done = subprocess.run(call, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    words, pieces, similarities = (literal_eval(line) for line in done.stdout.splitlines())
    assert words == WORDS and pieces == PIECES
    same, reordered, other = similarities
    assert same == pytest.approx(1.0, abs=1e-5) and 1 > reordered > 0.85 > 0.6 > other
