"""A trained model in formats of other libraries, compared with the model after it was written."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ablate.errors import UserError
from ablate.model.base import outputs
from ablate.training.load import Run
from ablate.training.pretrained.hugging_face.export import network_of

# Examples of validation with which a model is traced, and those that are compared.
TRACED, COMPARED = 2, 3
CLOSE = 1e-4  # the largest difference of an output, in units of the largest output


def as_hf(run: Run, folder: Path) -> float:
    """A folder of transformers. Raises UserError if the model has other parts than theirs."""
    network = network_of(run.model, run.config, run.data)
    network.save_pretrained(folder)
    run.data.save_as_hf(folder)
    read = type(network).from_pretrained(folder).eval()
    return _compared(run, lambda *inputs: read(inputs[0]).logits)


def as_torch(run: Run, file: Path) -> float:
    """A file of torch.export, for any number of examples."""
    with warnings.catch_warnings(), _refusing():
        warnings.simplefilter("ignore")
        program = _program(run)
        torch.export.save(program, file)
        read = torch.export.load(file).module()
    return _compared(run, read)


def as_onnx(run: Run, file: Path) -> float:
    """A file of ONNX, compared by its reference implementation."""
    if missing := [name for name in ("onnx", "onnxscript") if find_spec(name) is None]:
        raise UserError(f"--format onnx needs packages: pip install {' '.join(missing)}")
    import onnx
    from onnx.reference import ReferenceEvaluator

    inputs = _inputs(run, TRACED)
    with warnings.catch_warnings(), _refusing():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(_program(run), inputs, dynamo=True, verbose=False)
    assert program is not None
    program.save(str(file))
    reference = ReferenceEvaluator(onnx.load(str(file)))
    names = [node.name for node in onnx.load(str(file)).graph.input]

    def computed(*given: Tensor) -> Any:
        values = {name: value.numpy() for name, value in zip(names, given, strict=True)}
        return tuple(torch.from_numpy(out) for out in reference.run(None, values))

    return _compared(run, computed)


def _inputs(run: Run, count: int) -> tuple[Tensor, ...]:
    batch = run.data.first_examples(count)
    return tuple(value for value in run.task.inputs(batch) if value is not None)


def _program(run: Run) -> torch.export.ExportedProgram:
    inputs = _inputs(run, TRACED)
    any_number: dict[int, Any] = {0: torch.export.Dim.AUTO}
    kinds = [p.kind for p in signature(run.model.forward).parameters.values()]
    named = kinds.index(Parameter.VAR_POSITIONAL) if Parameter.VAR_POSITIONAL in kinds else None
    each = [any_number] * len(inputs)
    shapes = tuple(each) if named is None else (*each[:named], tuple(each[named:]))
    return torch.export.export(run.model, inputs, dynamic_shapes=shapes)


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn what torch.export raises, which is of many kinds, into a UserError."""
    try:
        yield
    except Exception as error:
        line = str(error).strip().partition("\n")[0]
        raise UserError(
            f"torch.export cannot write this model (nor encoder-decoders and BERT): {line}"
        ) from error


def _compared(run: Run, computed: Callable[..., Any]) -> float:
    """The largest difference from the model's outputs; UserError if it is no rounding."""
    inputs = _inputs(run, COMPARED)
    with torch.no_grad(), _refusing():
        expected = [out for out in outputs(run.model(*inputs)) if out is not None]
        found = [out for out in outputs(computed(*inputs)) if out is not None]
    pairs = list(zip(found, expected, strict=True))
    largest = max(float((a - b).abs().max()) for a, b in pairs)
    scale = max(float(b.abs().max()) for _, b in pairs)
    if not largest <= CLOSE * scale:
        raise UserError(f"what was written has other outputs, by {largest:.2g} of {scale:.2g}")
    return largest
