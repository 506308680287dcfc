"""The page that says, for three workloads, what 128 H100s or 64 H200s should run."""

from dataclasses import dataclass, replace

from common.errors import InvalidInput
from loadgen.planner.answers import workload_sections
from loadgen.planner.fit import Constants
from loadgen.planner.hardware import hardware
from loadgen.planner.model_shapes import model_shape
from loadgen.planner.ratio import Fleet, Recommendation, recommend
from loadgen.planner.section import Cell, Section, joined, markdown
from loadgen.planner.workload import PRESETS

FLEETS = (("h100", 128), ("h200", 64))
_STACK = "measured-2026"


@dataclass(frozen=True, slots=True)
class Question:
    """One workload with its bounds, and why those."""

    preset: str
    ttft_s: float
    itl_s: float
    why: str


QUESTIONS = (
    Question("chat", 5.0, 0.05, "People read at some 20 tokens/s; prompts carry a long conversation."),
    Question("long-context-code", 5.0, 0.03, "A tool waits for the whole, short answer over a long repository."),
    Question("reasoning", 2.0, 0.03, "Thousands of tokens before an answer: speed of output is what is waited for."),
)


def answers(constants: Constants) -> dict[tuple[str, str], Recommendation]:
    """The recommendation for every (preset, hardware)."""
    return {
        (q.preset, name): recommend(PRESETS[q.preset], _fleet(constants, q, name), gpus=gpus)
        for q in QUESTIONS
        for name, gpus in FLEETS
    }


def _fleet(constants: Constants, question: Question, name: str) -> Fleet:
    return Fleet(model_shape("deepseek-v3"), hardware(name), constants.stack(_STACK), question.ttft_s, question.itl_s)


def workload_page(constants: Constants) -> str:
    """The whole page as Markdown."""
    found = answers(constants)
    parts = [_HEAD, markdown(_overview(found), level=2)]
    for question in QUESTIONS:
        load = PRESETS[question.preset]
        parts.append(f"## {question.preset}\n\n{question.why} Source of lengths: {load.source}.\n")
        parts.append(_reasons(question, found))
        for name, gpus in FLEETS:
            answer, fleet = found[question.preset, name], _fleet(constants, question, name)
            parts.append(joined(workload_sections(load, answer, fleet, gpus)))
        parts.append(markdown(_sensitivity(question, constants)))
    return "\n".join([*parts, _FOOT])


def _overview(found: dict[tuple[str, str], Recommendation]) -> Section:
    rows = []
    for question in QUESTIONS:
        for name, gpus in FLEETS:
            r = found[question.preset, name]
            rows.append(
                (
                    question.preset,
                    f"{gpus} {name}",
                    f"{r.prefill_groups} x EP{r.prefill.ep} TP{r.prefill.tp}",
                    f"{r.decode_groups} x EP{r.decode.ep} TP{r.decode.tp} b{r.decode.batch}",
                    f"{r.prefill_gpus}:{r.decode_gpus}",
                    r.requests_per_s,
                    f"{r.interval[0]:.1f} to {r.interval[1]:.1f}",
                    r.output_tokens_per_s,
                    r.cost_per_million_output,
                )
            )
    columns = (
        "workload", "fleet", "prefill", "decode", "P:D GPUs",
        "requests/s", "90 %", "output tokens/s", "$ a million out",
    )  # fmt: skip
    return Section("In one table", columns, tuple(rows), ("", "", "", "", "", ",.1f", "", ",.0f", ",.2f"))


def _reasons(question: Question, found: dict[tuple[str, str], Recommendation]) -> str:
    """Why: which pool dominates, what limits the chosen decode point, and how fleets compare."""
    load = PRESETS[question.preset]
    lines = []
    for name, gpus in FLEETS:
        r = found[question.preset, name]
        memory = r.decode.memory
        lines.append(
            f"- {gpus} {name}: prefill takes {r.prefill_gpus / (r.prefill_gpus + r.decode_gpus):.0%} of the GPUs for "
            f"{load.new_mean:,.0f} new prompt tokens against {load.output_mean:,.0f} output tokens a request. A decode "
            f"GPU holds {memory.weights_bytes / 1e9:.0f} GB of weights and {memory.cache_bytes / 1e9:.0f} GB of "
            f"latent; its layer spends most in {r.decode.limiter}. The {r.bound_by} pool is full first."
        )
    first, second = (found[question.preset, name] for name, _ in FLEETS)
    (a, gpus_a), (b, gpus_b) = FLEETS
    per_gpu = (second.requests_per_s / gpus_b) / (first.requests_per_s / gpus_a)
    lines.append(
        f"- One {b} serves {per_gpu:.2f} times the requests of one {a}. At the assumed prices the {a} fleet costs "
        f"${first.cost_per_million_output:.2f} a million output tokens, the {b} fleet "
        f"${second.cost_per_million_output:.2f}."
    )
    return "\n".join(lines) + "\n"


def _sensitivity(question: Question, constants: Constants) -> Section:
    """The same question on the first fleet with its least known inputs moved."""
    name, gpus = FLEETS[0]
    base = PRESETS[question.preset]
    fleet = _fleet(constants, question, name)
    cases = [
        ("as asked", base, fleet),
        ("no prefix hits", base.with_hit_rate(0.0), fleet),
        ("hits + 20 points", base.with_hit_rate(min(base.hit_rate + 0.2, 0.95)), fleet),
        ("drafts accepted 85 %", base, replace(fleet, acceptance=0.85)),
        ("twice as long a token", base, replace(fleet, itl_s=2 * fleet.itl_s)),
    ]
    rows: list[tuple[Cell, ...]] = []
    for what, load, case in cases:
        try:
            r = recommend(load, case, gpus=gpus)
        except InvalidInput as error:
            rows.append((what, None, str(error), ""))
            continue
        split = f"{r.prefill_groups} x EP{r.prefill.ep} : {r.decode_groups} x EP{r.decode.ep} TP{r.decode.tp}"
        rows.append((what, r.requests_per_s, split, r.bound_by))
    title = f"If the inputs are other than assumed, {gpus} {name}"
    return Section(title, ("case", "requests/s", "prefill : decode", "bound by"), tuple(rows), ("", ",.1f", "", ""))


_HEAD = """# What to run for three workloads

Made by `tandem plan --write-docs docs`; nothing here was run on such a fleet. DeepSeek-V3 with one draft token at 60 %
acceptance, 32 or more copies of hot experts (hottest rank 11 % above the mean), kernels as measured on H200, DeepEP's
published network times. Intervals hold the residuals of the kernel tables and the root mean square error against
published systems; they do not hold what a workload may do that its trace does not show. Prices are assumed.
"""
_FOOT = """## How far to trust this

- Requests/s is the load at which the p90 first token still meets its bound with Poisson arrivals; burstier traffic
  needs head room. Decode slots are taken as 90 % full.
- "Best in x % of draws" moves the errors of both pools independently. Where it is far below 100 %, the two splits named
  are equal for every practical purpose: choose the one with smaller groups, since a group fails as one.
- Lengths are as correlated as the trace has them only in the mean context; a pool sees their mean, not their tail.
- No figure includes failures, weight loading, or a scheduler that places badly.
"""
