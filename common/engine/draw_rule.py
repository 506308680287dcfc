"""How one sequence's tokens are drawn: its parameters, and what penalties need to know of its past."""

from collections.abc import Iterable

import torch

from common.request import Work


class DrawRule:
    """Lives with the sequence on the leading rank, which alone draws.

    Penalties depend on the tokens before a position and on nothing else, so a draw is the same in any batch, with and
    without drafts, and after a resume: presence and frequency count generated tokens (from ``Work.prompt_tokens`` on),
    repetition looks at the prompt too.
    """

    def __init__(self, work: Work, vocab_size: int, device: torch.device) -> None:
        self.sampling = work.sampling
        self.limits = work.limits
        self.prompt_tokens = work.prompt_tokens
        self.top_logprobs = work.logprobs
        sampling = work.sampling
        self.counts_generated = sampling.presence_penalty != 0 or sampling.frequency_penalty != 0
        self.counts_seen = sampling.repetition_penalty != 1
        self._generated = torch.zeros(vocab_size if self.counts_generated else 0, device=device)
        self._seen = torch.zeros(vocab_size if self.counts_seen else 0, dtype=torch.bool, device=device)
        self._device = device
        self.bias_ids = self._ids(sampling.logit_bias)
        self.bias = torch.tensor(list(sampling.logit_bias.values()), dtype=torch.float32, device=device)
        self.stop_ids = self._ids(work.limits.stop_token_ids)
        if self.counts_seen:
            self._seen[self._ids(work.token_ids)] = True
        self._count(self._generated, work.token_ids[work.prompt_tokens :])

    def append(self, token_ids: tuple[int, ...]) -> None:
        """Take tokens that are now part of the sequence into account."""
        self._count(self._generated, token_ids)
        if self.counts_seen:
            self._seen[self._ids(token_ids)] = True

    def masks_stop(self, position: int) -> bool:
        return position - self.prompt_tokens < self.limits.min_tokens and bool(self.limits.stop_token_ids)

    def alters(self, position: int) -> bool:
        """Whether logits at `position` differ from the model's before they are drawn from."""
        return self.counts_generated or self.counts_seen or self.bias.numel() > 0 or self.masks_stop(position)

    def alter(self, logits: torch.Tensor, position: int, ahead: tuple[int, ...]) -> torch.Tensor:
        """Logits ``[vocab]`` fp32 with penalties, bias and the stop mask; `ahead` are drafts before `position`."""
        out = logits.clone()
        if self.counts_seen:
            seen = self._seen
            if ahead:
                seen = seen.clone()
                seen[self._ids(ahead)] = True
            penalty = self.sampling.repetition_penalty
            out = torch.where(seen, torch.where(out > 0, out / penalty, out * penalty), out)
        if self.counts_generated:
            generated = self._generated
            if ahead:
                generated = generated.clone()
                self._count(generated, ahead)
            out -= self.sampling.frequency_penalty * generated
            out -= self.sampling.presence_penalty * (generated > 0)
        if self.bias.numel():
            out[self.bias_ids] += self.bias
        if self.masks_stop(position):
            out[self.stop_ids] = float("-inf")
        return out

    def _count(self, counts: torch.Tensor, token_ids: tuple[int, ...]) -> None:
        if self.counts_generated and token_ids:
            ids = self._ids(token_ids)
            counts.index_add_(0, ids, torch.ones(len(token_ids), device=self._device))

    def _ids(self, token_ids: Iterable[int]) -> torch.Tensor:
        return torch.tensor(list(token_ids), dtype=torch.int64, device=self._device)
