"""Graph attention: along edges as in a matrix, the paper's formula, odd graphs, whole runs."""

import io
import os
import pickle
import pickletools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from make_data import make, ready
from make_model import SIZES, kernel, normal, random_parts, scores, tiny
from scipy.sparse import csr_matrix
from systems.graphs.rows import graph, write_planetoid
from torch.nn import functional as F
from torch.testing import assert_close

import ablate
import ablate.training.train
from ablate.data import IGNORED, Request, source
from ablate.errors import UserError
from ablate.model.layers.multi_head import recording
from ablate.random.draws import Draws
from ablate.study.plan.budget import on_meta
from ablate.systems.graphs.gat import GAT
from ablate.systems.graphs.graph import symmetric
from ablate.systems.graphs.planetoid import NAMES, Planetoid
from ablate.systems.graphs.sparse import Sparse, softmax
from ablate.training.build import build_data, count_flops

WITH_FIGURES = True  # tests/conftest.py

SCORES = [name for name in scores() if name != "location"]
NODES, FEATURES, CLASSES = (SIZES["gat"][size] for size in ("nodes", "features", "classes"))


def gat(**changes: Any) -> GAT:
    return random_parts(tiny("gat", **changes), seed=1)


def results(model):
    """Logits, and the gradients of every parameter."""
    logits = model(*graph())
    (logits * normal(*logits.shape, seed=5)).sum().backward()
    return [logits, *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize(
    ("other", "score"),
    [*(("reference", one) for one in SCORES), ("chunked", "additive"), ("sdpa", "general")],
)
def test_along_edges_is_as_in_a_matrix(other, score):
    shared = other == "chunked" or score == "uniform"
    ours = gat(attention=score, shared=shared, kernel="sparse")
    theirs = gat(attention=score, shared=shared, kernel=other)
    if other == "chunked":
        for layer in theirs.layers:
            layer.kernel.chunk = 4
    assert isinstance(ours.layers[0].kernel, Sparse)
    assert_close(results(ours), results(theirs))


def test_another_graph_is_sorted_again():
    features, edges = graph()
    model, fewer = gat(), edges[:, edges[0] <= edges[1]]
    with torch.inference_mode():  # as a validation before the first training step
        model(features, edges)
    for of in (edges, fewer, edges):
        assert_close(model(features, of), gat()(features, of), rtol=0, atol=0)
    model(features, edges).sum().backward()
    changed, model = edges.clone(), gat()
    model(features, changed)
    changed[1] = changed[0]
    assert_close(model(features, changed), gat()(features, changed), rtol=0, atol=0)


def test_weights_of_large_scores_are_finite():
    """Of one head, a query with two edges and one with a single one."""
    weights = softmax(torch.tensor([[1000.0], [1001.0], [-1000.0]]), torch.tensor([0, 0, 1]), 2)
    expected = [*torch.tensor([0.0, 1.0]).softmax(0), torch.tensor(1.0)]
    assert_close(weights[:, 0], torch.stack(expected))


def test_a_layer_is_the_formula():
    """Equations 1 to 6 of the paper, in a matrix of all nodes."""
    model = gat(depth=2, out_heads=2)
    h, edges = graph()
    neighbors = torch.zeros(NODES, NODES, dtype=torch.bool)
    neighbors[edges[0], edges[1]] = True
    for number, layer in enumerate(model.layers):
        w = layer.value.weight.reshape(layer.heads, -1, h.shape[1])
        wh = h @ w.mT  # heads, nodes, width
        e = F.leaky_relu(wh @ layer.score.a + (wh @ layer.score.b).mT, 0.2)
        heads = e.masked_fill(~neighbors, -torch.inf).softmax(-1) @ wh
        last = number == 1
        h = (heads.mean(0) if last else torch.cat(list(heads), dim=1)) + layer.bias.weight
        h = h if last else F.elu(h)
    assert_close(model(*graph()), h)


def test_without_a_mask_or_a_softmax_it_is_a_matrix():
    features, edges = graph()
    everything = torch.cartesian_prod(torch.arange(NODES), torch.arange(NODES)).T
    assert_close(gat(mask="none")(features, edges), gat()(features, everything))
    model = gat(normalizer="sparsemax")
    assert not isinstance(model.layers[0].kernel, Sparse)
    other = features.clone()
    other[0] += 1
    assert torch.equal(model(other, edges)[-1], model(features, edges)[-1])  # which is alone


def test_weights_and_inputs_are_dropped_in_training_alone():
    model, (features, edges) = gat(dropout=0.6), graph()
    assert not torch.equal(model(features, edges), model(features, edges))
    assert_close(model.eval()(features, edges), gat()(features, edges))


def test_memory_grows_with_edges(capsys):
    """A matrix of these nodes would have 10^10 numbers a head."""
    nodes = 100_000
    ring = np.stack([np.arange(nodes), (np.arange(nodes) + 1) % nodes], axis=1)
    edges, _ = symmetric(ring, nodes)
    model = gat(nodes=nodes).float()
    with recording(model):
        out = model(torch.randn(nodes, FEATURES), edges)
    assert model.figures({}, Path(), None) == []
    assert "100,000 nodes: attention is plotted for at most 5,000" in capsys.readouterr().out
    assert out.shape == (nodes, CLASSES)
    assert out.isfinite().all()


def test_odd_graphs_are_put_in_order_and_said():
    given = np.array([[0, 1], [1, 0], [0, 1], [2, 2], [2, 1]])
    edges, said = symmetric(given, 5)
    pairs = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 1), (2, 2), (3, 3), (4, 4)]
    assert list(map(tuple, edges.T.tolist())) == pairs
    assert [line.split(":")[0] for line in said] == [
        "the graph has 1 edge(s) from a node to itself",
        "the graph has 1 edge(s) that repeat another",  # the other direction is the same edge
        "the graph has 2 node(s) without neighbors, which see only themselves",
    ]
    assert symmetric(np.array([[0, 1], [1, 2]]), 3)[1] == []


