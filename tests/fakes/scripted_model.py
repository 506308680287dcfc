"""A model whose next token is a function of every token before it, read from the cache.

The latent of a position holds its token and its position. The state after position p is the polynomial
``sum of (token_i + 1) * A ** (p - i) mod M`` over what the block table shows, so a wrong, stale or foreign block
changes the text. Position stamps are checked on top. The MTP layer extends the state by one token, hence drafts right
unless `wrong_draft` says otherwise, and checks its own layer of the cache.
"""

from collections.abc import Callable
from functools import lru_cache

import torch

from common.model.batch import AttentionForm, ForwardBatch, Schedule
from common.parallel.waits import Waits

A = 31
M = 65_521
WIDTH = 2
LONGEST = 4096
_PLACES = torch.arange(LONGEST, dtype=torch.float32)
_POWERS = torch.tensor([pow(A, LONGEST - 1 - i, M) for i in range(LONGEST)])  # ..., A ** 2, A, 1


class ScriptedModel:
    has_mtp = True
    latent_layers = 2
    latent_width = WIDTH

    def __init__(
        self,
        vocab_size: int = 97,
        wrong_draft: Callable[[int], bool] = lambda position: False,
        step_error: Callable[[ForwardBatch], RuntimeError | None] = lambda batch: None,
        spread: float = 8.0,
    ) -> None:
        self.vocab_size = vocab_size
        self.wrong_draft = wrong_draft
        self.step_error = step_error
        self.poisoned: set[int] = set()
        self.announced: tuple[int, ...] = ()
        self.batches: list[ForwardBatch] = []
        self._first_slots: set[int] = set()
        self._table = _logits_by_state(vocab_size, spread)

    def hidden_states(
        self,
        batch: ForwardBatch,
        cache: torch.Tensor,
        *,
        form: AttentionForm,
        schedule: Schedule,
        announce: int | None = None,
    ) -> Waits[torch.Tensor]:
        yield
        error = self.step_error(batch)
        if error is not None:
            raise error
        self.batches.append(batch)
        self.announced = (announce or 0,)
        _write(cache, 0, batch.slots, batch.token_ids, batch.positions)
        self._first_slots = {int(slots[0]) for slots in batch.slots.split(batch.query_tokens.tolist()) if len(slots)}
        states: list[int] = []
        for tokens, start, query in _sequences(batch, cache, 0):
            state = int(((tokens[:start] + 1) * _POWERS[-start:]).sum()) % M if start else 0
            for token in tokens[start:].tolist():
                state = (state * A + token + 1) % M
                states.append(state)
            assert query == len(tokens) - start
        hidden = torch.zeros(batch.tokens, 2)
        hidden[:, 0] = torch.tensor(states, dtype=torch.float32)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self._table[hidden[:, 0].long()].clone()
        for row, state in enumerate(hidden[:, 0].long().tolist()):
            if state in self.poisoned:
                logits[row] = float("nan")
        return logits

    def mtp_hidden_states(
        self,
        batch: ForwardBatch,
        cache: torch.Tensor,
        previous_hidden: torch.Tensor,
        *,
        form: AttentionForm,
        schedule: Schedule,
    ) -> Waits[torch.Tensor]:
        yield
        _write(cache, 1, batch.slots, batch.token_ids, batch.positions)
        block_tokens = int(cache.shape[2])
        sequences = _sequences(batch, cache, 1)
        first_slots = [int(slots[0]) for slots in batch.slots.split(batch.query_tokens.tolist())] if sequences else []
        for i, (ahead, start, _) in enumerate(sequences):
            if first_slots[i] not in self._first_slots:
                continue  # a further draft's pass: the main layers have not been here yet
            if start < 2:
                continue
            tokens = _rows(batch, cache, 0, i)[:start, 0].long()
            wrong = ahead[: start - 1] != tokens[1:]
            wrong[block_tokens - 1 :: block_tokens] = False  # a shared block's last slot may know another continuation
            assert not wrong.any(), f"MTP slots {wrong.nonzero().flatten().tolist()}"
        out = torch.zeros(batch.tokens, 2)
        out[:, 0] = (previous_hidden[:, 0].long() * A + batch.token_ids + 1).remainder(M).float()
        out[:, 1] = torch.tensor([self.wrong_draft(p + 2) for p in batch.positions.tolist()], dtype=torch.float32)
        return out

    def mtp_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.logits(hidden)
        return torch.where(hidden[:, 1:] > 0, -logits, logits)

    def greedy(self, prompt: tuple[int, ...], count: int, stop: frozenset[int] = frozenset()) -> list[int]:
        """The greedy continuation, computed without any cache."""
        state = 0
        for token in prompt:
            state = (state * A + token + 1) % M
        out: list[int] = []
        while len(out) < count:
            out.append(int(self._table[state].argmax()))
            if out[-1] in stop:
                break
            state = (state * A + out[-1] + 1) % M
        return out


@lru_cache
def _logits_by_state(vocab_size: int, spread: float) -> torch.Tensor:
    return torch.randn(M, vocab_size, generator=torch.Generator().manual_seed(7)) * spread / 4


def _write(
    cache: torch.Tensor, layer: int, slots: torch.Tensor, token_ids: torch.Tensor, positions: torch.Tensor
) -> None:
    block_tokens = cache.shape[2]
    rows = torch.zeros(len(slots), WIDTH, dtype=cache.dtype)
    rows[:, 0], rows[:, 1] = token_ids, positions
    cache[slots // block_tokens, layer, slots % block_tokens] = rows


def _sequences(batch: ForwardBatch, cache: torch.Tensor, layer: int) -> list[tuple[torch.Tensor, int, int]]:
    """Each sequence's tokens as its block table shows them, its first new position, its number of new tokens."""
    out = []
    for i in range(batch.sequences):
        total, query = int(batch.total_tokens[i]), int(batch.query_tokens[i])
        rows = _rows(batch, cache, layer, i)
        assert torch.equal(rows[:, 1], _PLACES[:total]), f"positions {rows[:, 1].tolist()} in layer {layer}"
        out.append((rows[:, 0].long(), total - query, query))
    return out


def _rows(batch: ForwardBatch, cache: torch.Tensor, layer: int, i: int) -> torch.Tensor:
    """The latent of sequence i's positions, ``[total tokens, width]``."""
    total = int(batch.total_tokens[i])
    table = batch.block_tables[i, : -(-total // cache.shape[2])].long()
    return cache[table, layer].reshape(-1, cache.shape[3])[:total]
