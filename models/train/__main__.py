"""`python -m models.train`: corpus, fit, evaluate, in this order. Progress and results go to standard output."""

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from models.train.checkpoint import read_checkpoint, write_checkpoint
from models.train.corpus import build_corpus
from models.train.curve import draw_curve
from models.train.evaluate import measure
from models.train.fit import Recipe, fit
from models.train.network import Shape
from models.train.sources import fetch_packages


def _corpus(arguments: argparse.Namespace) -> None:
    if not arguments.packages.exists():
        fetch_packages(arguments.packages)
    print(json.dumps(build_corpus(arguments.packages, arguments.corpus), indent=2))  # noqa: T201


def _fit(arguments: argparse.Namespace) -> None:
    arguments.out.mkdir(parents=True, exist_ok=True)
    recipe = replace(
        Recipe(), minutes=arguments.minutes, batch_tokens=arguments.batch_tokens, dropout=arguments.dropout
    )
    network = fit(arguments.corpus, arguments.out, recipe, Shape(), arguments.device)
    size = write_checkpoint(network, arguments.out)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(arguments.corpus / name, arguments.out / name)
    print(f"{size / 2**20:.2f} MiB of weights in {arguments.out}")  # noqa: T201


def _evaluate(arguments: argparse.Namespace) -> None:
    counts = json.loads((arguments.corpus / "corpus.json").read_text())
    network = read_checkpoint(arguments.model).to(arguments.device)
    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    report = measure(
        network, tokenizer, np.load(arguments.corpus / "valid.npy"), counts["valid_bytes"], arguments.texts
    )
    text = json.dumps(report, indent=2, ensure_ascii=False)
    print(text)  # noqa: T201
    if arguments.json:
        arguments.json.write_text(text + "\n")


def _curve(arguments: argparse.Namespace) -> None:
    draw_curve(arguments.log, arguments.image)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m models.train", description=__doc__)
    commands = parser.add_subparsers(required=True)

    corpus = commands.add_parser("corpus", help="fetch the texts, train the tokenizer, write the token streams")
    corpus.add_argument("--packages", type=Path, default=Path("build/packages"))
    corpus.set_defaults(run=_corpus)

    train = commands.add_parser("fit", help="train for a number of minutes and write the checkpoint")
    train.add_argument("--out", type=Path, default=Path("build/bard"))
    train.add_argument("--minutes", type=float, default=5.0)
    train.add_argument("--batch-tokens", type=int, default=Recipe().batch_tokens)
    train.add_argument("--dropout", type=float, default=Recipe().dropout)
    train.set_defaults(run=_fit)

    evaluate = commands.add_parser("evaluate", help="held-out loss, MTP acceptance and samples of a checkpoint")
    evaluate.add_argument("model", type=Path)
    evaluate.add_argument("--json", type=Path)
    evaluate.add_argument("--texts", type=int, default=32)
    evaluate.set_defaults(run=_evaluate)

    curve = commands.add_parser("curve", help="draw the loss curve of a run")
    curve.add_argument("log", type=Path)
    curve.add_argument("image", type=Path)
    curve.set_defaults(run=_curve)

    for command in (corpus, train, evaluate):
        command.add_argument("--corpus", type=Path, default=Path("build/corpus"))
    for command in (train, evaluate):
        command.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
