"""Citation graphs: Cora, Citeseer and Pubmed in the split of Yang et al. 2016 (Planetoid).

https://arxiv.org/abs/1603.08861; the graphs are those of Sen et al. 2008, "Collective
classification in network data". A node is a paper with its words as features, an edge a citation, a
class the subject. 20 nodes of each class are for training, 500 for validation, 1,000 for the test.

Two layouts are read: NAME.npz (shape, feat_row, feat_col, feat_val, label, edges, train, val, test)
and the public files ind.NAME.*, which are Python pickles: only arrays are read from them.
"""

import io
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ablate.data import checked, source
from ablate.data.graph import Graph, Graphs
from ablate.errors import UserError

COMMIT = "af6abf468a772cc055bec88c52e4d6f51b7c37e3"
URL = f"https://raw.githubusercontent.com/kimiyoung/planetoid/{COMMIT}/data"
VALIDATION = 500  # the nodes after those that train
FIELDS = ("shape", "feat_row", "feat_col", "feat_val", "label", "edges", "train", "val", "test")
NAMES: dict[str, Sequence[str]] = {
    "cora": (
        "theory",
        "reinforcement learning",
        "genetic algorithms",
        "neural networks",
        "probabilistic methods",
        "case based",
        "rule learning",
    ),
    "citeseer": (
        "agents",
        "artificial intelligence",
        "databases",
        "information retrieval",
        "machine learning",
        "human-computer interaction",
    ),
    "pubmed": ("experimental diabetes", "type 1 diabetes", "type 2 diabetes"),
}


class Planetoid(Graphs):
    """name: of the graph. root: a folder with its files, or null to download the public ones.

    normalise: the features of a node are divided by their sum.
    """

    def __init__(self, *, name: str, root: str | None, normalise: bool, seed: int) -> None:
        super().__init__(seed=seed)
        self.name: str = checked("name", name)
        self.root = checked("root", root)
        self.normalise = checked("normalise", normalise)

    def read(self) -> Graph:
        folder = None if self.root is None else Path(self.root).expanduser()
        packed = None if folder is None else folder / f"{self.name}.npz"
        graph = (
            _from_arrays(packed, self.name)
            if packed is not None and packed.is_file()
            else self._public()
        )
        if self.normalise:
            total = graph.features.sum(1, keepdims=True)
            graph.features[:] /= np.where(total == 0, 1, total)
        return graph

    def _public(self) -> Graph:
        parts = {part: self._part(part) for part in ("allx", "ally", "tx", "ty", "graph", "y")}
        listed = source.text(self._bytes("test.index"), f"ind.{self.name}.test.index").split()
        tested = np.array([int(number) for number in listed])
        # Citeseer's list of test nodes leaves some numbers out: papers without words or subject.
        first, count = int(tested.min()), int(tested.max()) + 1
        width, kinds = parts["allx"].shape[1], parts["ally"].shape[1]
        features = np.zeros((count, width), dtype=np.float32)
        features[:first] = parts["allx"].toarray()
        features[tested] = parts["tx"].toarray()
        subjects = np.zeros((count, kinds))
        subjects[:first], subjects[tested] = parts["ally"], parts["ty"]
        pairs = [(node, other) for node, others in parts["graph"].items() for other in others]
        training = len(parts["y"])
        return Graph(
            features=features,
            edges=np.array(pairs, dtype=np.int64),
            classes=np.where(subjects.any(1), subjects.argmax(1), -1),
            class_names=NAMES[self.name],
            split={
                "train": range(training),
                "val": range(training, training + VALIDATION),
                "test": sorted(tested.tolist()),
            },
        )

    def _part(self, part: str) -> Any:
        try:
            return _Arrays(io.BytesIO(self._bytes(part)), encoding="latin1").load()
        except (pickle.UnpicklingError, EOFError, AttributeError, ImportError) as error:
            raise UserError(
                f"data.root={self.root}: ind.{self.name}.{part} is damaged, or not a file of"
                f" Planetoid ({error})"
            ) from None

    def _bytes(self, part: str) -> bytes:
        name = f"ind.{self.name}.{part}"
        if self.root is None:
            fetched = source.fetch(f"{URL}/{name}", None, key="data.root", local="FOLDER")
            return source.read(str(fetched), key="data.root")
        return source.read(str(Path(self.root).expanduser() / name), key="data.root")


def _from_arrays(file: Path, name: str) -> Graph:
    try:
        with np.load(file, allow_pickle=False) as packed:
            found: Mapping[str, NDArray[Any]] = {key: packed[key] for key in FIELDS}
    except (KeyError, ValueError, OSError) as error:
        raise UserError(
            f"data.root: {file} is damaged, or has not the arrays {', '.join(FIELDS)} ({error})"
        ) from None
    features = np.zeros(tuple(found["shape"]), dtype=np.float32)
    features[found["feat_row"], found["feat_col"]] = found["feat_val"]
    return Graph(
        features=features,
        edges=found["edges"].astype(np.int64),
        classes=found["label"].astype(np.int64),
        class_names=NAMES[name],
        split={split: found[split].tolist() for split in ("train", "val", "test")},
    )


class _Arrays(pickle.Unpickler):
    """Unpickles only the types in the public files, under the names that they had at the time; a
    pickle that asks for anything else is refused."""

    @staticmethod
    def _known() -> dict[tuple[str, str], Any]:
        import codecs
        import collections
        import copyreg

        from numpy._core import multiarray
        from scipy.sparse import csr_matrix

        builtins = {("__builtin__", kind.__name__): kind for kind in (list, object)}
        return {
            ("scipy.sparse.csr", "csr_matrix"): csr_matrix,
            ("numpy.core.multiarray", "_reconstruct"): multiarray._reconstruct,
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("collections", "defaultdict"): collections.defaultdict,
            ("_codecs", "encode"): codecs.encode,  # bytes, where Python 3 wrote them
            ("copy_reg", "_reconstructor"): copyreg._reconstructor,  # type: ignore[attr-defined]
            **builtins,
        }

    def find_class(self, module: str, name: str) -> Any:
        if (known := self._known().get((module, name))) is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return known
