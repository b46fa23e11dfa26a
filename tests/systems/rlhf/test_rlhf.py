"""RLHF: preferences, reward models, DPO, and the policy gradient of RLOO and PPO."""

import json
import math
import re
from itertools import product

import pytest
import torch
from conftest import undraw
from make_data import make, ready
from make_files import FILES
from make_model import normal
from refusals import refused
from systems.rlhf.rows import KNOBS, write_preferences
from test_resume import assert_resumes
from tiny import four_steps, task_of
from torch import nn

import ablate
from ablate import evaluate, generate, show
from ablate.config.composition import Composition
from ablate.data import Request
from ablate.errors import UserError
from ablate.model.base import LanguageModel
from ablate.systems.rlhf.pair_file import Pair
from ablate.systems.rlhf.policy import leave_one_out
from ablate.systems.rlhf.preference_rules import RULES
from ablate.systems.rlhf.rlhf import RLHF, clipped, policy_gradient
from ablate.systems.rlhf.rollout import Rollout, log_probabilities, of_response, rollout

WITH_FIGURES = True  # tests/conftest.py

MODEL = ("model.dim=8", "model.depth=1", "model.heads=2")


def composed(folder, *more, kind="rlhf"):
    data = FILES["preferences"] | {"seq_len": 12, "prompt": 4}
    often = ("checkpoint_every=2", "trainer.log_every_n_steps=1", "optimizer.lr=0.01")
    return ablate.compose(
        *("data=preferences", f"task={kind}", *MODEL, *often, *four_steps(folder)),
        *(f"data.{key}={value}" for key, value in data.items()),
        *more,
    )


def built(folder, *more, kind="rlhf"):
    return task_of(composed(folder, *more, kind=kind)).eval()


