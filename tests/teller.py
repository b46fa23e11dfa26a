"""A language model that tells what it finds around it when its training begins."""

import json
import os
import sys

import torch

from ablate.task.causal_lm import CausalLM

OVERRIDE = "task._target_=teller.Teller"


class Teller(CausalLM):
    def on_fit_start(self) -> None:
        super().on_fit_start()
        found = {
            "rank": self.global_rank,
            "processes": self.trainer.world_size,
            "threads": torch.get_num_threads(),
            "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "full_error": os.environ.get("HYDRA_FULL_ERROR"),
            "module": sys.modules["__main__"].__spec__.name,
            "arguments": sys.argv[1:],
            "session": os.getsid(0),
            "pid": os.getpid(),
        }
        print(f"found {json.dumps(found)}", flush=True)
        os.write(1, b"by the descriptor\n")
        os.system("echo by another program >&2")
