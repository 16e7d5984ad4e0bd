"""GPG: plain policy gradient, no clip, no KL: centred rewards, larger where many groups taught nothing, tokens alike."""

from posttrain.advantages.gpg import gpg as rescaled
from posttrain.core.method import method
from posttrain.losses.aggregate import token_mean
from posttrain.methods.reinforce import reinforce

gpg = method(
    reinforce.but(
        name="gpg", title="GPG", paper="arXiv:2504.02546", doc=__doc__,
        advantage=rescaled, aggregate=token_mean,
    ),
    __file__,
)  # fmt: skip