def first(data, count, split="train"):
    return data.splits[split][Request(0, torch.arange(count))]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A language model, and a reward model on what it writes."""
    folder = tmp_path_factory.mktemp("runs")
    text = ("data.seq_len=12", "data.batch_size=2", "data.val_fraction=0.002")
    writer = ablate.compose(*MODEL, *text, *four_steps(folder))
    place = Composition(writer).folder
    reward = composed(folder, f"data.policy_run={place}", f"init_from={place}", kind="reward")
    with pytest.MonkeyPatch.context() as patch:
        undraw(patch)
        ablate.run(writer)
        ablate.run(reward)
    return {"first": place, "reward": Composition(reward).folder}


@pytest.mark.ci
def test_made_preferences_follow_bradley_and_terry_on_a_rule():
    assert RULES["words"]("The cat, the CAT; a dog_x2 ... ") == 3  # the, cat, dog
    assert RULES["letters"]("ab 1") == 5
    data = ready("preferences", preference_rule="letters", temperature=2.0, train_examples=4000)
    gold = first(data, 4000)["gold"].double()
    gap = (gold[:, 0] - gold[:, 1]).abs()
    right = ((gold[:, 0] > gold[:, 1]).double() + 0.5 * (gap == 0)).mean()
    expected = (gap / 2).sigmoid()
    assert float(right) == pytest.approx(float(expected.mean()), abs=4 * 0.5 / math.sqrt(4000))
    assert 0.5 < expected.mean() < 0.99


@pytest.mark.ci
def test_a_writer_writes_both_responses_once(runs):
    given = FILES["preferences"] | {"policy_run": str(runs["first"])}
    one, two = (ready("preferences", seed=seed, **given) for seed in (0, 1))
    plain = ready("preferences", **FILES["preferences"])
    mine, again, other = (first(data, 8) for data in (one, two, plain))
    assert all(torch.equal(mine[name], again[name]) for name in mine)
    assert not torch.equal(mine["tokens"], other["tokens"])
    assert torch.equal(mine["tokens"][::2, :3], mine["tokens"][1::2, :3])  # one prompt for both
    assert one.fingerprint() != plain.fingerprint()


def test_pairs_of_a_file_are_cut_and_padded(tmp_path):
    path = tmp_path / "pairs.jsonl"
    write_preferences(path, 60)
    made = ready("preferences", path=str(path), tokenizer="byte", seq_len=8, prompt=3)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sum(map(made.length, ("train", "val", "test"))) == len(lines)
    batch = first(made, made.length("train"))
    found = set()
    for n, length in enumerate(batch["prompt"].tolist()):
        texts = []
        for row in (2 * n, 2 * n + 1):
            keep = batch["keep"][row]
            assert not batch["tokens"][row][~keep].any()
            ids = batch["tokens"][row][keep].tolist()
            texts.append((bytes(ids[:length]).decode(), bytes(ids[length:]).decode()))
        (prompt, chosen), (same, rejected) = texts
        assert prompt == same
        found.add((prompt, chosen, rejected))
    assert found <= {(x["prompt"][-3:], x["chosen"][:5], x["rejected"][:5]) for x in lines}
    assert batch["gold"].isnan().all()
    few = ready("preferences", path=str(path), tokenizer="byte", train_examples=7)
    assert (few.length("train"), few.length("val")) == (7, made.length("val"))
    assert few.splits["train"].pairs == made.splits["train"].pairs[:7]
    assert few.fingerprint() != made.fingerprint()


def write(path, rows, names=Pair._fields):
    lines = [json.dumps({name: getattr(row, name) for name in names}) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_a_prompt_is_in_one_split_alone_however_it_is_written(tmp_path):
    pairs = [Pair(f"Caf\xe9 {n % 40}?", f"yes {n}", f"no {n}") for n in range(200)]
    pairs += [row._replace(prompt=f"  cafe\u0301  {n}? ") for n, row in enumerate(pairs[:40])]
    turned = [Pair._fields, Pair._fields[::-1]]
    data = [
        ready("preferences", path=write(tmp_path / f"{n}.jsonl", pairs, names), tokenizer="byte")
        for n, names in enumerate(turned)
    ]
    of_split = [{name: split.pairs for name, split in one.splits.items()} for one in data]
    assert of_split[0] == of_split[1]  # whatever the order of the JSON keys
    numbers = [{re.sub(r"\D", "", p.prompt) for p in of} for of in of_split[0].values()]
    assert sum(map(len, numbers)) == len(set.union(*numbers)) == 40
    few = write(tmp_path / "few", pairs[:2] * 30)
    with pytest.raises(UserError, match="60 pairs of 2 prompts are too few"):
        ready("preferences", path=few)


def test_equal_pairs_are_dropped_and_what_is_cut_is_counted(tmp_path, caplog):
    pairs = [Pair(f"prompt {n}", "same " * (n % 3) + "a", "same " * (n % 3) + "b")
             for n in range(90)]  # fmt: skip
    path = write(tmp_path / "pairs", [*pairs, Pair("prompt", "c", "c")])
    given = {"path": path, "tokenizer": "byte", "seq_len": 17, "prompt": 8}
    data = ready("preferences", **given)
    assert (
        "of 91 pairs, 80 have a prompt longer than data.prompt=8 tokens; only the last are"
        " read; 30 have a response longer than the 9 tokens that data.seq_len=17 leaves, which is"
        " cut; 31 are dropped, whose responses are equal in these tokens"
    ) in caplog.text
    assert sum(map(data.length, data.splits)) == 60
    for name in data.splits:
        chosen, rejected = first(data, data.length(name), name)["tokens"].view(-1, 2, 14).unbind(1)
        assert (chosen != rejected).any(1).all()
    caplog.clear()
    ready("preferences", **given | {"seq_len": 40, "path": write(tmp_path / "whole", pairs),
                                    "prompt": 20})  # fmt: skip
    assert not caplog.text
    equal = write(tmp_path / "equal", [Pair(f"{n}", "aa", "ab") for n in range(90)])
    with pytest.raises(UserError, match="every pair of the train split are equal in the 1 tokens"):
        ready("preferences", **given | {"path": equal, "seq_len": 9})


def test_only_line_ends_divide_the_lines_of_a_file(tmp_path):
    """Not the separators that a text in JSON may hold; and a byte order mark is none of it."""
    path = tmp_path / "pairs.jsonl"
    made = {f"{n}\u2028\x85 text" for n in range(60)}
    pairs = [Pair(text, text, f"no {text}")._asdict() for text in made]
    lines = [json.dumps(pair, ensure_ascii=False) for pair in pairs]
    path.write_bytes(("\ufeff" + "\r\n".join(lines)).encode())
    data = ready("preferences", path=str(path), tokenizer="byte")
    assert {pair.prompt for split in data.splits.values() for pair in split.pairs} == made


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 2 is not valid JSON"),
        ('{"prompt": "a", "chosen": "b"}', 'line 2: must be {"prompt": TEXT, "chosen": TEXT'),
        ('{"prompt": "", "chosen": "b", "rejected": "c"}', "none of them empty"),
        (
            r'{"prompt": "\ud800", "chosen": "b", "rejected": "c"}',
            "line 2: contains an unpaired",
        ),
        ("", "1 pairs of 1 prompts are too few: none are left for"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, line, says):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n' + line)
    with pytest.raises(UserError, match=says):
        ready("preferences", path=str(path))


@pytest.mark.ci
def test_wrong_runs_are_refused(tmp_path, runs):
    given = FILES["preferences"] | {"policy_run": str(runs["first"])}
    for changes, says in (
        ({"policy_run": str(runs["reward"])}, "is not a language model trained on text"),
        ({"seq_len": 16}, "reads at most 12 tokens"),
        ({"tokenizer": "byte"}, "set data.tokenizer=char"),
        ({"vocab_size": 9}, "set data.vocab_size=null"),
    ):
        with refused(says):
            ready("preferences", **given | changes).example()
    with refused("is not a run directory with weights"):
        make("preferences", policy_run=str(tmp_path)).fingerprint()
    for run, change, says in (
        ("first", (), "is not a run of task=reward"),
        ("reward", ("data.prompt=5",), "reads at most 4 tokens of a prompt"),
        ("reward", ("data.seq_len=13",), "reads at most 8 tokens of"),
    ):
        with refused(says):
            built(tmp_path, f"task.reward={runs[run]}", *change).scorer  # noqa: B018


def test_the_clipped_surrogate_is_that_of_the_paper():
    """Schulman et al. 2017, equation 7."""
    new, old = (-normal(5, 6, seed=seed).abs() for seed in (1, 2))
    terms, advantages = 0.0, normal(5, seed=3)
    for row, token in product(range(5), range(6)):
        ratio, advantage = math.exp(new[row, token] - old[row, token]), float(advantages[row])
        terms += min(ratio * advantage, min(max(ratio, 1 - 0.2), 1 + 0.2) * advantage)
    assert float(clipped(new, old, advantages, 0.2)) == pytest.approx(-terms / 5)


def test_dpo_is_the_formula_of_the_paper(tmp_path):
    """Rafailov et al. 2023, equation 7, token by token."""
    path = tmp_path / "pairs.jsonl"
    write_preferences(path)
    task = built(tmp_path, f"data.path={path}", kind="dpo").double()
    task.model.initialize(1)
    batch = first(task.data, 6)

    def log_probability(model, tokens, prompt):
        places = range(prompt, len(tokens))
        said = [model(torch.tensor([tokens[:n]]))[0, -1].log_softmax(0) for n in places]
        return sum(float(one[tokens[n]]) for one, n in zip(said, places, strict=True))

    losses = []
    for n, prompt in enumerate(batch["prompt"].tolist()):
        chosen, rejected = (
            log_probability(task.model, tokens, prompt)
            - log_probability(task.reference, tokens, prompt)
            for row in (2 * n, 2 * n + 1)
            for tokens in [batch["tokens"][row][batch["keep"][row]].tolist()]
        )
        losses.append(math.log(1 + math.exp(-task.beta * (chosen - rejected))))
    assert max(losses) - min(losses) > 1e-4
    assert task.losses(batch)["loss"].item() == pytest.approx(sum(losses) / 6, rel=1e-9)


class Table(LanguageModel):
    """Logits of the next token by the last one alone: 3 tokens."""

    length = None

    def __init__(self, seed):
        super().__init__()
        self.logits = nn.Parameter(normal(3, 3, seed=seed))

    def forward(self, tokens, *, cache=None):
        return self.logits[tokens]

    def new_cache(self):
        return None


RESPONSES = torch.tensor([[0, *two] for two in product(range(3), repeat=2)])  # to the prompt 0
WRITTEN = torch.tensor([[False, True, True]]).expand(9, 3)
GOLD = normal(9, seed=7)
WEIGHT = 0.3


def along(model):
    return of_response(log_probabilities(model, RESPONSES), RESPONSES, WRITTEN)


@pytest.mark.parametrize("algorithm", ["rloo", "ppo"])
def test_the_mean_gradient_is_that_of_the_expected_return(algorithm):
    """Over every outcome of two draws of the nine responses, times its probability."""
    policy, reference = Table(0), Table(1)
    with torch.no_grad():
        old, there = along(policy), along(reference)
    returns = GOLD - WEIGHT * (old - there).sum(1)
    chances = old.sum(1).exp()
    assert float(chances.sum()) == pytest.approx(1)
    mean = torch.zeros(3, 3, dtype=torch.float64)
    for two in map(list, product(range(9), repeat=2)):
        advantages = leave_one_out(returns[two][None]).flatten()
        new = along(policy)[two]
        if algorithm == "rloo":
            loss = policy_gradient(new, advantages)
        else:
            loss = clipped(new, old[two], advantages, 0.2)
        mean += chances[two].prod() * torch.autograd.grad(-loss, policy.logits)[0]
    here = along(policy).sum(1)
    expected = (here.exp() * (GOLD - WEIGHT * (here - there.sum(1)))).sum()
    (exact,) = torch.autograd.grad(expected, policy.logits)
    assert exact.abs().max() > 0.01
    torch.testing.assert_close(mean, exact)


def test_the_divergence_is_that_of_whole_responses(tmp_path):
    """Its mean over all responses, against the sum over them of p log(p / q)."""
    task = built(tmp_path)
    task.model, task.reference = Table(0), Table(1)
    here, there = (along(model).sum(1) for model in (task.model, task.reference))
    mean = (here.exp() * task.divergence(Rollout(RESPONSES, WRITTEN))).sum()
    torch.testing.assert_close(mean, (here.exp() * (here - there)).sum())


def test_rollouts_continue_their_prompts_as_one_by_one():
    """Drawn in evaluation, the likeliest depend neither on the other rows nor on the padding."""
    policy, training = Table(3), []
    policy.register_forward_pre_hook(lambda *_: training.append(policy.training))
    with torch.no_grad():
        policy.logits.mul_(1e3)
    prompts, lengths = torch.tensor([[1, 2, 0], [2, 0, 0], [0, 1, 2]]), torch.tensor([2, 1, 3])
    rng = torch.Generator().manual_seed(0)
    tokens, written = rollout(policy, prompts, lengths, tokens=4, rng=rng)
    assert policy.training > any(training)
    for row, length in enumerate(lengths.tolist()):
        expected = prompts[row, :length].tolist()
        for _ in range(4):
            expected.append(int(policy.logits[expected[-1]].argmax()))
        assert tokens[row].tolist() == expected + [0] * (3 - length)
        assert written[row].nonzero().flatten().tolist() == list(range(length, length + 4))


def test_cached_rollouts_have_the_probabilities_that_training_sees(tmp_path):
    """The draw of each token from the cached logits is that from the logits of the whole text."""
    task = built(tmp_path)
    batch = task.presenter(task).first_prompts(4)
    rolled = task.write(task.model, batch, torch.Generator().manual_seed(5))
    whole = log_probabilities(task.model, rolled.tokens).exp()
    rng = torch.Generator().manual_seed(5)
    for place in range(3, rolled.tokens.shape[1] - 1):
        ranked, order = whole[:, place].sort(-1, descending=True)
        drawn = order.gather(1, torch.multinomial(ranked, 1, generator=rng)).squeeze(1)
        assert torch.equal(drawn, rolled.tokens[:, place + 1])


def test_advantages_of_a_step_are_those_of_its_responses_to_one_prompt(tmp_path):
    """Ahmadian et al. 2024, section 3.2."""
    task = built(tmp_path, "task.samples=3", "task.kl=0.5")
    task.model.initialize(1)
    prompts = task.presenter(task).first_prompts(4)
    made = task.prepare(prompts, 0)
    rolled = Rollout(made["tokens"], made["written"])
    with torch.no_grad():
        here, there = (
            of_response(log_probabilities(model, rolled.tokens), *rolled)
            for model in (task.model, task.reference)
        )
    torch.testing.assert_close(made["old"], here)
    gold = task.scores(rolled, prompts["prompt"].repeat_interleave(3))["gold"]
    returns = (gold - 0.5 * (here.sum(1) - there.sum(1))).tolist()
    for n, found in enumerate(made["advantages"].tolist()):
        others = [returns[m] for m in range(n - n % 3, n - n % 3 + 3) if m != n]
        assert found == pytest.approx(returns[n] - sum(others) / 2, abs=1e-5)


def test_each_prompt_of_a_file_of_pairs_is_counted_once(tmp_path):
    write_preferences(path := tmp_path / "pairs.jsonl")
    task = built(tmp_path, f"data.path={path}", "data.preference_rule=words", "task.samples=3")
    batch = first(task.data, 4)
    computed = task.prepare(batch, 0)["tokens"]
    task.model.to("meta")
    assert task.prepare(batch, 0)["tokens"].shape == computed.shape


def test_a_reward_model_gives_the_chosen_text_the_higher_score(tmp_path, monkeypatch):
    task = built(tmp_path, kind="reward")
    batch = first(task.data, 4)
    scores = task.model(batch["tokens"], batch["keep"]).flatten().tolist()
    pairs = zip(scores[::2], scores[1::2], strict=True)
    losses = [math.log(1 + math.exp(rejected - chosen)) for chosen, rejected in pairs]
    assert task.losses(batch)["loss"].item() == pytest.approx(sum(losses) / 4, rel=1e-5)
    monkeypatch.setattr(task, "leads", lambda batch: torch.tensor([1.0, 0.0, -2.0, 3.0]))
    batch["gold"] = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [2.0, 2.0]])
    task.evaluate(batch)
    found = {name: float(value) for name, value in task.measures("val").items()}
    assert (found["accuracy"], found["rule_accuracy"], found["ceiling"]) == (0.625, 0.75, 0.625)


@pytest.mark.ci
@pytest.mark.usefixtures("no_figures")
def test_a_killed_run_resumes_bit_for_bit(tmp_path):
    cfg = composed(tmp_path, "task.algorithm=ppo")
    ablate.run(cfg, tmp_path / "whole")
    place = {"place": (RLHF, "losses"), "when": lambda task, *_: task.global_step == 3}
    assert_resumes((cfg, tmp_path / "whole"), tmp_path / "killed", **place)


def learned(folder, *more, kind):
    """A part of the parameters after three steps on one batch."""
    task = built(folder, *more, kind=kind).train()
    batch, weight = first(task.data, 4), task.model.embedding.weight
    for step in range(3):
        torch.manual_seed(step)
        loss = task.losses(task.prepare(batch, step))["loss"]
        weight.data.sub_(torch.autograd.grad(loss, weight)[0])
    return weight


@pytest.mark.ci
@pytest.mark.parametrize(("kind", "key", "value"), KNOBS)
def test_every_knob_changes_what_is_learned(kind, key, value, tmp_path, runs):
    value = str(runs["reward"]) if value == "a run" else value
    base = ["task.algorithm=ppo"] if key in ("task.clip", "task.minibatches") else []
    plain, changed = (learned(tmp_path, *base, *own, kind=kind) for own in ([], [f"{key}={value}"]))
    only_measured = (kind, key) == ("dpo", "task.reward")  # and teaches nothing
    assert torch.equal(plain, changed) == only_measured


@pytest.mark.ci
def test_the_id_is_that_of_the_reward_models_weights(tmp_path, runs):
    linked = tmp_path / "elsewhere"
    linked.symlink_to(runs["reward"])
    options = [], [f"task.reward={runs['reward']}"], [f"task.reward={linked}"]
    plain, here, there = (Composition(composed(tmp_path, *more)).id for more in options)
    assert plain != here == there


@pytest.mark.ci
def test_the_three_phases(tmp_path, runs, printed):
    start = (f"data.policy_run={runs['first']}", f"init_from={runs['first']}")
    folder, reward = tmp_path / "run", runs["reward"]
    result = ablate.run(composed(tmp_path, *start, f"task.reward={reward}"), folder)
    assert {"val/gold", "val/reward", "val/kl", "val/objective"} <= set(result["metrics"])
    assert result["artifacts"] == ["sample.txt", "figures/gold_and_reward.png"]
    assert "reference model (gold" in (folder / "sample.txt").read_text()
    run = ablate.load(folder)
    before = ablate.load(runs["first"]).model.state_dict()
    assert all(torch.equal(before[k], v) for k, v in run.task.reference.state_dict().items())
    assert not all(torch.equal(before[k], v) for k, v in run.model.state_dict().items())

    assert json.loads(printed(evaluate, folder, "--json")) == pytest.approx(result["metrics"])
    written = printed(generate, folder, "--prompt", "abc", "--tokens", 5)
    assert written.startswith("abc")
    score, text = printed(generate, reward, "--prompt", "abc").split("\t")
    scorer = ablate.load(reward).task
    assert float(score) == pytest.approx(
        scorer.presenter(scorer).scored(scorer.data.from_text("abc")), abs=1e-4
    )
    assert text == "abc\n"
    for arguments in ([folder], [reward, "--text", "abc"]):
        assert "attention_layer_01.png" in printed(show, *arguments)
    for path in runs.values():
        path.rename(path.with_suffix(".moved"))
    try:  # what it writes needs no other run
        assert printed(generate, folder, "--prompt", "abc", "--tokens", 5) == written
    finally:
        for path in runs.values():
            path.with_suffix(".moved").rename(path)


def test_a_causal_model_starts_a_bidirectional_reward_model(tmp_path, runs):
    start = f"init_from={runs['first']}"
    task = built(tmp_path, start, "model.mask=none", kind="reward")
    assert "head.weight" in task.model.started_from["new"]
    batch = first(task.data, 2, "val")
    tokens = batch["tokens"].clone()
    tokens[:, 0] = (tokens[:, 0] + 1) % 5
    scores, other = (task.model(t, batch["keep"]) for t in (batch["tokens"], tokens))
    assert scores.shape == (4, 1)
    assert not torch.equal(scores, other)
    with pytest.raises(UserError, match=r"model\.mask is causal there and window here"):
        built(tmp_path, start, "model.mask=window", kind="dpo")
