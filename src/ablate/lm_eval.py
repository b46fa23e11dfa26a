"""Measure a language model by lm-evaluation-harness: python -m ablate.lm_eval RUN_DIR --tasks NAMES

All other arguments are those of the harness's own command: --num_fewshot, --limit, --batch_size,
--include_path DIR (your own tasks), --output_path DIR. It needs
pip install 'ablate-attention[lm-eval]'.

python -m ablate.lm_eval RUN_DIR --tasks lambada_openai,arc_easy --output_path results

With the runs of a study in one --output_path, `ablate.judge results` compares their arms.
"""

import json
import sys

from ablate.cli.command import Arguments, add_run_dir, command
from ablate.errors import UserError
from ablate.machine.version import install
from ablate.run_files.records import read_result


def main() -> None:
    parser = Arguments(prog="python -m ablate.lm_eval", description=__doc__, allow_abbrev=False)
    add_run_dir(parser)
    args, others = parser.parse_known_args()
    if not any(text.split("=")[0] == "--tasks" for text in others):
        raise UserError(
            "--tasks NAMES is missing: names of lm-evaluation-harness, with commas between"
        )
    try:
        from lm_eval.__main__ import cli_evaluate
    except ImportError as error:
        raise UserError(f"{error}: {install('lm-eval')}") from None
    import ablate.training.harness  # noqa: F401  # registers the model

    result, _ = read_result(args.run_dir)
    settings = {
        "run": str(args.run_dir.resolve()),
        "allow": args.allow,
        "arm": result.get("arm") or args.run_dir.resolve().name,  # for ablate.judge
        "seed": result.get("seed"),
    }
    of_model = ["--model", "ablate", "--model_args", json.dumps(settings)]
    sys.argv = ["lm_eval", "run", *of_model, *others]
    cli_evaluate()


if __name__ == "__main__":
    command(main)
