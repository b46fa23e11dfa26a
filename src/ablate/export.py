"""A finished run for other programs: python -m ablate.export RUN_DIR OUT --format hf

hf      a folder that transformers' from_pretrained reads: a gpt as GPT-2, a vit as ViT, with equal
        outputs; refused where the parts are others than theirs (pip install 'ablate-attention[hf]')
torch   a file of torch.export, OUT.pt2: torch.export.load(OUT).module() needs nothing of ablate
onnx    a file of ONNX, OUT.onnx (pip install onnx onnxscript)

The best weights are written. Each is read again and compared with the model on validation examples;
where the outputs differ nothing is left behind.
"""

from pathlib import Path
from shutil import rmtree

from ablate.cli.command import Arguments, add_run_dir, command
from ablate.errors import UserError

FORMATS = {"hf": "", "torch": ".pt2", "onnx": ".onnx"}  # the ending of what is written


def main() -> None:
    parser = Arguments(prog="python -m ablate.export", description=__doc__)
    add_run_dir(parser)
    parser.add_argument("out", type=Path, help="folder (hf) or file (torch, onnx) to write")
    parser.add_argument("--format", choices=FORMATS, required=True, help="for which programs")
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
