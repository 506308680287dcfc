"""The command `tandem`. Each command imports what it needs when it runs: a machine without torch has the rest."""

import importlib
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from common.errors import TandemError
from services.launcher.end_on import end_on

app = typer.Typer(
    name="tandem",
    help="Serve DeepSeek-V3/R1-class models with prefill and decode in separate pools.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Config = Annotated[Path, typer.Argument(help="The cluster's YAML file.")]
Settings = Annotated[list[str], typer.Option("--set", help="dotted.field=value over the file; may be repeated.")]
RunDir = Annotated[Path | None, typer.Option("--run-dir", help="Logs and endpoints; run/<cluster> unless given.")]
Logs = Annotated[Literal["text", "json"], typer.Option("--log-format", help="Of what the processes log.")]
KeepGoing = Annotated[bool, typer.Option("--keep-going", help="Stay up when a process dies.")]
At = Annotated[str, typer.Option("--at", help="host:port of a scheduler; unless given, the cluster that runs here.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", min=1)]
Temperature = Annotated[float | None, typer.Option("--temperature", min=0.0, max=2.0)]
Seed = Annotated[int | None, typer.Option("--seed")]
Json = Annotated[Path | None, typer.Option("--json", help="Also write what was printed, as JSON.")]

FOREIGN = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command()
def up(
    config: Config,
    settings: Settings = [],  # noqa: B006
    run_dir: RunDir = None,
    keep_going: KeepGoing = False,
    log_format: Logs = "text",
) -> None:
    """Start a whole cluster on this machine and show it until Ctrl-C (exit code 130), SIGTERM or SIGHUP (0)."""
    end_on(signal.SIGTERM, 0)  # who runs it as a service ends it so
    end_on(signal.SIGHUP, 0)
    from services.launcher.up import run_up

    run_up(config, settings, run_dir, keep_going=keep_going, log_format=log_format)


@app.command()
def demo(
    prompt: Annotated[str, typer.Option("--prompt")] = "In the beginning",
    max_tokens: MaxTokens = 120,
    model: Annotated[Path | None, typer.Option("--model", help="A model directory instead of the bundled one.")] = None,
    json_path: Json = None,
) -> None:
    """Start a cluster with the demonstration model, let it answer, print what was measured, and stop."""
    from services.launcher.demo import run_demo

    run_demo(prompt, max_tokens, model, json_path)


@app.command()
def generate(
    text: Annotated[str, typer.Argument(help="The prompt, continued as it is.")],
    at: At = "",
    max_tokens: MaxTokens = 200,
    temperature: Temperature = None,
    seed: Seed = None,
    stats: Annotated[bool, typer.Option("--stats", help="Print usage and time ledger at the end.")] = False,
) -> None:
    """Stream the continuation of a text; on a terminal, say how to ask where its time went."""
    from services.launcher.ask import run_generate

    run_generate(text, at, max_tokens, temperature, seed, stats=stats)


@app.command()
def chat(at: At = "", max_tokens: MaxTokens = 400, temperature: Temperature = None, seed: Seed = None) -> None:
    """Talk to the model, turn by turn; an empty line, Ctrl-D or Ctrl-C ends."""
    from services.launcher.ask import run_chat

    run_chat(at, max_tokens, temperature, seed)


@app.command()
def why(request_id: Annotated[str, typer.Argument()], at: At = "") -> None:
    """Say where a recent request was placed, what else it would have cost, and where its time went."""
    from services.launcher.why import run_why

    run_why(request_id, at)


@app.command()
def status(at: At = "") -> None:
    """Show the pools of a running cluster."""
    from services.launcher.status import run_status

    run_status(at)


@app.command()
def fetch(
    url: Annotated[str, typer.Option("--from", help="The directory's address, http:// or https://.")],
    into: Annotated[Path, typer.Option("--into", help="The directory here.")],
    sums: Annotated[str, typer.Option("--sums", help="The list of files, as sha256sum writes it.")] = "SHA256SUMS",
    only: Annotated[list[str] | None, typer.Option("--only", help="A pattern of names; may be repeated.")] = None,
) -> None:
    """Bring a model directory here: continued after a break, verified, and left alone once it is complete."""
    from services.launcher.fetch import run_fetch

    run_fetch(url, sums, into, only or ["*"])


@app.command()
def doctor(
    config: Annotated[Path, typer.Option("--config", help="The cluster's YAML file.")],
    role: Annotated[Literal["prefill", "decode", "scheduler"], typer.Option("--role", help="What shall run here.")],
    settings: Settings = [],  # noqa: B006
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    patient: Annotated[bool, typer.Option("--wait", help="Give Redis and NATS their time to start.")] = False,
    hold_s: Annotated[float, typer.Option("--hold", help="Seconds to stay after an error.")] = 0.0,
) -> None:
    """Check this machine, the model, Redis, NATS and running instances; each finding names the setting to change."""
    from services.launcher.doctor.run import run_doctor

    raise typer.Exit(run_doctor(config, role, settings, as_json=as_json, patient=patient, hold_s=hold_s))


@app.command(context_settings=FOREIGN, add_help_option=False)
def load(context: typer.Context) -> None:
    """Put load on a running cluster and report latencies."""
    from services.launcher.run_directory import find_endpoint

    _foreign("loadgen.cli", "tandem load", context.args, defaults={"at": lambda: find_endpoint().schedulers[0]})


@app.command(context_settings=FOREIGN, add_help_option=False)
def plan(context: typer.Context) -> None:
    """Predict the throughput and latency of a cluster from its shape."""
    _foreign("loadgen.planner.cli", "tandem plan", context.args)


bench = typer.Typer(help="Measure this machine.", no_args_is_help=True)
app.add_typer(bench, name="bench")


@bench.command("services")
def bench_services(
    model: Annotated[Path | None, typer.Option("--model", help="A model directory instead of the bundled one.")] = None,
    json_path: Json = None,
) -> None:
    """What the services cost: decode overhead, exposed transfer, prefix lookup, the demonstration's start."""
    from services.launcher.bench import run_bench

    run_bench(model, json_path)


@bench.command("kernels", context_settings=FOREIGN, add_help_option=False)
def bench_kernels(context: typer.Context) -> None:
    """Measure every kernel against its reference and its roof."""
    _foreign("kernels.bench.cli", "tandem bench", ["kernels", *context.args])


@bench.command("layer", context_settings=FOREIGN, add_help_option=False)
def bench_layer(context: typer.Context) -> None:
    """Measure one layer of the model."""
    _foreign("kernels.bench.cli", "tandem bench", ["layer", *context.args])


def command_names() -> list[str]:
    """Every first word after `tandem`."""
    names = [c.name or getattr(c.callback, "__name__", "") for c in app.registered_commands]
    return names + [group.name or "" for group in app.registered_groups]


def _foreign(
    module: str, name: str, arguments: list[str], defaults: Mapping[str, Callable[[], str]] | None = None
) -> None:
    """Hand the arguments to a typer application that lives in another package.

    Args:
        defaults: asked for options that are not given, which only this side can fill in.
    """
    try:
        other = importlib.import_module(module).app
    except ModuleNotFoundError as error:
        typer.echo(f"{name}: needs {error.name}, which is not installed here", err=True)
        raise typer.Exit(2) from error
    other(args=arguments, prog_name=name, default_map=defaults)


def main() -> None:
    """Entry point: errors of the tree end the command with one clear line and code 1."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        end_on(number, 128 + number)
    try:
        app()
    except TandemError as error:
        typer.echo(f"tandem: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
