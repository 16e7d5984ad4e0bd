"""Robustness of one's own model: the least change of its input embeddings that changes the first token it answers."""

from __future__ import annotations

from statistics import fmean

from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Do, Plan, plan
from posttrain.evals.pgd_robustness import of_embeddings, random_change, reward_guided_pgd, robustness_margin
from posttrain.methods.asked import asked_task


@plan(paper="arXiv:2508.03365", title="Reward-guided PGD robustness")
def rl_pgd_robustness(problems: int = 8, most: float = 1.0) -> Plan:
    """Reward-guided PGD robustness: measures a model, trains nothing. Only the test of one's own model is here.

    delta <- P_eps(delta - step sign(grad CE(model(x + delta), best-scored of several different outputs)))
    Margins in units of the embeddings' root mean square, up to `most`: by guided search, and by random changes.
    """
    if problems < 1 or not most > 0:
        raise UserError(f"got problems={problems}, most={most}; it takes 1 problem and a change of more than 0")

    def measure(context: Context) -> None:
        policy, env = context.role("policy"), asked_task(context)
        if not hasattr(policy.model, "hidden"):
            raise UserError("this test reads a decoder's embeddings; use the embedded model or another native decoder")
        found: dict[str, list[float]] = {"guided": [], "random": []}
        for i in range(problems):
            x_SD, logits = of_embeddings(policy.model, policy.encode(env.prompt(i, "test")).to(policy.device))
            unit, label = float(x_SD.square().mean().sqrt()), int(logits(x_SD.unsqueeze(0)).argmax())
            for name, search in (("guided", reward_guided_pgd), ("random", random_change)):
                margin = robustness_margin(logits, [x_SD], [label], search, most * unit)["margin"]
                found[name].append(margin / unit)
        context.notes["robustness"] = {f"margin_{name}": fmean(xs) for name, xs in found.items()}

    options = {"problems": problems, "most": most}
    doc = rl_pgd_robustness.__doc__ or ""
    title = "Reward-guided PGD robustness"
    return Plan("rl-pgd-robustness", (Do("measure", measure),), title, "arXiv:2508.03365", doc, options)
