"""TreePO: answers grow as a tree that shares prefixes, and each is compared with the leaves under each of its ancestors."""

from posttrain.advantages.treepo import treepo as ancestors
from posttrain.core.method import method
from posttrain.methods.dapo import dapo
from posttrain.rollouts.tree import tree

treepo = method(
    dapo.but(name="treepo", title="TreePO", paper="arXiv:2508.17445", doc=__doc__, rollout=tree, advantage=ancestors),
    __file__,
)