def test_the_karate_club():
    data = ready("karate")
    batch = data.splits["train"][Request(0, torch.tensor([0]))]
    assert batch["edges"].shape == (2, 2 * 78 + 34)
    assert torch.equal(batch["features"], torch.eye(34))
    assert (batch["targets"] != IGNORED).nonzero().flatten().tolist() == [0, 33]
    nodes = [n for split in data.graph.split.values() for n in split]
    assert sorted(nodes) == list(range(34))
    assert np.bincount(data.graph.classes).tolist() == [17, 17]


def test_cora_is_what_its_readme_says(shared_data):
    if not (shared_data / "planetoid").is_dir():
        pytest.skip("real data is not on this machine")
    data = ready("planetoid", root=str(shared_data / "planetoid"))
    batch = data.splits["train"][Request(0, torch.tensor([0]))]
    assert batch["features"].shape == (2708, 1433)
    assert_close(batch["features"].sum(1), torch.ones(2708))
    assert batch["edges"].shape == (2, 2 * 5278 + 2708)
    counts = {split: len(nodes) for split, nodes in data.graph.split.items()}
    assert counts == {"train": 140, "val": 500, "test": 1000}
    classes = data.graph.classes[list(data.graph.split["train"])]
    assert np.bincount(classes).tolist() == [20] * len(NAMES["cora"])


def public(folder, name, read):
    """The same graph in the files of Planetoid, as Python 2 wrote them: training nodes first, the
    test nodes in another order, and one of them left out."""
    first, second, _, *others = sorted(read.split["test"])  # the third has no words and no subject
    tested = [second, first, *others]
    subjects = np.eye(len(read.class_names))[read.classes]
    near = {n: [] for n in range(len(read.features))}
    for a, b in read.edges.tolist():
        near[a].append(b)
        near[b].append(a)
    parts = {
        "x": csr_matrix(read.features[:4]),
        "y": subjects[:4],
        "allx": csr_matrix(read.features[:first]),
        "ally": subjects[:first],
        "tx": csr_matrix(read.features[tested]),
        "ty": subjects[tested],
        "graph": near,
    }
    folder.mkdir(exist_ok=True)
    for part_name, value in parts.items():
        raw = pickle.dumps(value, protocol=2)
        raw = raw.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
        raw = raw.replace(b"scipy.sparse._csr", b"scipy.sparse.csr")
        pickletools.dis(raw, out=io.StringIO())  # still a pickle
        (folder / f"ind.{name}.{part_name}").write_bytes(raw)
    (folder / f"ind.{name}.test.index").write_text("".join(f"{n}\n" for n in tested))


