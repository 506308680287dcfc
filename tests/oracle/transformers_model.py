"""The reference: transformers' DeepSeek in fp32 over the same checkpoint."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

LEAST_GAP = 1e-4


class Oracle:
    """Logits and greedy tokens of one checkpoint. FP8 checkpoints are refused: dequantise them first."""

    def __init__(self, directory: Path) -> None:
        transformers.logging.set_verbosity_error()
        config = transformers.AutoConfig.from_pretrained(directory)
        kind = {"deepseek_v3": transformers.DeepseekV3ForCausalLM, "deepseek_v2": transformers.DeepseekV2ForCausalLM}
        base = kind[config.model_type]
        layers = config.num_hidden_layers
        # transformers names layer 61 in a class attribute: the MTP layer of the published model.
        self._class = type(
            base.__name__, (base,), {"_keys_to_ignore_on_load_unexpected": [rf"model\.layers\.{layers}.*"]}
        )
        self.model: Any = self._class.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        self._mtp: Any = None

    @torch.inference_mode()
    def hidden_states(self, token_ids: list[int], positions: list[int] | None = None) -> torch.Tensor:
        """``[tokens, hidden]`` after the final norm; `positions` may jump, attention stays causal by order."""
        at = torch.arange(len(token_ids)) if positions is None else torch.tensor(positions)
        out = self.model.model(
            input_ids=torch.tensor([token_ids]),
            attention_mask=torch.ones(1, len(token_ids), dtype=torch.long),
            position_ids=at[None],
            use_cache=False,
        )
        hidden: torch.Tensor = out.last_hidden_state[0]
        return hidden

    @torch.inference_mode()
    def logits(self, token_ids: list[int], positions: list[int] | None = None) -> torch.Tensor:
        """``[tokens, vocab]``."""
        logits: torch.Tensor = self.model.lm_head(self.hidden_states(token_ids, positions))
        return logits

    @torch.inference_mode()
    def greedy(self, prompt: list[int], tokens: int) -> list[int]:
        """The continuation, every one of whose choices is clear by `LEAST_GAP`: a tie is not a test."""
        cache = transformers.DynamicCache(config=self.model.config)
        ids, out = torch.tensor([prompt]), []
        for _ in range(tokens):
            logits = self.model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1).logits[0, -1]
            best = logits.topk(2).values
            assert best[0] - best[1] > LEAST_GAP, (
                f"a tie after {len(prompt)} + {len(out)} tokens: choose another prompt"
            )
            out.append(int(logits.argmax()))
            ids = torch.tensor([out[-1:]])
        return out

    @torch.inference_mode()
    def mtp_logits(self, token_ids: list[int], drafts: Sequence[int] = ()) -> torch.Tensor:
        """``[tokens - 1 + drafts, vocab]``: row i is the MTP layer's guess at token i + 2.

        It is made from position i and token i + 1; beyond the tokens from the layer's own output and the drafts.
        """
        hidden = self.hidden_states(token_ids)[None, :-1]
        mtp = self._mtp_model()
        cache = MtpCache(config=self.model.config.get_mtp_config())
        given, first, outs = token_ids[1:], 1, []
        for following in (*([draft] for draft in drafts), []):
            positions = torch.arange(first, first + len(given))[None]
            out = mtp.forward_layer(0, hidden, positions, cache, input_ids=torch.tensor([given]))
            outs.append(out[0])
            hidden, first, given = out[:, -1:], first + len(given), following
        logits: torch.Tensor = mtp._project_to_logits(torch.cat(outs))
        return logits

    def _mtp_model(self) -> Any:
        if self._mtp is None:
            self._mtp = MtpModel.from_pretrained(self.model).eval()
        return self._mtp
