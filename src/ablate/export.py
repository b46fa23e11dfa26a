"""Export a finished run to Hugging Face transformers: python -m ablate.export RUN_DIR OUT

OUT is a directory for transformers' from_pretrained: gpt as GPT-2, vit as ViT, with equal outputs;
an error for components these lack (pip install 'ablate-attention[hf]').

The best weights are exported. The export is loaded again and compared with the model on validation
examples; if the outputs differ, it is removed.
"""

from pathlib import Path
from shutil import rmtree

from ablate.cli.command import Arguments, add_run_dir, command
from ablate.errors import UserError


def main() -> None:
    parser = Arguments(prog="python -m ablate.export", description=__doc__)
    add_run_dir(parser)
    parser.add_argument("out", type=Path, help="directory to write")
    args = parser.parse_args()
    if args.out.exists():
        raise UserError(f"{args.out} exists; choose another name")
    from ablate.training.load import load
    from ablate.training.pretrained.hugging_face.export import write

    run = load(args.run_dir, allow=args.allow)
    written = args.out.with_name(f".part.{args.out.name}")
    try:
        written.parent.mkdir(parents=True, exist_ok=True)
        largest = write(run, written)
        written.rename(args.out)
    finally:
        rmtree(written, ignore_errors=True)
    print(f"{args.out}: outputs differ from the run's by at most {largest:.1g}")


if __name__ == "__main__":
    command(main)
