"""PPO in plain PyTorch, on the answers that a run of ours sampled.

usage: ppo_reference.py FOLDER. Every subfolder is a run: run.json (settings, models,
sequences of each step) and heads.safetensors (value heads of critic and reward). Written
beside them: reference.json (a record per step), actor.safetensors, critic.safetensors
(final weights under transformers' names), logp.safetensors (what the trained actor says
of the first step's sequences, concatenated).

The models are transformers', gradients are autograd's, the optimizer is torch's, all in
fp64, one sequence at a time.
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

KL, SCORE_CLIP, RATIO_CLIP, VALUE_CLIP, GAMMA, LAMBDA = 0.1, 5.0, 0.2, 0.2, 1.0, 0.95


def load_actor(folder):
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").double().eval()


def load_critic(folder, head):
    """The language model's body with a value head of its own."""
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=1, attn_implementation="eager"
    )
    with torch.no_grad():
        model.score.weight.copy_(head)
    return model.double().eval()


def log_probabilities(actor, ids, attended):
    logits = actor(input_ids=ids[None], attention_mask=attended[None]).logits[0, :-1]
    logp = torch.log_softmax(logits, -1)
    entropy = -(logp.exp() * logp).sum(-1)
    return logp.gather(1, ids[1:, None])[:, 0], entropy


def values_of(critic, ids, attended):
    body = getattr(critic, critic.base_model_prefix)
    hidden = body(input_ids=ids[None], attention_mask=attended[None]).last_hidden_state[0]
    return critic.score(hidden)[:, 0]


class Answer:
    """One sequence, everything from the state before the first answer token on."""

    def __init__(self, given, settings):
        ids = given["tokens"]
        self.rank = given["rank"]
        self.start = given["prompt_length"] - 1
        self.chat = settings["rules"] == "deepspeed-chat"
        length = len(ids) - given["prompt_length"]
        if self.chat:  # padded with the end token, which is masked wherever it stands
            ids = ids + [settings["eos"]] * (settings["max_new_tokens"] - length)
            real = [1] * given["prompt_length"]
            real += [int(i != settings["eos"]) for i in ids[given["prompt_length"] :]]
        else:
            real = [1] * len(ids)
        self.ids, self.real = torch.tensor(ids), torch.tensor(real)
        self.mask = self.real[1:][self.start :].bool()
        self.kept = not self.chat or int(self.mask.sum()) > 1

    @torch.no_grad()
    def judge(self, actor, reference, critic, reward):
        self.logp, self.entropy = log_probabilities(actor, self.ids, self.real)
        self.ref_logp, _ = log_probabilities(reference, self.ids, self.real)
        self.values = values_of(critic, self.ids, self.real)[:-1].clone()
        scores = values_of(reward, self.ids, self.real)
        answer = self.real[self.start + 1 :]
        if self.chat and (answer == 0).any():  # the value at the first pad - 1
            self.score = scores[self.start + int((answer == 0).nonzero()[0])]
        else:
            self.score = scores[-1]
        rewards = -KL * (self.logp - self.ref_logp)
        end = len(rewards)
        if self.chat:
            end = min(end, self.start + int(self.mask.sum()) + 1)
            rewards[end:] = 0
            self.values[end:] = 0
        rewards[end - 1] += self.score.clamp(-SCORE_CLIP, SCORE_CLIP)
        self.advantages = torch.zeros_like(rewards)
        later = 0.0
        for t in reversed(range(self.start, len(rewards))):
            following = self.values[t + 1] if t + 1 < len(rewards) else 0.0
            later = rewards[t] + GAMMA * following - self.values[t] + GAMMA * LAMBDA * later
            self.advantages[t] = later
        for name in ("logp", "ref_logp", "entropy", "values", "advantages"):
            setattr(self, name, getattr(self, name)[self.start :])
        self.returns = self.advantages + self.values

    def actor_loss(self, actor):
        logp = log_probabilities(actor, self.ids, self.real)[0][self.start :]
        ratio = (logp - self.logp).exp()
        plain = -self.advantages * ratio
        clipped = -self.advantages * ratio.clamp(1 - RATIO_CLIP, 1 + RATIO_CLIP)
        self.clipped = int((clipped > plain)[self.mask].sum())
        return torch.max(plain, clipped)[self.mask].sum()

    def critic_loss(self, critic):
        values = values_of(critic, self.ids, self.real)[:-1][self.start :]
        near = torch.clamp(values, self.values - VALUE_CLIP, self.values + VALUE_CLIP)
        plain, clipped = (values - self.returns) ** 2, (near - self.returns) ** 2
        self.value_clipped = int((clipped > plain)[self.mask].sum())
        return 0.5 * torch.max(plain, clipped)[self.mask].sum()


