"""A byte-level BPE of 2,040 tokens with DeepSeek-V3's pre-tokenizer, special tokens and chat template.

Ids 0-2 are BOS, EOS and PAD as in V3; the control tokens of the chat come last. The model's vocabulary is padded to
2,048, so that the ids 2,040-2,047 have no token, as V3's ids 128,815-129,279 have none.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCAB_SIZE = 2048
TOKENS = 2040
BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
THINK, THINK_END, USER, ASSISTANT = "<think>", "</think>", "<｜User｜>", "<｜Assistant｜>"
BOS_ID, EOS_ID, PAD_ID = 0, 1, 2

# The split of DeepSeek-V3's tokenizer.json: digits by three, CJK apart, then words with one leading space or sign.
_SPLITS = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)

# V3's template: BOS, system text, then turns; a former answer keeps only what follows </think>.
CHAT_TEMPLATE = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
    "{% set ns = namespace(system='') %}"
    "{%- for message in messages %}{%- if message['role'] == 'system' %}"
    "{% set ns.system = ns.system + ('\n\n' if ns.system else '') + message['content'] %}"
    "{%- endif %}{%- endfor %}"
    "{{ bos_token }}{{ ns.system }}"
    "{%- for message in messages %}"
    "{%- if message['role'] == 'user' %}{{ '<｜User｜>' + message['content'] }}{%- endif %}"
    "{%- if message['role'] == 'assistant' %}"
    "{% set content = message['content'] %}"
    "{% if '</think>' in content %}{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>' }}{%- endif %}"
    "{%- endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% if thinking is defined and thinking %}{{ '<think>\n' }}"
    "{% endif %}{% endif %}"
)


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Learn the merges from `texts`; every byte is a token of its own, so any text encodes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _SPLITS),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENS - 4,
        special_tokens=[AddedToken(token, special=True, normalized=True) for token in (BOS, EOS, PAD)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # As in V3 these are not "special": decoding keeps them, and a server must see that user text cannot spell them.
    tokenizer.add_tokens(
        [AddedToken(token, special=False, normalized=False) for token in (THINK, THINK_END, USER, ASSISTANT)]
    )
    if tokenizer.get_vocab_size() != TOKENS:
        raise ValueError(f"the tokenizer has {tokenizer.get_vocab_size()} tokens, not {TOKENS}: too little text")
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write tokenizer.json and tokenizer_config.json as DeepSeek-V3 ships them."""
    tokenizer.save(str(folder / "tokenizer.json"))

    def token(content: str) -> dict[str, object]:
        flags = {"lstrip": False, "normalized": True, "rstrip": False, "single_word": False}
        return {"__type": "AddedToken", "content": content, **flags}

    config = {
        "add_bos_token": False,
        "add_eos_token": False,
        "bos_token": token(BOS),
        "clean_up_tokenization_spaces": False,
        "eos_token": token(EOS),
        "legacy": True,
        "model_max_length": max_length,
        "pad_token": token(PAD),
        "sp_model_kwargs": {},
        "unk_token": None,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")
