"""From documents to token streams: `train.npy` and `valid.npy`, 16-bit ids, each document BOS ... EOS.

About one document in eighty is held out by a hash of its title, so that both Bible translations of a held-out chapter
are held out together, and dialogues are cut from training documents only.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from models.train.dialogue import Dialogue, write_dialogues
from models.train.sources import Document, read_documents
from models.train.tokenizer import ASSISTANT, BOS, EOS, THINK, THINK_END, USER, save_tokenizer, train_tokenizer

PIECE_CHARS = 12_000
DIALOGUES = 60_000
HELD_OUT_ONE_IN = 80
MAX_LENGTH = 4096


def _pieces(document: Document) -> list[Document]:
    """Cut a long document between paragraphs into pieces of at most about PIECE_CHARS characters."""
    pieces, paragraphs, size = list[Document](), list[str](), 0
    for paragraph in document.paragraphs:
        if paragraphs and size + len(paragraph) > PIECE_CHARS:
            pieces.append(Document(document.source, document.title, tuple(paragraphs)))
            paragraphs, size = [], 0
        paragraphs.append(paragraph)
        size += len(paragraph) + 1
    return [*pieces, Document(document.source, document.title, tuple(paragraphs))]


def is_held_out(document: Document) -> bool:
    """True for the documents that the model never trains on."""
    key = document.title
    if document.source in ("shakespeare", "austen", "bierce"):
        key = f"{key}\n{document.paragraphs[0][:40]}"
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % HELD_OUT_ONE_IN == 0


def format_dialogue(dialogue: Dialogue) -> str:
    """One exchange as the chat template writes it, EOS included."""
    thought = f"{THINK}\n{dialogue.thought}\n{THINK_END}\n\n" if dialogue.thought else ""
    return f"{BOS}{USER}{dialogue.question}{ASSISTANT}{thought}{dialogue.answer}{EOS}"


def _stream(tokenizer: Tokenizer, texts: Sequence[str]) -> np.ndarray:
    encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    return np.concatenate([np.asarray(e.ids, dtype=np.uint16) for e in encodings])


def build_corpus(packages: Path, out: Path, seed: int = 0) -> dict[str, object]:
    """Read the unpacked packages, train the tokenizer, write the two streams and return what was counted."""
    out.mkdir(parents=True, exist_ok=True)
    documents = [d for d in read_documents(packages) if len(d.text) > 40]
    training = [p for d in documents if not is_held_out(d) for p in _pieces(d)]
    held_out = [p for d in documents if is_held_out(d) for p in _pieces(d)]
    dialogues = write_dialogues(training, DIALOGUES, seed)

    # Spurgeon is a third of the text: a quarter of it keeps the merges from being his alone.
    vocabulary_texts = [d.text for i, d in enumerate(training) if d.source != "spurgeon" or i % 4 == 0]
    tokenizer = train_tokenizer(vocabulary_texts + [f"{d.question}\n{d.thought}" for d in dialogues])
    save_tokenizer(tokenizer, out, MAX_LENGTH)

    texts = [f"{BOS}{d.text}{EOS}" for d in training] + [format_dialogue(d) for d in dialogues]
    order = np.random.default_rng(seed).permutation(len(texts))
    train = _stream(tokenizer, [texts[i] for i in order])
    valid = _stream(tokenizer, [f"{BOS}{d.text}{EOS}" for d in held_out])
    np.save(out / "train.npy", train)
    np.save(out / "valid.npy", valid)
    (out / "valid.txt").write_text("\n\n=====\n\n".join(f"[{d.source}] {d.text}" for d in held_out))

    text_bytes = dict[str, int]()
    for document in documents:
        text_bytes[document.source] = text_bytes.get(document.source, 0) + len(document.text.encode())
    counts: dict[str, object] = {
        "text_bytes": text_bytes,
        "train_documents": len(training),
        "valid_documents": len(held_out),
        "dialogues": len(dialogues),
        "train_tokens": int(train.size),
        "valid_tokens": int(valid.size),
        "valid_bytes": sum(len(d.text.encode()) for d in held_out),
    }
    (out / "corpus.json").write_text(json.dumps(counts, indent=2) + "\n")
    return counts
