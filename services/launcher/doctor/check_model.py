"""Whether the model directory is all there. Pure."""

from collections.abc import Iterator

from services.launcher.doctor.check_gpus import CAPABILITY
from services.launcher.doctor.facts import Facts
from services.launcher.doctor.finding import Finding, error, warning

_SHOWN = 3


def check_model(facts: Facts) -> Iterator[Finding]:
    model, store = facts.model, "model.download.enabled"
    if model.faults:
        more = f" and {len(model.faults) - _SHOWN} more" if len(model.faults) > _SHOWN else ""
        found = "; ".join(model.faults[:_SHOWN]) + more
        yield error("model-files", found, "every file that the index names, whole", store)
    if not model.has_tokenizer:
        yield warning("tokenizer", "no tokenizer.json", "text and chat need it, token ids do not", store)
    quantisation = model.config.get("quantization_config")
    method = quantisation.get("quant_method") if isinstance(quantisation, dict) else None
    if method not in (None, "fp8"):
        yield error("model-format", f"quant_method = {method}", "fp8 as DeepSeek publishes it", "model.store.directory")
    if facts.on_gpu and facts.config.model.dtype == "float32":
        limit = f"bfloat16: kernels for compute capability {CAPABILITY} take no fp32 latent"
        yield error("latent-dtype", "model.dtype = float32 on GPUs", limit, "layout.dtype")
