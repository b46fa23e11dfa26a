"""Make the pictures of README.md and docs/ from new runs.

    python docs/figures/make.py [NAME ...] [--shakespeare FILE]

Runs are in outputs/figures/; finished ones are not trained again. All pictures take about half an
hour on two idle cores. `report` needs Chromium or Chrome.
"""

import shutil
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
RUNS = Path("outputs/figures")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDEST = 1400  # pixels of a picture, and of the window that shows the report
FIRST, REWARD = RUNS / "rlhf_first", RUNS / "rlhf_reward"
# Runs that a picture needs first.
BEFORE = {
    "gold_and_reward": {
        FIRST: "experiment=rlhf_first",
        REWARD: f"experiment=rlhf_reward data.policy_run={FIRST} init_from={FIRST}",
    }
}
# Name -> overrides of its run, and the picture in its folder.
PICTURES = {
    "attention": ("model=rnn_seq2seq", "alignment"),
    "gpt_attention": ("experiment=nanogpt_cpu", "attention_layer_02"),
    "vit": ("model=vit", "attention_layer_04"),
    "gat": ("model=gat", "attention_layer_02"),
    "experts": ("model.ffn=moe model.depth=2 model.dim=64 trainer.max_steps=600", "experts"),
    "forecast": ("model=rnn_forecaster", "forecast"),
    "sam": ("model=sam trainer.max_steps=600", "masks"),
    "gold_and_reward": (
        f"experiment=rlhf task.kl=0 seed=1 trainer.val_check_interval=20 data.policy_run={FIRST}"
        f" init_from={FIRST} task.reward={REWARD}",
        "gold_and_reward",
    ),
}
SHOW = {"gpt_attention": "--layer 2 --head 1"}
STUDIES = {"report": "sweep=mixers study.seeds=3", "reverse_length": "sweep=reverse_length"}


def main() -> None:
    parser = ArgumentParser(description="Make the pictures of README.md and docs/ from new runs.")
    names = [*STUDIES, *PICTURES]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--shakespeare", metavar="FILE", help="a copy of tiny-shakespeare")
    args = parser.parse_args()
    if wrong := set(args.names) - set(names):
        parser.error(f"no picture {', '.join(sorted(wrong))}; choose from {', '.join(names)}")
    wanted = args.names or names
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if "report" in wanted and browser is None:
        parser.error(f"report needs a browser on PATH: {', '.join(BROWSERS)}")
    for name in wanted:
        if name in STUDIES:
            ablate(f"{STUDIES[name]} output_dir={RUNS}")
        else:
            for folder, overrides in BEFORE.get(name, {}).items():
                ablate(f"{overrides} hydra.run.dir={folder}")
            overrides, file = PICTURES[name]
            if name == "gpt_attention" and args.shakespeare:
                overrides += f" data.path={args.shakespeare}"
            ablate(f"{overrides} hydra.run.dir={RUNS / name}")
            if name in SHOW:
                python("-m", "ablate.show", str(RUNS / name), *SHOW[name].split())
        if name == "reverse_length":
            python(str(HERE / "reverse_length.py"), str(RUNS / name))
        elif name == "report":
            shoot(browser, RUNS / "mixers" / "report.html", RUNS / "report.png")
            shrink(RUNS / "report.png", name)
        else:
            shrink(RUNS / name / "figures" / f"{file}.png", name)
        print(HERE / f"{name}.png", flush=True)


def ablate(overrides: str) -> None:
    python("-m", "ablate", *overrides.split())


def python(*arguments: str) -> None:
    print("python", *arguments, flush=True)
    if code := subprocess.run([sys.executable, *arguments]).returncode:
        sys.exit(code)


def shoot(browser: str | None, page: Path, out: Path) -> None:
    """Write the top of a page as it appears in a window."""
    assert browser
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    window = [f"--window-size={WIDEST},850", f"--screenshot={out.resolve()}"]
    command = [browser, *flags, *window, page.resolve().as_uri()]
    subprocess.run(command, check=True, capture_output=True)


def shrink(source: Path, name: str) -> None:
    with Image.open(source) as picture:
        small = picture.convert("RGB")
    small.thumbnail((WIDEST, WIDEST))
    small.quantize(256).save(HERE / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
