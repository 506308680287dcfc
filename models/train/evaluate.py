"""What the checkpoint can do: held-out loss, how often the MTP draft is accepted, and text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy

from models.train.network import Network
from models.train.tokenizer import ASSISTANT, BOS, EOS_ID, TOKENS, USER

CHAT_QUESTIONS = (
    "Tell me about the sea.",
    "What can you say of love?",
    "Write a few lines about death in the manner of Shakespeare.",
    "What is written about mercy?",
    "Tell me about marriage in the words of Jane Austen.",
    "Speak as Hamlet in Hamlet.",
    "Continue: And it came to pass in those days, that",
    "Define patience.",
    "Who are you?",
    "What does the King James Bible say of wisdom?",
    "Speak to me of the king.",
    "Go on from here: She was not handsome, but",
)
PLAIN_PROMPTS = (
    "In the beginning",
    "The LORD is my",
    "To be, or not to be,",
    "It is a truth universally acknowledged, that",
)


@dataclass(frozen=True, slots=True)
class Loss:
    """Mean cross-entropy over held-out text, nats per token, of the next token and of the MTP layer's second token."""

    next_nats: float
    draft_nats: float


@torch.no_grad()
def held_out_loss(network: Network, tokens: Tensor, window: int = 1024, batch: int = 16) -> Loss:
    """Loss over `tokens` `[n]` cut into windows; the first tokens of a window have little context, which counts too."""
    network.eval()
    windows = tokens[: tokens.numel() // window * window].view(-1, window)
    sums, counts = [0.0, 0.0], [0, 0]
    for rows in windows.split(batch):
        for index, logits in enumerate(network(rows)):
            targets = rows[:, 1 + index :]
            loss = cross_entropy(
                logits[:, : targets.shape[1]].flatten(0, 1).float(), targets.flatten(), reduction="sum"
            )
            sums[index] += loss.item()
            counts[index] += targets.numel()
    return Loss(sums[0] / counts[0], sums[1] / counts[1])


@torch.no_grad()
def generate(network: Network, prompt: Tensor, count: int, temperature: float, noise: Tensor | None) -> Tensor:
    """Extend `prompt` `[batch, n]` by `count` tokens -> `[batch, n + count]`.

    A token is the largest of logits / temperature + Gumbel noise `[batch, count, vocab]`; temperature 0 takes the
    largest logit. Ids without a token are never drawn.
    """
    cache: list[Tensor] = []
    tokens, new = prompt, prompt
    for step in range(count):
        logits = network.lm_head(network.hidden(new, cache)[:, -1]).float()
        new = draw(logits, temperature, None if noise is None else noise[:, step])[:, None]
        tokens = torch.cat((tokens, new), dim=1)
    return tokens


def draw(logits: Tensor, temperature: float, noise: Tensor | None) -> Tensor:
    """The token of each row of `logits` `[..., vocab]` under the given noise."""
    if temperature > 0 and noise is not None:
        logits = logits / temperature + noise
    return logits[..., :TOKENS].argmax(-1)


def gumbel_noise(batch: int, count: int, vocab: int, seed: int, device: torch.device) -> Tensor:
    """Standard Gumbel noise `[batch, count, vocab]`."""
    uniform = torch.rand(batch, count, vocab, generator=torch.Generator().manual_seed(seed)).clamp_(1e-9, 1 - 1e-7)
    return -(-uniform.log()).log().to(device)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Of the drafts that a decoder with one draft a step would have made, how many it would have accepted."""

    drafted: int
    accepted: int

    @property
    def rate(self) -> float:
        return self.accepted / max(self.drafted, 1)

    def __add__(self, other: "Acceptance") -> "Acceptance":
        return Acceptance(self.drafted + other.drafted, self.accepted + other.accepted)


def walk(agrees: Sequence[bool]) -> Acceptance:
    """Step through one text: `agrees[i]` says whether the draft for its token i is that token.

    Each step commits one sure token and tests the draft of the next; an accepted draft is committed in the same step.
    """
    drafted = accepted = 0
    position = 1
    while position < len(agrees):
        drafted += 1
        accepted += agrees[position]
        position += 2 if agrees[position] else 1
    return Acceptance(drafted, accepted)


@torch.no_grad()
def acceptance(network: Network, prompt: Tensor, count: int, temperature: float, seed: int) -> Acceptance:
    """Generate from `prompt` `[batch, n]` and count accepted drafts; a draft and its token share their noise."""
    network.eval()
    batch, start = prompt.shape
    noise = gumbel_noise(batch, count, network.shape.vocab_size, seed, prompt.device) if temperature > 0 else None
    tokens = generate(network, prompt, count, temperature, noise)
    _, draft_logits = network(tokens)
    # Draft logits at i are for token i + 2, so those for the generated tokens begin at start - 2.
    drafts = draw(draft_logits[:, start - 2 : start - 2 + count].float(), temperature, noise)
    generated = tokens[:, start:]
    total = Acceptance(0, 0)
    for row, draft in zip(generated.tolist(), drafts.tolist(), strict=True):
        length = row.index(EOS_ID) + 1 if EOS_ID in row else len(row)
        total += walk([a == b for a, b in zip(row[:length], draft[:length], strict=True)])
    return total


def chat_prompt(tokenizer: Tokenizer, question: str) -> list[int]:
    ids: list[int] = tokenizer.encode(f"{BOS}{USER}{question}{ASSISTANT}", add_special_tokens=False).ids
    return ids


def measure(
    network: Network, tokenizer: Tokenizer, valid: np.ndarray, valid_bytes: int, texts: int
) -> dict[str, object]:
    """Everything the model's README reports, as plain data. `valid` is the held-out stream of ids."""
    device = network.embed_tokens.weight.device
    tokens = torch.from_numpy(valid.astype(np.int64)).to(device)
    loss = held_out_loss(network, tokens)
    starts = np.linspace(0, tokens.numel() - 64, texts).astype(int)
    plain = torch.stack([tokens[s : s + 32] for s in starts])
    chats = [torch.tensor([chat_prompt(tokenizer, q)], device=device) for q in CHAT_QUESTIONS]
    rates = dict[str, dict[str, float]]()
    for temperature in (0.0, 0.7):
        on_text = acceptance(network, plain, 128, temperature, seed=1)
        on_chat = sum((acceptance(network, c, 96, temperature, seed=2) for c in chats), Acceptance(0, 0))
        both = on_text + on_chat
        rates[f"temperature {temperature}"] = {
            "held-out text": round(on_text.rate, 4),
            "chat": round(on_chat.rate, 4),
            "all": round(both.rate, 4),
            "drafts": both.drafted,
            "tokens per step": round(1 + both.rate, 4),
        }
    return {
        "next_token_nats": round(loss.next_nats, 4),
        "perplexity_per_token": round(math.exp(loss.next_nats), 2),
        "bits_per_byte": round(loss.next_nats / math.log(2) * tokens.numel() / valid_bytes, 4),
        "mtp_nats": round(loss.draft_nats, 4),
        "mtp_acceptance": rates,
        "samples": write_samples(network, tokenizer),
    }


def write_samples(network: Network, tokenizer: Tokenizer, count: int = 120) -> list[dict[str, object]]:
    """Greedy and drawn continuations of fixed prompts."""
    device = network.embed_tokens.weight.device
    samples = list[dict[str, object]]()
    prompts = [(p, tokenizer.encode(p, add_special_tokens=False).ids) for p in PLAIN_PROMPTS]
    prompts += [(q, chat_prompt(tokenizer, q)) for q in CHAT_QUESTIONS]
    for seed, (text, ids) in enumerate(prompts):
        for temperature in (0.0, 0.7):
            noise = gumbel_noise(1, count, network.shape.vocab_size, seed, device)
            out = generate(network, torch.tensor([ids], device=device), count, temperature, noise)[
                0, len(ids) :
            ].tolist()
            out = out[: out.index(EOS_ID)] if EOS_ID in out else out
            samples.append({"prompt": text, "temperature": temperature, "text": tokenizer.decode(out)})
    return samples
