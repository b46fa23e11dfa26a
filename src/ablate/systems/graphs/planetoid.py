"""Citation graphs: Cora, Citeseer and Pubmed in the split of Yang et al. 2016 (Planetoid).

https://arxiv.org/abs/1603.08861; the graphs are those of Sen et al. 2008, "Collective
classification in network data". A node is a paper with its words as features, an edge a citation, a
class the subject. 20 nodes of each class are for training, 500 for validation, 1,000 for the test.

Two layouts are read: NAME.npz (shape, feat_row, feat_col, feat_val, label, edges, train, val, test)
and the public files ind.NAME.*, which are Python pickles: only arrays are read from them.
"""

import io
import pickle
import zlib
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from ablate.data import source
from ablate.errors import UserError
from ablate.machine import memory
from ablate.systems.graphs.graph import Graph, Graphs

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

    normalize: the features of a node are divided by their sum.
    """

    def __init__(
        self,
        *,
        name: Literal["cora", "citeseer", "pubmed"],
        root: str | None,
        normalize: bool,
        seed: int,
    ) -> None:
        super().__init__(seed=seed)
        self.name: str = name
        self.root = root
        self.normalize = normalize

    def read(self) -> Graph:
        folder = None if self.root is None else source.local(self.root)
        packed = None if folder is None else folder / f"{self.name}.npz"
        try:
            if packed is not None and packed.is_file():
                graph = _from_arrays(packed, self.name)
            else:
                graph = self._public()
            _require_whole(graph)
        except (ValueError, IndexError, TypeError, AttributeError, OverflowError) as error:
            # numpy's for arrays whose shapes or types do not go together
            line = str(error).partition("\n")[0]
            raise UserError(
                f"data.root={self.root}: the arrays of {self.name} do not make a graph ({line})"
            ) from None
        if self.normalize:
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
        for sparse in (parts["allx"], parts["tx"]):
            sparse.check_format()  # toarray trusts the indices, and would write anywhere
        features = _zeros((count, width), f"ind.{self.name}.test.index")
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
        content = io.BytesIO(self._bytes(part))
        try:
            return _Arrays(content, encoding="latin1").load()
        except Exception as error:  # a damaged pickle raises anything
            raise UserError(
                f"data.root={self.root}: ind.{self.name}.{part} is damaged, or not a file of"
                f" Planetoid ({error})"
            ) from None

    def _bytes(self, part: str) -> bytes:
        name = f"ind.{self.name}.{part}"
        if self.root is None:
            fetched = source.fetch(f"{URL}/{name}", None, key="data.root", local="FOLDER")
            return source.read(str(fetched), key="data.root")
        return source.read(str(source.local(self.root) / name), key="data.root")


def _from_arrays(file: Path, name: str) -> Graph:
    content = io.BytesIO(source.contents(file, key="data.root"))
    try:
        with ZipFile(content) as members:
            size = sum(member.file_size for member in members.infolist())
        source.require_room(size, str(file), key="data.root")
        with np.load(content, allow_pickle=False) as packed:
            arrays: Mapping[str, NDArray[Any]] = {key: packed[key] for key in FIELDS}
    except (KeyError, ValueError, OSError, BadZipFile, zlib.error, EOFError) as error:
        raise UserError(
            f"data.root: {file} is damaged, or lacks the arrays {', '.join(FIELDS)} ({error})"
        ) from None
    features = _zeros(tuple(map(int, arrays["shape"])), str(file))
    features[_integers(arrays["feat_row"]), _integers(arrays["feat_col"])] = arrays["feat_val"]
    return Graph(
        features=features,
        edges=_integers(arrays["edges"], None),
        classes=_integers(arrays["label"], None),
        class_names=NAMES[name],
        split={split: arrays[split].tolist() for split in ("train", "val", "test")},
    )


def _zeros(shape: tuple[int, ...], where: str) -> NDArray[np.float32]:
    memory.require(4.0 * prod(shape), f"data.root: {where}: features of shape {shape}")
    return np.zeros(shape, np.float32)


def _integers(numbers: NDArray[Any], least: int | None = 0) -> NDArray[np.int64]:
    """The same numbers; ValueError for fractions, and below `least` (numpy counts from the end)."""
    if numbers.dtype.kind not in "iu" or (least is not None and (numbers < least).any()):
        raise ValueError("node and feature numbers must be whole, from 0 on")
    return numbers.astype(np.int64)


def _require_whole(graph: Graph) -> None:
    """Raise ValueError for inconsistent sizes and numbers; numpy accepts some of them."""
    count = len(graph.features)
    numbers = {
        "features": (graph.features.ndim == 2 and np.isfinite(graph.features).all()),
        "edges": graph.edges.ndim == 2 and graph.edges.shape[1] == 2 and _below(graph.edges, count),
        "classes": graph.classes.shape == (count,)
        and _below(graph.classes, len(graph.class_names), least=-1),
    }
    numbers |= {
        split: len(nodes) > 0
        and _below(np.array(nodes), count)
        and bool((graph.classes[np.array(nodes)] >= 0).all())
        for split, nodes in graph.split.items()
    }
    if wrong := [name for name, right in numbers.items() if not right]:
        raise ValueError(f"wrong shape, size or numbers of {', '.join(wrong)}, with {count} nodes")


def _below(numbers: NDArray[Any], count: int, *, least: int = 0) -> bool:
    return bool(((numbers >= least) & (numbers < count)).all())


class _Arrays(pickle.Unpickler):
    """Unpickles only the types in the public files, under the names that they had at the time; a
    pickle with any other name is rejected."""

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
            ("_codecs", "encode"): codecs.encode,  # bytes, if Python 3 wrote them
            ("copy_reg", "_reconstructor"): copyreg._reconstructor,  # type: ignore[attr-defined]
            **builtins,
        }

    def find_class(self, module: str, name: str) -> Any:
        if (known := self._known().get((module, name))) is None:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}")
        return known