def test_the_public_files_are_read_alike(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("ablate.systems.graphs.planetoid.VALIDATION", 4)
    write_planetoid(tmp_path / "npz", "cora", np.random.default_rng(0))
    options = {"name": "cora", "normalize": False, "seed": 0}
    packed = Planetoid(root=str(tmp_path / "npz"), **options).read()
    public(tmp_path / "public", "cora", packed)
    read = Planetoid(root=str(tmp_path / "public"), **options).read()
    left_out = 10
    kept = np.arange(12) != left_out
    assert np.array_equal(read.features[kept], packed.features[kept])
    assert np.array_equal(read.classes[kept], packed.classes[kept])
    assert not read.features[left_out].any()
    assert read.classes[left_out] == -1
    assert read.split["test"] == [8, 9, 11]
    assert [list(read.split[split]) for split in ("train", "val")] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    ours, theirs = (symmetric(one.edges, 12)[0] for one in (read, packed))
    assert torch.equal(ours, theirs)
    make("planetoid", root=str(tmp_path / "public")).setup()
    assert not caplog.text  # the files hold both directions of an edge
    twice = replace(read, edges=np.concatenate([packed.edges, packed.edges[:3]]))
    monkeypatch.setattr(Planetoid, "read", lambda self: twice)
    make("planetoid", root=str(tmp_path / "public")).setup()
    assert "the graph has 3 edge(s) that repeat another: each counts once" in caplog.text


class Trap:
    def __reduce__(self):
        return print, ("never",)


def test_a_damaged_or_foreign_pickle_is_refused(tmp_path, capsys):
    half = pickle.dumps(csr_matrix(np.eye(3)), protocol=2)[:200]
    for raw in (pickle.dumps(Trap(), protocol=2), half):
        (tmp_path / "ind.cora.allx").write_bytes(raw)
        with pytest.raises(UserError, match=r"allx is damaged, or not a file of Planetoid"):
            make("planetoid", root=str(tmp_path)).setup()
    assert "never" not in capsys.readouterr().out


@pytest.mark.ci
def test_a_run_on_the_club(tmp_path):
    """It learns whom the members followed, and draws the club head by head."""
    cfg = ablate.compose("model=gat", "trainer.max_steps=60", "logger=none")
    result = ablate.run(cfg, tmp_path / "run")
    assert result["metrics"]["test/accuracy"] >= 0.8  # of two clubs, with one known member each
    assert set(result["kernels"].values()) == {"sparse"}
    figures = {path.name for path in (tmp_path / "run" / "figures").glob("*.png")}
    assert {"attention_layer_01.png", "attention_layer_02.png"} <= figures


def test_what_is_dropped_in_training_is_the_same_along_edges_and_in_a_matrix():
    found = []
    for run in (kernel("reference"), kernel("sparse")):
        model = gat(dropout=0.5, attention="gatv2", kernel=run).train()
        draws = Draws(model)
        draws.keys = draws.of_batch(0, 3)
        found.append(results(model))
    assert_close(*found)


def test_a_graph_costs_its_edges():
    """Zachary's club: 34 members, each with an edge to itself and two for each of 78 ties."""
    masks = ("none", "neighbors")
    arms = [ablate.compose("model=gat", "model.attention=dot", f"model.mask={m}") for m in masks]
    data = build_data(arms[0])
    tasks = [on_meta(cfg, data) for cfg in arms]
    every, edges = (count_flops(c, t, t.model) for c, t in zip(arms, tasks, strict=True))
    widths = arms[0].model.dim + data.sizes.classes
    assert every - edges == 3 * 2 * 2 * widths * (34 * 34 - (34 + 2 * 78))


@pytest.fixture
def cora(tmp_path):
    write_planetoid(tmp_path, "cora", np.random.default_rng(0))
    return tmp_path / "cora.npz"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"shape": [12]}, "do not make a graph"),
        ({"shape": [12, 10**9]}, "takes at least"),
        ({"feat_row": [-1], "feat_col": [0], "feat_val": [1.0]}, "whole, from 0 on"),
        ({"feat_row": [0], "feat_col": [0], "feat_val": [np.nan]}, "or numbers of features"),
        ({"edges": [0, 1, 2]}, "of edges"),
        ({"edges": [[0, 12]]}, "of edges"),
        ({"label": [0, 1, 2]}, "do not make a graph"),
        ({"label": [7] * 12}, "of classes"),
        ({"label": [-1] * 12}, "of train, val, test"),
        ({"train": []}, "of train"),
        ({"edges": None}, "lacks the arrays"),
    ],
)
def test_arrays_that_make_no_graph_are_refused(cora, change, line):
    with np.load(cora) as found:
        known = dict(found) | change
    np.savez(cora, **{name: array for name, array in known.items() if array is not None})
    data = make("planetoid", root=str(cora.parent))
    for read in (data.setup, data.fingerprint):
        with pytest.raises(UserError, match=re.escape(line)):
            read()


def cut(file):
    file.write_bytes(file.read_bytes()[:300])


def pipe(file):
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (cut, "is damaged"),
        (lambda file: np.savez_compressed(file, shape=np.zeros(10**5)), "contains more than"),
        (pipe, "no such file"),
    ],
)
def test_a_damaged_npz_is_refused(cora, damage, line, monkeypatch):
    monkeypatch.setenv(source.LIMIT, "1e-5")  # GB
    damage(cora)
    with pytest.raises(UserError, match=line):
        make("planetoid", root=str(cora.parent)).setup()