class Learner:
    def __init__(self, model, settings):
        self.model, self.lr, self.warmup = model, settings["lr"], settings["warmup"]
        decayed = {True: [], False: []}
        for name, p in model.named_parameters():
            decayed[p.dim() > 1 and not name.endswith("bias")].append(p)
        self.optimizer = torch.optim.AdamW(
            [
                dict(params=decayed[True], weight_decay=settings["weight_decay"]),
                dict(params=decayed[False], weight_decay=0.0),
            ],
            lr=self.lr,
            betas=(0.9, 0.95),
            eps=settings["eps"],
        )
        self.updates = 0

    def update(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        lr = self.lr * min(1.0, self.updates / max(1, self.warmup))
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.updates += 1
        return {"lr": lr, "grad_norm": norm.item(), "loss": loss.item()}


def over_the_batch(answers, terms, chat):
    """Strict: one mean over all tokens. DeepSpeed-Chat: mean over ranks of token means."""
    if not chat:
        return sum(terms) / sum(int(a.mask.sum()) for a in answers)
    ranks = sorted({a.rank for a in answers})
    means = []
    for rank in ranks:
        mine = [i for i, a in enumerate(answers) if a.rank == rank]
        means.append(sum(terms[i] for i in mine) / sum(int(answers[i].mask.sum()) for i in mine))
    return sum(means) / len(means)


def step(answers, actor, critic, reference, reward, settings):
    chat = settings["rules"] == "deepspeed-chat"
    for answer in answers:
        answer.judge(actor.model, reference, critic.model, reward)
    for _ in range(settings["ppo_epochs"]):
        actor_record = actor.update(
            over_the_batch(answers, [a.actor_loss(actor.model) for a in answers], chat)
        )
        critic_record = critic.update(
            over_the_batch(answers, [a.critic_loss(critic.model) for a in answers], chat)
        )
    if chat:
        by_rank = [[a.score for a in answers if a.rank == r] for r in {a.rank for a in answers}]
        score = torch.stack([torch.stack(scores).mean() for scores in by_rank]).mean()
    else:
        score = torch.stack([a.score for a in answers]).mean()

    def flat(name):
        return torch.cat([getattr(a, name)[a.mask] for a in answers])

    tokens = len(flat("logp"))
    returns, errors = flat("returns"), flat("returns") - flat("values")
    return {
        "reward": score.item(),
        "kl": (flat("logp") - flat("ref_logp")).mean().item(),
        "entropy": flat("entropy").mean().item(),
        "explained_variance": (1 - errors.var(correction=0) / returns.var(correction=0)).item(),
        "clip_fraction": sum(a.clipped for a in answers) / tokens,
        "value_clip_fraction": sum(a.value_clipped for a in answers) / tokens,
        "tokens": tokens,
        "actor_loss": actor_record["loss"],
        "actor_grad_norm": actor_record["grad_norm"],
        "actor_lr": actor_record["lr"],
        "critic_loss": critic_record["loss"],
        "critic_grad_norm": critic_record["grad_norm"],
        "critic_lr": critic_record["lr"],
    }


def save_weights(model, path):
    state = {name: p.detach().float().contiguous() for name, p in model.named_parameters()}
    save_file(state, path)


def replay(folder):
    with open(os.path.join(folder, "run.json")) as file:
        run = json.load(file)
    settings = run["settings"]
    heads = load_file(os.path.join(folder, "heads.safetensors"))
    actor = Learner(load_actor(run["model"]), settings)
    critic = Learner(load_critic(run["model"], heads["critic"]), settings)
    reference = load_actor(run["model"])
    reward = load_critic(run["model"], heads["reward"])
    records = []
    for given in run["steps"]:
        answers = [Answer(g, settings) for g in given]
        kept = [a for a in answers if a.kept]
        records.append(step(kept, actor, critic, reference, reward, settings))
    with open(os.path.join(folder, "reference.json"), "w") as file:
        json.dump(records, file)
    save_weights(actor.model, os.path.join(folder, "actor.safetensors"))
    save_weights(critic.model, os.path.join(folder, "critic.safetensors"))
    with torch.no_grad():
        logp = [
            log_probabilities(actor.model, torch.tensor(g["tokens"]), torch.ones(len(g["tokens"])))
            for g in run["steps"][0]
        ]
    logp = torch.cat([entry[0] for entry in logp]).float()
    save_file({"logp": logp}, os.path.join(folder, "logp.safetensors"))


def main(root):
    torch.set_num_threads(1)
    for name in sorted(os.listdir(root)):
        if os.path.isdir(os.path.join(root, name)):
            replay(os.path.join(root, name))


if __name__ == "__main__":
    main(sys.argv[1])
