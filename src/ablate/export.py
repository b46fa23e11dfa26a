"""Export a finished run to other libraries: python -m ablate.export RUN_DIR OUT --format hf

hf      a directory for transformers' from_pretrained: gpt as GPT-2, vit as ViT, with equal outputs;
        an error for components these lack (pip install 'ablate-attention[hf]')
torch   a torch.export file, OUT.pt2: torch.export.load(OUT).module() runs without ablate
onnx    an ONNX file, OUT.onnx (pip install onnx onnxscript)

The best weights are exported. The export is loaded again and compared with the model on validation
examples; if the outputs differ, it is removed.
"""

from pathlib import Path
from shutil import rmtree

from ablate.cli.command import Arguments, add_run_dir, command
from ablate.errors import UserError

FORMATS = {"hf": "", "torch": ".pt2", "onnx": ".onnx"}  # the ending of what is written


def main() -> None:
    parser = Arguments(prog="python -m ablate.export", description=__doc__)
    add_run_dir(parser)
    parser.add_argument("out", type=Path, help="directory (hf) or file (torch, onnx) to write")
    parser.add_argument(
        "--format",
        choices=FORMATS,
        required=True,
        help="output format: hf (Hugging Face), torch (torch.export), onnx",
    )
    args = parser.parse_args()
    ending = FORMATS[args.format]
    out = args.out if args.out.name.endswith(ending) else args.out.with_name(args.out.name + ending)
    if out.exists():
        raise UserError(f"{out} exists; choose another name")
    from ablate.training import exported
    from ablate.training.load import load

    run = load(args.run_dir, allow=args.allow)
    written = out.with_name(f".part.{out.name}")
    try:
        written.parent.mkdir(parents=True, exist_ok=True)
        largest = getattr(exported, f"as_{args.format}")(run, written)
        written.rename(out)
    finally:
        rmtree(written) if written.is_dir() else written.unlink(missing_ok=True)
    print(f"{out}: outputs differ from the run's by at most {largest:.1g}")


if __name__ == "__main__":
    command(main)
